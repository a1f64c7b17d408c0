"""Quantiles of measured times."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of the values lies below; 0 of none.

    Parameters
    ----------
    ordered : sequence of float
    share : float
        0.99 for the 99th percentile.

    Examples
    --------
    >>> quantile([1, 2, 3, 4], 0.5)
    3
    """
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
