"""Arrivals of requests: workloads for simulations, and for load on a live server.

A workload is a list of `Arrival` in order of time. Everything random takes a seed. Names of times contain the unit;
positional times, the first value of an `Arrival` or a pair, are in microseconds.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, takewhile

from tritonnb.core.arguments import require_positive
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.option_types import with_checked_types
from tritonnb.recording.arrivals import Arrival


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Clients that each wait for the response before they send the next request.

    Attributes
    ----------
    clients : int
        Concurrency.
    requests : int
        Total number over all clients.
    think_ms : float
        Time between a response and the next request, in milliseconds.
    rows : int
        Batch size of each request.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> len(simulate("max_batch_size: 4", ClosedLoop(clients=2, requests=10), fixed(5)).requests)
    10
    """

    clients: int
    requests: int
    think_ms: float = 0.0
    rows: int = 1

    def __post_init__(self) -> None:
        require_positive(clients=self.clients, requests=self.requests, rows=self.rows)
        if not self.think_ms >= 0:
            raise InvalidArgumentError(f"think_ms must not be negative, got {self.think_ms}")


Arrivals = Iterable[Arrival | tuple[float, int]] | ClosedLoop


def as_arrivals(arrivals: Iterable[Arrival | tuple[float, int]]) -> Iterator[Arrival]:
    """Iterate over arrivals, converting pairs of time and rows.

    Raises
    ------
    InvalidArgumentError
        If it is not iterable, or an item is not an arrival.
    """
    if not isinstance(arrivals, Iterable):
        raise InvalidArgumentError(f"arrivals expected a list of Arrival or of (time in µs, rows), got {arrivals!r}")
    for item in arrivals:
        if isinstance(item, Arrival):
            yield item
        elif isinstance(item, Sequence) and len(item) == 2:
            yield Arrival(*item)
        else:
            raise InvalidArgumentError(f"arrivals expected Arrival or (time in µs, rows), got {item!r}")


def timed_arrivals(arrivals: Iterable[Arrival | tuple[float, int]]) -> Iterator[tuple[int, int, Arrival]]:
    """Yield the time of each arrival in ns, its number from 1, and the arrival; errors as of `as_arrivals`."""
    for number, arrival in enumerate(as_arrivals(arrivals), 1):
        yield round(arrival.time_us * 1000), number, arrival


#: Arrival processes of an open loop, in which clients do not wait for responses.
PROCESSES = ("constant", "poisson", "burst")


def arrival_times_us(process: str, rate: float, *, burst: int = 1, seed: int = 0) -> Iterator[float]:
    """Generate arrival times in microseconds, without an end.

    Parameters
    ----------
    process : str
        One of `PROCESSES`.
    rate : float
        Requests per second, on average.
    burst : int, optional
        Simultaneous requests, for ``"burst"``.
    seed : int, optional
        For ``"poisson"``.
    """
    if process == "poisson":
        rng = random.Random(seed)
        time_us = 0.0
        while True:
            time_us += rng.expovariate(rate) * 1e6
            yield time_us
    group = burst if process == "burst" else 1
    yield from (number // group * group * 1e6 / rate for number in count())


@with_checked_types
def constant(rate: float, duration: float, *, rows: int = 1) -> list[Arrival]:
    """Generate requests at equal intervals.

    Parameters
    ----------
    rate : float
        Requests per second.
    duration : float
        Seconds.
    rows : int, optional
        Batch size of each request.

    Examples
    --------
    >>> [arrival.time_us for arrival in constant(rate=1000, duration=0.003)]
    [0.0, 1000.0, 2000.0]
    """
    require_positive(rate=rate, duration=duration)
    return [Arrival(time_us, rows) for time_us in islice(arrival_times_us("constant", rate), round(rate * duration))]


@with_checked_types
def poisson(rate: float, duration: float, *, seed: int, rows: int = 1) -> list[Arrival]:
    """Generate requests of many independent clients: a Poisson process, with exponential intervals.

    Parameters
    ----------
    rate : float
        Requests per second, on average.
    duration : float
        Seconds.
    seed : int
    rows : int, optional
        Batch size of each request.

    Examples
    --------
    >>> arrivals = poisson(rate=1000, duration=1, seed=1)
    >>> 900 < len(arrivals) < 1100
    True
    """
    require_positive(rate=rate, duration=duration)
    times = takewhile(lambda time_us: time_us < duration * 1e6, arrival_times_us("poisson", rate, seed=seed))
    return [Arrival(time_us, rows) for time_us in times]


@with_checked_types
def bursts(requests: int, every_ms: float, duration: float, *, rows: int = 1) -> list[Arrival]:
    """Generate bursts of simultaneous requests at equal intervals.

    Parameters
    ----------
    requests : int
        Requests in each burst.
    every_ms : float
        Milliseconds from one burst to the next.
    duration : float
        Seconds.
    rows : int, optional
        Batch size of each request.

    Examples
    --------
    >>> [arrival.time_us for arrival in bursts(requests=2, every_ms=10, duration=0.02)]
    [0, 0, 10000, 10000]
    """
    require_positive(requests=requests, every_ms=every_ms, duration=duration)
    times = [burst * every_ms * 1000 for burst in range(round(duration * 1000 / every_ms))]
    return [Arrival(time_us, rows) for time_us in times for _ in range(requests)]


@with_checked_types
def sequences(lengths: Sequence[int], *, every_ms: float, stagger_ms: float = 0.0) -> list[Arrival]:
    """Generate sequences with requests at equal intervals; START and END flags are set.

    Parameters
    ----------
    lengths : sequence of int
        Number of requests of each sequence; correlation IDs are 1, 2, 3, …
    every_ms : float
        Milliseconds between requests of a sequence.
    stagger_ms : float, optional
        How much later than the previous sequence each sequence starts, in milliseconds.

    Examples
    --------
    >>> [(arrival.sequence_id, arrival.sequence_start, arrival.sequence_end) for arrival in sequences([2], every_ms=5)]
    [(1, True, False), (1, False, True)]
    """
    for length in lengths:
        require_positive(length=length)
    arrivals = [
        Arrival(
            ms=number * stagger_ms + step * every_ms,
            sequence_id=number + 1,
            sequence_start=step == 0,
            sequence_end=step == length - 1,
        )
        for number, length in enumerate(lengths)
        for step in range(length)
    ]
    return sorted(arrivals, key=lambda arrival: arrival.time_us)
