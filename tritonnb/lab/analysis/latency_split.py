"""Splits the latency of a request into causes, exactly, from the events of a recording.

While a request waits, the scheduler sends other batches. Each of them was an opportunity that the request missed, and
the batch itself shows why: it was full, the request did not fit, it had other inputs, and so on. The time in the queue
is therefore split at these batches:

- Until the first opportunity, an instance that is idle means that the scheduler held the request back (the queue
  delay); otherwise all instances were busy.
- From one opportunity to the next, the reason why the request was not in that batch is the cause, except while an
  instance is idle.

The other parts are differences of the times in the events. All parts are adjacent intervals, so that their sum is the
latency.

A generation (a request of an iterative sequence) is executed step by step. Its latency is that of its steps together:
the wait for a slot, the step that reads the prompt, and the other steps with the time between them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tritonnb.core.events import BatchExecuted, BatchSent
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.recording.batches import RequestRecord
from tritonnb.recording.recording import Recording
from tritonnb.scheduling import reasons
from tritonnb.scheduling.from_config import dynamic_batcher_settings, queue_delay_ns, sequence_batcher_settings
from tritonnb.scheduling.policy import QueueSettings, TimeoutAction
from tritonnb.scheduling.sequence_strategies import OldestSettings
from tritonnb.telemetry.lanes import BusyTime

RECEPTION = "reception"
SEQUENCE_SLOT = "sequence_slot"
SEQUENCE_ORDER = "sequence_order"
INSTANCES_BUSY = "instances_busy"
QUEUE_DELAY = "queue_delay"
PRIORITY = "priority"
EARLIER_REQUESTS = "earlier_requests"
DID_NOT_FIT = "did_not_fit"
PREFERRED_SIZE = "preferred_size"
BATCH_CLOSED = "batch_closed"
DIFFERENT_INPUTS = "different_inputs"
TIMED_OUT = "timed_out"
RATE_LIMITER = "rate_limiter"
OVERHEAD = "overhead"
COMPUTE_INPUT, COMPUTE_INFER, COMPUTE_OUTPUT = "compute_input", "compute_infer", "compute_output"
RESPONSE = "response"
PREFILL, DECODE, OTHER_STEPS = "prefill", "decode", "other_steps"

#: What each cause of latency means, in the order of the report.
CAUSES: Mapping[str, str] = {
    RECEPTION: "it was received and not yet in the queue",
    SEQUENCE_SLOT: "its sequence was in the backlog: other sequences had all batch slots",
    SEQUENCE_ORDER: "an earlier request of its sequence had not run yet",
    INSTANCES_BUSY: "every instance that could run it was busy",
    QUEUE_DELAY: "an instance was idle, and the batcher waited for more requests",
    PRIORITY: "requests with a higher priority ran first",
    EARLIER_REQUESTS: "earlier requests filled the batches before its own",
    DID_NOT_FIT: "its rows did not fit into the batch before its own",
    PREFERRED_SIZE: "the batch before its own was complete at a preferred size",
    BATCH_CLOSED: "the delay of the batch before its own had expired, so that no request could join",
    DIFFERENT_INPUTS: "its inputs, or those of a request before it, could not share the batch before its own",
    TIMED_OUT: "its timeout had passed, so that it was delayed behind the requests without a timeout",
    RATE_LIMITER: "its batch was ready and waited for a resource of the rate limiter",
    OVERHEAD: "an instance was idle and nothing held it back: the server's own work",
    COMPUTE_INPUT: "its batch was assembled",
    COMPUTE_INFER: "its batch was executed",
    COMPUTE_OUTPUT: "the outputs of its batch were divided among its requests",
    PREFILL: "its first step read the prompt",
    DECODE: "its other steps made one token each",
    OTHER_STEPS: "other generations were executed between its steps",
    RESPONSE: "it was executed, and its last response was not yet sent",
}
#: The causes of the time in the queue.
WAITS = CAUSES.keys() - {
    RECEPTION, COMPUTE_INPUT, COMPUTE_INFER, COMPUTE_OUTPUT, PREFILL, DECODE, OTHER_STEPS, RESPONSE,
}  # fmt: skip
_EXECUTION = (COMPUTE_INPUT, COMPUTE_INFER, COMPUTE_OUTPUT)
#: The causes of the time before the first step of a generation that are waits for a slot.
_SLOT = (SEQUENCE_SLOT, SEQUENCE_ORDER)
#: The causes of the time between two steps that are none of other generations.
_OWN_WORK = (RECEPTION, *_SLOT, OVERHEAD)


@dataclass(frozen=True, slots=True)
class Interval:
    """A time during which one cause kept a request from advancing.

    Attributes
    ----------
    cause : str
        A key of `CAUSES`.
    begin_ns, end_ns : int
        Monotonic clock.
    batch : int or None
        The number of the batch that was sent without the request at ``begin_ns``, if that is the cause.
    """

    cause: str
    begin_ns: int
    end_ns: int
    batch: int | None = None

    @property
    def duration_ns(self) -> int:
        """The duration of the interval."""
        return self.end_ns - self.begin_ns


class LatencySplitter:
    """The latencies of one model's requests, split into causes.

    Parameters
    ----------
    rec : Recording
        Of one model, with its configuration; see `Recording.for_model`.
    config : ModelConfig
    """

    def __init__(self, rec: Recording, config: pb.ModelConfig) -> None:
        self._config = config
        self._sequences = config.HasField("sequence_batching")
        self._oldest = self._sequences and isinstance(sequence_batcher_settings(config, {}).strategy, OldestSettings)
        self._direct = self._sequences and not self._oldest
        self._batching = self._sequences or config.HasField("dynamic_batching")
        self._delay_ns = queue_delay_ns(config)
        self._levels = QueueSettings() if self._sequences else dynamic_batcher_settings(config, {}, False).queue
        self._steps: dict[int, list[RequestRecord]] = {}
        if config.sequence_batching.iterative_sequence:
            for request in rec.requests:
                self._steps.setdefault(request.serial, []).append(request)
        self._limited = any(group.rate_limiter.resources for group in config.instance_group)
        sent = [event for event in rec.events if isinstance(event, BatchSent)]
        executed = {event.batch: event for event in rec.events if isinstance(event, BatchExecuted)}
        sent.sort(key=lambda event: (event.time_ns, event.batch))
        self._executed = executed
        self._arrivals = rec.arrived
        self._position = {serial: position for position, serial in enumerate(rec.arrived)}
        self._entered = self._entry_times(rec, sent)
        self._instance_of = {event.batch: event.instance for event in sent}
        self._lanes = {
            name: _Lane([event for event in sent if event.instance == name], executed)
            for name in set(self._instance_of.values())
        }
        self._shared = _Lane(sent, executed, max(1, len(rec.instances)))
        oldest = config.sequence_batching.oldest
        self._preserves_order = config.dynamic_batching.preserve_ordering or oldest.preserve_ordering

    def split(self, request: RequestRecord) -> list[Interval]:
        """Return the intervals of a request, adjacent and in order; their durations sum to its latency.

        The parts of a step of a generation are the sums over all steps up to it.
        """
        steps = self._steps.get(request.serial)
        parts: list[Interval] = []
        now = request.received_ns
        for number, step in enumerate(steps or [request]):
            for cause, end_ns, batch in self._causes(step, now):
                if steps:
                    cause, batch = _cause_in_generation(cause, number), None
                if end_ns <= now:
                    continue
                begin_ns = now
                if parts and (parts[-1].cause, parts[-1].batch) == (cause, batch):
                    begin_ns = parts.pop().begin_ns
                parts.append(Interval(cause, begin_ns, end_ns, batch))
                now = end_ns
            if step.batch == request.batch:
                break
        return parts

    def _causes(self, request: RequestRecord, begin_ns: int) -> Iterator[tuple[str, int, int | None]]:
        """Yield the causes that follow each other in an execution: the cause, its end, and the number of its batch.

        A cause that ends before its predecessor, or before ``begin_ns``, has no time.
        """
        # By the instance that the batch was sent to: a file may name another where the batch was executed.
        lane = self._lanes[self._instance_of[request.batch]] if self._sequences else self._shared
        place = lane.place[request.batch]
        batch, executed = lane.batches[place], self._executed[request.batch]
        slot_ns, entered_ns = self._entered.get((request.batch, request.serial), (request.queued_ns, request.queued_ns))
        slot_ns, entered_ns = min(slot_ns, batch.time_ns), min(entered_ns, batch.time_ns)
        yield RECEPTION, request.queued_ns, None
        yield SEQUENCE_SLOT, slot_ns, None
        yield SEQUENCE_ORDER, entered_ns, None
        now = max(begin_ns, request.queued_ns, slot_ns, entered_ns)
        due_ns = self._oldest_entry(batch) + self._delay_ns
        cause, number = INSTANCES_BUSY, None
        for index in range(bisect_right(lane.sent_ns, now), place + 1):
            sent = lane.batches[index]
            for busy, end_ns in lane.busy.split(now, sent.time_ns, due_ns):
                yield cause if busy else self._idle_cause(now, due_ns, batch), end_ns, number if busy else None
                now = max(now, end_ns)
            if index < place:
                cause, number = self._passed_over(request, lane, index, place), sent.batch
        yield OVERHEAD, executed.exec_start_ns, None
        yield COMPUTE_INPUT, executed.compute_start_ns, None
        yield COMPUTE_INFER, executed.compute_end_ns, None
        yield COMPUTE_OUTPUT, executed.exec_end_ns, None
        ordered_ns = lane.responded_ns[place] if self._preserves_order else executed.time_ns
        yield RESPONSE, max(ordered_ns, request.responded_ns), None  # a decoupled model may respond after its execution

    # --- the time before the batcher ----------------------------------------------------------

    def _entry_times(self, rec: Recording, sent: Sequence[BatchSent]) -> dict[tuple[int, int], tuple[int, int]]:
        """Return the times at which requests got their slots and entered the batcher, by batch and serial."""
        queued = {(request.batch, request.serial): request for request in rec.requests}
        if not self._sequences:
            return {key: (request.queued_ns, request.queued_ns) for key, request in queued.items()}
        assigned = {
            (batch.number, request.serial): occupancy.assigned_ns
            for occupancy in rec.slot_occupancy
            for batch, request in occupancy.requests
        }
        previous: dict[tuple[str, int], tuple[int | str, int]] = {}  # of each slot: its last sequence, and its release
        entered = {}
        for event in sent:
            for slot, serial in zip(event.slots or (), event.members, strict=True):
                request = queued.get((event.batch, serial)) if serial is not None else None
                if request is None:
                    continue
                key = (event.batch, request.serial)
                slot_ns = entered_ns = max(request.queued_ns, assigned.get(key, 0))
                if self._oldest:  # the batcher gets a request when the request before it in its slot was released
                    sequence, released_ns = previous.get((event.instance, slot), (0, 0))
                    entered_ns = max(slot_ns, released_ns)
                    slot_ns = slot_ns if sequence == request.sequence_id else entered_ns
                entered[key] = slot_ns, entered_ns
                previous[event.instance, slot] = request.sequence_id, self._executed[event.batch].time_ns
        return entered

    def _oldest_entry(self, batch: BatchSent) -> int:
        entries = [self._entry(batch.batch, serial) for serial in batch.members if serial is not None]
        return min(entries, default=batch.time_ns)

    def _entry(self, batch: int, serial: int) -> int:
        """Return the time at which a request entered the batcher; its arrival if the batch was not executed."""
        if (batch, serial) in self._entered:
            return self._entered[batch, serial][0 if self._direct else 1]
        return self._arrivals[serial].time_ns if serial in self._arrivals else 0

    # --- the time in the batcher --------------------------------------------------------------

    def _idle_cause(self, now_ns: int, due_ns: int, batch: BatchSent) -> str:
        """Explain why a request waits although an instance is idle."""
        if (self._delay_ns and now_ns < due_ns) or batch.facts.get("woken_by") == "poll":
            return QUEUE_DELAY
        return RATE_LIMITER if self._limited else OVERHEAD

    def _passed_over(self, request: RequestRecord, lane: _Lane, index: int, place: int) -> str:
        """Explain why a waiting request was not in a batch; ``place`` is the place of the batch that ran it."""
        batch = lane.batches[index]
        if self._direct:
            return self._slot_cause(request, batch, lane.batches[place])
        if not self._batching:
            return EARLIER_REQUESTS
        own = self._order(lane.batches[place].batch, request.serial)
        overtaking = [
            serial for serial in batch.members if serial is not None and self._order(batch.batch, serial) > own
        ]
        if overtaking:
            level = self._level(request.serial)
            return PRIORITY if any(self._level(serial) < level for serial in overtaking) else self._behind()
        room = max(1, self._config.max_batch_size) - batch.size
        if room < request.size:
            return EARLIER_REQUESTS if not room or self._rows_ahead(lane, index, own, 0) else DID_NOT_FIT
        if self._rows_ahead(lane, index, own, room - request.size) > room - request.size:
            return EARLIER_REQUESTS
        keys = {event.shape_key for event in map(self._arrivals.get, batch.members) if event}  # type: ignore[arg-type]
        mine = self._arrivals.get(request.serial)
        if batch.rule in (reasons.DIFFERENT_INPUTS, reasons.EXCLUDED):
            return DIFFERENT_INPUTS
        if mine is not None and keys and mine.shape_key not in keys:
            return DIFFERENT_INPUTS
        if batch.rule in (reasons.PREFERRED_SIZE, reasons.FULL, reasons.OVERSHOOTS_PREFERRED):
            return PREFERRED_SIZE
        return DID_NOT_FIT if batch.rule == reasons.DOES_NOT_FIT else BATCH_CLOSED

    def _slot_cause(self, request: RequestRecord, batch: BatchSent, own: BatchSent) -> str:
        """Explain why a request with a slot was not in a batch of its instance (direct strategy)."""
        assert own.slots is not None
        slot = own.slots[own.members.index(request.serial)]
        members = dict(zip(batch.slots or (), batch.members, strict=False))
        return DIFFERENT_INPUTS if members.get(slot) is None else SEQUENCE_ORDER

    def _behind(self) -> str:
        """Return the cause if a later request of the same level ran first: only a delayed timeout changes the order."""
        policies = (self._levels.default_queue_policy, *self._levels.priority_queue_policy.values())
        delays = any(policy.timeout_action is TimeoutAction.DELAY for policy in policies)
        return TIMED_OUT if delays and self._levels.has_timeouts else EARLIER_REQUESTS

    def _rows_ahead(self, lane: _Lane, index: int, own: tuple[int, int], enough: int) -> int:
        """Count the rows that waited before a request when a batch was sent, up to more than ``enough``."""
        sent_ns, rows = lane.batches[index].time_ns, 0
        for batch in lane.batches[index + 1 :]:
            for serial in batch.members:
                if serial is None:
                    continue
                order = self._order(batch.batch, serial)
                if order >= own:
                    return rows
                if order[0] <= sent_ns:
                    rows += self._arrivals[serial].size if serial in self._arrivals else 1
                    if rows > enough:
                        return rows
        return rows

    def _order(self, batch: int, serial: int) -> tuple[int, int]:
        """Return the order of the requests in the batcher."""
        return self._entry(batch, serial), self._position.get(serial, -1)

    def _level(self, serial: int) -> int:
        arrival = self._arrivals.get(serial)
        return self._levels.level_of(arrival.priority if arrival else 0)


def _cause_in_generation(cause: str, step: int) -> str:
    """Return the cause in a generation that corresponds to a cause in one of its steps."""
    if cause in _EXECUTION:
        return DECODE if step else PREFILL
    if not step:
        return SEQUENCE_SLOT if cause in _SLOT else cause
    if cause in _OWN_WORK:
        return OVERHEAD
    return cause if cause == RESPONSE else OTHER_STEPS


class _Lane:
    """The batches that one set of instances ran, in the order of sending."""

    def __init__(self, batches: list[BatchSent], executed: Mapping[int, BatchExecuted], instances: int = 1) -> None:
        self.batches = batches
        self.sent_ns = [batch.time_ns for batch in batches]
        #: The position of each batch.
        self.place = {batch.batch: place for place, batch in enumerate(batches)}
        ends = [executed[batch.batch].time_ns if batch.batch in executed else None for batch in batches]
        self.busy = BusyTime(self.sent_ns, ends, instances)
        #: The time of the responses of each batch, if the responses of all earlier batches are sent before.
        self.responded_ns = list(accumulate([end or 0 for end in ends], max))
