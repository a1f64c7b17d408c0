"""The stages of a request over one connection in microseconds, and the processor time of threads.

The server runs in this process and is loaded by ``wrk``. Over one connection the stages follow one another, so they add
up to the time from one request to the next; they are taken from the server's events.
"""

from __future__ import annotations

import gc
import re
import statistics
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.http import INLINE, ensemble_repository, inline, users_repository
from benchmarks.load import Requests, floats, wrk
from tritonnb.core.events import BatchExecuted, BatchSent, RequestArrived
from tritonnb.core.packed_events import Packed, positions
from tritonnb.server.server import Server

CONNECTIONS = (1, 8, 32)
DEFAULT = "tritonnb"
STAGES = (
    "response sent, client, next request read",
    "in the queue",
    "to the instance",
    "execution",
    "back to the event loop",
)
_INSTANCE = re.compile(r"tritonnb \w+_\d+_\d+")
THREAD_TIMES = tuple(f"{name}, {mode}" for name in ("event loop", "instances") for mode in ("user", "kernel"))


def stages(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """An identity model of 1x16 FP32 on its thread, on the event loop, in its own process, and an ensemble of two."""
    identity = users_repository(scratch)
    cases = {
        DEFAULT: (identity, "identity_fp32", False),
        INLINE: (inline(identity), "identity_fp32", False),
        "isolated": (identity, "identity_fp32", True),
        "ensemble of two": (ensemble_repository(scratch), "two_steps", False),
    }
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)  # as `tritonnb serve` does
    figures: dict[str, object] = {}
    for case, (repository, model, isolate) in cases.items():
        requests = Requests.binary(model, "INPUT0", floats(16), "OUTPUT0")
        measured: list[dict[str, Any]] = []
        for _ in range(rounds):
            with Server(repository, port=0, isolate=isolate) as server:
                wrk(server.url, requests, 8, 2, scratch)  # warm up
                measured.append(
                    {str(count): _measure(server, requests, count, seconds, scratch) for count in CONNECTIONS}
                )
        figures[case] = _medians(measured)
        print(f"{case}: {figures[case]}", flush=True)
    return figures


def _measure(server: Server, requests: Requests, count: int, seconds: int, scratch: Path) -> dict[str, float]:
    events: list[Packed] = []
    server.call(server.engine.stream.attach, events.append)
    before = _processor_s()
    rate = wrk(server.url, requests, count, seconds, scratch).rate
    spent = {name: after - before[name] for name, after in _processor_s().items()}
    server.call(server.engine.stream.detach, events.append)
    per_request = {name: seconds_spent / (rate * seconds) * 1e6 for name, seconds_spent in spent.items()}
    is_one_after_the_other = count == 1 and "two_steps" not in requests.paths[0]
    return {"rate": rate, **per_request, **(_stages(events) if is_one_after_the_other else {})}


def _stages(events: Iterable[Packed]) -> dict[str, float]:
    """Return the median of each stage, in microseconds."""
    arrived, sent, executed = (positions(kind) for kind in (RequestArrived, BatchSent, BatchExecuted))
    times: dict[str, list[int]] = {name: [] for name in STAGES}
    reported = arrival = start = 0
    for packed in events:
        if packed[0] == RequestArrived.__name__:
            arrival = packed[arrived.time_ns]
        elif packed[0] == BatchSent.__name__:
            start = packed[sent.time_ns]
        elif packed[0] == BatchExecuted.__name__:
            begun, ended, now = packed[executed.exec_start_ns], packed[executed.exec_end_ns], packed[executed.time_ns]
            if reported:
                spans = (arrival - reported, start - arrival, begun - start, ended - begun, now - ended)
                for name, span in zip(STAGES, spans, strict=True):
                    times[name].append(span)
            reported = now
    return {name: statistics.median(spans) / 1e3 for name, spans in times.items()}


def _processor_s() -> dict[str, float]:
    """Return the processor time of the server's threads in seconds, in user mode and in the kernel."""
    spent = dict.fromkeys(THREAD_TIMES, 0.0)
    times = {thread.id: thread for thread in psutil.Process().threads()}
    for thread in threading.enumerate():
        name = "event loop" if thread.name == "tritonnb" else "instances" if _INSTANCE.fullmatch(thread.name) else None
        if name is not None:
            spent[f"{name}, user"] += times[thread.native_id].user_time
            spent[f"{name}, kernel"] += times[thread.native_id].system_time
    return spent


def _medians(measured: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    return {
        count: {name: statistics.median(values[count][name] for values in measured) for name in measured[0][count]}
        for count in measured[0]
    }
