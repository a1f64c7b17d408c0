"""The activity of the models of a server in the last seconds: one fold, and one window, for every number that is shown.

A dashboard's tiles, list and charts and the headline of a live view read the same `ServerActivity`, so they agree.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from textwrap import shorten
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from tritonnb.core.errors import TritonError
from tritonnb.core.events import (
    BatchExecuted,
    CacheHit,
    EnsembleExecuted,
    RequestArrived,
    RequestRefused,
    ResponseSent,
)
from tritonnb.core.forks import fork_safe
from tritonnb.core.json_types import Json
from tritonnb.core.packed_events import Packed, positions, requests_of, unpack
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.simulation.run import instance_count
from tritonnb.notebook.view_encoding import EXEC_END, EXEC_START, MODEL, TIME
from tritonnb.server.background import BackgroundServer
from tritonnb.telemetry.quantiles import quantile
from tritonnb.telemetry.stream import EventHistory

#: Events that wait to be taken; of more, the oldest are lost. A thread takes them several times a second.
_MOST_EVENTS = 1_000_000
INTERVAL_NS = 1_000_000_000
#: Intervals that are kept, and those that the numbers are computed from.
KEPT, RECENT = 120, 5
#: Intervals after the last that is over.
_OPEN = 1
#: How long after its end an interval counts as over: the events of an execution are emitted after it ended.
_LATE_NS = 100_000_000
_ARRIVED = RequestArrived.__name__
_EXECUTED = BatchExecuted.__name__
_RESPONSE, _RESPONSE_AT = ResponseSent.__name__, positions(ResponseSent)
_KINDS = {_ARRIVED, _EXECUTED, _RESPONSE, *(event.__name__ for event in (EnsembleExecuted, CacheHit, RequestRefused))}
#: Streams without a last response that are remembered; the model was perhaps unloaded before it.
_MOST_STREAMS = 100_000
#: A queue grows if in the last seconds this many requests more have come than were answered, and this share of them.
_GROWTH, _GROWTH_SHARE = 20, 0.1
#: Characters of the reason why requests were refused.
_LONGEST_REASON = 100

#: Times in ns, or indices.
Times: TypeAlias = npt.NDArray[np.int64]
_Intervals: TypeAlias = "defaultdict[int, MonitorInterval]"  # by number


def take_events(events: deque[Packed]) -> list[Packed]:
    """Return and remove the packed events that were appended so far, perhaps on another thread.

    Examples
    --------
    >>> events = deque([("RequestArrived", 0)])
    >>> take_events(events), take_events(events)
    ([('RequestArrived', 0)], [])
    """
    return [events.popleft() for _ in range(len(events))]


@dataclass(slots=True)
class MonitorInterval:
    """Counters of a model in one interval: requests count when they end, batches when they begin, busy time exactly.

    ``opened`` is the number of streams that were executed and had not sent their last response, less those that did.
    """

    arrived: int = 0
    failed: int = 0
    refused: int = 0
    requests: int = 0
    rows: int = 0
    batches: int = 0
    busy_ns: int = 0
    queue_ns: int = 0
    compute_ns: int = 0
    opened: int = 0
    latencies_ns: array[int] = field(default_factory=lambda: array("q"))


class _Streams:
    """The requests of a decoupled model, which end with their last response, before the end of the execution or after.

    Streams are matched by serial, because both events may be the first, and may be in different folds.
    """

    def __init__(self) -> None:
        self._executed: dict[int, tuple[Packed, int]] = {}  # with the begin of the execution
        self._ended_ns: dict[int, int] = {}

    def executed(self, requests: Iterable[Packed], start: Times) -> None:
        """Follow executed requests."""
        for request, start_ns in zip(requests, start.tolist(), strict=True):
            self._executed[request[0]] = request, start_ns

    def responded(self, responses: Iterable[Packed]) -> None:
        """Follow packed `ResponseSent` events."""
        for response in responses:
            if response[_RESPONSE_AT.final]:
                self._ended_ns[response[_RESPONSE_AT.serial]] = response[TIME]

    def take_ended(self) -> tuple[list[Packed], Times, Times]:
        """Return and forget the streams that are over, the begins of their executions, and their ends."""
        serials = [*(self._executed.keys() & self._ended_ns.keys())]
        ended = [(*self._executed.pop(serial), self._ended_ns.pop(serial)) for serial in serials]
        for known in (self._executed, self._ended_ns):
            while len(known) > _MOST_STREAMS:
                del known[next(iter(known))]
        requests, start, end = zip(*ended, strict=True) if ended else ((), (), ())
        return list(requests), np.array(start, np.int64), np.array(end, np.int64)


class Activity:
    """The intervals of all models, numbered from ``begin_ns``; the last `KEPT` of each that are over are kept.

    Parameters
    ----------
    begin_ns : int
    has_streams : callable, optional
        Returns whether a request of a model ends with its last response, and not with its execution.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> from tritonnb.core.packed_events import pack
    >>> rec = tnb.simulate("max_batch_size: 8", tnb.constant(10, 1), tnb.fixed(20))
    >>> activity = Activity(begin_ns=0)
    >>> activity.fold(map(pack, rec.events))
    >>> (interval,) = activity.last("simulated", end=1, count=1)
    >>> interval.requests, interval.busy_ns
    (10, 200000000)
    """

    def __init__(self, begin_ns: int, has_streams: Callable[[str], bool] = lambda model: False) -> None:
        self.begin_ns = begin_ns
        self._has_streams = has_streams
        self._streams: defaultdict[str, _Streams] = defaultdict(_Streams)
        self._models: defaultdict[str, _Intervals] = defaultdict(lambda: defaultdict(MonitorInterval))
        self._refusals: dict[str, deque[tuple[int, str]]] = {}  # interval and message

    def number_at(self, time_ns: int) -> int:
        """Return the number of the interval of a time."""
        return (time_ns - self.begin_ns) // INTERVAL_NS

    def last(self, model: str, end: int, count: int) -> list[MonitorInterval]:
        """Return copies of the ``count`` intervals of a model before number ``end``, the oldest first."""
        intervals: Mapping[int, MonitorInterval] = self._models.get(model, {})
        found = [intervals.get(number, MonitorInterval()) for number in range(end - count, end)]
        return [replace(interval, latencies_ns=interval.latencies_ns[:]) for interval in found]

    def fold(self, packed: Iterable[Packed]) -> None:
        """Count packed events of requests and executions since the begin; others are ignored."""
        events: defaultdict[tuple[str, str], list[Packed]] = defaultdict(list)
        for event in packed:
            if event[0] in _KINDS and event[TIME] >= self.begin_ns:
                events[event[MODEL], event[0]].append(event)
        for (model, kind), of_kind in events.items():
            intervals = self._models[model]
            if kind == _ARRIVED:
                for number, arrivals in self._by_interval(_column(of_kind, TIME)):
                    intervals[number].arrived += len(arrivals)
            elif kind == _EXECUTED:
                self._count_executions(of_kind, intervals, self._streams[model] if self._has_streams(model) else None)
            elif kind == _RESPONSE and self._has_streams(model):
                self._streams[model].responded(of_kind)
            elif kind == _RESPONSE:
                pass  # of the steps of an iterative sequence
            else:
                for event in of_kind:
                    self._count(unpack(event), intervals)
        for model in {model for model, _ in events}:
            intervals = self._models[model]
            if model in self._streams:
                ended = self._streams[model].take_ended()
                self._count_ends(*ended, intervals)
                for number, in_interval in self._by_interval(ended[-1]):
                    intervals[number].opened -= len(in_interval)
            newest = max(intervals, default=0)
            for number in [number for number in intervals if number < newest - KEPT - _OPEN]:
                del intervals[number]

    def _by_interval(self, times_ns: Times) -> Iterator[tuple[int, Times]]:
        """Yield the number of each interval, and the indices of the times in it."""
        numbers = np.maximum(times_ns - self.begin_ns, 0) // INTERVAL_NS
        order = np.argsort(numbers, kind="stable")
        found, first = np.unique(numbers[order], return_index=True)
        return zip(found.tolist(), np.split(order, first[1:]), strict=bool(found.size))

    def _count_executions(self, executed: list[Packed], intervals: _Intervals, streams: _Streams | None) -> None:
        start, end = _column(executed, EXEC_START), _column(executed, EXEC_END)
        for number, begun in self._by_interval(start):
            intervals[number].batches += len(begun)
        first, last = self.number_at(int(start.min())), self.number_at(int(end.max()) - 1)
        for number in range(max(0, first, last - KEPT - _OPEN), last + 1):
            bounds = self.begin_ns + INTERVAL_NS * np.array([number, number + 1])
            intervals[number].busy_ns += int((np.clip(end, *bounds) - np.clip(start, *bounds)).sum())
        members = [requests_of(event) for event in executed]
        counts = [len(requests) for requests in members]
        requests, start, end = list(chain(*members)), np.repeat(start, counts), np.repeat(end, counts)
        rows = _column(requests, 1)
        for number, begun in self._by_interval(start):
            intervals[number].rows += int(rows[begun].sum())  # without null requests
        if streams is None:
            self._count_ends(requests, start, end, intervals)
            return
        streams.executed(requests, start)
        for number, ended in self._by_interval(end):
            intervals[number].opened += len(ended)

    def _count_ends(self, requests: list[Packed], start: Times, end: Times, intervals: _Intervals) -> None:
        """Count requests (see `BatchExecuted`) where they ended; each has the begin of its execution, and its end."""
        received, queued = _column(requests, 2), _column(requests, 3)
        succeeded = np.array([not failure for *_, failure in requests], bool)
        for number, ended in self._by_interval(end):
            interval, good = intervals[number], ended[succeeded[ended]]
            interval.failed += len(ended) - len(good)
            interval.requests += len(good)
            interval.queue_ns += int((start[good] - queued[good]).sum())
            interval.compute_ns += int((end[good] - start[good]).sum())
            interval.latencies_ns.frombytes((end[good] - received[good]).tobytes())

    def _count(self, event: object, intervals: _Intervals) -> None:
        if isinstance(event, RequestRefused):
            number = self.number_at(event.time_ns)
            intervals[number].refused += 1
            messages = self._refusals.setdefault(event.model, deque(maxlen=100))
            reason = event.message.partition("] ")[2] if event.message.startswith("[request id:") else event.message
            messages.append((number, shorten(reason, _LONGEST_REASON) or "cancelled"))
        elif isinstance(event, EnsembleExecuted | CacheHit):
            interval = intervals[self.number_at(event.time_ns)]
            if isinstance(event, CacheHit):
                interval.arrived += 1  # it never waits
            elif event.failed:
                interval.failed += 1
                return
            interval.requests += 1
            interval.latencies_ns.append(event.time_ns - event.received_ns)

    def problem(self, model: str, end: int) -> str:
        """Return why requests of the last intervals were lost, or that their queue grows; empty if all is well."""
        intervals = self.last(model, end, RECENT)
        answered = sum(interval.requests for interval in intervals)
        failed = sum(interval.failed for interval in intervals)
        lost = failed + sum(interval.refused for interval in intervals)
        if lost:
            share = f"{100 * lost / (lost + answered):.0f} % of the requests"
            messages = Counter(text for number, text in self._refusals.get(model, ()) if number >= end - RECENT)
            if not messages:
                return f"{share} failed"
            return f"{share} {'failed or were' if failed else 'were'} refused: {messages.most_common(1)[0][0]}"
        growth = sum(interval.arrived - interval.opened for interval in intervals) - answered
        if growth >= _GROWTH and growth > _GROWTH_SHARE * answered:
            return f"the queue grows: {growth:,.0f} requests more have come than were answered"
        return ""


class ServerActivity:
    """The activity of a server since its oldest stored event; shared by all views that call `follow`."""

    def __init__(self, server: BackgroundServer) -> None:
        self._server = server
        self._events: deque[Packed] = deque(maxlen=_MOST_EVENTS)
        self._lock = fork_safe(threading.Lock())  # views update it on their own threads
        self._users = 0
        remembered = list(server.call(self._attach))
        now_ns = time.monotonic_ns()
        times = (packed[TIME] for packed in remembered)
        begin_ns = max(next(times, now_ns), now_ns - KEPT * INTERVAL_NS)
        self._activity = Activity(begin_ns, self._has_streams)
        self._activity.fold(remembered)
        #: Seconds since the epoch of the begin of the first interval.
        self.begin_s = time.time() - (now_ns - begin_ns) / 1e9
        self.end = self._first_open(now_ns)

    @classmethod
    def follow(cls, server: BackgroundServer) -> ServerActivity:
        """Return the activity of a server; every call needs a `close`."""
        with _following:
            activity = _followed.get(server)
            if activity is None:
                activity = _followed[server] = cls(server)
            activity._users += 1
            return activity

    def close(self) -> None:
        """Stop following, unless another view does."""
        with _following:
            self._users -= 1
            if self._users:
                return
            _followed.pop(self._server, None)
            with suppress(TritonError, RuntimeError):  # the server was stopped
                self._server.call(self._server.engine.stream.detach, self._events.append)

    def _has_streams(self, model: str) -> bool:
        with suppress(TritonError):  # the model was unloaded in the meantime
            config = self._server.engine.table.get(model).config  # one look-up, which any thread may do
            return config.model_transaction_policy.decoupled and not config.sequence_batching.iterative_sequence
        return False

    def _attach(self) -> EventHistory:
        stream = self._server.engine.stream
        stream.attach(self._events.append)
        return stream.recent.copy()

    def update(self) -> int:
        """Count the new events; return the number of the first interval that is not over."""
        with self._lock:
            self._activity.fold(take_events(self._events))
            self.end = self._first_open(time.monotonic_ns())
            return self.end

    def _first_open(self, now_ns: int) -> int:
        return max(0, self._activity.number_at(now_ns - _LATE_NS))

    def last(self, model: str, count: int) -> list[MonitorInterval]:
        """Return the last intervals of a model that are over."""
        with self._lock:
            return self._activity.last(model, self.end, count)

    def problem(self, model: str) -> str:
        """See `Activity.problem`."""
        with self._lock:
            return self._activity.problem(model, self.end)

    def recent(self, model: str, config: pb.ModelConfig) -> Json:
        """Return the numbers of a model over the last `RECENT` seconds: see `measures`."""
        return measures(self.last(model, RECENT), config)


def _column(packed: Sequence[Packed], position: int) -> Times:
    return np.array([event[position] for event in packed], np.int64)


#: Views are opened and closed on several threads.
_following = fork_safe(threading.Lock())
_followed: WeakKeyDictionary[BackgroundServer, ServerActivity] = WeakKeyDictionary()


def measures(intervals: list[MonitorInterval], config: pb.ModelConfig) -> Json:
    """Return what is shown of intervals of a model with this configuration.

    Rates of answered and lost requests (requests/s), p50 and p99 (ms), busy share, and mean batch size; None where
    there is no such number. The steps of an ensemble are busy, not the ensemble. What is executed of an iterative
    sequence is a step, not a request.

    Examples
    --------
    >>> latencies_ns = array("q", [1_000_000, 3_000_000])
    >>> interval = MonitorInterval(requests=2, rows=6, batches=2, busy_ns=500_000_000, latencies_ns=latencies_ns)
    >>> measures([interval], pb.ModelConfig())
    {'rate': 2.0, 'errors': 0.0, 'n': 2, 'p50_ms': 2.0, 'p99_ms': 2.98, 'busy': 0.5, 'rows': 3.0}
    """
    seconds = len(intervals) * INTERVAL_NS / 1e9
    latencies_ms = np.sort(np.concatenate([interval.latencies_ns for interval in intervals])) / 1e6
    has_latency = len(latencies_ms) > 0 and not config.sequence_batching.iterative_sequence
    batches = sum(interval.batches for interval in intervals)
    busy_s = sum(interval.busy_ns for interval in intervals) / 1e9
    is_ensemble = config.HasField("ensemble_scheduling")
    return {
        "rate": sum(interval.requests for interval in intervals) / seconds,
        "errors": sum(interval.failed + interval.refused for interval in intervals) / seconds,
        "n": len(latencies_ms),
        "p50_ms": quantile(latencies_ms, 0.5) if has_latency else None,
        "p99_ms": quantile(latencies_ms, 0.99) if has_latency else None,
        "busy": None if is_ensemble else busy_s / (seconds * max(1, instance_count(config))),
        "rows": sum(interval.rows for interval in intervals) / batches if batches else None,
    }
