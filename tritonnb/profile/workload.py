"""When the requests of a load are sent: at times of their own, or when an answer has come.

In an *open loop* requests come when they come, as from many clients that know nothing of each other; a
server that falls behind is not spared. In a *closed loop* some clients each wait for their answer
before they send again, so a slow server slows its own traffic down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice, takewhile

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.scheduling.reasons import pluralize
from tritonnb.simulation.arrivals import PROCESSES, Arrival, ClosedLoop, arrival_times_us, as_arrivals, require_positive

#: Requests of each sequence, unless told otherwise.
SEQUENCE_LENGTH = 10
#: Correlation IDs of the sequences that loads make up; two loads at once must not share one.
_sequence_ids = count(1)


@dataclass(frozen=True)
class OpenLoop:
    """Requests at times of their own.

    Attributes
    ----------
    arrivals : iterable of Arrival
        In order of time; without end if nothing limits them.
    rate : float
        Requests a second, as intended.
    ends : bool
        Whether the arrivals come to an end.
    sized : bool
        Whether the arrivals say how many rows are sent; otherwise the inputs do.
    ends_sequences : bool
        Whether a sequence that is under way when the load ends is to be ended by one more request.
    """

    arrivals: Iterable[Arrival]
    rate: float
    ends: bool = True
    sized: bool = True
    ends_sequences: bool = False

    def __str__(self) -> str:
        return f"open loop, {self.rate:g} requests/s"


@dataclass(frozen=True)
class ClosedLoopWorkload:
    """Clients that wait for their answers.

    Attributes
    ----------
    clients : int
        Concurrency.
    requests : float
        All clients together; infinity for no limit.
    duration : float
        Seconds; infinity for no limit.
    think_ms : float
        Pause between an answer and the next request.
    size : int
        Rows of each request.
    sized : bool
        Whether ``size`` counts; otherwise the inputs say how many rows are sent.
    sequence_length : int
        Requests of each sequence that a client sends, one sequence after the other; 0 for none.
    ends_sequences : bool
        As of an `OpenLoop`.
    """

    clients: int
    requests: float
    duration: float
    think_ms: float = 0.0
    size: int = 1
    sized: bool = True
    sequence_length: int = 0
    ends_sequences: bool = True

    def __str__(self) -> str:
        return f"closed loop, {pluralize(self.clients, 'client')}"

    @property
    def ends(self) -> bool:
        """Whether a limit is set."""
        return math.isfinite(self.requests) or math.isfinite(self.duration)

    def dealers(self) -> list[Iterator[Arrival]]:
        """The requests of each client, without times."""
        plain = Arrival(0.0, self.size)
        return [_sequence(plain, self.sequence_length) for _ in range(self.clients)]


def workload(
    *,
    rate: float | None,
    arrivals: str | Iterable[Arrival | tuple[float, int]] | ClosedLoop | None,
    clients: int | None,
    duration: float | None,
    requests: int | None,
    size: int | None,
    burst: int,
    sequence_length: int | None,
    sequences: int,
    seed: int,
    stateful: bool = False,
) -> OpenLoop | ClosedLoopWorkload:
    """The workload that `load`'s arguments ask for; ``stateful`` says that the model takes sequences only.

    Raises
    ------
    InvalidArgumentError
        If they contradict each other or are out of range.
    """
    require_positive(
        rate=rate, clients=clients, duration=duration, requests=requests, size=size, burst=burst, sequences=sequences
    )
    limits = (math.inf if requests is None else requests, math.inf if duration is None else duration)
    if arrivals is not None and not isinstance(arrivals, (str, ClosedLoop)):
        _refuse("a list of arrivals", rate=rate, clients=clients, size=size, sequence_length=sequence_length or None)
        return _listed(arrivals, *limits, stateful)
    if sequence_length is None:
        sequence_length = SEQUENCE_LENGTH if stateful else 0
    if sequence_length < stateful:
        of_what = " of a stateful model" if stateful else ""
        raise InvalidArgumentError(f"sequence_length{of_what} must be {int(stateful)} or more, got {sequence_length}")
    if isinstance(arrivals, ClosedLoop):
        _refuse("a ClosedLoop", rate=rate, clients=clients, size=size)
        loop = arrivals
        limit = min(limits[0], loop.requests)
        return ClosedLoopWorkload(
            loop.clients, limit, limits[1], loop.think_ms, loop.rows, sequence_length=sequence_length
        )
    if clients is not None:
        _refuse("a closed loop (clients=)", rate=rate, arrivals=arrivals)
        return ClosedLoopWorkload(
            clients, *limits, size=size or 1, sized=size is not None, sequence_length=sequence_length
        )
    if rate is None:
        raise InvalidArgumentError(
            "say how the requests come: rate=300 (an open loop of 300 requests/s), clients=8 (a closed loop of "
            "8 clients), or arrivals= with a list such as rec.arrivals()"
        )
    process = arrivals or "constant"
    if process not in PROCESSES:
        raise InvalidArgumentError(f"arrivals cannot be '{process}': give one of {', '.join(PROCESSES)}, or a list")
    times = takewhile(
        lambda time_us: time_us < limits[1] * 1e6, arrival_times_us(process, rate, burst=burst, seed=seed)
    )
    sent: Iterator[Arrival] = (Arrival(time_us, size or 1) for time_us in islice(times, requests))
    if sequence_length:
        sent = _dealt(sent, sequence_length, sequences)
    ends = any(map(math.isfinite, limits))
    return OpenLoop(sent, rate, ends, sized=size is not None, ends_sequences=bool(sequence_length))


def _listed(
    arrivals: Iterable[Arrival | tuple[float, int]], requests: float, duration: float, stateful: bool
) -> OpenLoop:
    made = sorted(as_arrivals(arrivals), key=lambda each: each.time_us)
    kept = [each for each in made if each.time_us < duration * 1e6]
    if requests < len(kept):
        kept = kept[: int(requests)]
    if not kept:
        raise InvalidArgumentError("the list of arrivals is empty: there is nothing to send")
    if stateful and not any(each.sequence_id for each in kept):
        raise InvalidArgumentError("a stateful model takes sequences, and no arrival of the list has a sequence_id")
    span = kept[-1].time_us / 1e6
    # The last arrival ends no gap, so n arrivals span n - 1 of them.
    return OpenLoop(kept, (len(kept) - 1) / span if span else math.inf)


def _dealt(arrivals: Iterable[Arrival], length: int, streams: int) -> Iterator[Arrival]:
    """Arrivals dealt in turn to streams that each send one sequence after the other."""
    dealers = [_sequence(Arrival(0.0), length) for _ in range(streams)]
    for number, arrival in enumerate(arrivals):
        yield replace(next(dealers[number % streams]), time_us=arrival.time_us, rows=arrival.rows)


def _sequence(plain: Arrival, length: int) -> Iterator[Arrival]:
    """One request after the other; with a length, they make sequences of it."""
    while True:
        if not length:
            yield plain
            continue
        sequence_id = next(_sequence_ids)
        for step in range(length):
            yield replace(plain, sequence_id=sequence_id, sequence_start=step == 0, sequence_end=step == length - 1)


def _refuse(what: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidArgumentError(f"{name} cannot be given together with {what}")
