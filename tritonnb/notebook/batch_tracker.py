"""The state of a live view, event by event: every request from its arrival to the end of its batch.

It is called on the server's event loop, where events are made: another thread would have to wait for the interpreter
lock, and would find the events no longer in its processor's cache. It processes many events at once: one takes half a
microsecond, but five times as long between the instructions of a request, which are then no longer in the cache. It
only counts, and keeps the batches that a delivery may need: others contribute little more than their size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
from tritonnb.core.packed_events import Packed, failures_of, members_of, positions, unpack
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.notebook.interval_counters import Counters, QueueDepth
from tritonnb.notebook.iterative_requests import GeneratedTokens, IterativeRequests
from tritonnb.notebook.view_encoding import (
    EXEC_END,
    EXEC_START,
    INSTANCE,
    MODEL,
    NUMBER,
    SEQUENCE,
    SERIAL,
    SIZE,
    TIME,
    DrawnBatch,
)
from tritonnb.recording.instance_names import instances_of

#: Events that are followed at once.
TOGETHER = 128
#: Waiting requests sent at once, and refused requests and changes of the queue depth sent per delivery.
MOST_PENDING, MOST_CHANGES = 100, 400
#: Streams that are remembered until their last response.
MOST_STREAMS = 4096
#: Requests and batches sent per delivery, and how many times as many in a burst. Jupyter forwards 1 MB per second; ten
#: deliveries are 0.1 MB.
MOST_MEMBERS, MOST_BATCHES, BURST = 120, 30, 5

_RESPONSE_AT = positions(ResponseSent)


@dataclass(slots=True)
class Counts:
    """Totals, whether sent or not."""

    requests: int = 0
    refused: int = 0
    failed: int = 0
    cached: int = 0
    batches: int = 0
    rows: int = 0
    nulls: int = 0


@dataclass(slots=True)
class Delta:
    """Changes since the last delivery, and the state at ``now_ns``, when they were taken.

    ``sent``, ``refused`` and ``depths`` have everything until ``exact_ns``; ``counters`` and ``counts`` have
    everything. ``executed`` are the batches of a stateful model, ``sequences`` those with a request that waits or runs.
    ``responses`` are the first `MOST_CHANGES` that were sent after the execution of their batch: its number, the place
    of the request in it, and the time.
    """

    counters: Counters
    sent: list[DrawnBatch] = field(default_factory=list)
    done: list[DrawnBatch] = field(default_factory=list)  # they were sent in an earlier delivery
    executed: list[DrawnBatch] = field(default_factory=list)
    refused: list[tuple[Any, Packed | None]] = field(default_factory=list)
    responses: list[tuple[int, int, int]] = field(default_factory=list)
    now_ns: int = 0
    exact_ns: int = 0
    counts: Counts = field(default_factory=Counts)
    depth: int = 0
    depths: list[tuple[int, int]] = field(default_factory=list)
    pending: list[Packed] = field(default_factory=list)
    running: list[Packed] = field(default_factory=list)
    sequences: set[int | str] = field(default_factory=set)
    instances: list[str] = field(default_factory=list)


class BatchTracker:
    """A tracker of one model's events; all methods are called on the thread where these are made.

    Parameters
    ----------
    model : str
    config : ModelConfig
    begin_ns : int
        The begin of ``counters``.
    depth : int
        The number of requests that already wait.
    limited : bool
        Whether to keep single batches only up to the limits of a delivery.
    counters : callable
        Returns new counters, for the time until the next delivery.
    recent : int, optional
        How many of the newest events are kept.

    Attributes
    ----------
    counts : Counts
        What was followed.
    """

    def __init__(
        self,
        model: str,
        config: pb.ModelConfig,
        begin_ns: int,
        depth: int,
        limited: bool,
        counters: Callable[[], Counters],
        recent: int = 0,
    ) -> None:
        self.counts = Counts()
        self._received: list[Packed] = []
        self._recent: deque[Packed] = deque(maxlen=recent)
        self._model = model
        self._make_counters = counters
        self._new = Delta(counters())
        self._limited = limited
        self._depth = QueueDepth(depth, begin_ns, MOST_CHANGES + 1 if limited else None)
        self._earlier = depth
        self._stateful = config.HasField("sequence_batching")
        self._iterative = IterativeRequests() if config.sequence_batching.iterative_sequence else None
        self._tokens = GeneratedTokens()
        self._streams: dict[int, tuple[int, int]] = {}  # executed, without a last response: batch and place in it
        self._waiting: dict[int, Packed] = {}  # arrivals by serial
        self._running: dict[int, DrawnBatch] = {}  # by number
        self._running_omitted: dict[int, Packed] = {}
        self._budget = DeliveryBudget()
        self._taken = Counts()
        self.reconfigure(config)

    def reconfigure(self, config: pb.ModelConfig) -> None:
        """Follow a new configuration of the model."""
        self._instances = instances_of(self._model, config)
        self._decoupled = config.model_transaction_policy.decoupled

    @property
    def quiet(self) -> bool:
        """True if nothing is new and no request waits or is being executed."""
        new = self._new
        changed = self._received or self._depth.changes or new.counters.lanes or new.sent or new.done or new.refused
        changed = changed or new.responses
        return not (changed or self.counts != self._taken or self._waiting or self._running or self._running_omitted)

    def receive(self, packed: Packed) -> None:
        """Follow a packed event of any model, at the latest in `catch_up`; events of other models are ignored."""
        if packed[MODEL] == self._model:
            self._received.append(packed)
            if len(self._received) == TOGETHER:
                self.catch_up()

    def catch_up(self) -> Counts:
        """Follow every event that was received."""
        received, self._received = self._received, []
        self._recent.extend(received)
        self.fold(received)
        return self.counts

    def recent(self) -> list[Packed]:
        """Return the newest events."""
        self.catch_up()
        return list(self._recent)

    def fold(self, events: Iterable[Packed]) -> None:
        """Follow packed events of the model, in order."""
        for packed in events:
            follow = _FOLLOW.get(packed[0])
            if follow is not None:
                follow(self, packed)

    def take_changes(self, now_ns: int) -> Delta:
        """Return the changes since the last call."""
        self.catch_up()
        changes, self._new = self._new, Delta(self._make_counters())
        for refusal, _ in changes.refused:
            changes.counters.add_refusal(refusal.time_ns)
        changes.now_ns = now_ns
        changes.counts = self._taken = replace(self.counts)
        changes.depth, changes.depths = self._depth.now, self._depth.take_changes(now_ns, changes.counters)
        exact_ns = changes.exact_ns = self._exact_until(changes)
        changes.depths[1:] = [change for change in changes.depths[1:] if change[0] <= exact_ns]
        changes.sent = [batch for batch in changes.sent if batch.sent[TIME] <= exact_ns]
        for batch in changes.sent:
            batch.taken = True
        changes.refused = [refusal for refusal in changes.refused if refusal[0].time_ns <= exact_ns]
        changes.pending = list(islice(self._waiting.values(), MOST_PENDING))
        changes.running = [batch.sent for batch in self._running.values()] + list(self._running_omitted.values())
        changes.sequences = self._live_sequences()
        changes.instances = [*self._instances]
        return changes

    def _exact_until(self, changes: Delta) -> int:
        """Return the time until which everything is sent; add the budget of the next delivery."""
        omitted_ns = self._budget.refill()
        bounds = [changes.now_ns] if omitted_ns is None else [changes.now_ns, omitted_ns - 1]
        if self._limited and len(changes.depths) > MOST_CHANGES + 1:  # the first change is from the last delivery
            bounds.append(changes.depths[MOST_CHANGES + 1][0] - 1)
        if self._limited and len(changes.refused) > MOST_PENDING:
            bounds.append(changes.refused[MOST_PENDING][0].time_ns - 1)
        return min(bounds)

    def _live_sequences(self) -> set[int | str]:
        if not self._stateful:
            return set()
        running = [arrived for batch in self._running.values() for _, arrived in batch.requests if arrived is not None]
        return {arrived[SEQUENCE] for arrived in (*self._waiting.values(), *running)}

    # --- events -------------------------------------------------------------------------------

    def _request_arrived(self, packed: Packed) -> None:
        self.counts.requests += 1
        self._waiting[packed[SERIAL]] = packed if self._iterative is None else self._iterative.arrived(packed)
        self._depth.change(packed[TIME], 1, self._new.counters)

    def _request_refused(self, packed: Packed) -> None:
        event: Any = unpack(packed)
        self.counts.refused += 1
        arrived = self._waiting.pop(event.serial, None)
        if arrived is not None or (self._earlier and event.counted_as):
            self._earlier -= arrived is None
            self._depth.change(event.time_ns, -1, self._new.counters)
        elif not event.counted_as and not (self._iterative and self._iterative.is_known(event.serial)):
            self.counts.requests += 1  # it was refused before it could wait
        self._new.refused.append((event, arrived))

    def _batch_sent(self, packed: Packed) -> None:
        counts, members, instance, time_ns = self.counts, members_of(packed), packed[INSTANCE], packed[TIME]
        counts.batches += 1
        counts.rows += packed[SIZE]
        if instance not in self._instances:
            self._instances.append(instance)
        pop = self._waiting.pop
        arrivals = [pop(serial, None) for serial in members]  # type: ignore[arg-type]
        left = len(arrivals)
        if None in arrivals:
            nulls = members.count(None)
            again = 0 if self._iterative is None else self._iterative.count_rescheduled(members)
            unseen = arrivals.count(None) - nulls - again
            before = min(self._earlier, unseen)
            self._earlier -= before
            counts.nulls += nulls
            left -= nulls + again + unseen - before
        self._depth.change(time_ns, -left, self._new.counters)
        arrived_ns = [arrived[TIME] for arrived in arrivals if arrived is not None]
        if arrived_ns:
            self._new.counters.add_wait(time_ns, time_ns - min(arrived_ns))
        if self._iterative is not None:
            arrivals = self._iterative.steps(packed, members, arrivals)
        is_drawn = not self._limited or self._budget.covers(time_ns, len(arrivals))
        if is_drawn or self._stateful:  # the slots of all batches are followed
            batch = self._running[packed[NUMBER]] = DrawnBatch(packed, list(zip(members, arrivals, strict=True)))
            if is_drawn:
                self._new.sent.append(batch)
        else:
            self._running_omitted[packed[NUMBER]] = packed

    def _batch_executed(self, packed: Packed) -> None:
        self.counts.failed += failures_of(packed)
        self._new.counters.add_execution(packed[INSTANCE], packed[EXEC_START], packed[EXEC_END], packed[SIZE])
        if self._running_omitted.pop(packed[NUMBER], None) is not None:
            return
        batch = self._running.pop(packed[NUMBER], None)
        if batch is None:
            return
        if self._decoupled and not self._stateful:
            serials = [serial for serial, _ in batch.requests]
            batch.generated = self._tokens.take_tokens(serials, packed[EXEC_END])
            self._streams |= {
                serial: (packed[NUMBER], place) for place, serial in enumerate(serials) if serial is not None
            }
            while len(self._streams) > MOST_STREAMS:
                del self._streams[next(iter(self._streams))]
        batch.executed = packed
        if batch.taken:
            self._new.done.append(batch)
        if self._stateful:
            self._new.executed.append(batch)

    def _response_sent(self, packed: Packed) -> None:
        serial, stream = packed[SERIAL], self._streams.get(packed[SERIAL])
        if stream is None:
            if not self._stateful:
                self._tokens.responded(packed)
            return
        if packed[_RESPONSE_AT.final]:
            del self._streams[serial]
        if packed[_RESPONSE_AT.outcome] != "empty" and (not self._limited or len(self._new.responses) < MOST_CHANGES):
            self._new.responses.append((*stream, packed[TIME]))

    def _cache_hit(self, packed: Packed) -> None:
        self.counts.requests += 1
        self.counts.cached += 1

    def _ensemble_executed(self, packed: Packed) -> None:
        self.counts.requests += 1


_FOLLOW: Mapping[str, Callable[[BatchTracker, Packed], None]] = {
    RequestArrived.__name__: BatchTracker._request_arrived,
    BatchSent.__name__: BatchTracker._batch_sent,
    BatchExecuted.__name__: BatchTracker._batch_executed,
    RequestRefused.__name__: BatchTracker._request_refused,
    ResponseSent.__name__: BatchTracker._response_sent,
    CacheHit.__name__: BatchTracker._cache_hit,
    EnsembleExecuted.__name__: BatchTracker._ensemble_executed,
}


class DeliveryBudget:
    """The number of batches and requests that the next delivery may contain; unused parts are carried over.

    Examples
    --------
    >>> budget = DeliveryBudget()
    >>> [budget.covers(time_ns, members=200) for time_ns in range(5)]
    [True, True, True, False, False]
    >>> budget.refill()
    3
    """

    def __init__(self) -> None:
        self._members, self._batches = BURST * MOST_MEMBERS, BURST * MOST_BATCHES
        self._omitted_ns: int | None = None

    def covers(self, time_ns: int, members: int) -> bool:
        """Return whether a batch is sent: not if the budget is exceeded, nor after one that was not sent."""
        if self._omitted_ns is not None:
            return False
        self._members -= members
        self._batches -= 1
        if self._members < 0 or self._batches < 0:
            self._omitted_ns = time_ns
        return self._omitted_ns is None

    def refill(self) -> int | None:
        """Add the budget of another delivery; return when the first batch was not sent."""
        self._members = min(BURST * MOST_MEMBERS, max(0, self._members) + MOST_MEMBERS)
        self._batches = min(BURST * MOST_BATCHES, max(0, self._batches) + MOST_BATCHES)
        omitted_ns, self._omitted_ns = self._omitted_ns, None
        return omitted_ns
