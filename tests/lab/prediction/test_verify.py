"""Predictions are compared with what a server does, which then has its former configuration again."""

from __future__ import annotations

import html
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest

import tritonnb as tnb
from tests.lab.conftest import Gate
from tests.waiting import wait_for
from tritonnb.lab.load.trial import apply_config
from tritonnb.server.server import Server

FIGURES = ["latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "throughput", "mean_batch_size"]


@pytest.fixture
def sleeping(server: Server) -> tnb.Recording:
    """A recording of the model ``sleeps``: 4 ms and 1 ms per row, one instance."""

    @server.model(max_batch_size=8, dynamic_batching={})
    def sleeps(X: tnb.FP32[1]) -> tnb.FP32[1]:
        time.sleep(0.004 + 0.001 * len(X))
        return X

    recording = tnb.load(server["sleeps"], rate=100, arrivals="poisson", requests=150, seed=1).wait().recording
    assert recording is not None
    return recording


@pytest.mark.parametrize(
    ("edits", "rate"),
    [({}, None), ({"max_queue_delay_microseconds": 20_000}, None), ({"instance_count": 2}, 150)],
)
def test_prediction_is_verified_with_the_recorded_arrivals(
    server: Server, sleeping: tnb.Recording, edits: dict[str, Any], rate: float | None
) -> None:
    before = server["sleeps"].config.text
    twin = sleeping.twin()
    result = twin.verify(server["sleeps"], rate=rate, **edits)
    assert server["sleeps"].config.text == before
    assert list(result.measured) == FIGURES
    assert result.by_server
    sent = [arrival.time_us for arrival in twin.arrivals(rate)]
    assert result.recording is not None
    assert len(result.recording.arrivals()) == len(sent)
    requests = result.recording.requests
    elapsed_ns = max(one.exec_end_ns for one in requests) - min(one.received_ns for one in requests)
    assert result.measured["throughput"] == pytest.approx(len(sent) / elapsed_ns * 1e9)
    assert set(result.outside) == {name for name in FIGURES if f"{name} " in _lines_with("outside", repr(result))}
    for name, error in result.errors.items():
        assert getattr(result.prediction, name).value == pytest.approx(result.measured[name] * (1 + error))
    arrived = twin.predict(arrivals=result.recording.arrivals(), **edits)
    assert repr(result.arrived) == repr(arrived)
    errors = {name: getattr(arrived, name).value / value - 1 for name, value in result.measured.items()}
    name, error = max(errors.items(), key=lambda item: abs(item[1]))
    inside = sum(value in getattr(result.arrived, figure) for figure, value in result.measured.items())
    assert len(result.outside_arrived) == len(result.measured) - inside
    expected = f"as they reached the server: {inside} within the range, largest error {error:+.0%} ({name})."
    assert expected in result.verdict()
    if "max_queue_delay_microseconds" in edits:
        assert result.measured["mean_batch_size"] > sleeping.summary()["mean_batch_size"] + 0.5
    assert html.escape(result.verdict()) in result._repr_html_()
    assert len(result.plot().axes) == 1


def _lines_with(word: str, text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.endswith(word))


def test_model_at_a_url_is_measured_by_the_client(server: Server, sleeping: tnb.Recording) -> None:
    result = sleeping.twin().verify(f"{server.url}/v2/models/sleeps", arrivals=[(10_000 * n, 1) for n in range(20)])
    assert not result.by_server
    assert result.arrived is None
    assert result.verdict().endswith("Measured by the client, with the way to the server.")
    assert result.measured["mean_batch_size"] == result.trial.mean_batch_size


def _interrupted(finished: Future[Any], timeout: None, progress: Callable[[], str], stop: Callable[[], None]) -> None:
    stop()
    raise KeyboardInterrupt


def test_previous_configuration_is_restored_after_an_interrupt(
    server: Server, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = tnb.load(server["held"], rate=200, requests=50).wait().recording
    assert recording is not None
    before, applied = server["held"].config.text, []
    monkeypatch.setattr(
        "tritonnb.lab.prediction.verify.apply_config", lambda *args: applied.append(apply_config(*args))
    )
    monkeypatch.setattr("tritonnb.lab.prediction.verify.wait", _interrupted)
    with suppress(KeyboardInterrupt):  # not raised if a request has run by then
        recording.twin().verify(server["held"], max_queue_delay_microseconds=3000)
    assert applied == ["in place"]
    assert server["held"].config.text == before


def test_interrupted_verification_compares_the_requests_that_have_run(
    server: Server, sleeping: tnb.Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, progress = server["sleeps"], []
    before, executed = model.config.text, model.stats()["inference_count"]

    def interrupt(finished: Future[Any], _: None, said: Callable[[], str], stop: Callable[[], None]) -> None:
        progress.append(said())
        while model.stats()["inference_count"] < executed + 40 and not futures.wait([finished], 0.01).done:
            pass
        _interrupted(finished, None, said, stop)

    monkeypatch.setattr("tritonnb.lab.prediction.verify.wait", interrupt)
    result = sleeping.twin().verify(model, arrivals=[(10_000 * n, 1) for n in range(1200)])
    assert progress == ["verify: 1200 requests in 12 s, about 12 s left"]
    assert 20 < len(result.trial.latencies_ms) < 1000
    assert result.unsent == 1200 - len(result.trial.latencies_ms)
    assert f"Interrupted: {result.unsent} requests were predicted, but not sent." in repr(result)
    assert result.arrived is None
    assert model.config.text == before


def test_interrupted_verification_does_not_wait_for_a_model_that_hangs(
    server: Server, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = server["held"]
    recording = tnb.load(model, rate=200, requests=50).wait().recording
    assert recording is not None
    executed = model.stats()["inference_count"]

    def interrupt(finished: Future[Any], _: None, said: Callable[[], str], stop: Callable[[], None]) -> None:
        wait_for(lambda: model.stats()["inference_count"] > executed + 20)
        gate.close()
        gate.begun.clear()
        assert gate.begun.wait(30)  # a request that is not answered
        _interrupted(finished, None, said, stop)

    monkeypatch.setattr("tritonnb.lab.prediction.verify.wait", interrupt)
    monkeypatch.setattr("tritonnb.lab.load.trial._FINISH_S", 0.1)
    with pytest.raises(KeyboardInterrupt):
        recording.twin().verify(model, arrivals=[(5_000 * n, 1) for n in range(2000)])
    gate.open()


def test_previous_configuration_is_restored_after_an_error(server: Server) -> None:
    fail = False

    @server.model(max_batch_size=8, dynamic_batching={})
    def fragile(X: tnb.FP32[1]) -> tnb.FP32[1]:
        if fail:
            raise ValueError("broken")
        return X

    recording = tnb.load(server["fragile"], rate=200, requests=50).wait().recording
    assert recording is not None
    before, fail = server["fragile"].config.text, True
    with pytest.raises(tnb.TritonError, match="'fragile': verify expected requests that succeed, but all failed"):
        recording.twin().verify(server["fragile"], count=2)
    assert server["fragile"].config.text == before


def test_contradicting_arguments_are_refused(server: Server, sleeping: tnb.Recording) -> None:
    with pytest.raises(tnb.TritonError, match="predict expected a rate or arrivals, got both"):
        sleeping.twin().verify(server["sleeps"], rate=5, arrivals=[(0, 1)])
    with pytest.raises(tnb.TritonError, match="the configuration has no field 'colour'"):
        sleeping.twin().verify(server["sleeps"], colour=3)


def test_verdict_says_by_how_much_executions_took_longer(server: Server) -> None:
    seconds = [0.005]

    @server.model(max_batch_size=8, dynamic_batching={})
    def sleeps(X: tnb.FP32[1]) -> tnb.FP32[1]:
        time.sleep(seconds[0])
        return X

    recording = tnb.load(server["sleeps"], rate=50, arrivals="poisson", requests=60, seed=1).wait().recording
    assert recording is not None
    seconds[0] = 0.01
    result = recording.twin().verify(server["sleeps"])
    assert result.relative_duration == pytest.approx(2, abs=0.4)
    assert (
        f"Executions took {result.relative_duration - 1:.0%} more time than in the twin's recording."
        in result.verdict()
    )
