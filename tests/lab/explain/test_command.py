"""``tritonnb explain``, ``Remote.verdict``, and the page of the playground: the same answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import tritonnb as tnb
from docs.playground.session import Session
from tests.lab.explain.test_public_questions import report
from tritonnb.cli.main import main

CONFIG = 'name: "m" max_batch_size: 1 instance_group { count: 1 kind: KIND_CPU }'
BUSY = report("Request concurrency: 4", 100, 40_000, (1000, 1000), "0 30000 0 10000 0")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "report.txt").write_text(BUSY)
    return [str(tmp_path / name) for name in ("config.pbtxt", "report.txt")]


def test_command_explains_files(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *files]) == 0
    text = capsys.readouterr().out
    assert "`report.txt`: output of perf_analyzer" in text
    assert "the instances are at their capacity" in text
    assert main(["explain", "--markdown", *files]) == 0
    assert "**What limits the rate**" in capsys.readouterr().out


def test_command_reports_files_that_it_cannot_read_and_explains_the_others(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *files, "absent.json"]) == 1
    text = capsys.readouterr().out
    assert "Not read: 'absent.json': cannot be read: No such file or directory" in text
    assert "the instances are at their capacity" in text
    assert main(["explain", "--seconds", "-1", *files]) == 1
    assert "seconds must be positive, got -1.0" in capsys.readouterr().err


def test_page_says_what_the_package_says(files: list[str]) -> None:
    sources = [{"name": Path(path).name, "text": Path(path).read_text()} for path in files]
    message = {"do": "explain", "sources": sources, "seconds": None}
    answer = json.loads(Session().answer(json.dumps(message)))["result"]
    directory = f"{Path(files[0]).parent.name}/"  # which browsers do not tell
    assert answer == {"markdown": tnb.explain(*files).markdown().replace(directory, ""), "refused": []}


def test_trace_that_cannot_be_read_is_refused_with_its_name() -> None:
    answer = tnb.explain('[{"id": 1, "model_name": "m"')
    assert len(answer.refused) == 1
    assert answer.refused[0].startswith("'source 1'")
    assert "tmp" not in str(answer)


@pytest.fixture
def remote() -> Any:
    with tnb.Server(port=0) as server, tnb.connect(server.url) as remote:

        @server.model(max_batch_size=4, dynamic_batching={})
        def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X * 2

        server.model(double, name="unused")
        yield remote


def test_verdict_compares_two_statistics_of_a_live_server(remote: tnb.Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritonnb.lab.explain.explain.effects", lambda figures, config: [])
    traffic = tnb.load(remote["double"], rate=100)
    answer = remote.verdict(seconds=0.3)
    of_model = remote["double"].verdict(seconds=0.2)
    traffic.stop()
    for one in (answer, of_model):
        assert list(one.causes) == ["double"]  # and not the model that nobody uses
        assert one.causes["double"] in ("load", "")
        assert "between both, about 0." in str(one)
        assert "Does batching work?" in str(one)


def test_verdict_without_traffic_says_so(remote: tnb.Remote) -> None:
    assert re.search(r"No request of any model ended in \S+ s: send some meanwhile", str(remote.verdict(seconds=0.01)))
    assert "No request of model 'double' ended" in str(remote["double"].verdict(seconds=0.01))


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "ten", None])
def test_verdict_refuses_a_time_that_is_none(remote: tnb.Remote, seconds: Any) -> None:
    with pytest.raises(tnb.TritonError, match=r"seconds expected a (positive )?number, got"):
        remote.verdict(seconds=seconds)
