"""Connections to a server in another process: every method, on this project's server and on a real Triton."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritonnb as tnb
from tests.lab.traces.servers import ServerProcess
from tritonnb.client.connection import RemoteModelHandle
from tritonnb.client.remote_config import RemoteConfig
from tritonnb.lab.figures.picture import Picture
from tritonnb.model_config.read import config_json, read_config
from tritonnb.recording.trace_source import Agreement


@pytest.fixture(params=["http", "grpc"])
def remote(request: pytest.FixtureRequest, remote_server: ServerProcess) -> Iterator[tnb.Remote]:
    with tnb.connect(getattr(remote_server, request.param)) as connection:
        yield connection


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


def test_unknown_model_is_named_with_the_known_ones(remote: tnb.Remote) -> None:
    with pytest.raises(tnb.TritonError, match=r"has no model 'ones'; did you mean 'one'.*'delay', 'one', 'two'"):
        remote["ones"]


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ("ones", "has no model 'ones'; did you mean 'one'"),
        (["one", "deley"], "has no model 'deley'; did you mean 'delay'"),
        (5, "record expected names of models, got 5"),
        ([1], r"record expected names of models, got \[1\]"),
    ],
)
def test_recording_of_unknown_models_names_similar_ones(remote: tnb.Remote, models: Any, message: str) -> None:
    with pytest.raises(tnb.TritonError, match=message):
        remote.record(models)


@pytest.mark.parametrize("url", [26001, None, b"http://localhost:1", 1.5, ["localhost:8000"]])
def test_address_that_is_no_text_is_named(url: Any) -> None:
    with pytest.raises(tnb.TritonError) as refused:
        tnb.connect(url)
    assert str(refused.value).endswith(f", got {url!r}")


@pytest.mark.parametrize(
    ("identical", "batches", "percent"),
    [(790, 792, "99.7%"), (792, 792, "100%"), (99999, 100000, "99.9%"), (1, 9, "11.1%")],
)
def test_agreement_is_100_percent_only_if_all_batches_are_the_same(identical: int, batches: int, percent: str) -> None:
    assert f"({percent})" in str(Agreement(batches, identical))
