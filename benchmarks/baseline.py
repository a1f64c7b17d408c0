"""The rate of a framework without a server."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

SIZES = (1, 2, 4, 8, 16, 32, 64)
#: Runs a batch; each thread that measures gets its own.
RunBatch = Callable[[npt.NDArray[Any]], object]


class Baseline:
    """A model without a server, called concurrently by some threads with batches of one size.

    Parameters
    ----------
    new_run : callable
        Creates what one thread calls with a batch.
    row : numpy.ndarray
        The input for one row.
    threads : tuple of int
        The numbers of threads that are measured.
    """

    def __init__(self, new_run: Callable[[], RunBatch], row: npt.NDArray[Any], threads: tuple[int, ...]) -> None:
        self._new_run, self._row = new_run, row
        self._short_runs = {(count, size): self.rate(count, size, 1) for count in threads for size in SIZES}

    def best(self, threads: int, limit: int) -> int:
        """Return the batch size with the highest rate, up to ``limit``."""
        return max((size for size in SIZES if size <= limit), key=lambda size: self._short_runs[threads, size])

    def rate(self, threads: int, size: int, seconds: float) -> float:
        """Rows per second."""
        batch = np.repeat(self._row, size, axis=0)
        runs = [self._new_run() for _ in range(threads)]
        for run in runs:
            run(batch)

        def measure(run: RunBatch) -> float:
            count, begin = 0, time.perf_counter()
            while time.perf_counter() < begin + seconds:
                run(batch)
                count += size
            return count / (time.perf_counter() - begin)

        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(measure, runs))
