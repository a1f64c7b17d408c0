"""Whoever knows the rules of a level solves its exercises, and level 2 has something to learn."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tritonnb as tnb
from tests.lab.teaching.students import KINDS, solve_dynamic, solve_sequences, unsolved


@pytest.mark.parametrize(("batcher", "level"), KINDS)
@pytest.mark.parametrize(("requests", "count"), [(3, 2), (6, 4), (8, 2)])
def test_rules_of_a_level_solve_its_exercises(batcher: str, level: int, requests: int, count: int) -> None:
    assert unsolved(batcher, level, requests, range(count)) == []


@pytest.mark.parametrize("batcher", ["dynamic", "direct", "oldest"])
def test_long_exercises_are_found(batcher: str) -> None:
    assert unsolved(batcher, 1, 26, range(1)) == []


@pytest.mark.parametrize(
    ("batcher", "solve"), [("dynamic", solve_dynamic), ("direct", solve_sequences), ("oldest", solve_sequences)]
)
def test_exercises_of_level_two_need_its_rules(
    batcher: str, solve: Callable[[tnb.Worksheet, int], list[list[str]]]
) -> None:
    for seed in range(3):
        sheet = tnb.worksheet(batcher, seed=seed, level=2)
        assert not sheet.check(solve(sheet, 1)), seed


@pytest.mark.parametrize("level", [0, 3, "1", None, 1.0, True])
def test_unknown_level_is_refused(level: int) -> None:
    with pytest.raises(tnb.TritonError, match=r"level expected (1 or 2|an integer)"):
        tnb.worksheet(level=level)
