"""Batch slots: which sequence has which slot, and which sequences wait for a slot in the backlog.

A sequence starts with its first request, gets the free slot with the lowest index over all instances, and keeps it
until it ends. Without a free slot it waits in the backlog, first come, first served. A slot that becomes free is
immediately assigned to the first sequence in the backlog, with all requests that it has by then.

The ID of a sequence that gets no more requests can be used by a new sequence, while requests of the old sequence
are still waiting or running.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tritonnb.core.errors import CancelledError
from tritonnb.core.schedulable import SEQUENCE_END, Schedulable
from tritonnb.scheduling.decisions import Decision, Reason, Refuse
from tritonnb.scheduling.queue import Deadlines
from tritonnb.scheduling.reasons import CANCELLED, SEQUENCE_CANCELLED


@dataclass(eq=False, slots=True)
class SlotSequence:
    """The requests with one correlation ID, in order.

    Attributes
    ----------
    id : int or str
        The correlation ID.
    seen_ns : int
        When its last request was accepted.
    slot : Slot or None
        None while it is in the backlog.
    waiting : deque
        Requests that are not dispatched.
    closed : bool
        It gets no more requests although there was no END: it was idle for too long, or (iterative) has finished.
    expires_ns : int or None
        When it times out if it is still in the backlog.
    cancelled : int
        The number of its requests that were cancelled in the backlog.
    """

    id: int | str  # 5 and "5" are two sequences, as on Triton
    seen_ns: int
    slot: Slot | None = None
    waiting: deque[Schedulable] = field(default_factory=deque)
    closed: bool = False
    expires_ns: int | None = None
    cancelled: int = 0


@dataclass(eq=False, slots=True)
class Slot:
    """One row of an instance's batches, or (oldest) one candidate of an instance.

    ``in_flight`` is the request of this slot that is dispatched and not released, for strategies that need it. It may
    belong to the previous sequence of the slot.
    """

    instance: int
    index: int
    sequence: SlotSequence | None = None
    in_flight: Schedulable | None = None


class FreeSlots:
    """The free slots of all instances: lowest index first.

    The order among several slots of one index decides which instance a sequence runs on, and which batches it shares.
    Triton leaves that to ``std::priority_queue``, which compares indices alone; this is its order in GNU's C++ library.

    Examples
    --------
    >>> free = FreeSlots()
    >>> for instance in range(3):
    ...     free.push(Slot(instance, 0))
    >>> [free.pop().instance for _ in range(3)]
    [0, 1, 2]
    """

    def __init__(self) -> None:
        self._heap: list[Slot] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, slot: Slot) -> None:
        """Add a slot."""
        self._heap.append(slot)
        self._rise(len(self._heap) - 1, slot)

    def pop(self) -> Slot:
        """Take out the next slot.

        Raises
        ------
        IndexError
            If there is none.
        """
        heap = self._heap
        first, last = heap[0], heap.pop()
        size = len(heap)
        if not size:
            return first
        # The gap goes down to a leaf: to the child of lower index, to the second child where both are equal.
        gap, child = 0, 2
        while child < size:
            if heap[child].index > heap[child - 1].index:
                child -= 1
            heap[gap] = heap[child]
            gap, child = child, 2 * child + 2
        if child == size:
            heap[gap] = heap[child - 1]
            gap = child - 1
        self._rise(gap, last)
        return first

    def _rise(self, gap: int, slot: Slot) -> None:
        """Put a slot into a gap, or above it."""
        heap = self._heap
        while gap and heap[(gap - 1) // 2].index > slot.index:
            heap[gap] = heap[(gap - 1) // 2]
            gap = (gap - 1) // 2
        heap[gap] = slot


class SlotTable:
    """The sequences in slots, the free slots, and the backlog.

    Parameters
    ----------
    max_sequence_idle_ns : int

    Attributes
    ----------
    known : dict
        Sequences that may get more requests, by ID.
    backlog : OrderedDict
        Sequences without a slot, in order.
    idle : Deadlines of SlotSequence
        When each known sequence in a slot has been idle for too long; does not apply to the backlog.
    expiring : Deadlines of SlotSequence
        When sequences in the backlog time out.
    retired : set of int
        Instances whose slots get no new sequences.
    """

    def __init__(self, max_sequence_idle_ns: int, iterative: bool = False) -> None:
        self.max_sequence_idle_ns = max_sequence_idle_ns
        # The final response ends the sequence of an iterative model. END must not: its request may be executed again.
        self._end_flag = 0 if iterative else SEQUENCE_END
        self.known: dict[int | str, SlotSequence] = {}
        self.backlog: OrderedDict[SlotSequence, None] = OrderedDict()
        self.idle: Deadlines[SlotSequence] = Deadlines()
        self.expiring: Deadlines[SlotSequence] = Deadlines()
        self._free = FreeSlots()
        self.retired: set[int] = set()

    def add(self, slots: Iterable[Slot]) -> Iterator[Slot]:
        """Add the slots of an instance; yields those that sequences from the backlog get."""
        for slot in slots:
            self.retired.discard(slot.instance)
            # An instance that comes back may still have live sequences in its slots.
            if slot.sequence is None:
                self._free.push(slot)
        while self._free and self.backlog:
            slot = self._free.pop()
            self._promote(slot, next(iter(self.backlog)))
            yield slot

    def retire(self, instance: int) -> None:
        """Assign no new sequences to the slots of an instance; current sequences keep theirs until they end."""
        self.retired.add(instance)
        for slot in [self._free.pop() for _ in range(len(self._free))]:
            if slot.instance != instance:
                self._free.push(slot)

    def begin_sequence(self, id: int | str, now: int) -> SlotSequence:
        """Start a sequence, in a slot or in the backlog."""
        sequence = self.known[id] = SlotSequence(id, now)
        if self._free:
            self._own(self._free.pop(), sequence)
        else:
            self.backlog[sequence] = None
        return sequence

    def append(self, sequence: SlotSequence, request: Schedulable, now: int) -> None:
        """Add a request to a sequence."""
        sequence.waiting.append(request)
        # The arrival and not the end of the execution, as on Triton: an execution that is longer than the idle time can
        # end the sequence that it runs.
        sequence.seen_ns = now
        if sequence.slot is not None:
            self.idle.set(sequence, now + self.max_sequence_idle_ns)
        # The timeout of a request has a meaning only in the backlog: Triton ignores it in a slot.
        elif request.timeout_us:
            expires = now + request.timeout_us * 1000
            if sequence.expires_ns is None or expires < sequence.expires_ns:
                sequence.expires_ns = expires
                self.expiring.set(sequence, expires)
        if request.flags & self._end_flag:
            self.forget(sequence)

    def forget(self, sequence: SlotSequence) -> None:
        """Accept no more requests for a sequence; its ID can be used again."""
        if self.known.get(sequence.id) is sequence:
            del self.known[sequence.id]
        self.idle.forget(sequence)

    def head(self, slot: Slot, now: int, decisions: list[Decision]) -> Schedulable | None:
        """Return the next request of a slot, or None.

        A sequence that has ended is removed first; if its next request is cancelled, the whole sequence is.
        """
        while (sequence := slot.sequence) is not None:
            if sequence.waiting:
                request = sequence.waiting[0]
                if not request.cancelled:
                    return request
            elif not sequence.closed:
                return None
            self.release(slot, now, decisions)
        return None

    def dispatch(self, slot: Slot, now: int, decisions: list[Decision]) -> Schedulable:
        """Remove and return the head; after the last request of a sequence the slot is released."""
        assert slot.sequence is not None
        request = slot.sequence.waiting.popleft()
        if request.flags & self._end_flag:
            self.release(slot, now, decisions)
        return request

    def release(self, slot: Slot, now: int, decisions: list[Decision]) -> None:
        """Release the slot of an ended sequence: cancel its waiting requests, assign the slot from the backlog."""
        sequence, slot.sequence = slot.sequence, None
        assert sequence is not None
        self.abandon(sequence, now, decisions)
        if slot.instance in self.retired:
            return
        while self.backlog:
            sequence = next(iter(self.backlog))
            # One cancelled request costs the whole sequence, and it is noticed only here, as on Triton.
            if not any(request.cancelled for request in sequence.waiting):
                self._promote(slot, sequence)
                return
            self.abandon(sequence, now, decisions)
        self._free.push(slot)

    def abandon(self, sequence: SlotSequence, now: int, decisions: list[Decision]) -> None:
        """Remove a sequence and cancel its waiting requests."""
        self.forget(sequence)
        self.leave_backlog(sequence)
        for request in sequence.waiting:
            facts = {"sequence": sequence.id, "waited_ns": now - request.queued_ns}
            reason = Reason(CANCELLED if request.cancelled else SEQUENCE_CANCELLED, facts)
            # The requests behind a cancelled request were not cancelled by their clients, but their sequence has lost a
            # step.
            decisions.append(Refuse(request, CancelledError(""), "CANCELED", reason))
        sequence.waiting.clear()

    def leave_backlog(self, sequence: SlotSequence) -> None:
        """Remove a sequence from the backlog, if it is there."""
        self.backlog.pop(sequence, None)
        self.expiring.forget(sequence)

    def snapshot(self, now: int) -> tuple[list[tuple[int | str, int, int, int]], list[int | str]]:
        """Return the sequences that have a batch slot, and those in the backlog.

        Parameters
        ----------
        now : int
            In ns.

        Returns
        -------
        owners : list of (int or str, int, int, int)
            Correlation ID, instance, slot index, and the ns left until the sequence is closed because it is idle.
        backlog : list of int or str
            Correlation IDs in the order in which they get slots.
        """
        end = self.max_sequence_idle_ns - now
        owners = [
            (sequence.id, sequence.slot.instance, sequence.slot.index, sequence.seen_ns + end)
            for sequence in self.known.values()
            if sequence.slot is not None
        ]
        return owners, [sequence.id for sequence in self.backlog]

    def _promote(self, slot: Slot, sequence: SlotSequence) -> None:
        self.leave_backlog(sequence)
        self._own(slot, sequence)

    def _own(self, slot: Slot, sequence: SlotSequence) -> None:
        slot.sequence, sequence.slot = sequence, slot
        if self.known.get(sequence.id) is sequence:
            # Time in the backlog counts: a sequence that was idle for too long there is closed immediately.
            self.idle.set(sequence, sequence.seen_ns + self.max_sequence_idle_ns)
