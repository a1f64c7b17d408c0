"""The switch interval while a cell runs or a view works."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tritonnb.notebook.switch_interval import CELL_S, VIEW_S, SharedInterpreter, share_interpreter


@pytest.fixture
def shared() -> Iterator[SharedInterpreter]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield SharedInterpreter()
    sys.setswitchinterval(before)


def interval() -> float:
    return round(sys.getswitchinterval(), 6)


def test_the_interval_is_short_while_a_cell_runs_and_restored_afterwards(shared: SharedInterpreter) -> None:
    shared.begin()
    assert interval() == CELL_S
    shared.end()
    assert interval() == 0.005


def test_cells_may_be_nested(shared: SharedInterpreter) -> None:
    shared.begin()
    shared.begin()
    shared.end()
    assert interval() == CELL_S
    shared.end()
    assert interval() == 0.005


def test_a_view_that_works_shortens_it_further_also_during_a_cell(shared: SharedInterpreter) -> None:
    with shared.shared():
        assert interval() == VIEW_S
        shared.begin()
        assert interval() == VIEW_S
    assert interval() == CELL_S
    with shared.shared():
        assert interval() == VIEW_S
    shared.end()
    assert interval() == 0.005


def test_a_view_beside_a_busy_server_shortens_it_as_a_cell_does(shared: SharedInterpreter) -> None:
    with shared.shared(is_busy=True):
        assert interval() == CELL_S
    assert interval() == 0.005


def test_an_interval_that_a_cell_chose_is_kept(shared: SharedInterpreter) -> None:
    shared.begin()
    sys.setswitchinterval(0.01)
    shared.end()
    assert interval() == 0.01


def test_a_shorter_interval_is_kept(shared: SharedInterpreter) -> None:
    sys.setswitchinterval(0.0001)
    shared.begin()
    assert interval() == 0.0001
    shared.end()
    assert interval() == 0.0001


def test_an_end_without_a_start_changes_nothing(shared: SharedInterpreter) -> None:
    shared.end()
    assert interval() == 0.005


def test_outside_of_a_notebook_nothing_happens(shared: SharedInterpreter) -> None:
    share_interpreter()
    assert interval() == 0.005
