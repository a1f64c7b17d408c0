"""The result of a sweep is applied, exported, given to perf_analyzer, and drawn."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from matplotlib.figure import Figure
from tritonclient.grpc import model_config_pb2 as pb

import tritonnb as tnb
from tests.lab.conftest import FLAT
from tritonnb.server.server import Server

EXAMPLES = Path(__file__).parents[3] / "model_repository"


def test_best_configuration_can_be_applied(server: Server) -> None:
    best = tnb.sweep(server["held"], max_queue_delay_microseconds=[0], max_batch_size=[16], clients=32, **FLAT)
    assert best.apply() == "reloaded"
    assert best.best.edits == {"max_queue_delay_microseconds": 0, "max_batch_size": 16}
    assert best.plot().axes[0].get_yticklabels()
    assert server["held"].config.max_batch_size == 16


def test_best_configuration_can_be_exported_and_served(tmp_path: Path) -> None:
    with Server(EXAMPLES, port=0, model_control_mode="explicit", load_models=["add_sub"]) as server:
        result = tnb.sweep(server["add_sub"], count=[2], max_queue_delay_microseconds=[300], clients=8, **FLAT).wait()
        for _ in range(2):  # again, as a cell is run again
            assert result.export(tmp_path / "out") == tmp_path / "out" / "add_sub"
        with pytest.raises(tnb.TritonError, match="expected another repository than the served one"):
            result.export(EXAMPLES)
        (tmp_path / "other" / "add_sub").mkdir(parents=True)
        (tmp_path / "other" / "add_sub" / "config.pbtxt").write_text("# by hand\n")
        result.export(tmp_path / "other")
    assert (tmp_path / "other" / "add_sub" / "config.pbtxt.bak").read_text() == "# by hand\n"
    text = (tmp_path / "out" / "add_sub" / "config.pbtxt").read_text()
    written = text_format.Parse(text, pb.ModelConfig())
    assert written.instance_group[0].count == 2
    assert written.dynamic_batching == pb.ModelDynamicBatching(max_queue_delay_microseconds=300)
    assert sorted(path.name for path in (tmp_path / "out" / "add_sub").iterdir()) == ["1", "config.pbtxt"]
    with Server(tmp_path / "out", port=0) as server:
        x = [[1, 2, 3, 4]]
        assert server["add_sub"](INPUT0=x, INPUT1=x)["OUTPUT0"].tolist() == [[2, 4, 6, 8]]


@pytest.mark.parametrize(
    ("traffic", "url", "options"),
    [
        ({"clients": 8, "rows": 2}, "localhost:8000", "-i http -b 2 --concurrency-range=8 --request-count=400"),
        (
            {"rate": 20, "arrivals": "constant"},
            "grpc://host:8001",
            "-i grpc -b 1 --request-rate-range=20 --request-distribution=constant --request-count=400",
        ),
        ({"arrivals": tnb.ClosedLoop(3, 9, rows=2)}, "localhost:8000", "-b 2 --concurrency-range=3 --request-count=9 "),
        ({"rate": 20, "shapes": {"X": [2]}}, "localhost:8000", "--request-distribution=poisson"),
        ({"rate": 20, "shapes": {"X": [2]}}, "localhost:8000", "--shape=X:2"),
    ],
)
def test_load_has_an_equivalent_perf_analyzer_command(
    server: Server, traffic: dict[str, Any], url: str, options: str
) -> None:
    command = tnb.sweep(server["held"], count=[1], **traffic, **FLAT).wait().perf_analyzer(url)
    assert command.startswith(f"perf_analyzer -m held -u {url.removeprefix('grpc://')} ")
    assert options in command


@pytest.mark.usefixtures("short_searches")
def test_command_for_perf_analyzer_has_the_found_rate(server: Server) -> None:
    result = tnb.sweep(server["held"], max_batch_size=[4], constraint="p99 < 100 ms", **FLAT).wait()
    assert f"--request-rate-range={result.best.rate:g} --request-distribution=poisson" in result.perf_analyzer()


def test_traffic_without_an_option_of_perf_analyzer_is_named(server: Server) -> None:
    result = tnb.sweep(server["held"], count=[1], arrivals=[(0, 1), (9, 2)], **FLAT).wait()
    with pytest.raises(tnb.TritonError, match="perf_analyzer expected clients=, or constant or poisson arrivals"):
        result.perf_analyzer()


def test_function_has_no_files_to_export(server: Server, tmp_path: Path) -> None:
    with pytest.raises(tnb.TritonError, match="'held': export expected a model with files"):
        tnb.sweep(server["held"], count=[1], clients=1, **FLAT).wait().export(tmp_path)


def test_sweep_has_a_figure_in_notebooks(server: Server) -> None:
    result = tnb.sweep(server["held"], max_batch_size=[1, 8], constraint="p99 < 30 ms", rate=200, **FLAT).wait()
    assert "✓" in repr(result)
    assert "✗" in result._repr_html_()
    assert list(result.to_pandas()["max_batch_size"]) == [8, 1]
    ax = Figure().add_subplot()
    assert result.plot(ax) is ax.figure
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["max_batch_size 8", "max_batch_size 1", "running configuration"]
    drawn = []
    thread = threading.Thread(target=lambda: drawn.append(result.plot()._repr_mimebundle_()))
    thread.start()
    thread.join()
    assert result.verdict() in drawn[0]["text/plain"]
