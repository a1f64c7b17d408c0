"""Executions that took much longer than others of their size."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from tritonnb.recording.batches import Batch

#: An outlier takes at least this multiple of the median of its size, of which there are at least so many batches.
_LEAST_FACTOR, _LEAST_BATCHES = 3.0, 5


class Outlier(NamedTuple):
    """An execution that took much longer than others of its size.

    Attributes
    ----------
    batch : Batch
    factor : float
        Multiple of the median execution time of the batches of its size.
    """

    batch: Batch
    factor: float

    def __str__(self) -> str:
        return f"{self.factor:.{1 if self.factor < 9.95 else 0}f} times the median of its size"


def find_outliers(batches: Iterable[Batch]) -> list[Outlier]:
    """The outliers among the batches of one model.

    Examples
    --------
    >>> from tritonnb import simulate, service_time
    >>> times = iter([5, 5, 5, 5, 90])
    >>> rec = simulate("max_batch_size: 1", [(n, 1) for n in range(5)], service_time(lambda _: next(times), unit="ms"))
    >>> [(outlier.batch.number, str(outlier)) for outlier in find_outliers(rec.batches)]
    [(5, '18 times the median of its size')]
    """
    by_size: defaultdict[int, list[Batch]] = defaultdict(list)
    for batch in batches:
        by_size[batch.size].append(batch)
    outliers: list[Outlier] = []
    for same in by_size.values():
        median_ns = statistics.median(batch.compute_ns for batch in same)
        if len(same) >= _LEAST_BATCHES and median_ns:
            found = (Outlier(batch, batch.compute_ns / median_ns) for batch in same)
            outliers += [outlier for outlier in found if outlier.factor >= _LEAST_FACTOR]
    return outliers
