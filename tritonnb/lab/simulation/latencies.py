"""Times of many requests in arrays: what a simulation keeps with ``keep="latencies"``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritonnb.lab.simulation.engine import Columns

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SimulatedLatencies:
    """Times of the requests and batches that ran, in ns.

    A generation (iterative sequence) has an entry for each of its steps; `last` selects one for each request.

    Attributes
    ----------
    serial, rows, batch : numpy.ndarray of int64, shape [requests]
        Of each request: its serial, its rows, and the index of its batch in the arrays below.
    received_ns, queued_ns : numpy.ndarray of int64, shape [requests]
        When it was received, and since when it was queued.
    start_ns, end_ns, null_rows : numpy.ndarray of int64, shape [batches]
        Of each batch, in the order of sending.
    refused : int
        Number of requests that did not run; of an ensemble, that failed.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> arrivals = [tnb.Arrival(ms=ms) for ms in (0, 1, 2)]
    >>> times = tnb.simulate("max_batch_size: 4 dynamic_batching { }", arrivals, tnb.fixed(5), keep="latencies")
    >>> times.batch_size, times.latency_ns / 1e6
    (array([1, 2]), array([5., 9., 8.]))
    >>> times.received_between(0, 1_000_000)
    <Latencies of 1 requests in 1 batches>
    """

    serial: Integers
    rows: Integers
    batch: Integers
    received_ns: Integers
    queued_ns: Integers
    start_ns: Integers
    end_ns: Integers
    null_rows: Integers
    refused: int

    @property
    def last(self) -> Integers:
        """The indices of the last execution of each request: a generation is executed once for each step."""
        _, first_from_end = np.unique(self.serial[::-1], return_index=True)
        return np.sort(len(self.serial) - 1 - first_from_end)

    @property
    def latency_ns(self) -> Integers:
        """The latency of each execution of a request, from its reception to the end of the execution."""
        return self.end_ns[self.batch] - self.received_ns

    @property
    def queue_ns(self) -> Integers:
        """The queue time of each request."""
        return self.start_ns[self.batch] - self.queued_ns

    @property
    def batch_size(self) -> Integers:
        """The rows of each batch, null rows included."""
        rows = np.bincount(self.batch, self.rows, len(self.start_ns))
        return rows.astype(np.int64) + self.null_rows

    def received_between(self, begin_ns: int, end_ns: int) -> SimulatedLatencies:
        """Return the times of the requests that were received from ``begin_ns`` to before ``end_ns``."""
        chosen = (self.received_ns >= begin_ns) & (self.received_ns < end_ns)
        batches, batch = np.unique(self.batch[chosen], return_inverse=True)
        return SimulatedLatencies(
            *(self.serial[chosen], self.rows[chosen], batch, self.received_ns[chosen], self.queued_ns[chosen]),
            *(self.start_ns[batches], self.end_ns[batches], self.null_rows[batches], self.refused),
        )

    def __repr__(self) -> str:
        return f"<Latencies of {len(self.serial)} requests in {len(self.start_ns)} batches>"


def latencies_from_columns(columns: Columns) -> SimulatedLatencies:
    """Return the times that a simulation kept."""
    starts, ends, requests, null_rows = np.frombuffer(columns.batches, np.int64).reshape(-1, 4).T
    serials, rows, received, queued = np.frombuffer(columns.requests, np.int64).reshape(-1, 4).T
    batch = np.repeat(np.arange(len(starts)), requests)
    return SimulatedLatencies(
        serials, rows, batch, received, queued, starts, ends, null_rows, columns.refused + columns.failed
    )
