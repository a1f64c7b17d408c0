"""Rows of waiting requests: the topmost free one, kept during the wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tritonnb.notebook.view_session import QueueRows


def test_request_that_arrives_while_another_waits_is_drawn_below_it() -> None:
    assert QueueRows().assign([(0, 1, 10), (5, 2, 20), (10, 3, 30)]) == {1: 0, 2: 1, 3: 0}


def test_request_without_a_wait_has_a_separate_row() -> None:
    assert QueueRows().assign([(0, 1, 0), (0, 2, 50), (50, 3, 60)]) == {1: 0, 2: 1, 3: 0}


def test_waiting_request_keeps_its_row() -> None:
    rows = QueueRows()
    assert rows.assign([(0, 1, 10), (5, 2, None)]) == {1: 0, 2: 1}
    assert rows.assign([(5, 2, 40), (20, 3, 30)]) == {2: 1, 3: 0}
    assert rows.assign([(50, 4, None)]) == {4: 0}


def test_row_of_a_finished_request_is_reused() -> None:
    rows = QueueRows()
    rows.assign([(0, 1, None)])
    assert rows.assign([(5, 2, None)]) == {2: 0}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=30))
def test_no_two_requests_are_in_one_row_at_a_time(lengths: list[tuple[int, int]]) -> None:
    waits = [(begin, serial, begin + length) for serial, (begin, length) in enumerate(lengths)]
    rows = QueueRows().assign(waits)
    for begin, serial, end in waits:
        together = [other for first, other, last in waits if first < end and begin < last]
        assert [rows[other] for other in together].count(rows[serial]) == 1
