"""Traffic on a live model: a handle that never blocks, and figures from the clients' side."""

from __future__ import annotations

import _thread
import asyncio
import sys
import threading
import traceback
from collections import Counter
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import tritonnb as tnb
from tests.lab.conftest import MODELS, Gate
from tritonnb.client.address import ModelAddress
from tritonnb.lab.load.http_target import HttpTarget
from tritonnb.lab.load.result import COLUMNS, COMPLETED, INTENDED, ROWS, SENT, LoadResult
from tritonnb.lab.load.running_load import Load
from tritonnb.lab.load.targets import PendingRequest
from tritonnb.server.server import Server

WAYS = ["process", "http", "grpc"]


@pytest.mark.parametrize("over", WAYS)
def test_open_loop_sends_all_requests_on_time(server: Server, over: str) -> None:
    times = [0, 2000, 2000, 5000]
    result = tnb.load(server["held"], arrivals=[(time_s, 2) for time_s in times], over=over).wait(60)
    assert sorted(np.diff(np.sort(result.responses[:, INTENDED])) / 1000) == sorted(np.diff(times))
    summary = result.summary()
    assert (summary["requests"], summary["rows"], summary["failed"]) == (4, 8, 0)
    assert result.recording is not None
    assert [arrival.rows for arrival in result.recording.arrivals()] == [2, 2, 2, 2]


def test_latency_counts_from_the_intended_time_without_responses(server: Server, gate: Gate) -> None:
    gate.close()
    load = tnb.load(server["held"], rate=1000, requests=20)
    gate.begun.wait(60)
    gate.open()
    result = load.wait(60)
    assert result.requests == 20
    assert (np.diff(np.sort(result.responses[:, INTENDED])) == 1_000_000).all()
    assert (result.latencies_ms > 0).all()


@pytest.mark.parametrize("over", WAYS)
def test_closed_loop_clients_wait_for_responses(server: Server, over: str) -> None:
    result = tnb.load(server["held"], clients=3, requests=60, over=over).wait(60)
    assert result.summary()["requests"] == 60
    assert result.recording is not None
    assert max(len(batch.requests) for batch in result.recording.batches) <= 3
    assert 0 < result.summary()["in_flight"] <= 3.001


def test_closed_loop_of_a_simulation_can_be_sent(server: Server) -> None:
    result = tnb.load(server["held"], arrivals=tnb.ClosedLoop(clients=2, requests=9, rows=3)).wait(60)
    assert (result.summary()["requests"], result.summary()["rows"]) == (9, 27)


@pytest.mark.parametrize("over", WAYS)
@pytest.mark.parametrize("traffic", [{"clients": 3}, {"rate": 2000}])
def test_sequences_are_whole_and_in_order(server: Server, traffic: dict[str, Any], over: str) -> None:
    result = tnb.load(server["accumulate"], requests=40, sequence_length=6, over=over, **traffic).wait(60)
    assert result.errors == {}
    assert result.recording is not None
    arrivals = result.recording.arrivals()
    by_id: dict[int | str, list[tnb.Arrival]] = {}
    for arrival in arrivals:
        by_id.setdefault(arrival.sequence_id, []).append(arrival)
    assert len(arrivals) >= 40
    for sent in by_id.values():
        assert [request.sequence_start for request in sent] == [True] + [False] * (len(sent) - 1)
        assert [request.sequence_end for request in sent] == [False] * (len(sent) - 1) + [True]


@pytest.mark.parametrize("over", WAYS)
@pytest.mark.parametrize("traffic", [{"clients": 2}, {"rate": 2000}, {"arrivals": tnb.ClosedLoop(2, 99)}])
def test_stateful_model_gets_sequences_of_ten_by_default(server: Server, traffic: dict[str, Any], over: str) -> None:
    result = tnb.load(server["accumulate"], requests=40, over=over, **traffic).wait(60)
    assert result.errors == {}
    assert result.recording is not None
    sent = result.recording.arrivals()
    assert max(Counter(request.sequence_id for request in sent).values()) == 10


ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: 1 }
output { name: "TOTAL" data_type: TYPE_INT32 dims: 1 }
ensemble_scheduling {
  step {
    model_name: "%s"
    model_version: %d
    input_map { key: "INPUT0" value: "INPUT0" }
    output_map { key: "TOTAL" value: "TOTAL" }
  }
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("over", WAYS)
@pytest.mark.parametrize("model", ["outer", "inner"])
def test_load_of_an_ensemble_with_a_stateful_step_sends_sequences(tmp_path: Path, model: str, over: str) -> None:
    for name, step in (("inner", ("accumulate", -1)), ("outer", ("inner", 1))):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(ENSEMBLE % step)
    with Server(
        [tmp_path, MODELS], port=0, grpc_port=0, model_control_mode="explicit", load_models=["outer"]
    ) as server:
        result = tnb.load(server[model], clients=2, requests=40, over=over).wait(60)
    assert result.errors == {}
    assert result.recording is not None
    assert max(Counter(arrival.sequence_id for arrival in result.recording.arrivals()).values()) == 10


def test_list_of_arrivals_for_a_stateful_model_names_its_sequences(server: Server) -> None:
    with pytest.raises(tnb.TritonError, match="expected a sequence_id, got none in the list"):
        tnb.load(server["accumulate"], arrivals=[(0, 1)])


def test_load_counts_while_it_runs_and_can_be_stopped(server: Server, gate: Gate) -> None:
    load = tnb.load(server["held"], clients=2)
    gate.begun.wait(60)
    assert not load.done
    assert "sent" in repr(load)
    assert "closed loop, 2 clients" in load._repr_html_()
    assert load.result.recording is None
    assert len(load.latest_responses(1)) <= 1
    load.stop()
    result = load.wait(60)
    assert load.done
    assert load.sent == load.completed == result.requests
    assert result.recording is None
    assert load.in_flight == 0
    assert repr(load) == repr(result)


def test_endless_load_keeps_its_newest_responses(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritonnb.lab.load.running_load._KEPT", 10)
    load = tnb.load(server["held"], clients=2)
    while load.completed < 50:
        server.call(int)
    load.stop()
    result = load.wait(60)
    assert 10 <= result.requests <= 20 < load.completed
    assert result.recording is None
    assert result.responses.tolist() == load.latest_responses(20).tolist()


def test_load_can_be_awaited(server: Server) -> None:
    async def ask() -> tnb.LoadResult:
        return await tnb.load(server["held"], rate=500, requests=5)

    assert asyncio.run(ask()).summary()["requests"] == 5


def test_cancelling_an_await_does_not_stop_the_load(server: Server, gate: Gate) -> None:
    gate.close()
    load = tnb.load(server["held"], rate=500, requests=5)

    async def give_up() -> None:
        async def wait() -> None:
            await load

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    gate.open()
    assert load.wait(60).summary()["requests"] == 5


@pytest.mark.slow
def test_interrupting_a_wait_stops_traffic_and_keeps_results(server: Server, gate: Gate) -> None:
    load = tnb.load(server["held"], rate=200)
    gate.begun.wait(60)
    waiting = threading.get_ident()

    def asleep() -> bool:
        frames = [frame.f_code for frame, _ in traceback.walk_stack(sys._current_frames()[waiting])]
        return frames[0] is threading.Condition.wait.__code__ and Load.wait.__code__ in frames

    interrupted = threading.Event()

    def interrupt_who_sleeps() -> None:
        # Python drops an interrupt that falls into a finalizer, which may run at any time: then once more.
        while not interrupted.is_set():
            if asleep():
                _thread.interrupt_main()  # wakes discard_response, as a signal does that came just before the sleep
                interrupted.wait(20)

    interrupter = threading.Thread(target=interrupt_who_sleeps)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        load.wait()
    interrupted.set()
    interrupter.join()
    assert load.wait(60).requests == load.sent > 0
    assert server["held"](X=[[1, 2]])


def test_wait_can_have_a_timeout(server: Server, gate: Gate) -> None:
    gate.close()
    load = tnb.load(server["held"], rate=500, requests=1)
    gate.begun.wait(60)
    with pytest.raises(TimeoutError, match=r"not finished after 0 s.*load of 'held', open loop.*1 sent.*1 in flight"):
        load.wait(0)
    gate.open()
    assert load.wait(60).requests == 1


@pytest.mark.parametrize("over", WAYS)
def test_refusals_are_counted_by_their_text(server: Server, over: str) -> None:
    result = tnb.load(server["held"], arrivals=[(0, 1), (10, 99), (20, 99)], over=over).wait(60)
    ((text, count),) = result.errors.items()
    assert "inference request batch-size must be <= 8 for 'held'" in text
    assert (count, result.failed, len(result.latencies_ms)) == (2, 2, 1)
    assert "2 failed" in result.verdict()
    assert "2 x " in repr(result)


def test_load_without_successful_requests_has_no_latency(server: Server) -> None:
    result = tnb.load(server["held"], arrivals=[(0, 99), (10, 99)]).wait(60)
    assert result.verdict().endswith(" s, all failed.")
    assert not any("nan" in shown or "latency" in shown for shown in (repr(result), result._repr_html_()))


def test_stopping_a_server_ends_its_loads(server: Server) -> None:
    loads = [tnb.load(server["held"], clients=2), tnb.load(server["held"], rate=100)]
    server.stop()
    for load in loads:
        load.wait(60)


@pytest.mark.parametrize("over", WAYS)
def test_client_timeout_cancels_the_request(server: Server, over: str) -> None:
    config = server["held"].config
    config.dynamic_batching.max_queue_delay_microseconds = 60_000_000
    config.apply()
    result = tnb.load(server["held"], arrivals=[tnb.Arrival(0, cancel_us=1000)], over=over).wait(60)
    assert result.failed == 1
    assert result.recording is not None
    if over == "process":  # over HTTP it may not even have left
        assert [rejected.counted_as for rejected in result.recording.refused] == ["CANCELED"]


def test_request_that_times_out_before_it_was_sent_is_answered(server: Server) -> None:
    model = ModelAddress.parse(f"{server.url}/v2/models/held")
    target = HttpTarget(model, model.config())
    busy, answers = threading.Event(), SimpleQueue[str]()
    inputs = {"X": np.ones((1, 2), np.float32)}
    pending = PendingRequest(tnb.Arrival(0), inputs, 0, 0, lambda pending, time_ns, error: answers.put(error))
    target._loop.loop.call_soon_threadsafe(busy.wait)
    target.send(pending)
    target.cancel(pending)
    busy.set()
    assert answers.get(timeout=60) == "cancelled by the client"
    target.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "traffic", [{"clients": 2, "duration": 0.05}, {"clients": 2, "requests": 9}, {"rate": 500, "requests": 9}]
)
@pytest.mark.parametrize("over", WAYS)
def test_unresponsive_server_does_not_block_the_load(
    server: Server, gate: Gate, over: str, traffic: dict[str, Any]
) -> None:
    gate.close()
    load = tnb.load(server["held"], over=over, grace=0.2, **traffic)
    result = load.wait(60)
    assert result.errors == {"no response within 0.2 s": load.sent}
    assert load.in_flight == 0
    assert load.done


def test_unanswered_sequences_are_abandoned(server: Server, gate: Gate) -> None:
    @server.model(max_batch_size=4, sequence_batching={})
    def waits(X: tnb.FP32[1]) -> tnb.FP32[1]:
        gate.enter()
        return X

    gate.close()
    for over in WAYS:
        result = tnb.load(server["waits"], rate=500, requests=12, over=over, grace=0.2).wait(60)
        assert result.failed == result.requests == result.sent


@pytest.mark.slow
def test_load_waits_for_a_slow_server_that_still_answers(server: Server) -> None:
    @server.model(max_batch_size=0)
    def slow(X: tnb.FP32[1]) -> tnb.FP32[1]:
        threading.Event().wait(0.1)
        return X

    result = tnb.load(server["slow"], rate=10_000, requests=25, grace=2).wait(60)
    assert result.duration_s > 2
    assert result.failed == 0


def test_no_thread_is_left_behind(server: Server) -> None:
    tnb.load(server["held"], clients=2, requests=5, over="http").wait(60)
    for thread in threading.enumerate():
        if thread.name.startswith("tritonnb-load"):
            thread.join(60)
            assert not thread.is_alive()


def test_sweep_result_has_data(server: Server) -> None:
    result = tnb.load(server["held"], clients=2, requests=10).wait(60)
    table = result.to_pandas()
    assert len(table) == 10
    assert (table["completed_ms"] >= table["sent_ms"]).all()
    summary = result.summary()
    assert summary["in_flight"] == pytest.approx(summary["rate"] * summary["latency_mean_ms"] / 1000)
    assert result.percentile(50) == summary["latency_p50_ms"] <= summary["latency_p99_ms"] <= summary["latency_max_ms"]
    assert 0 < summary["busy"] <= 1
    assert "<table" in result._repr_html_()


def test_result_has_a_figure_in_notebooks(server: Server) -> None:
    result = tnb.load(server["held"], arrivals=[(0, 1), (10, 99), (20, 1)]).wait(60)
    ax = Figure().add_subplot()
    assert result.plot(ax) is ax.figure
    labels = ax.get_legend_handles_labels()[1]
    assert {"since intended send time", "failed", f"p99 {result.percentile(99):.2f} ms, n = 2"} <= set(labels)
    shown = result.plot()._repr_mimebundle_()
    assert result.verdict() in shown["text/plain"]


def test_load_without_responses_has_a_note(server: Server, gate: Gate) -> None:
    gate.close()
    load = tnb.load(server["held"], rate=500, requests=1)
    assert "no request has completed" in load.result.verdict()
    assert "no request has completed" in repr(load.result)
    assert load.result.plot(Figure().add_subplot())
    gate.open()
    load.wait(60)


def test_unused_instance_was_not_busy(server: Server) -> None:
    @server.model(max_batch_size=8, instance_group=[{"count": 2}])
    def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X * 2

    result = tnb.load(server["double"], requests=1, clients=1).wait(60)
    assert result.summary()["busy"] == 0.5


@pytest.mark.parametrize(("grows", "says"), [(True, True), (False, False)])
def test_overload_is_detected_by_growing_latency(grows: bool, says: bool) -> None:
    intended = np.arange(40) * 10**8
    latencies = np.linspace(5e7, 4e9, 40) if grows else np.full(40, 7e7)
    responses = np.zeros((40, COLUMNS), np.int64)
    responses[:, INTENDED], responses[:, SENT] = intended, intended
    responses[:, COMPLETED], responses[:, ROWS] = intended + latencies, 1
    result = LoadResult("m, poisson", responses, [], 20.0, 40)
    assert ("overloaded" in result.verdict()) == says
