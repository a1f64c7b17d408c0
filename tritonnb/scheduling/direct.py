"""The direct strategy: the slot of a sequence is its row in every batch of its instance.

When the instance is idle, the first request of every slot that has one joins the batch. Rows below the highest ready
slot that have no request are null requests, and so are rows whose inputs cannot share a batch with those of the first
ready slot. With ``max_queue_delay`` and ``minimum_slot_utilization`` the instance waits for more slots to become ready.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tritonnb.scheduling import reasons
from tritonnb.scheduling.decisions import Decision, Execute, Reason, Schedulable
from tritonnb.scheduling.response_order import ResponseOrder
from tritonnb.scheduling.slots import Slot, SlotTable


@dataclass(frozen=True, slots=True)
class DirectSettings:
    """What ``sequence_batching.direct`` configures.

    Attributes
    ----------
    max_batch_size : int
        Slots of each instance.
    max_queue_delay_ns : int
        How long the oldest ready request may wait for other slots, in ns.
    minimum_slot_utilization : float
        The fraction of slots that must be ready before the delay has passed; 0 not to wait.
    """

    max_batch_size: int
    max_queue_delay_ns: int = 0
    minimum_slot_utilization: float = 0.0

    @property
    def slot_count(self) -> int:
        """Slots of an instance."""
        return self.max_batch_size


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
        self._configure(settings)
        self._instance = instance
        self._table = table
        self._idle_since: int | None = None
        self._has_run = False
        self._top = -1  # no slot above this one has a sequence

    @property
    def idle(self) -> bool:
        """Whether the instance is idle."""
        return self._idle_since is not None

    @property
    def settled(self) -> bool:
        """Whether no request is running."""
        return self.idle

    def arrived(self, slot: Slot, now: int, decisions: list[Decision]) -> None:
        """A slot has a new request or a new sequence, or its sequence was closed."""
        self._top = max(self._top, slot.index)
        self._advance(now, decisions)

    def instance_idle(self, now: int, decisions: list[Decision]) -> None:
        """The execution has ended."""
        self._idle_since = now
        self._advance(now, decisions)

    def completed(self, slot: Slot, now: int, decisions: list[Decision]) -> None:
        """Do nothing: the next request follows when the whole execution has ended."""

    def cancelled(self, request: Schedulable, now: int, decisions: list[Decision]) -> None:
        """A request in a slot was cancelled; it is dropped when it is the next one of its slot."""
        self._advance(now, decisions)

    def wake(self, now: int, decisions: list[Decision]) -> None:
        """The queue delay of the oldest ready request has passed."""
        self._advance(now, decisions)

    def drop_requests(self, now: int) -> list[Schedulable]:
        """Return no requests: those that are dispatched are running."""
        return []

    def response_order(self) -> ResponseOrder | None:
        """None: responses are sent directly."""
        return None

    def reconfigure(self, settings: object, now: int, decisions: list[Decision]) -> None:
        """Apply a changed delay or utilization."""
        assert isinstance(settings, DirectSettings)
        self._configure(settings)
        self._advance(now, decisions)

    def _configure(self, settings: DirectSettings) -> None:
        self.settings = settings
        size, utilization = settings.max_batch_size, settings.minimum_slot_utilization
        self._slots_needed = sum(_single(ready / size) < utilization for ready in range(size))

    def validate(self) -> None:
        """Check the invariants."""
        assert all(slot.sequence is None for slot in self.slots[self._top + 1 :])
        if self._idle_since is not None and not self.paused and self.next_wake_ns is None:
            assert not any(slot.sequence.waiting for slot in self.slots if slot.sequence is not None)

    def _advance(self, now: int, decisions: list[Decision]) -> None:
        self.next_wake_ns = None
        if self._idle_since is None or self.paused:
            return
        heads = [self._table.head(slot, now, decisions) for slot in self.slots[: self._top + 1]]
        while self._top >= 0 and self.slots[self._top].sequence is None:
            self._top -= 1
        ready = [request for request in heads if request is not None]
        if not ready:
            return
        waited = now - min(request.queued_ns for request in ready)
        rule = self._rule(len(ready), waited)
        if rule:
            self._execute(heads, ready, rule, waited, now, decisions)
        else:
            self.next_wake_ns = now - waited + self.settings.max_queue_delay_ns

    def _rule(self, ready: int, waited: int) -> str:
        """The rule by which the ready slots are executed now; empty if they wait for others."""
        settings = self.settings
        if not settings.max_queue_delay_ns or not settings.minimum_slot_utilization:
            return reasons.NO_SLOT_WAIT
        if ready >= self._slots_needed:
            return reasons.SLOT_UTILIZATION
        return reasons.DELAY_EXCEEDED if waited >= settings.max_queue_delay_ns else ""

    def _execute(
        self,
        heads: list[Schedulable | None],
        ready: list[Schedulable],
        rule: str,
        waited: int,
        now: int,
        decisions: list[Decision],
    ) -> None:
        assert self._idle_since is not None
        settings = self.settings
        while heads[-1] is None:
            heads.pop()
        reference = ready[0].batch_key
        batch = [
            self._table.dispatch(self.slots[index], now, decisions)
            if request is not None and request.batch_key == reference
            else None
            for index, request in enumerate(heads)
        ]
        nulls = batch.count(None)
        facts = {
            "requests": len(batch) - nulls,
            "rows": len(batch),
            "nulls": nulls,
            "ready": len(ready),
            "slots": settings.max_batch_size,
            "waited_ns": waited,
            "delay_ns": settings.max_queue_delay_ns,
            "minimum_slot_utilization": settings.minimum_slot_utilization,
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
