"""When requests arrive: the workloads of a simulation, and of a load on a live server.

A workload is a list of `Arrival`, in order of time. Everything random takes a seed. Times are named with their unit;
a time without a name, the first of an `Arrival` or of a pair, is in microseconds.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, takewhile

from tritonnb.core.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True, init=False)
class Arrival:
    """One request and when it arrives: ``Arrival(ms=17, rows=2)``, ``Arrival(us=17_000, rows=2)``.

    Parameters
    ----------
    time_us, us, ms : float
        When it arrives, from the beginning: one of them. A time without a name is in microseconds.
    rows : int, optional
        The request's batch dimension.
    priority, timeout_us : int, optional
        Request parameters; 0 for none. The timeout is in microseconds.
    sequence_id : int or str, optional
        Correlation ID; 0 for none.
    sequence_start, sequence_end : bool, optional
    batch_key : hashable, optional
        Requests with equal keys may share a batch: stands for the shapes of variable-size inputs.
    cancel_us : float, optional
        When the client gives up waiting, in microseconds from the beginning.

    Attributes
    ----------
    time_us : float
        Microseconds from the beginning, in whatever unit it was given. The others are as the parameters.

    Raises
    ------
    InvalidArgumentError
        If there is no time, or several, or it cannot be; or if rows are not a positive integer.

    Examples
    --------
    >>> Arrival(ms=1.5, rows=2) == Arrival(us=1500, rows=2) == Arrival(1500, 2)
    True
    """

    time_us: float
    rows: int
    priority: int
    timeout_us: int
    sequence_id: int | str
    sequence_start: bool
    sequence_end: bool
    batch_key: Hashable
    cancel_us: float | None

    def __init__(
        self,
        time_us: float | None = None,
        rows: int = 1,
        priority: int = 0,
        timeout_us: int = 0,
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        batch_key: Hashable = None,
        cancel_us: float | None = None,
        *,
        us: float | None = None,
        ms: float | None = None,
    ) -> None:
        times = [(time, scale) for time, scale in ((time_us, 1), (us, 1), (ms, 1000)) if time is not None]
        if len(times) != 1:
            raise InvalidArgumentError(
                f"an arrival has one time, got {len(times)}: give Arrival(ms=17) or Arrival(us=17_000); "
                "a time without a name is in µs"
            )
        [(time, scale)] = times
        try:
            possible = 0 <= time < math.inf and operator.index(rows) > 0
        except TypeError:
            possible = False
        if not possible:
            unit = "µs" if scale == 1 else "ms"
            raise InvalidArgumentError(
                f"an arrival has a time in {unit} from 0 on, and rows from 1 on, got {time!r} and {rows!r}"
            )
        for name, value in (
            ("time_us", time * scale), ("rows", rows), ("priority", priority), ("timeout_us", timeout_us),
            ("sequence_id", sequence_id), ("sequence_start", sequence_start), ("sequence_end", sequence_end),
            ("batch_key", batch_key), ("cancel_us", cancel_us),
        ):  # fmt: skip
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Clients that each wait for an answer before they send the next request.

    Attributes
    ----------
    clients : int
        Concurrency.
    requests : int
        All clients together.
    think_ms : float
        Pause between an answer and the next request, in milliseconds.
    rows : int
        Of each request.
    """

    clients: int
    requests: int
    think_ms: float = 0.0
    rows: int = 1

    def __post_init__(self) -> None:
        require_positive(clients=self.clients, requests=self.requests, rows=self.rows)
        if not self.think_ms >= 0:
            raise InvalidArgumentError(f"think_ms must not be negative, got {self.think_ms}")


Arrivals = Iterable[Arrival] | Iterable[tuple[float, int]] | ClosedLoop


def as_arrivals(given: Iterable[Arrival | tuple[float, int]]) -> Iterator[Arrival]:
    """A list of arrivals, some of which may be given as pairs of time and rows.

    Raises
    ------
    InvalidArgumentError
        If it is no list, or something in it is no arrival.
    """
    if not isinstance(given, Iterable):
        raise InvalidArgumentError(f"arrivals are a list of Arrival or of (time in µs, rows), got {given!r}")
    for item in given:
        if isinstance(item, Arrival):
            yield item
        elif isinstance(item, Sequence) and len(item) == 2:
            yield Arrival(*item)
        else:
            raise InvalidArgumentError(f"an arrival is an Arrival or (time in µs, rows), got {item!r}")


#: How requests come in an open loop, where nobody waits for answers.
PROCESSES = ("constant", "poisson", "burst")


def require_positive(**given: float | None) -> None:
    """See that what is given is above 0.

    Raises
    ------
    InvalidArgumentError
        With the name of what is not.
    """
    for name, value in given.items():
        try:
            possible = value is None or value > 0
        except TypeError:
            possible = False
        if not possible:
            raise InvalidArgumentError(f"{name} must be positive, got {value!r}")


def arrival_times_us(process: str, rate: float, *, burst: int = 1, seed: int = 0) -> Iterator[float]:
    """When requests come, in microseconds and without end.

    Parameters
    ----------
    process : str
        One of `PROCESSES`.
    rate : float
        Requests a second, on average.
    burst : int, optional
        Requests that come at once, for ``"burst"``.
    seed : int, optional
        For ``"poisson"``.
    """
    if process == "poisson":
        chance = random.Random(seed)
        time_us = 0.0
        while True:
            time_us += chance.expovariate(rate) * 1e6
            yield time_us
    together = burst if process == "burst" else 1
    yield from (number // together * together * 1e6 / rate for number in count())


def constant(rate: float, duration: float, *, rows: int = 1) -> list[Arrival]:
    """Requests at equal distances.

    Parameters
    ----------
    rate : float
        Requests a second.
    duration : float
        Seconds.
    rows : int, optional
        Of each request.

    Examples
    --------
    >>> [arrival.time_us for arrival in constant(rate=1000, duration=0.003)]
    [0.0, 1000.0, 2000.0]
    """
    require_positive(rate=rate, duration=duration)
    return [Arrival(time_us, rows) for time_us in islice(arrival_times_us("constant", rate), round(rate * duration))]


def poisson(rate: float, duration: float, *, seed: int, rows: int = 1) -> list[Arrival]:
    """Requests of many independent clients: exponential gaps (a Poisson process).

    Parameters
    ----------
    rate : float
        Requests a second, on average.
    duration : float
        Seconds.
    seed : int
    rows : int, optional
        Of each request.
    """
    require_positive(rate=rate, duration=duration)
    times = takewhile(lambda time_us: time_us < duration * 1e6, arrival_times_us("poisson", rate, seed=seed))
    return [Arrival(time_us, rows) for time_us in times]


def bursts(requests: int, every_ms: float, duration: float, *, rows: int = 1) -> list[Arrival]:
    """Several requests at once, again and again.

    Parameters
    ----------
    requests : int
        In each burst.
    every_ms : float
        Milliseconds from one burst to the next.
    duration : float
        Seconds.
    rows : int, optional
        Of each request.
    """
    require_positive(requests=requests, every_ms=every_ms, duration=duration)
    times = [burst * every_ms * 1000 for burst in range(round(duration * 1000 / every_ms))]
    return [Arrival(time_us, rows) for time_us in times for _ in range(requests)]


def sequences(lengths: Sequence[int], *, every_ms: float, stagger_ms: float = 0.0) -> list[Arrival]:
    """Sequences that send their requests at equal distances, the first and last flagged.

    Parameters
    ----------
    lengths : sequence of int
        Requests of each sequence; correlation IDs are 1, 2, 3, …
    every_ms : float
        Milliseconds between two requests of a sequence.
    stagger_ms : float, optional
        How much later than the one before it each sequence begins, in milliseconds.
    """
    if not isinstance(lengths, Iterable):
        raise InvalidArgumentError(f"lengths are a list of numbers of requests, one for each sequence, got {lengths!r}")
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
