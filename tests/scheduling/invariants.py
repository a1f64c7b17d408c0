"""The invariants of schedulers, which hold after every stimulus."""

from __future__ import annotations

from collections.abc import Iterable

from tools.differential.thread_order import ThreadOrder
from tritonnb.scheduling.decisions import Scheduler
from tritonnb.scheduling.default_scheduler import DefaultScheduler
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.queue import PriorityQueue
from tritonnb.scheduling.sequence_batcher import SequenceBatcher
from tritonnb.scheduling.sequence_strategies import DirectStrategy, OldestStrategy
from tritonnb.scheduling.slots import Slot, SlotTable


def check_invariants(scheduler: Scheduler) -> None:
    """Assert the invariants of a scheduler, or of the one in a `ThreadOrder`."""
    if isinstance(scheduler, ThreadOrder):
        scheduler = scheduler._scheduler
    if isinstance(scheduler, DefaultScheduler):
        assert not (scheduler._waiting and scheduler.instances.idle)
    elif isinstance(scheduler, DynamicBatcher):
        _check_batcher(scheduler)
    else:
        assert isinstance(scheduler, SequenceBatcher)
        _check_sequences(scheduler)


def _check_batcher(batcher: DynamicBatcher) -> None:
    check_queue(batcher.queue)
    assert not (batcher.payloads and batcher.instances.idle)
    formed = batcher._waiting_payloads()
    assert batcher._current is None or (batcher._current is formed[-1] and not batcher._current.full)
    for payload in formed:
        assert payload.rows == sum(request.batch_size for request in payload.requests)
        assert payload.rows <= batcher.settings.max_batch_size or len(payload.requests) == 1
        assert {request.batch_key for request in payload.requests} == {payload.batch_key}
    if batcher.queue.size and not batcher._defers_forming() and not batcher._blocked and batcher._slot_available():
        assert batcher._pass_due_ns is not None
        assert batcher.next_wake_ns is not None
        assert batcher.next_wake_ns <= batcher._pass_due_ns


def check_queue(queue: PriorityQueue) -> None:
    """Assert the invariants of the queue of a dynamic batcher."""
    unselected = [request for level in queue._scan for part in (level.live, level.delayed) for request in part]
    requests = unselected + queue.pending
    assert len(set(requests)) == len(requests) == queue.size
    assert queue.rows == sum(request.batch_size for request in requests)
    assert queue.pending_rows == sum(request.batch_size for request in queue.pending)
    assert [level.number for level in queue._scan] == sorted(queue._levels)
    assert all(level is queue._levels[level.number] for level in queue._scan)
    assert set(queue._timeouts) <= set(requests)
    assert len(queue.pending) == len(queue._sources) == sum(level.pending for level in queue._scan)
    if queue.pending:
        assert queue.pending_oldest_ns == min(since for _, _, since in queue._sources)
        last = queue._sources[-1][0].number
        assert all(not level.live for level in queue._scan if level.number < last)


def _check_sequences(batcher: SequenceBatcher) -> None:
    slots: list[Slot] = []
    for strategy in batcher._strategies.values():
        if isinstance(strategy, OldestStrategy):
            _check_oldest(strategy)
        else:
            _check_direct(strategy)
        slots += strategy.slots
    check_slots(batcher.table, slots)
    owners = [slot.sequence for slot in slots if slot.sequence is not None]
    waiting = [request for sequence in [*owners, *batcher.table.backlog] for request in sequence.waiting]
    assert len(set(waiting)) == len(waiting) <= batcher._depth <= len(batcher._sequence_of)
    assert all(batcher._sequence_of[request].id == request.correlation_id for request in waiting)


def _check_direct(strategy: DirectStrategy) -> None:
    assert all(slot.sequence is None for slot in strategy.slots[strategy._top + 1 :])
    if strategy._idle_since is not None and not strategy.paused and strategy.next_wake_ns is None:
        assert not any(slot.sequence.waiting for slot in strategy.slots if slot.sequence is not None)


def _check_oldest(strategy: OldestStrategy) -> None:
    _check_batcher(strategy.batcher)
    in_flight = [slot for slot in strategy.slots if slot.in_flight is not None]
    assert {slot.in_flight: slot for slot in in_flight} == strategy._slot_of
    if not strategy.paused:
        free = [slot.sequence for slot in strategy.slots if slot.sequence and slot.in_flight is None]
        assert not any(sequence.waiting or sequence.closed for sequence in free)


def check_slots(table: SlotTable, slots: Iterable[Slot]) -> None:
    """Assert the invariants of the slots of a sequence batcher: all of those that are in use."""
    used = list(slots)
    owned = [slot for slot in used if slot.sequence is not None]
    assert all(slot.sequence is not None and slot.sequence.slot is slot for slot in owned)
    free = set(table._free._heap)
    assert len(free) == len(table._free)
    assert free == {s for s in used if s.sequence is None and s.instance not in table.retired}
    assert not (free and table.backlog)
    for sequence in table.backlog:
        assert sequence.slot is None
        assert sequence.waiting
    for id, sequence in table.known.items():
        assert sequence.id == id
        assert not sequence.closed
        assert sequence in table.backlog or (sequence.slot and sequence.slot.sequence is sequence)
    assert set(table.idle) == {sequence for sequence in table.known.values() if sequence.slot is not None}
    assert set(table.expiring) <= set(table.backlog)
