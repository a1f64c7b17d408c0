"""Connections to a server in another process: every method, on this project's server and on a real Triton."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tritonnb as tnb
from tests.remote.servers import ServerProcess
from tritonnb.figures.picture import Picture
from tritonnb.remote.config import RemoteConfig


@pytest.fixture(params=["http", "grpc"])
def remote(request: pytest.FixtureRequest, remote_server: ServerProcess) -> Iterator[tnb.Remote]:
    with tnb.connect(getattr(remote_server, request.param)) as connection:
        yield connection


def test_the_card_shows_version_extensions_and_models(remote: tnb.Remote) -> None:
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


def test_a_model_runs_requests_over_the_network(remote: tnb.Remote) -> None:
    model = remote["one"]
    outputs = model(X=[[3.0], [4.0]])
    np.testing.assert_array_equal(outputs["Y"], np.array([[3.0], [4.0]], np.float32))
    assert outputs["Y"].flags.writeable
    assert model.infer({"X": [[1.0]]}, id="named", outputs=["Y"])["Y"].shape == (1, 1)
    with pytest.raises(tnb.TritonError, match="unexpected inference input 'Z' for model 'one'"):
        model(Z=[[1.0]])
    with pytest.raises(tnb.TritonError, match="batch-size must be <= 8"):
        model(X=[[1.0]] * 9)


def test_a_model_has_statistics_and_their_figures(remote: tnb.Remote) -> None:
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


@pytest.mark.slow
def test_load_sweep_and_theory_take_a_remote_model(remote: tnb.Remote) -> None:
    model = remote["one"]
    result = tnb.load(model, clients=4, requests=100).wait(60)
    assert (result.requests, result.failed, result.recording) == (100, 0, None)
    assert tnb.load(remote, "one", clients=1, requests=5).wait(60).failed == 0
    with remote.record("one", rows=False) as recording:
        tnb.load(model, rate=100, arrivals="poisson", requests=100).wait(60)
    assert len(recording.requests) == 100
    assert tnb.theory(recording).throughput > 0
    sweep = tnb.sweep(model, max_queue_delay_microseconds=[0, 4000], rate=100, requests=200).wait(60)
    assert len(sweep.trials) == 2


def test_a_sweep_with_live_trials_restores_the_configuration(remote: tnb.Remote) -> None:
    model = remote["delay"]
    before = model.config.text
    sweep = tnb.sweep(model, max_queue_delay_microseconds=[0], clients=4, requests=60, live=True)
    result = sweep.wait(90)
    assert [trial.edits for trial in result.trials] == [{"max_queue_delay_microseconds": 0}]
    assert result.trials[0].mean_batch_size >= 1
    assert model.config.text == before


def interrupt_after_applying(config: RemoteConfig) -> None:
    with config:
        config.apply()
        raise KeyboardInterrupt


def test_a_configuration_is_applied_and_restored(remote: tnb.Remote) -> None:
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


def test_the_connection_restores_what_was_applied(remote_server: ServerProcess) -> None:
    with tnb.connect(remote_server.http) as remote:
        before = remote["delay"].config.text
        config = remote["delay"].config
        config.dynamic_batching.max_queue_delay_microseconds = 9000
        config.apply()
    with tnb.connect(remote_server.http) as remote:
        assert remote["delay"].config.text == before
    with pytest.raises(tnb.TritonError, match="the connection has been closed"):
        remote["delay"].stats()


def test_the_editor_applies_and_restores(remote: tnb.Remote) -> None:
    model = remote["delay"]
    before = model.config.text
    editor = model.edit()
    assert model.edit() is editor
    editor.set_field("dynamic_batching.max_queue_delay_microseconds", 7000)
    editor.settle()
    assert "7000" in str(editor.report["diff"])
    assert editor.apply() == "reloaded"
    assert model.config.dynamic_batching.max_queue_delay_microseconds == 7000
    editor.close()
    assert model.config.text == before


def test_a_recording_restores_the_trace_settings(remote: tnb.Remote) -> None:
    before = remote.trace_settings(), remote.trace_settings("two")
    with remote.record(["one", "two"]) as recording:
        assert remote.trace_settings("two")["trace_level"] == ["TIMESTAMPS", "TENSORS"]
        for name in ("one", "two"):
            remote[name](X=[[1.0], [2.0]])
    assert (remote.trace_settings(), remote.trace_settings("two")) == before
    assert {request.model for request in recording.requests} == {"one", "two"}
    assert {request.size for request in recording.requests} == {2}
    with pytest.raises(ZeroDivisionError), remote.record("one"):
        raise ZeroDivisionError
    assert (remote.trace_settings(), remote.trace_settings("two")) == before


def test_watch_without_traces_shows_differences_of_the_statistics(remote: tnb.Remote) -> None:
    view = remote["one"].watch()
    remote["one"](X=[[1.0], [2.0]])
    view.refresh()
    assert "from differences of the statistics, without traces" in view.status.value
    assert "2×1" in view.table.value
    assert "2 rows of 1 requests" in view.batch_sizes.value
    view.close()


def test_traffic_reaches_a_remote_model(remote: tnb.Remote) -> None:
    panel = remote["one"].traffic()
    before = remote["one"].stats()["inference_count"]
    panel.sending = True
    while panel.load.completed < 3:
        assert not panel.load.failed
    panel.sending = False
    panel.close()
    assert remote["one"].stats()["inference_count"] > before


def test_an_unknown_model_is_named_with_the_known_ones(remote: tnb.Remote) -> None:
    with pytest.raises(tnb.TritonError, match=r"has no model 'ones'; did you mean 'one'.*'delay', 'one', 'two'"):
        remote["ones"]
