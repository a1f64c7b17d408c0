"""What a live view draws, folded from events: small enough to send ten times a second.

Counts are exact. What is drawn may be a part of it: where more batches than `MOST_BATCHES` come in each delivery, or
more requests than `MOST_MEMBERS`, every k-th is sent, and the view says so; `BURST` times as many may come at once.
At full load there are tens of thousands of events a second, and the server waits for whoever holds the interpreter:
so events come packed, of a batch that is not drawn little more is looked at than its size, and only who is drawn
gets a line to wait on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

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
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.notebook.queue_depth import QueueDepth
from tritonnb.notebook.queue_rows import Wait, WaitingLines
from tritonnb.notebook.view_encoding import (
    BATCH,
    INSTANCE,
    NUMBER,
    RAN,
    SEQUENCE,
    SERIAL,
    SIZE,
    TIME,
    DrawnBatch,
    ViewEncoder,
    columns,
)
from tritonnb.notebook.view_metadata import describe_config
from tritonnb.recording.batches import batches_of
from tritonnb.recording.instances import instances_of, natural_sort_key
from tritonnb.recording.sequences import SlotHistory

#: Requests drawn of one delivery, and batches. Jupyter passes on 1 MB a second; ten of the largest are 0.1 MB.
MOST_MEMBERS, MOST_BATCHES, BURST = 80, 20, 5
#: Waiting requests drawn at once, and refused ones drawn of one delivery.
MOST_PENDING = 100
_ARRIVED, _SENT, _EXECUTED = RequestArrived.__name__, BatchSent.__name__, BatchExecuted.__name__

Json = dict[str, Any]


@dataclass(slots=True)
class _Counts:
    """What there was in all, drawn or not."""

    requests: int = 0
    refused: int = 0
    failed: int = 0
    cached: int = 0
    batches: int = 0
    rows: int = 0
    nulls: int = 0

    @property
    def total(self) -> tuple[int, int]:
        """Requests and batches."""
        return self.requests, self.batches


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
        self._teller = ViewEncoder(begin_ns)
        self._depth = QueueDepth(depth, begin_ns, sample)
        self._from_before = depth
        self._sample = sample
        self._stateful = config.HasField("sequence_batching")
        self._waiting: dict[int, Packed] = {}  # arrivals by serial
        self._running: dict[int, DrawnBatch] = {}  # by number
        self._sent: list[DrawnBatch] = []
        self._done: list[DrawnBatch] = []  # of which views know already
        self._refusals: list[tuple[Any, Packed | None]] = []
        self._every = 1  # of the batches one is drawn, and those that are larger than the others of a delivery
        self._largest = 1
        self._members_left, self._batches_left = BURST * MOST_MEMBERS, BURST * MOST_BATCHES
        self._counted = 0, 0  # requests and batches at the last delivery
        self._lines = WaitingLines()
        self._stays = SlotHistory({model: config})
        self._told: dict[tuple[str, int, int], list[Any]] = {}
        self._instances: list[str] = instances_of(model, config)
        self._kept: deque[list[Any]] = deque(maxlen=keep)
        self._pending: list[list[Any]] = []
        self._refused: deque[list[Any]] = deque(maxlen=keep)
        self._depths: deque[list[int]] = deque(maxlen=4 * keep)

    def reconfigured(self, config: pb.ModelConfig) -> bool:
        """From now on the model has this configuration; whether it is another one."""
        if config == self.config:
            return False
        self.config, self.meta = config, describe_config(self.model, config)
        self._stays.update_configs({self.model: config})
        self._instances = instances_of(self.model, config)
        return True

    # --- events in ----------------------------------------------------------------------------

    def take(self, events: Iterable[Packed]) -> None:
        """Fold events of the model, in order."""
        counts, waiting, running, depth = self.counts, self._waiting, self._running, self._depth
        for packed in events:
            kind = packed[0]
            if kind == _ARRIVED:  # what there is most of goes the shortest way
                counts.requests += 1
                waiting[packed[SERIAL]] = packed
                depth.more(packed[TIME])
            elif kind == _SENT:
                self._batch_sent(packed)
            elif kind == _EXECUTED:
                counts.failed += failures_of(packed)
                if packed[NUMBER] in running:
                    self._batch_executed(packed)
            elif kind in _FOLDS:
                _FOLDS[kind](self, packed)

    def _request_refused(self, packed: Packed) -> None:
        event: Any = unpack(packed)
        self.counts.refused += 1
        arrived = self._waiting.pop(event.serial, None)
        if arrived is not None or self._from_before:
            self._from_before -= arrived is None
            self._depth.less(event.time_ns, 1)
        self._refusals.append((event, arrived))

    def _batch_sent(self, packed: Packed) -> None:
        counts, members, size = self.counts, members_of(packed), packed[SIZE]
        counts.batches += 1
        counts.rows += size
        if packed[INSTANCE] not in self._instances:
            self._instances.append(packed[INSTANCE])
        leave = self._waiting.pop
        arrivals = [leave(each, None) for each in members]  # type: ignore[arg-type]
        gone = len(arrivals)
        if None in arrivals:
            nulls = members.count(None)
            unseen = arrivals.count(None) - nulls
            before = min(self._from_before, unseen)
            self._from_before -= before
            counts.nulls += nulls
            gone -= nulls + unseen - before
        self._depth.less(packed[TIME], gone)
        if counts.batches % self._every == 0 or size > self._largest:
            self._largest = max(size, self._largest)
            batch = self._running[packed[NUMBER]] = DrawnBatch(packed, list(zip(members, arrivals, strict=True)))
            self._sent.append(batch)

    def _batch_executed(self, packed: Packed) -> None:
        batch = self._running.pop(packed[NUMBER])
        batch.executed = packed
        if batch.told:
            self._done.append(batch)
        if self._stateful:
            arrived = [each for _, each in batch.requests if each is not None]
            for ran, requests in batches_of(list(map(unpack, [*arrived, batch.sent, packed]))):
                self._stays.add_batch(ran, requests)

    def _cache_hit(self, packed: Packed) -> None:
        self.counts.requests += 1
        self.counts.cached += 1

    def _ensemble_executed(self, packed: Packed) -> None:
        self.counts.requests += 1

    # --- pictures out -------------------------------------------------------------------------

    def flush(self, now_ns: int) -> Json:
        """What is new since the last time."""
        chosen, done, teller = self._chosen(), self._done, self._teller
        refused = self._refusals[-MOST_PENDING:] if self._sample else self._refusals
        pending = list(islice(self._waiting.values(), MOST_PENDING))
        lines = self._lines.place(_waits(chosen, refused, pending))
        batches = [teller.batch(each, lines) for each in chosen]
        self._kept.extend(batches)
        finished = [[each.sent[NUMBER], *teller.ran(each)] for each in done]
        for each, (_, *ran) in zip(done, finished, strict=True):
            each.told[-len(RAN) :] = ran
        self._pending = [teller.request(each, lines[each[SERIAL]]) for each in pending]
        told = [teller.refusal(*each, lines) for each in refused]
        self._refused.extend(told)
        self._sent, self._done, self._refusals = [], [], []
        self._counted = self.counts.total
        return {
            **self._state(now_ns),
            "batches": columns(BATCH, batches),
            "done": columns(("n", *RAN), finished),
            "refused": told,
            "depths": self._new_depths(),
            "stays": self._new_stays(now_ns) if self._stateful else [],
        }

    def history(self, now_ns: int) -> Json:
        """Everything that is kept, for a view that opens now."""
        return {
            **self._state(now_ns),
            "meta": self.meta,
            "batches": columns(BATCH, self._kept),
            "done": {},
            "refused": list(self._refused),
            "depths": list(self._depths),
            "stays": list(self._told.values()),
        }

    @property
    def quiet(self) -> bool:
        """Whether nothing is new and nothing waits or runs."""
        new = self._sent or self._done or self._refusals or self._depth.changes or self.counts.total != self._counted
        return not (new or self._waiting or self._running)

    def _state(self, now_ns: int) -> Json:
        return {
            "now": self._teller.at(now_ns),
            "instances": sorted(self._instances, key=natural_sort_key),
            "pending": self._pending,
            "depth": self._depth.now,
            "counts": asdict(self.counts),
        }

    def _chosen(self) -> list[DrawnBatch]:
        """The batches to draw, and of each as many members as there is room for."""
        if not self._sample:
            return self._sent
        every = max(1, -(-len(self._sent) // self._batches_left))
        chosen = self._sent[::every]
        if every > 1 and self._largest > 1:
            sizes = [each.sent[SIZE] for each in self._sent]
            if (largest := sizes.index(max(sizes))) % every:
                chosen.insert(largest // every + 1, self._sent[largest])
        self._largest = 1
        count = sum([len(each.requests) for each in chosen])
        part = max(1, -(-count // self._members_left))
        for each in chosen:
            each.drawn = (every, 1) if self._stateful else (every * self._every, part)
        new = self.counts.batches - self._counted[1]
        self._every = 1 if self._stateful else max(1, -(-new // self._batches_left))
        self._batches_left = _refilled(self._batches_left - len(chosen), MOST_BATCHES)
        self._members_left = _refilled(self._members_left - count // part, MOST_MEMBERS)
        return chosen

    def _new_depths(self) -> list[list[int]]:
        """The queue's depth over time, up to now."""
        told = {self._teller.at(time_ns): depth for time_ns, depth in self._depth.delivered()}
        kept = [[time, depth] for time, depth in told.items()]
        self._depths.extend(kept)
        return kept

    def _new_stays(self, now_ns: int) -> list[list[Any]]:
        on_their_way = [arrived for batch in self._running.values() for _, arrived in batch.requests]
        live = {each[SEQUENCE] for each in (*self._waiting.values(), *filter(None, on_their_way))}
        found = []
        for stay in self._stays.occupancies(now_ns, live):
            told = self._teller.stay(stay)
            key = (stay.instance, stay.slot, stay.assigned_ns)
            if self._told.get(key) != told:
                self._told[key] = told
                found.append(told)
        if self._sample:
            self._stays.discard_before(now_ns - 1_000_000_000)
            self._told = dict(list(self._told.items())[-(self._kept.maxlen or 0) :])
        return found


_FOLDS: Mapping[str, Any] = {
    RequestRefused.__name__: Feed._request_refused,
    CacheHit.__name__: Feed._cache_hit,
    EnsembleExecuted.__name__: Feed._ensemble_executed,
}


def _waits(
    batches: Iterable[DrawnBatch], refused: Iterable[tuple[Any, Packed | None]], pending: Iterable[Packed]
) -> Iterator[Wait]:
    """Everybody who is drawn in the queue."""
    for batch in batches:
        for serial, arrived in batch.shown:
            if serial is not None and arrived is not None:
                yield arrived[TIME], serial, batch.sent[TIME]
    for event, arrived in refused:
        if arrived is not None:
            yield arrived[TIME], event.serial, event.time_ns
    for arrived in pending:
        yield arrived[TIME], arrived[SERIAL], None


def _refilled(left: int, most: int) -> int:
    """What may be drawn of the next delivery."""
    return min(BURST * most, max(0, left) + most)
