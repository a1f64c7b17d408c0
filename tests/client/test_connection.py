"""Connections to a server in another process: every method, on this project's server and on a real Triton."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritonnb as tnb
from tests.client.servers import ServerProcess
from tritonnb.client.connection import RemoteModelHandle
from tritonnb.client.remote_config import RemoteConfig
from tritonnb.lab.figures.picture import Picture
from tritonnb.model_config.read import config_json


def test_card_shows_version_extensions_and_models(remote: tnb.Remote) -> None:
    metadata = remote.metadata()
    assert {"statistics", "trace", "model_repository"} <= set(metadata["extensions"])
    card = remote._repr_html_()
    assert metadata["version"] in card
    assert remote.url in card
    for name in ("one", "delay", "two"):
        assert name in card
        assert f"{name} 1  READY" in repr(remote)
    assert sorted(remote) == ["delay", "one", "two"]
    assert remote.ready()


def test_model_runs_requests_over_the_network(remote: tnb.Remote) -> None:
    model = remote["one"]
    outputs = model(X=[[3.0], [4.0]])
    np.testing.assert_array_equal(outputs["Y"], np.array([[3.0], [4.0]], np.float32))
    assert outputs["Y"].flags.writeable
    assert model.infer({"X": [[1.0]]}, id="named", outputs=["Y"])["Y"].shape == (1, 1)
    with pytest.raises(tnb.TritonError, match="unexpected inference input 'Z' for model 'one'"):
        model(Z=[[1.0]])
    with pytest.raises(tnb.TritonError, match="batch-size must be <= 8"):
        model(X=[[1.0]] * 9)
    for inputs, got in (([[[1.0]]], "list"), ([[[1.0]], 0.5], "2 positional arguments")):
        with pytest.raises(
            tnb.TritonError, match=f"model 'one': expected a dict of inputs or the keywords X=, got {got}"
        ):
            model(*inputs)


def test_model_has_statistics_and_their_figures(remote: tnb.Remote) -> None:
    model = remote["one"]
    before = model.stats()
    model(X=[[3.0], [4.0]])
    after = model.stats()
    assert after["inference_count"] - before["inference_count"] == 2
    for figure, words in ((model.plot.batch_sizes, "1 batch of 2 rows"), (model.plot.parts, "A request takes")):
        picture = figure(since=before)
        assert isinstance(picture, Picture)
        assert words in picture.alt
    assert "one" in model._repr_html_()
    assert "rows in" in repr(model)


def interrupt_after_applying(config: RemoteConfig) -> None:
    with config:
        config.apply()
        raise KeyboardInterrupt


def test_configuration_is_applied_and_restored(remote: tnb.Remote) -> None:
    model = remote["delay"]
    before = model.config.text
    with model.config as config:
        assert config.apply() == "unchanged"
        config.dynamic_batching.max_queue_delay_microseconds = 9000
        assert "+  max_queue_delay_microseconds: 9000" in config.diff()
        assert config.apply() == "reloaded"
        assert model.config.dynamic_batching.max_queue_delay_microseconds == 9000
    assert model.config.text == before
    config = model.config
    config.dynamic_batching.max_queue_delay_microseconds = 8000
    with pytest.raises(KeyboardInterrupt):
        interrupt_after_applying(config)
    assert model.config.text == before
    config.max_batch_size = -3
    with pytest.raises(tnb.TritonError, match="max_batch_size"):
        config.apply()
    assert model.config.text == before


@pytest.mark.parametrize("text", ["max_batch_size: 8", 'name: "delay" backend: "python" max_batch_size: 8'])
def test_configuration_without_the_models_tensors_is_refused(remote: tnb.Remote, text: str) -> None:
    config = remote["delay"].config
    before = config.text
    config.text = text
    with pytest.raises(tnb.TritonError, match=r"'delay': expected a whole configuration, .* without input 'X', out"):
        config.apply()
    with remote["delay"].edit() as editor:
        editor.text = text
        editor.settle()
        assert "without input 'X', output 'Y'" in str(editor.report["problems"])
    assert remote["delay"].config.text == before
    with config:  # the name and the backend are those of the running model
        config.text = re.sub(r'(name: "delay"|backend: "python")\n', "", before.replace("size: 8", "size: 4"))
        assert config.apply() == "reloaded"
    assert remote["delay"].config.text == before


def test_closing_a_connection_restores_the_configuration(remote_server: ServerProcess) -> None:
    with tnb.connect(remote_server.http) as remote:
        before = remote["delay"].config.text
        config = remote["delay"].config
        config.dynamic_batching.max_queue_delay_microseconds = 9000
        config.apply()
    with tnb.connect(remote_server.http) as remote:
        assert remote["delay"].config.text == before
    with pytest.raises(tnb.TritonError, match="the connection has been closed"):
        remote["delay"].stats()


def change_delay(model: RemoteModelHandle, delay_us: int, *, keep: bool = False) -> None:
    """Apply another delay."""
    config = model.config
    config.dynamic_batching.max_queue_delay_microseconds = delay_us
    assert config.apply(keep=keep) == "reloaded"


def test_another_connection_finds_and_restores_an_applied_configuration(
    remote_server: ServerProcess, remote: tnb.Remote
) -> None:
    before = remote["delay"].config.text
    with tnb.connect(remote.url) as first:
        change_delay(first["delay"], 9000, keep=True)
        change_delay(first["delay"], 8000)  # restored to 9000 at the end of the block
    text = "model 'delay' runs a configuration that was applied over the network "
    text += "(dynamic_batching.max_queue_delay_microseconds: 2000 → 9000)"
    with pytest.warns(UserWarning, match=re.escape(text)):
        second = tnb.connect(remote.url)
    model = second["delay"]
    assert "configuration_before" not in model.config.text
    assert second.check() == [f"{text}; remote.restore('delay') undoes that"]
    with second.record("delay") as recording:
        pass
    assert recording.source is not None
    assert text in recording.source.notes
    assert second.restore() == ["model 'delay': its configuration is the one before"]
    assert (model.config.text, second.check(), second.restore()) == (before, [], [])
    second.close()
    assert remote["delay"].config.text == before


def test_configuration_handle_restores_configurations_of_any_connection(remote: tnb.Remote) -> None:
    before = remote["delay"].config.text
    assert remote["delay"].config.restore() == "unchanged"
    with tnb.connect(remote.url) as other:
        change_delay(other["delay"], 9000, keep=True)
    assert remote["delay"].config.restore() == "reloaded"
    assert remote["delay"].config.text == before


def test_configuration_applied_by_another_program_is_restored_from_the_repository(remote: tnb.Remote) -> None:
    model = remote["delay"]
    before = model.config.text
    other = model.config
    other.dynamic_batching.max_queue_delay_microseconds = 9000
    remote.server.load("delay", config_json(other.edited()))  # without this package, nobody keeps the one before
    assert model.config.restore() == "unchanged"
    assert model.config.dynamic_batching.max_queue_delay_microseconds == 9000
    assert model.config.restore(from_repository=True) == "reloaded"
    assert model.config.text == before


def test_preferred_sizes_that_the_server_derived_are_derived_again(remote: tnb.Remote) -> None:
    model = remote["delay"]
    before = model.config.text
    assert "preferred_batch_size: 8" in before
    with model.config as config:
        config.max_batch_size = 2
        assert config.apply() == "reloaded"
        assert list(model.config.dynamic_batching.preferred_batch_size) == [2]
    assert model.config.text == before


def test_connection_lists_ready_models(remote: tnb.Remote) -> None:
    assert list(remote) == remote.models == [row["name"] for row in remote.index() if row.get("state") == "READY"]
    assert len(remote) == len(remote.models)
    assert "delay" in remote


def test_closed_connection_refuses_every_call(remote_server: ServerProcess) -> None:
    remote = tnb.connect(remote_server.http)
    model, config = remote["one"], remote["one"].config
    remote.close()
    calls: list[Callable[[], object]] = [
        *(lambda: model(X=[[1.0]]), model.stats, model.metadata, model.running_config, lambda: model.config),
        *(model.watch, model.traffic, config.apply, config.restore, lambda: tnb.load(model, clients=1, requests=1)),
        *(remote.check, remote.restore, remote.record, remote.index, lambda: list(remote), lambda: remote["one"]),
        *(lambda: tnb.load(remote, "one", clients=1, requests=1), lambda: tnb.sweep(model, count=[2], clients=1)),
    ]
    for call in calls:
        with pytest.raises(tnb.TritonError, match="the connection has been closed"):
            call()


def test_unknown_model_is_named_with_the_known_ones(remote: tnb.Remote) -> None:
    with pytest.raises(tnb.TritonError, match=r"has no model 'ones'; did you mean 'one'.*'delay', 'one', 'two'"):
        remote["ones"]


@pytest.mark.parametrize("url", [26001, None, b"http://localhost:1", 1.5, ["localhost:8000"]])
def test_address_that_is_no_text_is_named(url: Any) -> None:
    with pytest.raises(tnb.TritonError) as refused:
        tnb.connect(url)
    assert str(refused.value).endswith(f", got {url!r}")


def test_metrics_are_read_from_a_separate_url(tmp_path: Path) -> None:
    with tnb.Server(port=0, metrics_port=0) as server:
        with tnb.connect(server.url, f"http://127.0.0.1:{server.metrics_port}/metrics") as remote:
            assert remote.metrics()["nv_cpu_memory_total_bytes"] > 0
        with tnb.connect(server.url) as remote, pytest.raises(tnb.TritonError, match="expected a metrics_url"):
            remote.metrics()
