"""The oldest strategy: slots are candidate sequences; a dynamic batcher batches their oldest requests.

At most one request of each slot is in the batcher or running; the next one follows when the backend has released it. So
a batch never contains two requests of one sequence, and sequences alternate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tritonnb.scheduling.decisions import Decision, Execute, Reason, Refuse, Schedulable
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.policy import DynamicBatcherSettings
from tritonnb.scheduling.response_order import ResponseOrder
from tritonnb.scheduling.slots import Slot, SlotTable


@dataclass(frozen=True, slots=True)
class OldestSettings:
    """What ``sequence_batching.oldest`` configures.

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
        """When `wake` is due."""
        return self.batcher.next_wake_ns

    @property
    def idle(self) -> bool:
        """Whether the instance is idle."""
        return bool(self.batcher.instances.idle)

    @property
    def settled(self) -> bool:
        """Whether no request is running or in the batcher."""
        return not self._slot_of

    def arrived(self, slot: Slot, now: int, decisions: list[Decision]) -> None:
        """A slot has a new request or a new sequence, or its sequence was closed."""
        if slot.in_flight is not None or self.paused:
            return
        if self._table.head(slot, now, decisions) is None:
            return
        request = self._table.dispatch(slot, now, decisions)
        slot.in_flight = request
        self._slot_of[request] = slot
        self._forward(self.batcher.submit(request, now), decisions)

    def instance_idle(self, now: int, decisions: list[Decision]) -> None:
        """The execution has ended."""
        self._forward(self.batcher.instance_idle(self._instance, now), decisions)

    def begin(self, now: int, decisions: list[Decision]) -> None:
        """The staged batch may be executed."""
        self._forward(self.batcher.begin(self._instance, now), decisions)

    def completed(self, slot: Slot, now: int, decisions: list[Decision]) -> None:
        """The request of the slot was released: pass the next one to the batcher."""
        assert slot.in_flight is not None
        del self._slot_of[slot.in_flight]
        slot.in_flight = None
        self.arrived(slot, now, decisions)

    def cancelled(self, request: Schedulable, now: int, decisions: list[Decision]) -> None:
        """A request was cancelled: if it is in the batcher it is dropped, and its sequence continues."""
        follows = self.batcher.cancel(request, now)
        self._forward(follows, decisions)
        if any(isinstance(decision, Refuse) and decision.request is request for decision in follows):
            self.completed(self._slot_of[request], now, decisions)

    def verdict(self, now: int) -> Reason | None:
        """The reason of the next batch, or `reasons.WAIT`; None if the batcher has no request."""
        return self.batcher.verdict(now)

    def _create_batcher(self, now: int) -> None:
        self.batcher = DynamicBatcher(self._settings.batcher, 0)
        self.batcher.set_instances([self._instance], now)

    def wake(self, now: int, decisions: list[Decision]) -> None:
        """The wake time of the batcher has come, or the strategy is no longer paused."""
        self._forward(self.batcher.wake(now), decisions)
        for slot in self.slots:
            self.arrived(slot, now, decisions)

    def drop_requests(self, now: int) -> list[Schedulable]:
        """Remove and return the requests in the batcher; none is running."""
        dropped = list(self._slot_of)
        self._slot_of.clear()
        for slot in self.slots:
            slot.in_flight = None
        was_idle = self.idle
        self._create_batcher(now)
        if was_idle:
            self.batcher.instance_idle(self._instance, now)
        return dropped

    def response_order(self) -> ResponseOrder | None:
        """The batcher's `ResponseOrder` if it preserves the order of responses; else None."""
        return self.batcher.response_order(self._instance)

    def reconfigure(self, settings: object, now: int, decisions: list[Decision]) -> None:
        """Apply changed settings of the batcher."""
        assert isinstance(settings, OldestSettings)
        self._settings = settings
        self._forward(self.batcher.reconfigure(settings.batcher, now), decisions)

    def validate(self) -> None:
        """Check the invariants."""
        self.batcher.validate()
        in_flight = [slot for slot in self.slots if slot.in_flight is not None]
        assert {slot.in_flight: slot for slot in in_flight} == self._slot_of
        if not self.paused:
            free = [slot.sequence for slot in self.slots if slot.sequence and slot.in_flight is None]
            assert not any(sequence.waiting or sequence.closed for sequence in free)

    def _forward(self, batcher_decisions: Iterable[Decision], decisions: list[Decision]) -> None:
        for decision in batcher_decisions:
            if isinstance(decision, Execute):
                decision.slots = tuple([self._slot_of[request].index for request in decision.requests])
            decisions.append(decision)
