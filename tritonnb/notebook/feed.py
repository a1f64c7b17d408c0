"""What a live view draws, folded from events: small enough to send ten times a second.

Counts are exact. What is drawn may be a sample: if a delivery has more batches than `MOST_BATCHES` or more requests
than `MOST_MEMBERS`, every k-th is sent, and the view shows that; a burst may have `BURST` times as many.
At full load there are tens of thousands of events per second, and folding them holds the interpreter lock that the
server needs. So events are folded in packed form, batches that are not drawn contribute little more than their size,
and only drawn requests get a queue row.
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
from tritonnb.notebook.queue_rows import QueueRows, Wait
from tritonnb.notebook.view_encoding import (
    BATCH_FIELDS,
    EXECUTION_FIELDS,
    INSTANCE,
    NUMBER,
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

#: Requests and batches drawn per delivery. Jupyter forwards 1 MB per second; ten of the largest deliveries are 0.1 MB.
MOST_MEMBERS, MOST_BATCHES, BURST = 80, 20, 5
#: Waiting requests drawn at once, and refused requests drawn per delivery.
MOST_PENDING = 100
_ARRIVED, _SENT, _EXECUTED = RequestArrived.__name__, BatchSent.__name__, BatchExecuted.__name__

Json = dict[str, Any]


@dataclass(slots=True)
class _Counts:
    """Totals, whether drawn or not."""

    requests: int = 0
    refused: int = 0
    failed: int = 0
    cached: int = 0
    batches: int = 0
    rows: int = 0
    nulls: int = 0

    @property
    def total(self) -> tuple[int, int]:
        """The numbers of requests and of batches."""
        return self.requests, self.batches


class Feed:
    """Folds the events of one model into the deliveries to a view.

    Parameters
    ----------
    model : str
    config : ModelConfig
    begin_ns : int
        The origin of the view's time.
    depth : int, optional
        The number of requests that already wait.
    keep : int, optional
        The number of batches in `history`.
    sample : bool, optional
        Whether to draw only a part if there is more than can be drawn.
    """

    def __init__(
        self, model: str, config: pb.ModelConfig, begin_ns: int, *, depth: int = 0, keep: int = 400, sample: bool = True
    ) -> None:
        self.model = model
        self.config = config
        self.meta = describe_config(model, config)
        self.counts = _Counts()
        self._encoder = ViewEncoder(begin_ns)
        self._depth = QueueDepth(depth, begin_ns, sample)
        self._earlier = depth
        self._sample = sample
        self._stateful = config.HasField("sequence_batching")
        self._waiting: dict[int, Packed] = {}  # arrivals by serial
        self._running: dict[int, DrawnBatch] = {}  # by number
        self._sent: list[DrawnBatch] = []
        self._done: list[DrawnBatch] = []  # already sent to views
        self._refusals: list[tuple[Any, Packed | None]] = []
        self._every = 1  # draw every k-th batch, and the largest of a delivery
        self._largest = 1
        self._members_left, self._batches_left = BURST * MOST_MEMBERS, BURST * MOST_BATCHES
        self._counted = 0, 0  # totals at the last delivery
        self._queue_rows = QueueRows()
        self._slots = SlotHistory({model: config})
        self._occupancy: dict[tuple[str, int, int], list[Any]] = {}
        self._instances: list[str] = instances_of(model, config)
        self._kept: deque[list[Any]] = deque(maxlen=keep)
        self._pending: list[list[Any]] = []
        self._refused: deque[list[Any]] = deque(maxlen=keep)
        self._depths: deque[list[int]] = deque(maxlen=4 * keep)

    def reconfigure(self, config: pb.ModelConfig) -> bool:
        """Follow a new configuration of the model; return whether it differs from the current one."""
        if config == self.config:
            return False
        self.config, self.meta = config, describe_config(self.model, config)
        self._slots.update_configs({self.model: config})
        self._instances = instances_of(self.model, config)
        return True

    def ticks(self, time_ns: int) -> int:
        """Encode a time (monotonic clock, ns) as views get it."""
        return self._encoder.ticks(time_ns)

    # --- events -------------------------------------------------------------------------------

    def fold(self, events: Iterable[Packed]) -> None:
        """Fold packed events of the model, in order."""
        counts, waiting, running, depth = self.counts, self._waiting, self._running, self._depth
        for packed in events:
            kind = packed[0]
            if kind == _ARRIVED:  # the most frequent event first
                counts.requests += 1
                waiting[packed[SERIAL]] = packed
                depth.increment(packed[TIME])
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
        if arrived is not None or self._earlier:
            self._earlier -= arrived is None
            self._depth.decrease(event.time_ns, 1)
        self._refusals.append((event, arrived))

    def _batch_sent(self, packed: Packed) -> None:
        counts, members, size = self.counts, members_of(packed), packed[SIZE]
        counts.batches += 1
        counts.rows += size
        if packed[INSTANCE] not in self._instances:
            self._instances.append(packed[INSTANCE])
        pop = self._waiting.pop
        arrivals = [pop(serial, None) for serial in members]  # type: ignore[arg-type]
        left = len(arrivals)
        if None in arrivals:
            nulls = members.count(None)
            unseen = arrivals.count(None) - nulls
            before = min(self._earlier, unseen)
            self._earlier -= before
            counts.nulls += nulls
            left -= nulls + unseen - before
        self._depth.decrease(packed[TIME], left)
        if counts.batches % self._every == 0 or size > self._largest:
            self._largest = max(size, self._largest)
            batch = self._running[packed[NUMBER]] = DrawnBatch(packed, list(zip(members, arrivals, strict=True)))
            self._sent.append(batch)

    def _batch_executed(self, packed: Packed) -> None:
        batch = self._running.pop(packed[NUMBER])
        batch.executed = packed
        if batch.encoded:
            self._done.append(batch)
        if self._stateful:
            arrivals = [arrived for _, arrived in batch.requests if arrived is not None]
            for executed, requests in batches_of(list(map(unpack, [*arrivals, batch.sent, packed]))):
                self._slots.add_batch(executed, requests)

    def _cache_hit(self, packed: Packed) -> None:
        self.counts.requests += 1
        self.counts.cached += 1

    def _ensemble_executed(self, packed: Packed) -> None:
        self.counts.requests += 1

    # --- deliveries ---------------------------------------------------------------------------

    def flush(self, now_ns: int) -> Json:
        """Return what is new since the last call."""
        chosen, done, encoder = self._chosen(), self._done, self._encoder
        refused = self._refusals[-MOST_PENDING:] if self._sample else self._refusals
        pending = list(islice(self._waiting.values(), MOST_PENDING))
        queue_rows = self._queue_rows.assign(_waits(chosen, refused, pending))
        batches = [encoder.batch(batch, queue_rows) for batch in chosen]
        self._kept.extend(batches)
        executed = [[batch.sent[NUMBER], *encoder.execution(batch)] for batch in done]
        for batch, (_, *execution) in zip(done, executed, strict=True):
            batch.encoded[-len(EXECUTION_FIELDS) :] = execution
        self._pending = [encoder.request(arrived, queue_rows[arrived[SERIAL]]) for arrived in pending]
        refusals = [encoder.refusal(*refusal, queue_rows) for refusal in refused]
        self._refused.extend(refusals)
        self._sent, self._done, self._refusals = [], [], []
        self._counted = self.counts.total
        return {
            **self._state(now_ns),
            "batches": columns(BATCH_FIELDS, batches),
            "done": columns(("n", *EXECUTION_FIELDS), executed),
            "refused": refusals,
            "depths": self._new_depths(),
            "occupancy": self._new_occupancy(now_ns) if self._stateful else [],
        }

    def history(self, now_ns: int) -> Json:
        """Return everything that is kept, for a view that is opened now."""
        return {
            **self._state(now_ns),
            "meta": self.meta,
            "batches": columns(BATCH_FIELDS, self._kept),
            "done": {},
            "refused": list(self._refused),
            "depths": list(self._depths),
            "occupancy": list(self._occupancy.values()),
        }

    @property
    def quiet(self) -> bool:
        """Whether nothing is new and no request waits or is being executed."""
        new = self._sent or self._done or self._refusals or self._depth.changes or self.counts.total != self._counted
        return not (new or self._waiting or self._running)

    def _state(self, now_ns: int) -> Json:
        return {
            "now": self._encoder.ticks(now_ns),
            "instances": sorted(self._instances, key=natural_sort_key),
            "pending": self._pending,
            "depth": self._depth.now,
            "counts": asdict(self.counts),
        }

    def _chosen(self) -> list[DrawnBatch]:
        """Choose the batches to draw and how many members of each."""
        if not self._sample:
            return self._sent
        every = max(1, -(-len(self._sent) // self._batches_left))
        chosen = self._sent[::every]
        if every > 1 and self._largest > 1:
            sizes = [batch.sent[SIZE] for batch in self._sent]
            if (largest := sizes.index(max(sizes))) % every:
                chosen.insert(largest // every + 1, self._sent[largest])
        self._largest = 1
        count = sum([len(batch.requests) for batch in chosen])
        part = max(1, -(-count // self._members_left))
        for batch in chosen:
            batch.drawn = (every, 1) if self._stateful else (every * self._every, part)
        new = self.counts.batches - self._counted[1]
        self._every = 1 if self._stateful else max(1, -(-new // self._batches_left))
        self._batches_left = _refill(self._batches_left - len(chosen), MOST_BATCHES)
        self._members_left = _refill(self._members_left - count // part, MOST_MEMBERS)
        return chosen

    def _new_depths(self) -> list[list[int]]:
        """The queue depth over time since the last delivery."""
        depths = {self._encoder.ticks(time_ns): depth for time_ns, depth in self._depth.take_changes()}
        changes = [[ticks, depth] for ticks, depth in depths.items()]
        self._depths.extend(changes)
        return changes

    def _new_occupancy(self, now_ns: int) -> list[list[Any]]:
        """The slot occupancy that has changed since the last delivery."""
        running = [arrived for batch in self._running.values() for _, arrived in batch.requests]
        live = {arrived[SEQUENCE] for arrived in (*self._waiting.values(), *filter(None, running))}
        changed = []
        for occupancy in self._slots.occupancies(now_ns, live):
            encoded = self._encoder.occupancy(occupancy)
            key = (occupancy.instance, occupancy.slot, occupancy.assigned_ns)
            if self._occupancy.get(key) != encoded:
                self._occupancy[key] = encoded
                changed.append(encoded)
        if self._sample:
            self._slots.discard_before(now_ns - 1_000_000_000)
            self._occupancy = dict(list(self._occupancy.items())[-(self._kept.maxlen or 0) :])
        return changed


_FOLDS: Mapping[str, Any] = {
    RequestRefused.__name__: Feed._request_refused,
    CacheHit.__name__: Feed._cache_hit,
    EnsembleExecuted.__name__: Feed._ensemble_executed,
}


def _waits(
    batches: Iterable[DrawnBatch], refused: Iterable[tuple[Any, Packed | None]], pending: Iterable[Packed]
) -> Iterator[Wait]:
    """The waits that are drawn in the queue."""
    for batch in batches:
        for serial, arrived in batch.shown:
            if serial is not None and arrived is not None:
                yield arrived[TIME], serial, batch.sent[TIME]
    for event, arrived in refused:
        if arrived is not None:
            yield arrived[TIME], event.serial, event.time_ns
    for arrived in pending:
        yield arrived[TIME], arrived[SERIAL], None


def _refill(left: int, most: int) -> int:
    """How many may be drawn in the next delivery."""
    return min(BURST * most, max(0, left) + most)
