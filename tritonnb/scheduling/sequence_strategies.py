"""The strategies of the sequence batcher, `direct` and `oldest`, and their settings.

Direct: the slot of a sequence is its row in every batch of its instance. When the instance is idle, the first request
of every slot joins the batch. Rows below the highest ready slot that have no request are null requests,
and so are rows whose inputs cannot share a batch with the inputs of the first ready slot. With ``max_queue_delay`` and
``minimum_slot_utilization`` the instance waits for more slots to become ready.

Oldest: slots are candidate sequences; a dynamic batcher batches their oldest requests. At most one request of each slot
is in the batcher or running; the next request follows when the backend has released it. So a batch never contains two
requests of one sequence, and sequences alternate.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling import reasons
from tritonnb.scheduling.decisions import Decision, Execute, Reason, Refuse, ResponseOrder
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.policy import DynamicBatcherSettings
from tritonnb.scheduling.slots import Slot, SlotTable


@dataclass(frozen=True, slots=True)
class DirectSettings:
    """The settings of ``sequence_batching.direct``.

    Attributes
    ----------
    slot_count : int
        ``max_batch_size``: slots of each instance.
    max_queue_delay_ns : int
        How long the oldest ready request may wait for other slots, in ns.
    minimum_slot_utilization : float
        The fraction of slots that must be ready before the delay has passed; 0 not to wait.
    """

    slot_count: int
    max_queue_delay_ns: int = 0
    minimum_slot_utilization: float = 0.0

    def rule_for(self, ready: int, waited_ns: int) -> str:
        """Return the rule by which ready slots are executed, or `reasons.WAIT`.

        Parameters
        ----------
        ready : int
            Slots that have a request.
        waited_ns : int
            How long the oldest request in these slots has waited, in ns.

        Examples
        --------
        >>> DirectSettings(10, 4_000_000, 0.3).rule_for(ready=2, waited_ns=0)
        'wait'
        >>> DirectSettings(10, 4_000_000, 0.3).rule_for(ready=3, waited_ns=0)
        'slot_utilization'
        """
        # Surprisingly, a delay alone delays nothing: Triton waits only if both are set (measured on 2.51).
        if not self.max_queue_delay_ns or not self.minimum_slot_utilization:
            return reasons.NO_SLOT_WAIT
        if _single(ready / self.slot_count) >= _single(self.minimum_slot_utilization):
            return reasons.SLOT_UTILIZATION
        # Triton's source says "longer than"; in virtual time, a wake at exactly this time must find the delay exceeded.
        return reasons.DELAY_EXCEEDED if waited_ns >= self.max_queue_delay_ns else reasons.WAIT

    def facts(self, ready: int, waited_ns: int) -> dict[str, Any]:
        """Return the values that `rule_for` compares."""
        return {
            "ready": ready,
            "slots": self.slot_count,
            "waited_ns": waited_ns,
            "delay_ns": self.max_queue_delay_ns,
            "minimum_slot_utilization": self.minimum_slot_utilization,
        }


class DirectStrategy:
    """The slots of one instance, and when their requests are executed.

    Parameters
    ----------
    instance : int
    settings : DirectSettings
    table : SlotTable
        Provides the next request of each slot.

    Attributes
    ----------
    slots : list of Slot
    next_wake_ns : int or None
    paused : bool
        While true, no batch is sent.
    """

    def __init__(self, instance: int, settings: DirectSettings, table: SlotTable) -> None:
        self.slots = [Slot(instance, index) for index in range(settings.slot_count)]
        self.next_wake_ns: int | None = None
        self.paused = False
        self.settings = settings
        self._instance = instance
        self._table = table
        self._idle_since: int | None = None
        self._has_run = False
        self._top = -1  # no slot above this one has a sequence

    @property
    def idle(self) -> bool:
        """True if the instance is idle."""
        return self._idle_since is not None

    @property
    def settled(self) -> bool:
        """True if no request is running."""
        return self.idle

    def arrived(self, slot: Slot, now: int, decisions: list[Decision]) -> None:
        """Handle a slot's new request or new sequence, or the end of its sequence."""
        self._top = max(self._top, slot.index)
        self._advance(now, decisions)

    def instance_idle(self, now: int, decisions: list[Decision]) -> None:
        """Handle the end of the execution."""
        self._idle_since = now
        self._advance(now, decisions)

    def completed(self, slot: Slot, now: int, decisions: list[Decision]) -> None:
        """Do nothing: the next request follows when the whole execution has ended."""

    def cancelled(self, request: Schedulable, now: int, decisions: list[Decision]) -> None:
        """Handle the cancellation of a request in a slot; it is dropped when it is the next request of its slot."""
        self._advance(now, decisions)

    def wake(self, now: int, decisions: list[Decision]) -> None:
        """Called when the queue delay of the oldest ready request has passed."""
        self._advance(now, decisions)

    def drop_requests(self, now: int) -> list[Schedulable]:
        """Return no requests: those that are dispatched are running."""
        return []

    def response_order(self) -> ResponseOrder | None:
        """Return None: responses are sent directly."""
        return None

    def reconfigure(self, settings: object, now: int, decisions: list[Decision]) -> None:
        """Apply a changed delay or utilization."""
        assert isinstance(settings, DirectSettings)
        self.settings = settings
        self._advance(now, decisions)

    def verdict(self, now: int) -> Reason | None:
        """Return the reason of the next batch, or `reasons.WAIT`; None if no slot has a request."""
        heads = [slot.sequence.waiting[0] for slot in self.slots if slot.sequence is not None and slot.sequence.waiting]
        ready = [request for request in heads if not request.cancelled]
        if not ready:
            return None
        settings = self.settings
        waited = now - min(request.queued_ns for request in ready)
        verdict = Reason(settings.rule_for(len(ready), waited), settings.facts(len(ready), waited))
        if verdict.rule == reasons.WAIT:
            verdict.facts["wait_ns"] = settings.max_queue_delay_ns - waited
        return verdict

    def _advance(self, now: int, decisions: list[Decision]) -> None:
        """Execute the ready slots if the instance is idle and their rule does not wait for others."""
        self.next_wake_ns = None
        if self._idle_since is None or self.paused:
            return
        # Asking for the heads also ends closed and cancelled sequences, so that a sequence of the backlog may get its
        # slot in time for this batch.
        heads = [self._table.head(slot, now, decisions) for slot in self.slots[: self._top + 1]]
        while self._top >= 0 and self.slots[self._top].sequence is None:
            self._top -= 1
        ready = [request for request in heads if request is not None]
        if not ready:
            return
        waited = now - min(request.queued_ns for request in ready)
        rule = self.settings.rule_for(len(ready), waited)
        if rule == reasons.WAIT:
            self.next_wake_ns = now - waited + self.settings.max_queue_delay_ns
            return
        # Rows above the highest ready slot are not padded: the size of a batch says which slot is the highest, and not
        # how many slots there are.
        while heads[-1] is None:
            heads.pop()
        reference = ready[0].batch_key
        batch = [
            self._table.dispatch(self.slots[index], now, decisions)
            # A misfit in the highest slot leaves a null row at the end: Triton fixes the range before it compares
            # inputs.
            if request is not None and request.batch_key == reference
            else None
            for index, request in enumerate(heads)
        ]
        nulls = batch.count(None)
        facts = {
            "requests": len(batch) - nulls,
            "rows": len(batch),
            "nulls": nulls,
            **self.settings.facts(len(ready), waited),
            "instance": self._instance,
            "idle_ns": now - self._idle_since,
            "has_run": self._has_run,
        }
        self._idle_since = None
        self._has_run = True
        slots = tuple(range(len(batch)))
        decisions.append(Execute(self._instance, batch, len(batch), Reason(rule, facts), slots))


def _single(number: float) -> float:
    """Round to single precision, as Triton does: only then is 3 of 10 slots equal to a configured 0.3."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


@dataclass(frozen=True, slots=True)
class OldestSettings:
    """The settings of ``sequence_batching.oldest``.

    Attributes
    ----------
    slot_count : int
        ``max_candidate_sequences``: active sequences of an instance.
    batcher : DynamicBatcherSettings
        Preferred sizes, delay and ordering; without priorities or a queue policy.
    """

    slot_count: int
    batcher: DynamicBatcherSettings


class OldestStrategy:
    """The candidate sequences of one instance, and their batcher.

    Parameters
    ----------
    instance : int
    settings : OldestSettings
    table : SlotTable
        Provides the next request of each slot.

    Attributes
    ----------
    slots : list of Slot
    batcher : DynamicBatcher
    paused : bool
        While true, no requests are passed to the batcher.
    """

    def __init__(self, instance: int, settings: OldestSettings, table: SlotTable) -> None:
        self.slots = [Slot(instance, index) for index in range(settings.slot_count)]
        self._settings = settings
        self._instance = instance
        self._create_batcher(0)
        self.paused = False
        self._table = table
        self._slot_of: dict[Schedulable, Slot] = {}  # requests in the batcher or running

    @property
    def next_wake_ns(self) -> int | None:
        """The time at which `wake` is due."""
        return self.batcher.next_wake_ns

    @property
    def idle(self) -> bool:
        """True if the instance is idle."""
        return bool(self.batcher.instances.idle)

    @property
    def settled(self) -> bool:
        """True if no request is running or in the batcher."""
        return not self._slot_of

    def arrived(self, slot: Slot, now: int, decisions: list[Decision]) -> None:
        """Handle a slot's new request or new sequence, or the end of its sequence."""
        if slot.in_flight is not None or self.paused:
            return
        if self._table.head(slot, now, decisions) is None:
            return
        request = self._table.dispatch(slot, now, decisions)
        slot.in_flight = request
        self._slot_of[request] = slot
        # Not `enqueue`: the request was accepted by the sequence batcher, and is executed even if the server stops now.
        self._forward(self.batcher.submit(request, now), now, decisions)

    def instance_idle(self, now: int, decisions: list[Decision]) -> None:
        """Handle the end of the execution."""
        self._forward(self.batcher.instance_idle(self._instance, now), now, decisions)

    def execute_staged(self, now: int, decisions: list[Decision]) -> None:
        """Execute the staged batch."""
        self._forward(self.batcher.execute_staged(self._instance, now), now, decisions)

    def completed(self, slot: Slot, now: int, decisions: list[Decision]) -> None:
        """Pass the next request of the slot to the batcher: the last request was released."""
        assert slot.in_flight is not None
        del self._slot_of[slot.in_flight]
        slot.in_flight = None
        self.arrived(slot, now, decisions)

    def cancelled(self, request: Schedulable, now: int, decisions: list[Decision]) -> None:
        """Drop a cancelled request if it is in the batcher; its sequence continues."""
        self._forward(self.batcher.cancel(request, now), now, decisions)

    def verdict(self, now: int) -> Reason | None:
        """Return the reason of the next batch, or `reasons.WAIT`; None if the batcher has no request."""
        return self.batcher.verdict(now)

    def _create_batcher(self, now: int) -> None:
        # The batcher of one instance uses the number of that instance, so that its decisions need no translation.
        self.batcher = DynamicBatcher(self._settings.batcher, 0)
        self.batcher.set_instances([self._instance], now)

    def wake(self, now: int, decisions: list[Decision]) -> None:
        """Called at the wake time of the batcher, or when the strategy is no longer paused."""
        self._forward(self.batcher.wake(now), now, decisions)
        for slot in self.slots:
            self.arrived(slot, now, decisions)

    def drop_requests(self, now: int) -> list[Schedulable]:
        """Remove and return the requests in the batcher; none is running."""
        dropped = list(self._slot_of)
        self._slot_of.clear()
        for slot in self.slots:
            slot.in_flight = None
        # A new batcher is simpler than emptying the old one: all that it contains is lost.
        was_idle = self.idle
        self._create_batcher(now)
        if was_idle:
            self.batcher.instance_idle(self._instance, now)
        return dropped

    def response_order(self) -> ResponseOrder | None:
        """Return the batcher's `ResponseOrder` if it preserves the order of responses; else None."""
        return self.batcher.response_order(self._instance)

    def reconfigure(self, settings: object, now: int, decisions: list[Decision]) -> None:
        """Apply changed settings of the batcher."""
        assert isinstance(settings, OldestSettings)
        self._settings = settings
        self._forward(self.batcher.reconfigure(settings.batcher, now), now, decisions)

    def _forward(self, batcher_decisions: Iterable[Decision], now: int, decisions: list[Decision]) -> None:
        refused = []
        for decision in batcher_decisions:
            if isinstance(decision, Execute):
                decision.slots = tuple([self._slot_of[request].index for request in decision.requests])
            elif isinstance(decision, Refuse):
                refused.append(self._slot_of[decision.request])
            decisions.append(decision)
        # The batcher may drop a cancelled request later than it was cancelled: when a formed batch would begin.
        for slot in refused:
            self.completed(slot, now, decisions)


@dataclass(frozen=True, slots=True)
class SequenceBatcherSettings:
    """The settings of a `SequenceBatcher`.

    Attributes
    ----------
    model_name : str
        For error messages.
    strategy : DirectSettings or OldestSettings
    max_sequence_idle_ns : int
        A sequence without a request for this long loses its slot, in ns.
    iterative : bool
        ``iterative_sequence``: a request is a sequence of executions, started without a correlation ID and continued
        by `SequenceBatcher.reschedule`.
    min_requests_to_start, min_backlog_to_start : int
        Dispatching starts when this many requests wait in slots, and this many in the backlog
        (``TRITONSERVER_DELAY_SCHEDULER``, ``TRITONSERVER_BACKLOG_DELAY_SCHEDULER``).
    """

    model_name: str
    strategy: DirectSettings | OldestSettings
    max_sequence_idle_ns: int = 1_000_000_000
    iterative: bool = False
    min_requests_to_start: int = 0
    min_backlog_to_start: int = 0
