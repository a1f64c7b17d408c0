"""Quantiles of measured times."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonnb.telemetry.quantiles import quantile

values = st.lists(st.floats(0, 1e9), min_size=1).map(sorted)
shares = st.floats(0, 1)


@pytest.mark.parametrize(
    ("ordered", "share", "expected"),
    [
        ([], 0.5, 0.0),
        ([7], 0.99, 7),
        ([1, 2, 3, 4], 0.5, 2.5),
        ([1, 2, 3, 4, 5], 0.5, 3),
        (range(1, 101), 0.99, 99.01),
        ([1, 2], 0, 1),
        ([1, 2], 1, 2),
    ],
)
def test_quantile_interpolates_between_the_two_nearest_values(
    ordered: list[float], share: float, expected: float
) -> None:
    assert quantile(ordered, share) == pytest.approx(expected)


@given(values, shares)
def test_quantile_equals_numpys(ordered: list[float], share: float) -> None:
    expected = pytest.approx(np.quantile(ordered, share), rel=1e-9, abs=1e-9)
    assert quantile(ordered, share) == quantile(np.array(ordered), share) == expected
