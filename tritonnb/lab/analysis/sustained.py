"""The rule for every rate that is recommended, by a sweep or by a plan: it has to be sustained.

A rate close to the capacity can pass one short simulation: its queue grows too slowly to be seen. So no recommended
rate uses more than 90 % of the capacity, and the constraint holds in 95 % of simulations with other seeds, whose first
requests do not count, since queues need time to fill.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

#: The largest share of the capacity of the instances that is recommended: the times of another day differ.
MOST_OF_CAPACITY = 0.9
#: Simulations of a result, and the share of them in which the constraint has to hold.
SAMPLES, CERTAIN = 20, 0.95
#: The share of the requests at the beginning of a simulation that do not count.
SETTLED = 0.25
T = TypeVar("T")


def certain_runs(runs: Iterable[T], holds: Callable[[T], bool]) -> list[T]:
    """Return the runs if a constraint holds in enough of them; none otherwise.

    Parameters
    ----------
    runs : iterable
        `SAMPLES` simulations with different seeds. No more of them are run when enough have failed.
    holds : callable
        Whether the constraint holds in a run.

    Examples
    --------
    >>> len(certain_runs(range(20), lambda seed: seed != 7)), certain_runs(range(20), lambda seed: seed > 1)
    (20, [])
    """
    kept, failed = [], 0
    for run in runs:
        kept.append(run)
        failed += not holds(run)
        if failed > math.floor((1 - CERTAIN) * SAMPLES + 1e-9):
            return []
    return kept
