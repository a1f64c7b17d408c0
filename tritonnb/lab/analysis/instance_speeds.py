"""Speeds of instances: how long executions of one instance take relative to executions of the others."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import attrgetter

from tritonnb.lab.analysis.recorded_executions import RecordedExecution

#: Fewer executions than this determine no expected time, so that none of them is an outlier.
LEAST_BATCHES = 5
#: Instances have different speeds if their typical times differ by more than this factor.
NOTABLE_RATIO = 1.1
#: An execution, and how many times as long as expected it took.
WithFactor = tuple[RecordedExecution, float]


def speeds_of(
    pairs: Iterable[WithFactor], level: Callable[[RecordedExecution], object] = attrgetter("busy")
) -> dict[str, tuple[float, int]]:
    """Return the median factor of each instance and the number of its executions, by its name.

    They are compared among executions that began beside as many others: the scheduler prefers some instances when all
    are idle, so that one instance may be slow only because it runs when others do.
    """
    by_level: dict[object, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one, factor in pairs:
        by_level[level(one)][one.instance].append(factor)
    levels = [
        {name: known for name, known in sorted(factors.items()) if len(known) >= LEAST_BATCHES}
        for factors in by_level.values()
    ]
    most = max(levels, key=lambda level: (len(level), sum(map(len, level.values()))), default={})
    return {name: (statistics.median(known), len(known)) for name, known in most.items()}


def different_speeds(
    pairs: Iterable[WithFactor], level: Callable[[RecordedExecution], object] = attrgetter("busy")
) -> dict[str, float]:
    """Return the speeds of instances relative to their mean, if they differ notably; the mean is geometric."""
    found = {name: speed for name, speed in speeds_of(pairs, level).items() if speed[0] > 0}
    factors = [factor for factor, _ in found.values()]
    if len(found) < 2 or max(factors) <= NOTABLE_RATIO * min(factors):
        return {}
    mean = math.exp(
        sum(count * math.log(factor) for factor, count in found.values()) / sum(n for _, n in found.values())
    )
    return {name: factor / mean for name, (factor, _) in found.items()}
