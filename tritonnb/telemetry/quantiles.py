"""Quantiles of measured times: one definition for statistics, recordings, figures and load tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt


def quantile(ordered: Sequence[float] | npt.NDArray[Any], share: float) -> float:
    """Return the value below which this share of the values lies, by linear interpolation.

    It lies at the position ``share * (n - 1)`` of the ``n`` ordered values, counted from 0, as with
    `numpy.quantile` and `pandas.Series.quantile` by default.

    Parameters
    ----------
    ordered : sequence of float, or numpy.ndarray of shape [n]
        The values, ascending.
    share : float
        From 0 to 1: 0.99 for the 99th percentile.

    Returns
    -------
    float
        In the unit of the values; 0.0 if there are none.

    Examples
    --------
    >>> quantile([1, 2, 3, 4], 0.5)
    2.5
    >>> quantile([], 0.99)
    0.0
    """
    if not len(ordered):
        return 0.0
    position = share * (len(ordered) - 1)
    index = int(position)
    lower, upper = float(ordered[index]), float(ordered[min(index + 1, len(ordered) - 1)])
    return lower + (upper - lower) * (position - index)
