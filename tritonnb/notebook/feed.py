"""What a live view draws, folded from events: small enough to send ten times a second.

Counts, and the counters of each interval, are exact at every rate. Single batches and requests are sent only up to
`MOST_BATCHES` and `MOST_MEMBERS` per delivery, in order: a delivery says until when it has all of them (``exact``), and
a view draws the rest of its time from the counters.
At full load there are tens of thousands of events per second, and folding them holds the interpreter lock that the
server needs. So events are folded in packed form, batches that are not sent contribute little more than their size,
and only requests that are sent get a queue row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from tritonnb.core.events import (
    BatchExecuted,
    BatchSent,
    CacheHit,
    EnsembleExecuted,
    RequestArrived,
    RequestRefused,
    ResponseSent,
)
from tritonnb.core.json_types import Json
from tritonnb.core.packed_events import Packed, failures_of, members_of, slots_of, unpack
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.notebook.delivery_budget import DeliveryBudget
from tritonnb.notebook.generated_tokens import GeneratedTokens
from tritonnb.notebook.interval_counters import Execution
from tritonnb.notebook.iterative_requests import IterativeRequests
from tritonnb.notebook.model_intervals import ModelIntervals, encode_counters
from tritonnb.notebook.queue_depth import QueueDepth
from tritonnb.notebook.queue_rows import QueueRows, drawn_waits
from tritonnb.notebook.view_encoding import (
    BATCH_FIELDS,
    EXEC_END,
    EXEC_START,
    EXECUTION_FIELDS,
    INSTANCE,
    NUMBER,
    SEQUENCE,
    SERIAL,
    SIZE,
    TIME,
    DrawnBatch,
    Encoded,
    ViewEncoder,
    columns,
)
from tritonnb.notebook.view_metadata import describe_config
from tritonnb.recording.batches import batches_of
from tritonnb.recording.instances import instances_of, natural_sort_key
from tritonnb.recording.sequences import SlotHistory

#: Waiting requests sent at once, and refused requests and changes of the queue depth sent per delivery.
MOST_PENDING, MOST_CHANGES = 100, 400
#: The shortest interval that is counted, and how many are kept for a view that is opened later.
INTERVAL_NS, KEPT_INTERVALS = 10_000_000, 128
#: The slots of a model that has more are not counted one by one.
MOST_SLOTS = 64
#: Batches that are encoded without a pause.
_BATCHES_PER_PART = 5
_ARRIVED, _SENT, _EXECUTED = RequestArrived.__name__, BatchSent.__name__, BatchExecuted.__name__


@dataclass(slots=True)
class _Counts:
    """Totals, whether sent or not."""

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
    limited : bool, optional
        Whether to send single batches only up to the limits of this module.
    interval_ns, keep_intervals : int, optional
        The shortest interval that is counted, and how many of them `history` has at least.
    pause : callable, optional
        Called after each part of the work of a delivery, so that other threads get the interpreter lock.
    """

    def __init__(
        self,
        model: str,
        config: pb.ModelConfig,
        begin_ns: int,
        *,
        depth: int = 0,
        keep: int = 400,
        limited: bool = True,
        interval_ns: int = INTERVAL_NS,
        keep_intervals: int = KEPT_INTERVALS,
        pause: Callable[[], object] = lambda: None,
    ) -> None:
        self.model = model
        self.config = config
        self.meta = describe_config(model, config)
        self.counts = _Counts()
        self._encoder = ViewEncoder(begin_ns, config.dynamic_batching.default_priority_level)
        self._depth = QueueDepth(depth, begin_ns)
        self._earlier = depth
        self._limited = limited
        self._pause = pause
        self._stateful = config.HasField("sequence_batching")
        self._iterative = IterativeRequests() if config.sequence_batching.iterative_sequence else None
        self._tokens = GeneratedTokens()
        self._waiting: dict[int, Packed] = {}  # arrivals by serial
        self._running: dict[int, DrawnBatch] = {}  # by number
        self._running_omitted: dict[int, Packed] = {}
        self._sent: list[DrawnBatch] = []
        self._done: list[DrawnBatch] = []  # already sent to views
        self._refusals: list[tuple[Any, Packed | None]] = []
        self._budget = DeliveryBudget(limited)
        self._counted = 0, 0  # totals at the last delivery
        self._queue_rows = QueueRows()
        self._slots = SlotHistory({model: config})
        self._occupancy: dict[tuple[str, int, int], Encoded] = {}
        self._instances: list[str] = instances_of(model, config)
        self._kept: deque[Encoded] = deque(maxlen=keep)
        self._pending: list[Encoded] = []
        self._refused: deque[Encoded] = deque(maxlen=keep)
        self._depths: deque[list[int]] = deque(maxlen=4 * keep)
        self._number = 0  # of the last delivery
        self._since_ns = begin_ns
        self._exact: deque[list[int]] = deque(maxlen=keep)  # the spans of which every batch was sent
        self._executions: list[Execution] = []
        self._waits: list[tuple[int, int]] = []  # when a batch was sent, and how long its oldest request had waited
        self._intervals = ModelIntervals(begin_ns, interval_ns, keep_intervals)

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
        counts, waiting, depth = self.counts, self._waiting, self._depth
        for packed in events:
            kind = packed[0]
            if kind == _ARRIVED:  # the most frequent event first
                counts.requests += 1
                waiting[packed[SERIAL]] = packed if self._iterative is None else self._iterative.arrived(packed)
                depth.increment(packed[TIME])
            elif kind == _SENT:
                self._batch_sent(packed)
            elif kind == _EXECUTED:
                counts.failed += failures_of(packed)
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
            again = 0 if self._iterative is None else self._iterative.known(members)
            unseen = arrivals.count(None) - nulls - again
            before = min(self._earlier, unseen)
            self._earlier -= before
            counts.nulls += nulls
            left -= nulls + again + unseen - before
        self._depth.decrease(packed[TIME], left)
        arrived_ns = [arrived[TIME] for arrived in arrivals if arrived is not None]
        if arrived_ns:
            self._waits.append((packed[TIME], packed[TIME] - min(arrived_ns)))
        if self._iterative is not None:
            arrivals = self._iterative.steps(packed, members, arrivals)
        if self._budget.covers(packed[TIME], len(arrivals)):
            batch = self._running[packed[NUMBER]] = DrawnBatch(packed, list(zip(members, arrivals, strict=True)))
            self._sent.append(batch)
        elif self._stateful:  # the slots of all batches are followed
            self._running[packed[NUMBER]] = DrawnBatch(packed, list(zip(members, arrivals, strict=True)))
        else:
            self._running_omitted[packed[NUMBER]] = packed

    def _batch_executed(self, packed: Packed) -> None:
        self._running_omitted.pop(packed[NUMBER], None)
        batch = self._running.pop(packed[NUMBER], None)
        slots: list[tuple[int, bool]] = []
        if batch is not None:
            batch.executed = packed
            if self.config.model_transaction_policy.decoupled and not self._stateful:
                serials = [serial for serial, _ in batch.requests]
                batch.generated = self._tokens.take(serials, packed[EXEC_END])
            if batch.encoded:
                self._done.append(batch)
            if self._stateful:
                slots = self._follow_slots(batch, packed)
        execution = self._intervals.execution(
            packed[INSTANCE], packed[EXEC_START], packed[EXEC_END], packed[SIZE], slots
        )
        self._executions.append(execution)

    def _follow_slots(self, batch: DrawnBatch, packed: Packed) -> list[tuple[int, bool]]:
        arrivals = [arrived for _, arrived in batch.requests if arrived is not None]
        for executed, requests in batches_of(list(map(unpack, [*arrivals, batch.sent, packed]))):
            self._slots.add_batch(executed, requests)
        slots = slots_of(batch.sent) or ()
        if self.meta["slots"] > MOST_SLOTS:
            return []
        return [(slot, serial is None) for slot, (serial, _) in zip(slots, batch.requests, strict=False)]

    def _response_sent(self, packed: Packed) -> None:
        if not self._stateful:
            self._tokens.responded(packed)

    def _cache_hit(self, packed: Packed) -> None:
        self.counts.requests += 1
        self.counts.cached += 1

    def _ensemble_executed(self, packed: Packed) -> None:
        self.counts.requests += 1

    # --- deliveries ---------------------------------------------------------------------------

    def flush(self, now_ns: int) -> Json:
        """Return what is new since the last call."""
        before, changes = self._depth.take_changes(now_ns)
        refused_ns = [event.time_ns for event, _ in self._refusals]
        counted = self._intervals.count(
            self._executions, refused_ns=refused_ns, waits=self._waits, depths=(changes, before, now_ns)
        )
        self._pause()
        exact_ns = self._exact_until(now_ns, changes)
        self._sent = [batch for batch in self._sent if batch.sent[TIME] <= exact_ns]
        chosen, done, encoder = self._sent, self._done, self._encoder
        refused = [refusal for refusal in self._refusals if refusal[0].time_ns <= exact_ns]
        pending = list(islice(self._waiting.values(), MOST_PENDING))
        queue_rows = self._queue_rows.assign(drawn_waits(chosen, refused, pending))
        self._pause()
        batches: list[Encoded] = []
        for batch in chosen:
            batches.append(encoder.batch(batch, queue_rows))
            if len(batches) % _BATCHES_PER_PART == 0:
                self._pause()
        self._kept.extend(batches)
        executed = [[batch.sent[NUMBER], *encoder.execution(batch)] for batch in done]
        for batch, (_, *execution) in zip(done, executed, strict=True):
            batch.encoded[-len(EXECUTION_FIELDS) :] = execution
        self._pending = [encoder.request(arrived, queue_rows[arrived[SERIAL]]) for arrived in pending]
        refusals = [encoder.refusal(*refusal, queue_rows) for refusal in refused]
        self._refused.extend(refusals)
        depths = self._new_depths(before, [change for change in changes if change[0] <= exact_ns])
        self._sent, self._done, self._refusals, self._executions, self._waits = [], [], [], [], []
        self._counted = self.counts.total
        self._number += 1
        since, exact = encoder.ticks(self._since_ns), encoder.ticks(exact_ns)
        self._since_ns = now_ns
        self._add_exact(since, exact)
        return {
            **self._state(now_ns),
            "since": since,
            "exact": exact,
            "batches": columns(BATCH_FIELDS, batches),
            "done": columns(("n", *EXECUTION_FIELDS), executed),
            "refused": refusals,
            "depths": depths,
            "occupancy": self._new_occupancy(now_ns) if self._stateful else [],
            "counters": encode_counters(counted),
        }

    def history(self, now_ns: int) -> Json:
        """Return everything that is kept, for a view that is opened now."""
        return {
            **self._state(now_ns),
            "meta": self.meta,
            "spans": self._exact_spans(),
            "batches": columns(BATCH_FIELDS, self._kept),
            "done": {},
            "refused": list(self._refused),
            "depths": list(self._depths),
            "occupancy": list(self._occupancy.values()),
            "levels": self._intervals.encode(),
        }

    @property
    def quiet(self) -> bool:
        """Whether nothing is new and no request waits or is being executed."""
        new = self._sent or self._done or self._refusals or self._depth.changes or self.counts.total != self._counted
        return not (new or self._executions or self._waiting or self._running or self._running_omitted)

    def _state(self, now_ns: int) -> Json:
        running = [batch.sent for batch in self._running.values()] + list(self._running_omitted.values())
        return {
            "number": self._number,
            "now": self._encoder.ticks(now_ns),
            "interval": self._intervals.width_ns / 1e6,
            "instances": sorted(self._instances, key=natural_sort_key),
            "pending": self._pending,
            "running": [[sent[INSTANCE], self._encoder.ticks(sent[TIME]), sent[SIZE]] for sent in running],
            "depth": self._depth.now,
            "counts": asdict(self.counts),
        }

    def _exact_until(self, now_ns: int, changes: list[tuple[int, int]]) -> int:
        """Until when everything is sent; add the budget of the next delivery."""
        omitted_ns = self._budget.refill()
        bounds = [now_ns] if omitted_ns is None else [now_ns, omitted_ns - 1]
        if self._limited and len(changes) > MOST_CHANGES:
            bounds.append(changes[MOST_CHANGES][0] - 1)
        if self._limited and len(self._refusals) > MOST_PENDING:
            bounds.append(self._refusals[MOST_PENDING][0].time_ns - 1)
        return min(bounds)

    def _add_exact(self, since: int, until: int) -> None:
        if self._exact and self._exact[-1][1] == since:
            self._exact[-1][1] = until
        elif until > since:
            self._exact.append([since, until])

    def _exact_spans(self) -> list[list[int]]:
        """The spans of which everything is kept."""
        kept = ((self._kept, BATCH_FIELDS.index("sent")), (self._depths, 0), (self._refused, 1))
        first = max([items[0][time] for items, time in kept if len(items) == items.maxlen], default=-1) + 1
        return [[max(first, since), until] for since, until in self._exact if until > first]

    def _new_depths(self, before: tuple[int, int], changes: list[tuple[int, int]]) -> list[list[int]]:
        """The queue depth over time since the last delivery, with the depth before."""
        depths = {self._encoder.ticks(time_ns): depth for time_ns, depth in (before, *changes)}
        encoded = [[ticks, depth] for ticks, depth in depths.items()]
        self._depths.extend(encoded)
        return encoded

    def _new_occupancy(self, now_ns: int) -> list[Encoded]:
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
        if self._limited:
            self._slots.discard_before(now_ns - 1_000_000_000)
            self._occupancy = dict(list(self._occupancy.items())[-(self._kept.maxlen or 0) :])
        return changed


_FOLDS: Mapping[str, Any] = {
    RequestRefused.__name__: Feed._request_refused,
    ResponseSent.__name__: Feed._response_sent,
    CacheHit.__name__: Feed._cache_hit,
    EnsembleExecuted.__name__: Feed._ensemble_executed,
}
