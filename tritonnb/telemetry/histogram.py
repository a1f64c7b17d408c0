"""A histogram as Prometheus defines it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Counts by upper bound, and the sum of all values.

    Parameters
    ----------
    bounds : sequence of float
        Ascending. Larger values are also counted: there is always an infinite bound.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bound for bound in bounds if bound != math.inf)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Add a value that was observed one or several times."""
        self._counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def buckets(self) -> list[tuple[float, int]]:
        """Return the upper bounds, of which the last is infinite, and the number of values up to each."""
        return list(zip((*self.bounds, math.inf), accumulate(self._counts), strict=True))
