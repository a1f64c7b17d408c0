"""Owners of slots and the backlog: who gets which slot, and when a sequence is over."""

from __future__ import annotations

import pytest

from tests.scheduling.harness import END, MS, START
from tests.scheduling.invariants import check_slots
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.decisions import Decision, Refuse
from tritonnb.scheduling.reasons import CANCELLED, SEQUENCE_CANCELLED
from tritonnb.scheduling.slots import FreeSlots, Slot, SlotSequence, SlotTable

IDLE = 1000 * MS


def table_of(instances: int = 1, slots: int = 1) -> tuple[SlotTable, list[Slot]]:
    table = SlotTable(IDLE)
    all_slots = [Slot(instance, index) for instance in range(instances) for index in range(slots)]
    assert not list(table.add(all_slots))
    return table, all_slots


def begin(table: SlotTable, id: str, now_ms: int, timeout_ms: int = 0, flags: int = START) -> SlotSequence:
    sequence = table.begin_sequence(id, now_ms * MS)
    more(table, sequence, now_ms, timeout_ms, flags)
    return sequence


def more(table: SlotTable, sequence: SlotSequence, now_ms: int, timeout_ms: int = 0, flags: int = 0) -> Schedulable:
    request = Schedulable(f"{sequence.id}", timeout_us=timeout_ms * 1000, flags=flags)
    request.queued_ns = now_ms * MS
    table.append(sequence, request, now_ms * MS)
    return request


def test_request_that_times_out_first_ends_its_sequence_in_the_backlog() -> None:
    table, slots = table_of()
    begin(table, "owner", 0)
    waiting = begin(table, "waiting", 0, timeout_ms=10)
    more(table, waiting, 1, timeout_ms=20)
    assert table.expiring.next() == 10 * MS
    more(table, waiting, 2, timeout_ms=5)
    assert table.expiring.next() == 7 * MS
    check_slots(table, slots)


def test_sequence_in_a_slot_ends_by_idle_time_not_by_timeout() -> None:
    table, slots = table_of()
    begin(table, "owner", 0)
    waiting = begin(table, "waiting", 1, timeout_ms=10)
    table.release(slots[0], 5 * MS, [])
    assert slots[0].sequence is waiting
    assert table.expiring.next() is None
    assert table.idle.next() == 1 * MS + IDLE
    check_slots(table, slots)


def test_sequence_id_can_be_reused_as_soon_as_its_end_request_has_arrived() -> None:
    table, slots = table_of(slots=2)
    first = begin(table, "A", 0)
    more(table, first, 1, flags=END)
    assert "A" not in table.known
    second = begin(table, "A", 2)
    assert [slot.sequence for slot in slots] == [first, second]
    assert table.idle.next() == 2 * MS + IDLE
    more(table, first, 3, flags=END)  # the end of the first does not make the second unknown
    assert table.known["A"] is second
    check_slots(table, slots)


def test_cancelled_request_cancels_the_rest_of_its_sequence_with_a_reason_for_each() -> None:
    table, slots = table_of()
    sequence = begin(table, "A", 0)
    more(table, sequence, 3)
    sequence.waiting[0].cancelled = True
    decisions: list[Decision] = []
    assert table.head(slots[0], 10 * MS, decisions) is None
    refused = [decision for decision in decisions if isinstance(decision, Refuse)]
    assert [rejected.reason.rule for rejected in refused] == [CANCELLED, SEQUENCE_CANCELLED]
    assert [rejected.reason.facts for rejected in refused] == [
        {"sequence": "A", "waited_ns": 10 * MS},
        {"sequence": "A", "waited_ns": 7 * MS},
    ]
    assert not sequence.waiting
    check_slots(table, slots)


# Recorded of a program with a ``std::priority_queue`` that compares indices, built with GNU's library.
@pytest.mark.parametrize(
    ("instances", "slots", "steps", "taken"),
    [
        pytest.param(3, 2, "......", ["0.0", "1.0", "2.0", "2.1", "1.1", "0.1"], id="three instances"),
        pytest.param(2, 3, "......", ["0.0", "1.0", "1.1", "0.1", "1.2", "0.2"], id="two instances"),
        pytest.param(
            3,
            2,
            [".", "0.0", ".", "2.0", ".", ".", ".", "1.0", "0.0", ".", ".", ".", "."],
            ["0.0", "1.0", "0.0", "2.0", "2.0", "1.0", "0.0", "0.1", "1.1"],
            id="slots that become free",
        ),
    ],
)
def test_free_slots_of_equal_index_are_taken_in_tritons_order(
    instances: int, slots: int, steps: str | list[str], taken: list[str]
) -> None:
    by_name = {f"{i}.{index}": Slot(i, index) for i in range(instances) for index in range(slots)}
    free = FreeSlots()
    for slot in by_name.values():
        free.push(slot)
    names = []
    for step in steps:
        if step == ".":
            slot = free.pop()
            names.append(f"{slot.instance}.{slot.index}")
        else:
            free.push(by_name[step])
    assert names == taken


def test_lowest_free_slot_is_used_after_an_instance_was_removed() -> None:
    table, slots = table_of(instances=2, slots=4)
    sequences = {begin(table, f"{number}", 0).slot: number for number in range(8)}
    assert set(sequences) == set(slots)
    for index, instance in ((3, 0), (2, 1), (1, 0), (1, 1), (3, 1), (0, 0), (0, 1), (2, 0)):
        table.release(slots[4 * instance + index], MS, [])
    table.retire(0)
    taken = [begin(table, f"again {number}", 2).slot for number in range(5)]
    assert taken == [*slots[4:], None]
    check_slots(table, slots)
