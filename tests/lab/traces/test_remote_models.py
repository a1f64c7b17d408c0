"""Recordings, load, sweeps and widgets on a connection to a server in another process."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pytest

import tritonnb as tnb
from tests.client.servers import ServerProcess
from tritonnb.model_config.read import read_config


@pytest.mark.slow
def test_load_sweep_and_theory_take_a_remote_model(remote: tnb.Remote) -> None:
    model = remote["one"]
    result = tnb.load(model, clients=4, requests=100).wait(60)
    assert (result.requests, result.failed, result.recording) == (100, 0, None)
    assert tnb.load(remote, "one", clients=1, requests=5).wait(60).failed == 0
    with remote.record("one") as recording:
        tnb.load(model, rate=100, arrivals="poisson", requests=100).wait(60)
    assert len(recording.requests) == 100
    assert tnb.theory(recording).throughput > 0
    sweep = tnb.sweep(model, max_queue_delay_microseconds=[0, 4000], rate=100, requests=200).wait(60)
    assert len(sweep.trials) == 2


def test_sweep_with_live_trials_restores_the_configuration(remote: tnb.Remote) -> None:
    model = remote["delay"]
    before = model.config.text
    sweep = tnb.sweep(model, max_queue_delay_microseconds=[0], clients=4, requests=60, live=True)
    result = sweep.wait(90)
    assert [trial.edits for trial in result.trials] == [{"max_queue_delay_microseconds": 0}]
    assert result.trials[0].mean_batch_size >= 1
    assert model.config.text == before


def test_best_configuration_of_a_sweep_is_applied_exported_and_put_back(remote: tnb.Remote, tmp_path: Path) -> None:
    model = remote["delay"]
    before, counted = model.config.text, model.stats()["inference_count"]
    model(X=[[1.0]])
    options: dict[str, Any] = {"clients": 32, "requests": 200, "service": tnb.linear(1, 4)}
    worse = tnb.sweep(model, max_queue_delay_microseconds=[50_000], **options).wait(60)
    assert worse.verdict().startswith("Keep the running configuration")
    assert worse.apply() == "unchanged"
    assert model.stats()["inference_count"] == counted + 1  # it was not loaded again
    better = tnb.sweep(model, count=[4], **options).wait(60)
    assert better.apply() == "reloaded"
    assert model.config.instance_group[0].count == 4
    directory = better.export(tmp_path)
    assert directory == tmp_path / "delay"
    written = read_config(directory / "config.pbtxt")
    assert (written.instance_group[0].count, written.backend, len(written.parameters)) == (4, "python", 1)
    assert model.config.restore() == "reloaded"
    assert model.config.text == before


def test_editor_applies_and_restores(remote: tnb.Remote) -> None:
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


def test_recording_restores_the_trace_settings(remote: tnb.Remote) -> None:
    before = remote.trace_settings(), remote.trace_settings("two")
    with remote.record(["one", "two"], rows=True) as recording:
        assert remote.trace_settings("two")["trace_level"] == ["TIMESTAMPS", "TENSORS"]
        for name in ("one", "two"):
            remote[name](X=[[1.0], [2.0]])
    assert (remote.trace_settings(), remote.trace_settings("two")) == before
    assert {request.model for request in recording.requests} == {"one", "two"}
    assert {request.size for request in recording.requests} == {2}
    with pytest.raises(ZeroDivisionError), remote.record("one"):
        raise ZeroDivisionError
    assert (remote.trace_settings(), remote.trace_settings("two")) == before


def leave_traced(remote: tnb.Remote, name: str, **settings: object) -> None:
    """Set trace settings of a model, as a recording whose process is killed leaves them."""
    remote.server.update_trace_settings({"trace_level": ["TIMESTAMPS"], "trace_rate": "1", **settings}, name)


EVERY = "model 'two' is traced: every request, with its time stamps, to"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"trace_count": "7"}, f"{EVERY} .*, until 7 more are traced; remote.restore\\('two'\\) undoes that"),
        ({"trace_level": ["TIMESTAMPS", "TENSORS"]}, "every request, with the contents of its tensors, .* without end"),
        ({"trace_rate": "9", "log_frequency": "1000"}, "model 'two' is traced: 1 of 9 requests"),
    ],
)
def test_tracing_that_was_left_on_is_found_and_cleared(
    remote_server: ServerProcess, remote: tnb.Remote, settings: dict[str, object], text: str
) -> None:
    assert remote.check() == []
    assert remote.restore() == []
    before = remote.trace_settings("two")
    leave_traced(remote, "two", **settings)
    with pytest.warns(UserWarning, match=text) as warned:
        other = tnb.connect(remote.url)
    with other:
        (found,) = other.check()
        for shown in (repr(other), html.unescape(other._repr_html_())):
            assert found in shown
        with pytest.warns(UserWarning, match=text) as warned_again, other.record("two"):
            pass
        about_traces = [warning for warning in (*warned, *warned_again) if "traced" in str(warning.message)]
        assert [warning.filename for warning in about_traces] == [__file__] * 2
        assert other.restore("one") == []
        leave_traced(remote, "two", **settings)
        assert other.restore() == ["model 'two': its trace settings are the server's"]
        assert other.check() == []
    assert remote.trace_settings("two") == before


def test_recording_clears_limited_tracing_and_restores_unlimited_settings(remote: tnb.Remote) -> None:
    own = {"trace_count": "-1", "trace_rate": "50", "log_frequency": "3"}
    for settings, is_restored in ((own, True), ({"trace_count": "50"}, False)):
        leave_traced(remote, "two", **settings)
        before = remote.trace_settings("two")
        with pytest.warns(UserWarning, match="model 'two' is traced"), remote.record("two"):
            assert remote.trace_settings("two") != before
        assert (remote.trace_settings("two") == before) == is_restored
        remote.restore()
        assert remote.check() == []


def test_recording_traces_a_limited_number_of_requests(remote: tnb.Remote) -> None:
    with remote.record("one", trace_count=3) as recording:
        assert remote.trace_settings("one")["trace_count"] == "3"
        for _ in range(5):
            remote["one"](X=[[1.0]])
        (found,) = remote.check()
    assert found.startswith("model 'one' has the trace settings of a recording that did not end; nothing is traced")
    assert remote.check() == []
    assert len(recording.requests) == 3
    assert recording.source is not None
    assert any("the recording ends after 3 of 5 requests" in note for note in recording.source.notes)
    with remote.record("one"):
        assert 0 < int(remote.trace_settings("one")["trace_count"]) <= 1_000_000
    with pytest.raises(tnb.TritonError, match="trace_count must be positive, got -1"), remote.record(trace_count=-1):
        raise AssertionError("the block must not run")


def test_tracing_of_all_models_is_found_and_left_on(remote: tnb.Remote) -> None:
    remote.server.update_trace_settings({"trace_level": ["TIMESTAMPS"], "trace_rate": "500"})
    assert remote.check()[0].startswith("every model is traced: 1 of 500 requests")
    assert remote.restore() == []
    assert remote.trace_settings()["trace_rate"] == "500"
    remote.server.update_trace_settings({"trace_level": None, "trace_rate": None})
    assert remote.check() == []


def test_watch_without_traces_shows_differences_of_the_statistics(remote: tnb.Remote) -> None:
    view = remote["one"].watch()
    remote["one"](X=[[1.0], [2.0]])
    view.refresh()
    assert "from differences of the statistics, without traces" in view.status.value
    assert "2×1" in view.table.value
    assert "2 rows of 1 request " in view.batch_sizes.value
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


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ("ones", "has no model 'ones'; did you mean 'one'"),
        (["one", "deley"], "has no model 'deley'; did you mean 'delay'"),
        (5, "models expected a string, a list of strings or None, got 5"),
        ([1], r"models expected a string, a list of strings or None, got \[1\]"),
    ],
)
def test_recording_of_unknown_models_names_similar_ones(remote: tnb.Remote, models: Any, message: str) -> None:
    with pytest.raises(tnb.TritonError, match=message):
        remote.record(models)
