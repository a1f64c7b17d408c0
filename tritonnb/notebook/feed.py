"""What a live view draws, folded from events: small enough to send ten times a second.

Counts are exact. What is drawn may be a part of it: where more batches than `MOST_BATCHES` come in each delivery, or
more requests than `MOST_MEMBERS`, every k-th is sent, and the view says so; `BURST` times as many may come at once.
At full load there are tens of thousands of events a second, and the server waits for whoever holds the interpreter:
so events come packed, and of a batch that is not drawn little more is looked at than its size. Times are milliseconds
from the feed's beginning.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Mapping
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

Json = dict[str, Any]
#: Serial, its packed arrival if that was seen, and line; None for a null request.
_Member = tuple[int, Packed | None, int] | None


@dataclass(slots=True)
class _Counts:
    """What there was in all, drawn or not."""

    requests: int = 0
    refused: int = 0
    cached: int = 0
    batches: int = 0
    rows: int = 0
    nulls: int = 0
    sizes: Counter[int] = field(default_factory=Counter)


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
        self.counts = _Counts()
        self._begin_ns = begin_ns
        self._depth = self._from_before = depth
        self._sample = sample
        self._kept: deque[Json] = deque(maxlen=keep)
        self._by_number: dict[int, Json] = {}
        self._running: dict[int, Packed | None] = {}  # batches by number, packed if they are drawn
        self._arrived: dict[int, Packed] = {}
        self._every = 1  # of the batches one is drawn
        self._members_left, self._batches_left = BURST * MOST_MEMBERS, BURST * MOST_BATCHES
        self._batches_before = 0  # how many there were at the last delivery
        self._rows = _Rows()
        self._pending: dict[int, int] = {}  # serials and their lines
        self._stays = SlotHistory({model: config})
        self._told: dict[tuple[str, int, int], list[Any]] = {}
        self._instances: list[str] = instances_of(model, config)
        self._stateful = config.HasField("sequence_batching")
        self._new = _new()
        self._refused: deque[list[Any]] = deque(maxlen=keep)
        self._depths: deque[list[float]] = deque(maxlen=4 * keep)
        self._stepped_ns = begin_ns

    def reconfigured(self, config: pb.ModelConfig) -> None:
        """From now on the model has this configuration."""
        if config != self.config:
            self.config = config
            self._stays.follow({self.model: config})

    # --- events in ----------------------------------------------------------------------------

    def take(self, events: Iterable[Packed]) -> None:
        """Fold events, in order."""
        for packed in events:
            if packed[_MODEL] == self.model and (fold := _FOLDS.get(packed[0])) is not None:
                fold(self, packed)

    def _request_arrived(self, packed: Packed) -> None:
        self.counts.requests += 1
        self._step(packed[_TIME], 1)
        serial = packed[_SERIAL]
        self._arrived[serial] = packed
        self._pending[serial] = self._rows.take()

    def _request_refused(self, packed: Packed) -> None:
        event: Any = unpack(packed)
        self.counts.refused += 1
        row = self._pending.pop(event.serial, None)
        if row is not None:
            self._rows.give_back([row])
        if row is not None or self._from_before:
            self._from_before -= row is None
            self._step(event.time_ns, -1)
        arrived = self._arrived.pop(event.serial, None)
        label, sequence = (arrived[_ID], arrived[_SEQUENCE]) if arrived else ("", 0)
        told = [
            self._at(event.received_ns), self._at(event.time_ns), label or str(event.serial), row or 0,
            event.message or "cancelled", sequence,
        ]  # fmt: skip
        self._new["refused"].append(told)
        self._refused.append(told)

    def _batch_sent(self, packed: Packed) -> None:
        counts, members = self.counts, members_of(packed)
        counts.batches += 1
        counts.rows += packed[_BATCH_SIZE]
        counts.sizes[packed[_BATCH_SIZE]] += 1
        if packed[_INSTANCE] not in self._instances:
            self._instances.append(packed[_INSTANCE])
        nulls = members.count(None)
        counts.nulls += nulls
        rows = [self._pending.pop(each, -1) for each in members]  # type: ignore[arg-type]
        known = [each for each in rows if each >= 0]
        self._rows.give_back(known)
        before = min(self._from_before, len(rows) - nulls - len(known))
        self._from_before -= before
        self._step(packed[_TIME], -len(known) - before)
        if counts.batches % self._every and not self._stateful:
            self._running[packed[_BATCH]] = None
            for each in members:
                self._arrived.pop(each, None)  # type: ignore[arg-type]
            return
        self._running[packed[_BATCH]] = packed
        drawn: list[_Member] = [
            None if each is None else (each, self._arrived.get(each), max(row, 0))
            for each, row in zip(members, rows, strict=True)
        ]
        self._new["batches"].append((packed, drawn))

    def _batch_executed(self, packed: Packed) -> None:
        number = packed[_BATCH]
        sent = self._running.pop(number, None)
        if sent is None:
            return
        told = {
            "n": number,
            "start": self._at(packed[_EXEC_START]),
            "input": self._at(packed[_COMPUTE_START]),
            "output": self._at(packed[_COMPUTE_END]),
            "end": self._at(packed[_EXEC_END]),
            "failed": failures_of(packed),
        }
        self._new["done"].append(told)
        members = members_of(sent)
        if self._stateful:
            arrived = filter(None, map(self._arrived.get, filter(None, members)))
            for batch, requests in batches_of(list(map(unpack, [*arrived, sent, packed]))):
                self._stays.ran(batch, requests)
        for serial in members:
            self._arrived.pop(serial, None)  # type: ignore[arg-type]

    def _cache_hit(self, packed: Packed) -> None:
        self.counts.requests += 1
        self.counts.cached += 1
        self._new["others"].append(packed)

    def _ensemble_executed(self, packed: Packed) -> None:
        self.counts.requests += 1
        self._new["others"].append(packed)

    # --- pictures out -------------------------------------------------------------------------

    def flush(self, now_ns: int) -> Json:
        """What is new since the last time."""
        new, self._new = self._new, _new()
        shown = self._chosen(new["batches"])
        if self._sample:
            self._every = max(1, -(-(self.counts.batches - self._batches_before) // self._batches_left))
            self._batches_before = self.counts.batches
        for done in new["done"]:
            known = self._by_number.get(done["n"])
            if known is not None:
                known.update(done)
        return {
            **self._state(now_ns),
            "batches": shown,
            "done": [each for each in new["done"] if each["n"] in self._by_number],
            "refused": new["refused"][-_MOST_PENDING:],
            "depths": self._keep_depths(new["depths"]),
            "stays": self._new_stays(now_ns),
        }

    def history(self, now_ns: int) -> Json:
        """Everything that is kept, for a view that opens now."""
        return {
            **self._state(now_ns),
            "meta": self.meta(),
            "batches": list(self._kept),
            "done": [],
            "refused": list(self._refused),
            "depths": list(self._depths),
            "stays": list(self._told.values()),
        }

    def meta(self) -> Json:
        """The model and what its configuration says."""
        return describe_config(self.model, self.config)

    @property
    def quiet(self) -> bool:
        """Whether nothing is new and nothing waits or runs."""
        return not (any(self._new.values()) or self._pending or self._running)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._depth

    def _state(self, now_ns: int) -> Json:
        counts = self.counts
        return {
            "now": self._at(now_ns),
            "instances": sorted(self._instances, key=natural),
            "pending": [
                self._request(self._arrived[serial], row)
                for serial, row in islice(self._pending.items(), _MOST_PENDING)
            ],
            "depth": self._depth,
            "counts": {
                "requests": counts.requests,
                "refused": counts.refused,
                "cached": counts.cached,
                "batches": counts.batches,
                "rows": counts.rows,
                "nulls": counts.nulls,
                "sizes": sorted(counts.sizes.items()),
            },
        }

    def _chosen(self, sent: list[tuple[Packed, list[_Member]]]) -> list[Json]:
        """The batches to draw, with words for why, and of each as many members as there is room for."""
        if not self._sample:
            return [self._keep(self._batch(packed, members, 1, 1)) for packed, members in sent]
        every = max(1, -(-len(sent) // self._batches_left))
        chosen = sent[::every]
        count = sum(len(members) for _, members in chosen)
        part = max(1, -(-count // self._members_left))
        self._batches_left = _refilled(self._batches_left - len(chosen), MOST_BATCHES)
        self._members_left = _refilled(self._members_left - count // part, MOST_MEMBERS)
        every *= 1 if self._stateful else self._every
        return [self._keep(self._batch(packed, members, every, part)) for packed, members in chosen]

    def _batch(self, packed: Packed, members: list[_Member], every: int, part: int) -> Json:
        event: Any = unpack(packed)
        arrived = [each[1][_TIME] for each in members if each is not None and each[1] is not None]
        drawn = members if event.slots else members[::part]
        return {
            "n": event.batch,
            "instance": event.instance,
            "sent": self._at(event.time_ns),
            "start": None,
            "end": None,
            "rows": event.size,
            "requests": len(members) - members.count(None),
            "depth": event.queue_depth,
            "oldest": self._at(min(arrived, default=event.time_ns)),
            "why": explain(Reason(event.rule, event.facts)),
            "members": [self._member(event.time_ns, each) for each in drawn],
            "slots": event.slots,
            "drawn": [every, part],
        }

    def _member(self, sent_ns: int, member: _Member) -> list[Any]:
        if member is None:
            return []
        serial, arrived, row = member
        if arrived is None:  # it came before the view, or runs again
            return [str(serial), 1, 0, self._at(sent_ns), 0, 0, 0]
        return self._request(arrived, row)

    def _request(self, arrived: Packed, row: int) -> list[Any]:
        return [
            arrived[_ID] or str(arrived[_SERIAL]), arrived[_SIZE], arrived[_PRIORITY], self._at(arrived[_TIME]), row,
            arrived[_SEQUENCE], arrived[_FLAGS],
        ]  # fmt: skip

    def _keep(self, batch: Json) -> Json:
        if len(self._kept) == self._kept.maxlen:
            self._by_number.pop(self._kept[0]["n"], None)
        self._kept.append(batch)
        self._by_number[batch["n"]] = batch
        return batch

    def _keep_depths(self, steps: list[tuple[int, int]]) -> list[list[float]]:
        """The queue's depth over time, up to now."""
        if steps and steps[-1][1] != self._depth:
            steps.append((self._stepped_ns, self._depth))
        told = {self._at(time_ns): depth for time_ns, depth in steps}
        kept: list[list[float]] = [[time, depth] for time, depth in told.items()]
        self._depths.extend(kept)
        return kept

    def _new_stays(self, now_ns: int) -> list[list[Any]]:
        if not self._stateful:
            return []
        running = {arrived[_SEQUENCE] for arrived in self._arrived.values()}
        found = []
        for stay in self._stays.stays(now_ns, running):
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
        steps: list[tuple[int, int]] = self._new["depths"]
        if not self._sample or len(steps) < _MOST_DEPTHS or steps[-1][0] // 10_000_000 != time_ns // 10_000_000:
            steps.append((time_ns, self._depth))
        elif self._depth >= steps[-1][1]:  # of many moments the deepest of each hundredth second
            steps[-1] = time_ns, self._depth

    def _at(self, time_ns: int) -> float:
        return round((time_ns - self._begin_ns) / 1e6, 4)


_FOLDS: Mapping[str, Any] = {
    RequestArrived.__name__: Feed._request_arrived,
    RequestRefused.__name__: Feed._request_refused,
    BatchSent.__name__: Feed._batch_sent,
    BatchExecuted.__name__: Feed._batch_executed,
    CacheHit.__name__: Feed._cache_hit,
    EnsembleExecuted.__name__: Feed._ensemble_executed,
}


class _Rows:
    """The line that each waiting request is drawn on: the topmost free one."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._count = 0

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._count += 1
        return self._count - 1

    def give_back(self, rows: Iterable[int]) -> None:
        for row in rows:
            heapq.heappush(self._free, row)


def _refilled(left: int, most: int) -> int:
    """What may be drawn of the next delivery."""
    return min(BURST * most, max(0, left) + most)


def _new() -> dict[str, list[Any]]:
    return {"batches": [], "done": [], "refused": [], "depths": [], "others": []}
