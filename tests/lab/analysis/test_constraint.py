"""Constraints on latencies, which sweeps and plans satisfy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tritonnb as tnb
from tritonnb.lab.analysis.constraint import Constraint


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("p99 < 50 ms", {"p99": 50}),
        ("p99.9<=2s", {"p99.9": 2000}),
        ("mean < 500 us and max < 1 s", {"mean": 0.5, "max": 1000}),
        ("p99 < 5 ms or p50 < 1 ms", {"p99": 5, "p50": 1}),
    ],
)
def test_constraints_are_conditions_whose_times_have_units(text: str, bounds: dict[str, Any]) -> None:
    assert Constraint(text).bounds == bounds


@pytest.mark.parametrize("text", ["", "p101 < 5 ms", "p99 < 5", "rate < 5 ms", "p99 < 5 ms + 3", "5 ms < 6 ms"])
def test_invalid_constraints_are_refused(text: str) -> None:
    with pytest.raises(tnb.TritonError, match="constraint expected bounds such as"):
        Constraint(text)


def test_constraint_applies_to_latencies() -> None:
    constraint = Constraint("p50 <= 2 ms and max < 4 ms")
    assert constraint.holds(np.array([1.0, 2.0, 3.0]))
    assert not constraint.holds(np.array([1.0, 2.0, 5.0]))
    assert not constraint.holds(np.array([]))
