"""One window and one fold for the numbers of tiles, lists, charts and live views, with the requests that were lost."""

from __future__ import annotations

import contextlib
import threading
import urllib.error
import urllib.request
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

import tritonnb as tnb
from tritonnb.core.events import BatchExecuted, CacheHit, RequestRefused
from tritonnb.core.packed_events import pack
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.notebook.activity import INTERVAL_NS, KEPT, RECENT, Activity, MonitorInterval, ServerActivity, measures
from tritonnb.notebook.server_monitor import ServerMonitor
from tritonnb.server.server import Server

LIMITED = """name: "m" max_batch_size: 4
    dynamic_batching { default_queue_policy { max_queue_size: 4 } }"""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(port=0, grpc_port=0) as server:

        @server.model(max_batch_size=8)
        def fails(X: tnb.FP32[1]) -> tnb.FP32[1]:
            if np.min(X) < 0:
                raise ValueError("no luck")
            return X

        yield server


#: Executed requests: rows, time received and queued before the execution, and whether it failed.
Members = list[tuple[int, int, int, bool]]


def execution(start: int, length: int, members: Members) -> BatchExecuted:
    end = start + length
    requests = tuple(
        (serial, rows, start - received, start - queued, "OTHER" if failed else "")
        for serial, (rows, received, queued, failed) in enumerate(members)
    )
    return BatchExecuted(end, "m", 1, 0, "m_0", 9, start, start, end, end, requests)


def naive_count(happened: list[Any], second: int) -> MonitorInterval:
    begin, end = second * INTERVAL_NS, (second + 1) * INTERVAL_NS
    interval, latencies = MonitorInterval(), []
    for event in happened:
        if isinstance(event, BatchExecuted):
            start, stop = event.exec_start_ns, event.exec_end_ns
            interval.busy_ns += max(0, min(stop, end) - max(start, begin))
            if begin <= start < end:
                interval.batches += 1
                interval.rows += sum(rows for _, rows, *_ in event.requests)
        if not begin <= event.time_ns < end:
            continue
        interval.arrived += isinstance(event, CacheHit)
        interval.refused += isinstance(event, RequestRefused)
        if isinstance(event, CacheHit):
            latencies.append(event.time_ns - event.received_ns)
        for _, _, received, queued, failure in event.requests if isinstance(event, BatchExecuted) else ():
            if failure:
                interval.failed += 1
                continue
            latencies.append(event.exec_end_ns - received)
            interval.queue_ns += event.exec_start_ns - queued
            interval.compute_ns += event.exec_end_ns - event.exec_start_ns
    interval.requests, interval.latencies_ns = len(latencies), array("q", sorted(latencies))
    return interval


times, waits = st.integers(INTERVAL_NS, 6 * INTERVAL_NS), st.integers(0, INTERVAL_NS)
events = st.one_of(
    st.builds(
        execution,
        times,
        st.integers(1, 3 * INTERVAL_NS),
        st.lists(st.tuples(st.integers(1, 4), waits, waits, st.booleans()), max_size=3),
    ),
    st.builds(lambda time: RequestRefused(time, "m", 1, 0, 1, time, "full", "REJECTED"), times),
    st.builds(lambda time, wait: CacheHit(time, "m", 1, 0, time - wait, 1), times, waits),
)


@given(st.lists(events, max_size=20), st.integers(1, 3))
def test_counters_of_a_second_are_those_of_what_happened_in_it(happened: list[Any], parts: int) -> None:
    activity = Activity(0)
    for part in range(parts):
        activity.fold(map(pack, happened[part::parts]))
    for second, interval in enumerate(activity.last("m", 10, 10)):
        interval.latencies_ns = array("q", sorted(interval.latencies_ns))
        assert interval == naive_count(happened, second)


def test_old_intervals_are_discarded() -> None:
    activity = Activity(0)
    for second in range(KEPT + 10):
        activity.fold([pack(execution(second * INTERVAL_NS, 10, [(1, 0, 0, False)]))])
    assert [interval.requests for interval in activity.last("m", 5, 5)] == [0] * 5
    # The last interval that is over may be the one before the last two.
    assert [interval.requests for interval in activity.last("m", KEPT + 8, KEPT)] == [1] * KEPT


def test_refused_requests_are_counted_with_their_reason() -> None:
    rec = tnb.simulate(LIMITED, tnb.poisson(rate=160, duration=5, seed=1), tnb.fixed(50))
    begin, _ = rec.span_ns
    activity = Activity(begin)
    activity.fold(map(pack, rec.events))
    intervals = activity.last("m", RECENT, RECENT)
    numbers = measures(intervals, rec.configs["m"])
    end = begin + RECENT * INTERVAL_NS
    assert numbers["n"] == sum(request.exec_end_ns < end for request in rec.requests)
    lost = round(numbers["errors"] * RECENT)
    share = 100 * lost / (lost + numbers["n"])
    assert share > 30
    assert activity.problem("m", RECENT) == f"{share:.0f} % of the requests were refused: Exceeds maximum queue size"


def test_growing_queue_is_reported_before_requests_are_lost() -> None:
    config = 'name: "m" max_batch_size: 4 dynamic_batching { }'
    problems = {}
    for rate in (40, 200):
        rec = tnb.simulate(config, tnb.poisson(rate=rate, duration=5, seed=1), tnb.fixed(50))
        activity = Activity(rec.span_ns[0])
        activity.fold(map(pack, rec.events))
        problems[rate] = activity.problem("m", RECENT)
    assert problems[40] == ""
    assert problems[200].startswith("the queue grows: ")


def test_failed_requests_are_in_tiles_charts_and_list(server: Server) -> None:
    monitor = ServerMonitor(server)
    for value in (1.0, -1.0, -1.0, -1.0):
        with suppress(tnb.TritonError):
            server["fails"](X=[[value]])
    while not monitor.update() or monitor.recent("fails")["errors"] == 0:
        pass
    numbers = monitor.recent("fails")
    (errors,) = (tile for tile in monitor.tiles("fails") if tile["label"] == "errors")
    (model,) = monitor.models()
    assert (errors["value"], errors["level"], errors["note"]) == ("0.6", "error", "75 % of the requests failed")
    assert (model["errors"], model["problem"]) == (numbers["errors"], errors["note"])
    assert sum(monitor.series("fails")["errors"]) == 3
    monitor.close()


def post(path: str, body: bytes) -> Callable[[Server], None]:
    def send(server: Server) -> None:
        urllib.request.urlopen(f"{server.url}/{path}", body).close()

    return send


def call_over_grpc(server: Server) -> None:
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.infer("fails", [grpcclient.InferInput("Y", [1, 1], "FP32").set_data_from_numpy(np.ones((1, 1), "f"))])


#: Requests that are refused before they reach the scheduler.
INVALID: list[Callable[[Server], Any]] = [
    lambda server: server["fails"](X=[[1.0, 2.0]]),
    post("v2/models/fails/infer", b"{"),
    post("v2/models/fails/infer", b'{"inputs": [{"name": "Y", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}'),
    post("v2/models/fails/generate", b"{"),
    post("v1/completions", b'{"model": "fails", "max_tokens": 0}'),
    post("v1/chat/completions", b'{"model": "fails", "messages": [{"role": "user", "content": "a"}]}'),
    post("v1/embeddings", b'{"model": "fails"}'),
    call_over_grpc,
]


def test_requests_refused_before_the_queue_count_as_lost_in_every_view(server: Server) -> None:
    monitor, view = ServerMonitor(server), server["fails"].watch()
    with server.record() as rec:
        for call in INVALID:
            with pytest.raises((tnb.TritonError, urllib.error.HTTPError, InferenceServerException)):
                call(server)
        server["fails"](X=[[1.0]])
    while not sum(monitor.series("fails")["n"]):  # the last request
        monitor.update()
    (tile,) = (tile for tile in monitor.tiles("fails") if tile["label"] == "errors")
    assert rec.summary()["refused"] == len(rec.refused) == len(INVALID)
    assert sum(monitor.series("fails")["errors"]) == len(INVALID)
    assert (tile["value"], tile["level"]) == (f"{len(INVALID) / RECENT:.3g}", "error")
    share = 100 * len(INVALID) / (len(INVALID) + 1)
    assert tile["note"].startswith(f"{share:.0f} % of the requests were refused: ")
    assert len(tile["note"]) < 200
    assert monitor.models()[0]["problem"] == tile["note"]
    view.refresh_last_state()
    assert view.history["counts"]["requests"] == 1 + view.history["counts"]["refused"] == 1 + len(INVALID)
    assert view.history["depth"] == 0
    assert server["fails"].stats()["inference_stats"]["fail"]["count"] == 0  # as Triton
    view.close()
    monitor.close()


@pytest.mark.parametrize(
    "body", [b"[", b"[]", b"{}", b'{"model": ["fails"]}', b'{"model": "other"}'], ids=lambda body: body.decode()
)
def test_openai_requests_that_name_no_loaded_model_are_not_in_the_recording(server: Server, body: bytes) -> None:
    with server.record() as rec, pytest.raises(urllib.error.HTTPError):
        post("v1/completions", body)(server)
    assert rec.refused == []


def test_all_views_of_a_server_share_numbers_and_release_them(server: Server) -> None:
    server["fails"](X=[[1.0]])
    first, second = ServerActivity.follow(server), ServerActivity.follow(server)
    assert first is second
    assert first.end >= 0
    assert sinks(server) == 1
    first.close()
    assert sinks(server) == 1
    second.close()
    assert sinks(server) == 0


def test_activity_is_shared_by_views_of_several_threads(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A count that is read on one thread while it is changed on another would lose a view."""
    followed, both = [], threading.Barrier(2, timeout=1)
    begin = ServerActivity.__init__

    def slow_begin(activity: ServerActivity, of: Server) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):  # the other thread waits: it gets this activity
            both.wait()
        begin(activity, of)

    monkeypatch.setattr(ServerActivity, "__init__", slow_begin)
    threads = [threading.Thread(target=lambda: followed.append(ServerActivity.follow(server))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = followed
    assert first is second
    first.close()
    assert sinks(server) == 1
    second.close()
    assert sinks(server) == 0


def test_activity_begins_with_the_servers_recent_events(server: Server) -> None:
    for _ in range(3):
        server["fails"](X=[[1.0]])
    activity = ServerActivity.follow(server)
    while activity.update() < 1:
        pass
    assert sum(interval.requests for interval in activity.last("fails", activity.end)) == 3
    activity.close()


def sinks(server: Server) -> Any:
    return server.call(lambda: len(server.engine.stream._sinks))


def test_requests_with_reserved_forwarded_headers_are_in_the_recording() -> None:
    http, grpc = HttpOptions(header_forward_pattern="prior.*"), GrpcOptions(header_forward_pattern="prior.*")
    with Server(port=0, grpc_port=0, http=http, grpc=grpc) as server:

        @server.model
        def same(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X

        tensor = grpcclient.InferInput("X", [1], "FP32").set_data_from_numpy(np.ones(1, np.float32))
        body = b'{"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]}'
        request = urllib.request.Request(f"{server.url}/v2/models/same/infer", body, {"priority": "1"})
        with server.record() as recording:
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(request)
            with pytest.raises(InferenceServerException, match="reserved"):
                grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}").infer(
                    "same", [tensor], headers={"priority": "1"}
                )
    messages = [refused.message for refused in recording.refused]
    assert messages == ["Header 'priority' is reserved for Triton usage and cannot be forwarded."] * 2
