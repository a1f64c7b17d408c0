"""Streams: a request to a decoupled model ends with its last response, in every number and in every picture."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tritonnb as tnb
from tests.notebook.test_activity import execution
from tests.server.conftest import model_writer
from tritonnb.core.events import Event, ResponseSent
from tritonnb.core.packed_events import pack
from tritonnb.notebook.activity import INTERVAL_NS, Activity
from tritonnb.notebook.server_monitor import ServerMonitor
from tritonnb.notebook.view_session import recorded_history
from tritonnb.server.server import Server

#: It returns at once, and responds to each request three times in 30 ms.
STREAM = """
import threading, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.stream, args=(request,)).start()

    def stream(self, request):
        sender = request.get_response_sender()
        output = pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy())
        for _ in range(3):
            time.sleep(0.01)
            sender.send(pb_utils.InferenceResponse([output]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

times = st.integers(1, 3 * INTERVAL_NS)


@given(
    st.lists(st.tuples(times, times, st.lists(times, min_size=1, max_size=4)), max_size=8),
    st.randoms(use_true_random=False),
    st.integers(1, 3),
)
def test_stream_counts_where_its_last_response_was_sent(
    streams: list[tuple[int, int, list[int]]], order: object, parts: int
) -> None:
    happened: list[Event] = []
    latencies: dict[int, list[int]] = {}
    for serial, (start, length, pauses) in enumerate(streams):
        (executed,) = [execution(INTERVAL_NS + start, length, [(1, INTERVAL_NS, INTERVAL_NS, False)])]
        ((_, *request),) = executed.requests
        executed.requests = ((serial, *request),)  # type: ignore[assignment]
        ends = [INTERVAL_NS + start + sum(pauses[:place]) for place in range(1, len(pauses) + 1)]
        happened += [executed]
        happened += [
            ResponseSent(end, "m", 1, serial, place, "success", 0, place == len(ends) - 1)
            for place, end in enumerate(ends)
        ]
        latencies.setdefault(ends[-1] // INTERVAL_NS, []).append(ends[-1] - start)
    order.shuffle(happened)  # type: ignore[attr-defined]
    activity = Activity(0, lambda model: True)
    for part in range(parts):
        activity.fold(map(pack, happened[part::parts]))
    intervals = activity.last("m", 40, 40)
    assert {second: sorted(one.latencies_ns) for second, one in enumerate(intervals) if one.requests} == {
        second: sorted(found) for second, found in latencies.items()
    }
    assert sum(interval.opened for interval in intervals) == 0


@pytest.fixture
def streaming(tmp_path: Path) -> Server:
    return Server(model_writer(tmp_path)("stream", STREAM, "model_transaction_policy { decoupled: true }"), port=None)


def test_latency_of_a_stream_is_that_of_its_client(streaming: Server) -> None:
    with streaming as server:
        monitor, begin = ServerMonitor(server), time.monotonic()
        with server.record() as rec:
            responses = server["stream"].infer_all(X=np.ones((1, 1), np.float32))
            client_ms = 1e3 * (time.monotonic() - begin)
        while not sum(monitor.series("stream")["n"]):
            monitor.update()
        p50_ms = monitor.recent("stream")["p50_ms"]
        monitor.close()
    assert len(responses) == 3
    (request,) = rec.requests
    assert 30 <= request.latency_ns / 1e6 <= client_ms
    assert 30 <= p50_ms <= client_ms
    summary = rec.summary()
    assert summary["latency_p50_ms"] == request.latency_ns / 1e6
    assert summary["time_per_output_token_p50_ms"] >= 10
    blame = rec.blame()
    assert blame.latency_ns == request.latency_ns
    assert blame.parts["response"] >= 25e6
    history = recorded_history(rec)
    assert [(number, place) for number, place, _ in history["responses"]] == 3 * [(rec.batches[0].number, 0)]
    ends = [ticks for *_, ticks in history["responses"]]
    assert ends == sorted(ends)


def test_recording_of_a_version_without_final_flags_is_read(streaming: Server, tmp_path: Path) -> None:
    with streaming as server, server.record() as rec:
        server["stream"].infer_all(X=np.ones((1, 1), np.float32))
    rec.save(tmp_path / "new.jsonl")
    text = (tmp_path / "new.jsonl").read_text()
    assert '"final": true' in text
    (tmp_path / "old.jsonl").write_text(text.replace(', "final": true', "").replace(', "final": false', ""))
    old, new = (tnb.Recording.load(tmp_path / f"{name}.jsonl") for name in ("old", "new"))
    assert old.summary() == new.summary() == rec.summary()
