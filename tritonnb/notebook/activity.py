"""The activity of the models of a server in the last seconds: one fold, and one window, for every number that is shown.

A dashboard's tiles, list and charts and the headline of a live view read the same `ServerActivity`, so they agree.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import repeat, starmap
from textwrap import shorten
from weakref import WeakKeyDictionary

import numpy as np

from tritonnb.core.errors import TritonError
from tritonnb.core.events import BatchExecuted, CacheHit, EnsembleExecuted, RequestArrived, RequestRefused
from tritonnb.core.json_types import Json
from tritonnb.core.packed_events import Packed, requests_of, unpack
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.notebook.interval_counters import Counters, ModelIntervals, MonitorInterval
from tritonnb.notebook.view_encoding import EXEC_END, EXEC_START, INSTANCE, MODEL, TIME
from tritonnb.server.server import Server
from tritonnb.simulation.run import instance_count
from tritonnb.telemetry.quantiles import quantile
from tritonnb.telemetry.stream import EventHistory

#: Events that wait to be taken; of more, the oldest are lost. A thread takes them several times a second.
_MOST_EVENTS = 1_000_000
INTERVAL_NS = 1_000_000_000
#: Intervals that are kept, and those that the numbers are computed from.
KEPT, RECENT = 120, 5
#: How long after its end an interval counts as over: the events of an execution are emitted after it ended.
_LATE_NS = 100_000_000
_ARRIVED = RequestArrived.__name__
_EXECUTED = BatchExecuted.__name__
_KINDS = {_ARRIVED, _EXECUTED, *(event.__name__ for event in (EnsembleExecuted, CacheHit, RequestRefused))}
#: A queue grows if in the last seconds this many requests more have come than were answered, and this share of them.
_GROWTH, _GROWTH_SHARE = 20, 0.1
#: Characters of the reason why requests were refused.
_LONGEST_REASON = 100


class EventQueue:
    """Packed events, kept until they are taken.

    Attributes
    ----------
    append : callable
        The sink, called on the server's loop; it does nothing but append.

    Examples
    --------
    >>> events = EventQueue()
    >>> events.append(("RequestArrived", 0))
    >>> events.take_events(), events.take_events()
    ([('RequestArrived', 0)], [])
    """

    def __init__(self) -> None:
        self._events: deque[Packed] = deque(maxlen=_MOST_EVENTS)
        self.append = self._events.append

    def take_events(self) -> list[Packed]:
        """Return and forget the events so far; called on one other thread."""
        return list(starmap(self._events.popleft, repeat((), len(self._events))))


class Activity:
    """The intervals of all models, numbered from ``begin_ns``."""

    def __init__(self, begin_ns: int) -> None:
        self.begin_ns = begin_ns
        self._models: dict[str, ModelIntervals] = {}
        self._refusals: dict[str, deque[tuple[int, str]]] = {}  # interval and message

    def number_at(self, time_ns: int) -> int:
        """Return the number of the interval of a time."""
        return (time_ns - self.begin_ns) // INTERVAL_NS

    def for_model(self, model: str) -> ModelIntervals:
        """Return the intervals of a model; they are kept for `KEPT` seconds."""
        if model not in self._models:
            self._models[model] = ModelIntervals(self.begin_ns, INTERVAL_NS, KEPT, levels=1)
        return self._models[model]

    def fold(self, packed: Iterable[Packed]) -> None:
        """Count packed events of requests and executions since the begin; others are ignored."""
        counted: dict[str, Counters] = {}
        for event in packed:
            if event[0] not in _KINDS or event[TIME] < self.begin_ns:
                continue
            counters = counted.get(event[MODEL])
            if counters is None:
                counters = counted[event[MODEL]] = self.for_model(event[MODEL]).counters()
            if event[0] == _ARRIVED:
                counters.add_arrival(event[TIME])
            elif event[0] == _EXECUTED:
                requests = requests_of(event)
                rows = sum([request[1] for request in requests])  # without null requests
                counters.add_execution(event[INSTANCE], event[EXEC_START], event[EXEC_END], rows)
                counters.add_executed_requests(event[EXEC_START], event[EXEC_END], requests)
            else:
                self._count(unpack(event), counters)
        for model, counters in counted.items():
            self.for_model(model).add(counters)

    def _count(self, event: object, counters: Counters) -> None:
        if isinstance(event, RequestRefused):
            counters.add_refusal(event.time_ns)
            messages = self._refusals.setdefault(event.model, deque(maxlen=100))
            reason = event.message.partition("] ")[2] if event.message.startswith("[request id:") else event.message
            messages.append((self.number_at(event.time_ns), shorten(reason, _LONGEST_REASON) or "cancelled"))
        elif isinstance(event, EnsembleExecuted) and event.failed:
            counters.add_failure(event.time_ns)
        elif isinstance(event, CacheHit | EnsembleExecuted):
            if isinstance(event, CacheHit):
                counters.add_arrival(event.time_ns)  # it never waits
            counters.add_request(event.time_ns, event.time_ns - event.received_ns, 0, 0)

    def problem(self, model: str, end: int) -> str:
        """Return why requests of the last intervals were lost, or that their queue grows; empty if all is well."""
        intervals = self.for_model(model).last(end, RECENT)
        answered = sum(interval.requests for interval in intervals)
        failed = sum(interval.failed for interval in intervals)
        lost = failed + sum(interval.refused for interval in intervals)
        if lost:
            share = f"{100 * lost / (lost + answered):.0f} % of the requests"
            messages = Counter(text for number, text in self._refusals.get(model, ()) if number >= end - RECENT)
            if not messages:
                return f"{share} failed"
            return f"{share} {'failed or were' if failed else 'were'} refused: {messages.most_common(1)[0][0]}"
        growth = sum(interval.arrived for interval in intervals) - answered
        if growth >= _GROWTH and growth > _GROWTH_SHARE * answered:
            return f"the queue grows: {growth:,.0f} requests more have come than were answered"
        return ""


class ServerActivity:
    """The activity of a server since its oldest stored event; shared by all views that call `follow`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._events = EventQueue()
        self._lock = threading.Lock()  # views update it on their own threads
        self._users = 0
        remembered = list(server.call(self._attach))
        now_ns = time.monotonic_ns()
        times = (packed[TIME] for packed in remembered)
        begin_ns = max(next(times, now_ns), now_ns - KEPT * INTERVAL_NS)
        self._activity = Activity(begin_ns)
        self._activity.fold(remembered)
        #: Seconds since the epoch of the begin of the first interval.
        self.begin_s = time.time() - (now_ns - begin_ns) / 1e9
        self.end = self._first_open(now_ns)

    @classmethod
    def follow(cls, server: Server) -> ServerActivity:
        """Return the activity of a server; every call needs a `close`."""
        activity = _followed.get(server)
        if activity is None:
            activity = _followed[server] = cls(server)
        activity._users += 1
        return activity

    def close(self) -> None:
        """Stop following, unless another view does."""
        self._users -= 1
        if not self._users:
            _followed.pop(self._server, None)
            with suppress(TritonError, RuntimeError):  # the server was stopped
                self._server.call(self._server.engine.stream.detach, self._events.append)

    def _attach(self) -> EventHistory:
        stream = self._server.engine.stream
        stream.attach(self._events.append)
        return stream.recent.copy()

    def update(self) -> int:
        """Count the new events; return the number of the first interval that is not over."""
        with self._lock:
            self._activity.fold(self._events.take_events())
            self.end = self._first_open(time.monotonic_ns())
            return self.end

    def _first_open(self, now_ns: int) -> int:
        return max(0, self._activity.number_at(now_ns - _LATE_NS))

    def last(self, model: str, count: int) -> list[MonitorInterval]:
        """Return the last intervals of a model that are over."""
        with self._lock:
            return self._activity.for_model(model).last(self.end, count)

    def problem(self, model: str) -> str:
        """See `Activity.problem`."""
        with self._lock:
            return self._activity.problem(model, self.end)

    def recent(self, model: str, config: pb.ModelConfig) -> Json:
        """Return the numbers of a model over the last `RECENT` seconds: see `measures_of`."""
        return measures_of(self.last(model, RECENT), config)


_followed: WeakKeyDictionary[Server, ServerActivity] = WeakKeyDictionary()


def measures_of(intervals: list[MonitorInterval], config: pb.ModelConfig) -> Json:
    """Return `measures` of a model with this configuration; None where it has no such number.

    The steps of an ensemble are busy, not the ensemble. What is executed of an iterative sequence is a step, not a
    request.
    """
    numbers = measures(intervals, instance_count(config))
    if config.HasField("ensemble_scheduling"):
        numbers["busy"] = None
    if config.sequence_batching.iterative_sequence:
        numbers |= {"p50_ms": None, "p99_ms": None}
    return numbers


def measures(intervals: list[MonitorInterval], instances: int) -> Json:
    """Return what is shown of intervals.

    Rates of answered and lost requests (requests/s), p50 and p99 (ms, None without requests), busy share, and
    mean batch size.

    Examples
    --------
    >>> interval = MonitorInterval(requests=2, rows=6, batches=2, busy_ns=500_000_000, latencies_ns=[10**6, 3 * 10**6])
    >>> measures([interval], 1)
    {'rate': 2.0, 'errors': 0.0, 'n': 2, 'p50_ms': 2.0, 'p99_ms': 2.98, 'busy': 0.5, 'rows': 3.0}
    """
    seconds = len(intervals) * INTERVAL_NS / 1e9
    latencies_ms = np.sort(np.concatenate([interval.latencies_ns for interval in intervals])) / 1e6
    batches = sum(interval.batches for interval in intervals)
    busy_ns = sum(interval.busy_ns for interval in intervals)
    return {
        "rate": sum(interval.requests for interval in intervals) / seconds,
        "errors": sum(interval.failed + interval.refused for interval in intervals) / seconds,
        "n": len(latencies_ms),
        "p50_ms": quantile(latencies_ms, 0.5) if len(latencies_ms) else None,
        "p99_ms": quantile(latencies_ms, 0.99) if len(latencies_ms) else None,
        "busy": busy_ns / (seconds * 1e9 * max(1, instances)),
        "rows": sum(interval.rows for interval in intervals) / batches if batches else None,
    }
