"""The lines of a queue: the topmost free one, kept while one waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tritonnb.notebook.queue_rows import WaitingLines


def test_who_comes_while_another_waits_is_drawn_below_it():
    assert WaitingLines().place([(0, 1, 10), (5, 2, 20), (10, 3, 30)]) == {1: 0, 2: 1, 3: 0}


def test_who_still_waits_keeps_its_line():
    lines = WaitingLines()
    assert lines.place([(0, 1, 10), (5, 2, None)]) == {1: 0, 2: 1}
    assert lines.place([(5, 2, 40), (20, 3, 30)]) == {2: 1, 3: 0}
    assert lines.place([(50, 4, None)]) == {4: 0}


def test_the_line_of_one_who_is_drawn_no_more_is_free():
    lines = WaitingLines()
    lines.place([(0, 1, None)])
    assert lines.place([(5, 2, None)]) == {2: 0}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=30))
def test_nobody_is_drawn_over_another(stays: list[tuple[int, int]]):
    waits = [(begin, serial, begin + length) for serial, (begin, length) in enumerate(stays)]
    lines = WaitingLines().place(waits)
    for begin, serial, end in waits:
        together = [other for first, other, last in waits if first < end and begin < last]
        assert [lines[other] for other in together].count(lines[serial]) == 1
