"""The oldest strategy: slots are candidates, and a dynamic batcher makes batches of their oldest requests.

Of each slot at most one request is in the batcher or running; the next follows when the backend has
released it. So a batch never holds two requests of one sequence, and sequences take turns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tritonnb.scheduling.decisions import Decision, Execute, Refuse
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
        ``max_candidate_sequences``: sequences that an instance serves at once.
    batcher : DynamicBatcherSettings
        Preferred sizes, delay and ordering; it has neither priorities nor a queue policy.
    """

    slot_count: int
    batcher: DynamicBatcherSettings


class OldestStrategy:
    """The candidates of one instance and the batcher that draws from them.

    Parameters
    ----------
    instance : int
    settings : OldestSettings
    table : SlotTable
        Knows what each slot runs next.

    Attributes
    ----------
    slots : list of Slot
    batcher : DynamicBatcher
    held : bool
        Nothing more is given to the batcher for the time being.
    """

    def __init__(self, instance: int, settings: OldestSettings, table: SlotTable) -> None:
        self.slots = [Slot(instance, index) for index in range(settings.slot_count)]
        self.batcher = DynamicBatcher(settings.batcher, 0)
        self.batcher.set_instances([instance], 0)
        self.held = False
        self._instance = instance
        self._table = table
        self._slot_of: dict[Any, Slot] = {}  # requests in the batcher or running

    @property
    def next_wake_ns(self) -> int | None:
        """When `wake` is due."""
        return self.batcher.next_wake_ns

    @property
    def idle(self) -> bool:
        """Whether the instance has nothing to do."""
        return bool(self.batcher.instances.idle)

    @property
    def settled(self) -> bool:
        """Nothing runs or is about to."""
        return not self._slot_of

    def arrived(self, slot: Slot, now: int, decisions: list[Decision]) -> None:
        """Something changed in a slot: a request, a new owner, or its owner is closed."""
        if slot.in_flight is not None or self.held:
            return
        if self._table.head(slot, now, decisions) is None:
            return
        request = self._table.dispatch(slot, now, decisions)
        slot.in_flight = request
        self._slot_of[request] = slot
        self._follow(self.batcher.submit(request, now), decisions)

    def instance_idle(self, now: int, decisions: list[Decision]) -> None:
        """The last execution is over."""
        self._follow(self.batcher.instance_idle(self._instance, now), decisions)

    def begin(self, now: int, decisions: list[Decision]) -> None:
        """The batch that was staged may run."""
        self._follow(self.batcher.begin(self._instance, now), decisions)

    def completed(self, slot: Slot, now: int, decisions: list[Decision]) -> None:
        """The slot's request was released: its next one may go."""
        del self._slot_of[slot.in_flight]
        slot.in_flight = None
        self.arrived(slot, now, decisions)

    def cancelled(self, request: Any, now: int, decisions: list[Decision]) -> None:
        """A request was cancelled: one that waits in the batcher is dropped, and its sequence goes on."""
        found = self.batcher.cancel(request, now)
        self._follow(found, decisions)
        if any(isinstance(each, Refuse) and each.request is request for each in found):
            self.completed(self._slot_of[request], now, decisions)

    def wake(self, now: int, decisions: list[Decision]) -> None:
        """The batcher's time has come, or dispatching is not held any more."""
        self._follow(self.batcher.wake(now), decisions)
        for slot in self.slots:
            self.arrived(slot, now, decisions)

    def response_order(self) -> ResponseOrder | None:
        """What responses pass through if the batcher preserves their order; else None."""
        return self.batcher.response_order(self._instance)

    def reconfigure(self, settings: object, now: int, decisions: list[Decision]) -> None:
        """Go on under other settings of the batcher."""
        assert isinstance(settings, OldestSettings)
        self._follow(self.batcher.reconfigure(settings.batcher, now), decisions)

    def validate(self) -> None:
        """Check the invariants."""
        self.batcher.validate()
        in_flight = [slot for slot in self.slots if slot.in_flight is not None]
        assert {slot.in_flight: slot for slot in in_flight} == self._slot_of
        if not self.held:
            free = [slot.sequence for slot in self.slots if slot.sequence and slot.in_flight is None]
            assert not any(sequence.waiting or sequence.closed for sequence in free)

    def _follow(self, found: Iterable[Decision], decisions: list[Decision]) -> None:
        for decision in found:
            if isinstance(decision, Execute):
                decision.slots = tuple([self._slot_of[request].index for request in decision.requests])
            decisions.append(decision)
