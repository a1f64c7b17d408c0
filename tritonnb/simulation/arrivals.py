"""Arrivals of requests: workloads for simulations, and for load on a live server.

A workload is a list of `Arrival` in order of time. Everything random takes a seed. Names of times contain the unit;
positional times, the first value of an `Arrival` or a pair, are in microseconds.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from itertools import count, islice, takewhile
from typing import cast

from tritonnb.core.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request and when it arrives: ``Arrival(ms=17, rows=2)``, ``Arrival(us=17_000, rows=2)``.

    Parameters
    ----------
    time_us, us, ms : float
        Time of arrival since the start: exactly one of them. A positional time is in microseconds.
    rows : int, optional
        Batch size of the request.
    priority, timeout_us : int, optional
        Request parameters; 0 for none. The timeout is in microseconds.
    sequence_id : int or str, optional
        Correlation ID; 0 for none.
    sequence_start, sequence_end : bool, optional
    batch_key : hashable, optional
        Requests with equal keys may share a batch; represents the shapes of variable-size inputs.
    cancel_us : float, optional
        When the client cancels the request, in microseconds since the start.
    steps : int, optional
        How often the model executes the request: the tokens of a generation with iterative sequences. A model without
        them runs all steps in one execution, which takes as long as those of the request with the most.

    Attributes
    ----------
    time_us : float
        Microseconds since the start. The other attributes are the parameters.

    Raises
    ------
    InvalidArgumentError
        If there is not exactly one time, it is negative or not finite, or rows or steps is not a positive
        integer.

    Examples
    --------
    >>> Arrival(ms=1.5, rows=2) == Arrival(us=1500, rows=2) == Arrival(1500, 2)
    True
    >>> Arrival(ms=1).with_steps(4).steps
    4
    >>> Arrival(1500, 2, cancel_us=2000).at(2500).cancel_us
    3000
    """

    time_us: float = cast(float, None)  # only as a parameter
    rows: int = 1
    priority: int = 0
    timeout_us: int = 0
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    batch_key: Hashable = None
    cancel_us: float | None = None
    steps: int = 1
    _: KW_ONLY
    us: InitVar[float | None] = None
    ms: InitVar[float | None] = None

    def __post_init__(self, us: float | None, ms: float | None) -> None:
        is_usual = us is None and ms is None and type(self.time_us) in (int, float)
        is_usual = is_usual and type(self.rows) is type(self.steps) is int  # there may be a million of them
        if is_usual and 0 <= self.time_us < math.inf and self.rows > 0 and self.steps > 0:
            return
        times = [(time, scale) for time, scale in ((self.time_us, 1), (us, 1), (ms, 1000)) if time is not None]
        if len(times) != 1:
            raise InvalidArgumentError(
                f"Arrival expected one time, got {len(times)}; write Arrival(ms=17) or Arrival(us=17_000) "
                "(a positional time is in µs)"
            )
        [(time, scale)] = times
        try:
            valid = 0 <= time < math.inf and operator.index(self.rows) > 0
        except TypeError:
            valid = False
        if not valid:
            unit = "µs" if scale == 1 else "ms"
            raise InvalidArgumentError(
                f"Arrival expected a time in {unit} of at least 0, and rows of at least 1, "
                f"got {time!r} and {self.rows!r}"
            )
        require_positive(steps=self.steps)
        object.__setattr__(self, "time_us", time * scale)

    def with_steps(self, steps: int) -> Arrival:
        """Return the same arrival of a request that the model executes so often.

        Parameters
        ----------
        steps : int
        """
        return replace(self, steps=steps)

    def at(self, time_us: float) -> Arrival:
        """Return the same arrival at another time; the time until the client cancels the request stays.

        Parameters
        ----------
        time_us : float
            Microseconds since the start.
        """
        cancel_us = None if self.cancel_us is None else time_us + self.cancel_us - self.time_us
        # A plan calls this millions of times, and `dataclasses.replace` takes twice as long.
        return Arrival(
            time_us,
            self.rows,
            self.priority,
            self.timeout_us,
            self.sequence_id,
            self.sequence_start,
            self.sequence_end,
            self.batch_key,
            cancel_us,
            self.steps,
        )


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


def require_positive(**values: float | None) -> None:
    """Check that values are positive; None is accepted.

    Raises
    ------
    InvalidArgumentError
        With the name of the first value that is not.
    """
    for name, value in values.items():
        try:
            valid = value is None or value > 0
        except TypeError:
            valid = False
        if not valid:
            raise InvalidArgumentError(f"{name} must be positive, got {value!r}")


def require_seed(seed: object) -> None:
    """Check that a seed of random numbers is an integer.

    Raises
    ------
    InvalidArgumentError
        If it is something else.
    """
    try:
        operator.index(seed)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgumentError(f"seed expected an integer, got {seed!r}") from None


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
    require_seed(seed)
    times = takewhile(lambda time_us: time_us < duration * 1e6, arrival_times_us("poisson", rate, seed=seed))
    return [Arrival(time_us, rows) for time_us in times]


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


def sequences(lengths: Sequence[int], *, every_ms: float, stagger_ms: float = 0.0) -> list[Arrival]:
    """Generate sequences with requests at equal intervals; START and END flags are set.

    Parameters
    ----------
    lengths : sequence of int
        Number of requests of each sequence; correlation IDs are 1, 2, 3, …
    every_ms : float
        Milliseconds between requests of a sequence.
    stagger_ms : float, optional
        How much later than the previous one each sequence starts, in milliseconds.

    Examples
    --------
    >>> [(arrival.sequence_id, arrival.sequence_start, arrival.sequence_end) for arrival in sequences([2], every_ms=5)]
    [(1, True, False), (1, False, True)]
    """
    if not isinstance(lengths, Iterable):
        raise InvalidArgumentError(
            f"lengths expected a list with the number of requests of each sequence, got {lengths!r}"
        )
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
