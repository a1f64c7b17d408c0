"""What a live view draws, folded from events: small enough to send ten times a second.

Counts are exact. What is drawn may be a part of it: where more batches than `MOST_BATCHES` come in each delivery, or
more requests than `MOST_MEMBERS`, every k-th is sent, and the view says so; `BURST` times as many may come at once.
At full load there are tens of thousands of events a second, and the server waits for whoever holds the interpreter:
so events come packed, of a batch that is not drawn little more is looked at than its size, and only who is drawn
gets a line to wait on. Batches are told in columns, and times as whole `TICKS` of a millisecond from the feed's
beginning: both are written and read faster.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.core.events import (
    BatchExecuted,
    BatchSent,
    CacheHit,
    EnsembleExecuted,
    Packed,
    RequestArrived,
    RequestRefused,
    failures_of,
    members_of,
    unpack,
)
from tritonnb.notebook.described import describe_config
from tritonnb.notebook.waiting_lines import Wait, WaitingLines
from tritonnb.recording.batches import batches_of
from tritonnb.recording.instances import instances_of, natural
from tritonnb.recording.sequences import SlotHistory, Stay
from tritonnb.scheduling.decisions import Reason
from tritonnb.scheduling.reasons import explain

#: Requests drawn of one delivery, and batches. Jupyter passes on 1 MB a second; ten of the largest are 0.1 MB.
MOST_MEMBERS, MOST_BATCHES, BURST = 80, 20, 5
#: Waiting requests drawn at once, and moments of the queue's depth in one delivery.
_MOST_PENDING, _MOST_DEPTHS = 100, 50
#: Where packed events have these fields.
_TIME, _MODEL = 1, 2
_SERIAL, _SIZE, _PRIORITY, _ID, _SEQUENCE, _FLAGS = 4, 5, 6, 8, 9, 10  # of a RequestArrived
_BATCH, _INSTANCE, _BATCH_SIZE = 4, 5, 6  # of a BatchSent; the batch of a BatchExecuted, too
_EXEC_START, _COMPUTE_START, _COMPUTE_END, _EXEC_END = 7, 8, 9, 10  # of a BatchExecuted
#: Times are told in these parts of a millisecond.
TICKS = 10_000
_TICK_NS = 1_000_000 // TICKS

Json = dict[str, Any]
#: A request's serial, and its packed arrival if that was seen; None for a null request.
_Member = tuple[int, Packed | None] | None


@dataclass(slots=True)
class _Counts:
    """What there was in all, drawn or not."""

    requests: int = 0
    refused: int = 0
    cached: int = 0
    batches: int = 0
    nulls: int = 0
    sizes: Counter[int] = field(default_factory=Counter)

    @property
    def total(self) -> tuple[int, int]:
        """Requests and batches."""
        return self.requests, self.batches


@dataclass(slots=True)
class _Batch:
    """A batch that may be drawn: its packed events, and what views were told of it."""

    sent: Packed
    members: list[_Member]
    oldest_ns: int | None
    executed: Packed | None = None
    told: Json | None = None
    drawn: tuple[int, int] = (1, 1)  # one of how many batches, one of how many members


class Feed:
    """Folds the events of one model into what a view draws.

    Parameters
    ----------
    model : str
    config : ModelConfig
    begin_ns : int
        Where the view's time begins.
    depth : int, optional
        Requests that wait already.
    keep : int, optional
        Batches that `history` gives.
    sample : bool, optional
        Whether more may come than can be drawn.
    """

    def __init__(
        self, model: str, config: pb.ModelConfig, begin_ns: int, *, depth: int = 0, keep: int = 400, sample: bool = True
    ) -> None:
        self.model = model
        self.config = config
        self.meta = describe_config(model, config)
        self.counts = _Counts()
        self._begin_ns = begin_ns
        self._depth = self._from_before = depth
        self._sample = sample
        self._stateful = config.HasField("sequence_batching")
        self._waiting: dict[int, Packed] = {}  # arrivals by serial
        self._running: dict[int, _Batch] = {}  # by number
        self._sent: list[_Batch] = []
        self._done: list[_Batch] = []  # of which views know already
        self._refusals: list[tuple[Any, Packed | None]] = []
        self._steps: list[tuple[int, int]] = []
        self._stepped_ns = begin_ns
        self._every = 1  # of the batches one is drawn, and those that are larger than the others of a delivery
        self._largest = 1
        self._members_left, self._batches_left = BURST * MOST_MEMBERS, BURST * MOST_BATCHES
        self._counted = 0, 0  # requests and batches at the last delivery
        self._lines = WaitingLines()
        self._stays = SlotHistory({model: config})
        self._told: dict[tuple[str, int, int], list[Any]] = {}
        self._instances: list[str] = instances_of(model, config)
        self._kept: deque[Json] = deque(maxlen=keep)
        self._pending: list[list[Any]] = []
        self._refused: deque[list[Any]] = deque(maxlen=keep)
        self._depths: deque[list[int]] = deque(maxlen=4 * keep)

    def reconfigured(self, config: pb.ModelConfig) -> bool:
        """From now on the model has this configuration; whether it is another one."""
        if config == self.config:
            return False
        self.config, self.meta = config, describe_config(self.model, config)
        self._stays.follow({self.model: config})
        return True

    # --- events in ----------------------------------------------------------------------------

    def take(self, events: Iterable[Packed]) -> None:
        """Fold events of the model, in order."""
        for packed in events:
            if (fold := _FOLDS.get(packed[0])) is not None:
                fold(self, packed)

    def _request_arrived(self, packed: Packed) -> None:
        self.counts.requests += 1
        self._waiting[packed[_SERIAL]] = packed
        self._step(packed[_TIME], 1)

    def _request_refused(self, packed: Packed) -> None:
        event: Any = unpack(packed)
        self.counts.refused += 1
        arrived = self._waiting.pop(event.serial, None)
        if arrived is not None or self._from_before:
            self._from_before -= arrived is None
            self._step(event.time_ns, -1)
        self._refusals.append((event, arrived))

    def _batch_sent(self, packed: Packed) -> None:
        counts, members = self.counts, members_of(packed)
        size = packed[_BATCH_SIZE]
        counts.batches += 1
        counts.sizes[size] += 1
        if packed[_INSTANCE] not in self._instances:
            self._instances.append(packed[_INSTANCE])
        left = self._waiting.pop
        arrivals = [left(each, None) for each in members]  # type: ignore[arg-type]
        gone = len(arrivals) - arrivals.count(None)
        if gone < len(arrivals):
            nulls = members.count(None)
            counts.nulls += nulls
            before = min(self._from_before, len(arrivals) - nulls - gone)
            self._from_before -= before
            gone += before
        self._step(packed[_TIME], -gone)
        if self._stateful or counts.batches % self._every == 0 or size > self._largest:
            self._largest = max(size, self._largest)
            drawn: list[_Member] = [
                None if serial is None else (serial, arrived) for serial, arrived in zip(members, arrivals, strict=True)
            ]
            oldest_ns = min((each[_TIME] for each in arrivals if each is not None), default=None)
            batch = self._running[packed[_BATCH]] = _Batch(packed, drawn, oldest_ns)
            self._sent.append(batch)

    def _batch_executed(self, packed: Packed) -> None:
        batch = self._running.pop(packed[_BATCH], None)
        if batch is None:
            return
        batch.executed = packed
        if batch.told is not None:
            self._done.append(batch)
        if self._stateful:
            arrived = [each[1] for each in batch.members if each is not None and each[1] is not None]
            for ran, requests in batches_of(list(map(unpack, [*arrived, batch.sent, packed]))):
                self._stays.ran(ran, requests)

    def _cache_hit(self, packed: Packed) -> None:
        self.counts.requests += 1
        self.counts.cached += 1

    def _ensemble_executed(self, packed: Packed) -> None:
        self.counts.requests += 1

    # --- pictures out -------------------------------------------------------------------------

    def flush(self, now_ns: int) -> Json:
        """What is new since the last time."""
        chosen, done = self._chosen(), self._done
        refused, pending = self._refusals[-_MOST_PENDING:], list(islice(self._waiting.values(), _MOST_PENDING))
        lines = self._lines.place(_waits(chosen, refused, pending))
        batches = [self._batch(each, lines) for each in chosen]
        self._kept.extend(batches)
        finished = [{"n": each.sent[_BATCH], **self._ran(each)} for each in done]
        for each, ran in zip(done, finished, strict=True):
            each.told |= ran  # type: ignore[operator]
        self._pending = [self._request(each, lines[each[_SERIAL]]) for each in pending]
        told = [self._refusal(*each, lines) for each in refused]
        self._refused.extend(told)
        self._sent, self._done, self._refusals = [], [], []
        self._counted = self.counts.total
        return {
            **self._state(now_ns),
            "batches": _columns(batches),
            "done": _columns(finished),
            "refused": told,
            "depths": self._new_depths(),
            "stays": self._new_stays(now_ns) if self._stateful else [],
        }

    def history(self, now_ns: int) -> Json:
        """Everything that is kept, for a view that opens now."""
        return {
            **self._state(now_ns),
            "meta": self.meta,
            "batches": _columns(self._kept),
            "done": {},
            "refused": list(self._refused),
            "depths": list(self._depths),
            "stays": list(self._told.values()),
        }

    @property
    def quiet(self) -> bool:
        """Whether nothing is new and nothing waits or runs."""
        new = self._sent or self._done or self._refusals or self._steps or self.counts.total != self._counted
        return not (new or self._waiting or self._running)

    def _state(self, now_ns: int) -> Json:
        counts = self.counts
        return {
            "now": self._at(now_ns),
            "instances": sorted(self._instances, key=natural),
            "pending": self._pending,
            "depth": self._depth,
            "counts": {
                "requests": counts.requests,
                "refused": counts.refused,
                "cached": counts.cached,
                "batches": counts.batches,
                "rows": sum(size * count for size, count in counts.sizes.items()),
                "nulls": counts.nulls,
                "sizes": sorted(counts.sizes.items()),
            },
        }

    def _chosen(self) -> list[_Batch]:
        """The batches to draw, and of each as many members as there is room for."""
        if not self._sample:
            return self._sent
        every = max(1, -(-len(self._sent) // self._batches_left))
        places = {*range(0, len(self._sent), every)}
        if self._largest > 1 and self._sent:
            places.add(max(range(len(self._sent)), key=lambda place: self._sent[place].sent[_BATCH_SIZE]))
        chosen = [self._sent[place] for place in sorted(places)]
        self._largest = 1
        count = sum(len(each.members) for each in chosen)
        part = max(1, -(-count // self._members_left))
        for each in chosen:
            each.drawn = (every, 1) if self._stateful else (every * self._every, part)
            each.members = each.members[:: each.drawn[1]]
        new = self.counts.batches - self._counted[1]
        self._every = max(1, -(-new // self._batches_left))
        self._batches_left = _refilled(self._batches_left - len(chosen), MOST_BATCHES)
        self._members_left = _refilled(self._members_left - count // part, MOST_MEMBERS)
        return chosen

    def _batch(self, batch: _Batch, lines: Mapping[int, int]) -> Json:
        """A batch with words for why."""
        event: Any = unpack(batch.sent)
        members = [self._member(event.time_ns, each, lines) for each in batch.members]
        batch.told = {
            "n": event.batch,
            "instance": event.instance,
            "sent": self._at(event.time_ns),
            "start": None,
            "input": None,
            "output": None,
            "end": None,
            "failed": 0,
            "rows": event.size,
            "requests": len(event.members) - event.members.count(None),
            "depth": event.queue_depth,
            "oldest": self._at(event.time_ns if batch.oldest_ns is None else batch.oldest_ns),
            "why": explain(Reason(event.rule, event.facts)),
            "members": members,
            "slots": event.slots,
            "drawn": batch.drawn,
        }
        if batch.executed is not None:
            batch.told |= self._ran(batch)
        return batch.told

    def _ran(self, batch: _Batch) -> Json:
        """When a batch ran, and how many of its requests failed."""
        packed = batch.executed
        assert packed is not None
        return {
            "start": self._at(packed[_EXEC_START]),
            "input": self._at(packed[_COMPUTE_START]),
            "output": self._at(packed[_COMPUTE_END]),
            "end": self._at(packed[_EXEC_END]),
            "failed": failures_of(packed),
        }

    def _member(self, sent_ns: int, member: _Member, lines: Mapping[int, int]) -> list[Any]:
        if member is None:
            return []
        serial, arrived = member
        if arrived is None:  # it came before the view, or runs again
            return [str(serial), 1, 0, self._at(sent_ns), 0, 0, 0]
        return self._request(arrived, lines[serial])

    def _request(self, arrived: Packed, line: int) -> list[Any]:
        return [
            arrived[_ID] or str(arrived[_SERIAL]), arrived[_SIZE], arrived[_PRIORITY], self._at(arrived[_TIME]), line,
            arrived[_SEQUENCE], arrived[_FLAGS],
        ]  # fmt: skip

    def _refusal(self, event: Any, arrived: Packed | None, lines: Mapping[int, int]) -> list[Any]:
        label, sequence = (arrived[_ID], arrived[_SEQUENCE]) if arrived else ("", 0)
        return [
            self._at(event.received_ns), self._at(event.time_ns), label or str(event.serial),
            lines.get(event.serial, 0), event.message or "cancelled", sequence,
        ]  # fmt: skip

    def _new_depths(self) -> list[list[int]]:
        """The queue's depth over time, up to now."""
        steps, self._steps = self._steps, []
        if steps and steps[-1][1] != self._depth:
            steps.append((self._stepped_ns, self._depth))
        told = {self._at(time_ns): depth for time_ns, depth in steps}
        kept = [[time, depth] for time, depth in told.items()]
        self._depths.extend(kept)
        return kept

    def _new_stays(self, now_ns: int) -> list[list[Any]]:
        on_their_way = [each[1] for batch in self._running.values() for each in batch.members if each is not None]
        live = {each[_SEQUENCE] for each in (*self._waiting.values(), *filter(None, on_their_way))}
        found = []
        for stay in self._stays.stays(now_ns, live):
            told = self._stay(stay)
            key = (stay.instance, stay.slot, stay.assigned_ns)
            if self._told.get(key) != told:
                self._told[key] = told
                found.append(told)
        if self._sample:
            self._stays.forget(now_ns - 1_000_000_000)
            self._told = dict(list(self._told.items())[-(self._kept.maxlen or 0) :])
        return found

    def _stay(self, stay: Stay) -> list[Any]:
        released = None if stay.released_ns is None else self._at(stay.released_ns)
        last = self._at(stay.requests[-1][1].queued_ns)
        return [
            stay.sequence, stay.instance, stay.slot, self._at(stay.arrived_ns), self._at(stay.assigned_ns), released,
            stay.ended, stay.ran, last,
        ]  # fmt: skip

    def _step(self, time_ns: int, change: int) -> None:
        self._depth += change
        self._stepped_ns = time_ns
        steps = self._steps
        if len(steps) < _MOST_DEPTHS or not self._sample:
            steps.append((time_ns, self._depth))
        elif change < 0:  # of many moments the deepest of each hundredth second, which is before some left
            depth = self._depth - change
            if steps[-1][0] // 10_000_000 != time_ns // 10_000_000:
                steps.append((time_ns, depth))
            elif depth >= steps[-1][1]:
                steps[-1] = time_ns, depth

    def _at(self, time_ns: int) -> int:
        return (time_ns - self._begin_ns) // _TICK_NS


_FOLDS: Mapping[str, Any] = {
    RequestArrived.__name__: Feed._request_arrived,
    RequestRefused.__name__: Feed._request_refused,
    BatchSent.__name__: Feed._batch_sent,
    BatchExecuted.__name__: Feed._batch_executed,
    CacheHit.__name__: Feed._cache_hit,
    EnsembleExecuted.__name__: Feed._ensemble_executed,
}


def _waits(
    batches: Iterable[_Batch], refused: Iterable[tuple[Any, Packed | None]], pending: Iterable[Packed]
) -> Iterator[Wait]:
    """Everybody who is drawn in the queue."""
    for batch in batches:
        for member in batch.members:
            if member is not None and member[1] is not None:
                yield member[1][_TIME], member[0], batch.sent[_TIME]
    for event, arrived in refused:
        if arrived is not None:
            yield arrived[_TIME], event.serial, event.time_ns
    for arrived in pending:
        yield arrived[_TIME], arrived[_SERIAL], None


def _columns(batches: Collection[Json]) -> dict[str, list[Any]]:
    """Objects that are alike, as one list for each of their fields."""
    return {name: [each[name] for each in batches] for name in next(iter(batches), {})}


def _refilled(left: int, most: int) -> int:
    """What may be drawn of the next delivery."""
    return min(BURST * most, max(0, left) + most)
