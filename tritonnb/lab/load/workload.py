"""Workloads of a load: open loop and closed loop.

In an *open loop* the send times do not depend on responses, as with many independent clients: a server that is too slow
builds up a queue. In a *closed loop* each of a number of clients waits for its response before it sends the next
request, so a slow server reduces the request rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice, takewhile
from typing import TypedDict

from tritonnb.core.arguments import require_positive
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.load.examples import Inputs, Shapes
from tritonnb.lab.simulation.arrivals import PROCESSES, ClosedLoop, arrival_times_us, as_arrivals
from tritonnb.recording.arrivals import Arrival
from tritonnb.scheduling.reasons import pluralize


class WorkloadOptions(TypedDict, total=False):
    """The arguments of `load` that define a workload."""

    rate: float | None
    arrivals: str | Iterable[Arrival | tuple[float, int]] | ClosedLoop | None
    clients: int | None
    duration: float | None
    requests: int | None
    rows: int | None
    burst: int
    sequence_length: int | None
    sequences: int
    seed: int


class LoadOptions(WorkloadOptions, total=False):
    """The arguments of `load` that define a workload and the contents of its requests."""

    inputs: Inputs
    shapes: Shapes | None


#: Default number of requests per sequence.
SEQUENCE_LENGTH = 10
#: Correlation IDs of generated sequences; concurrent loads must not share one.
_sequence_ids = count(1)


@dataclass(frozen=True)
class OpenLoop:
    """Requests with send times that do not depend on responses.

    Attributes
    ----------
    arrivals : iterable of Arrival
        Ordered by time; infinite without a limit.
    rate : float
        Intended requests per second.
    ends : bool
        Whether the number of arrivals is finite.
    sets_rows : bool
        Whether the arrivals determine the number of rows; otherwise the inputs do.
    ends_sequences : bool
        Whether sequences that are open when the load ends are ended by an additional request.
    """

    arrivals: Iterable[Arrival]
    rate: float
    ends: bool = True
    sets_rows: bool = True
    ends_sequences: bool = False

    def __str__(self) -> str:
        return f"open loop, {self.rate:g} requests/s"


@dataclass(frozen=True)
class ClosedLoopWorkload:
    """Clients that wait for their responses.

    Attributes
    ----------
    clients : int
        Concurrency.
    requests : float
        Number of requests of all clients; infinity for no limit.
    duration : float
        Seconds; infinity for no limit.
    think_ms : float
        Pause in milliseconds between a response and the next request.
    rows : int
        Rows of each request.
    sets_rows : bool
        Whether ``rows`` determines the number of rows; otherwise the inputs do.
    sequence_length : int
        Requests per sequence; each client sends one sequence after the other. 0 for no sequences.
    ends_sequences : bool
        As for `OpenLoop`.
    """

    clients: int
    requests: float
    duration: float
    think_ms: float = 0.0
    rows: int = 1
    sets_rows: bool = True
    sequence_length: int = 0
    ends_sequences: bool = True

    def __str__(self) -> str:
        return f"closed loop, {pluralize(self.clients, 'client')}"

    @property
    def ends(self) -> bool:
        """True if the number of requests or the duration is limited."""
        return math.isfinite(self.requests) or math.isfinite(self.duration)

    def client_requests(self) -> list[Iterator[Arrival]]:
        """Return the requests of each client; their times are 0."""
        plain = Arrival(0.0, self.rows)
        return [_sequence(plain, self.sequence_length) for _ in range(self.clients)]


AnyLoop = OpenLoop | ClosedLoopWorkload


def workload(
    *,
    rate: float | None = None,
    arrivals: str | Iterable[Arrival | tuple[float, int]] | ClosedLoop | None = None,
    clients: int | None = None,
    duration: float | None = None,
    requests: int | None = None,
    rows: int | None = None,
    burst: int = 8,
    sequence_length: int | None = None,
    sequences: int = 4,
    seed: int = 0,
    stateful: bool = False,
) -> AnyLoop:
    """Create a workload from the arguments of `load`; ``stateful`` means that the model requires sequences.

    Raises
    ------
    InvalidArgumentError
        If they contradict each other or are out of range.
    """
    require_positive(
        rate=rate, clients=clients, duration=duration, requests=requests, rows=rows, burst=burst, sequences=sequences
    )
    limits = (math.inf if requests is None else requests, math.inf if duration is None else duration)
    if arrivals is not None and not isinstance(arrivals, (str, ClosedLoop)):
        _reject_combination(
            "a list of arrivals", rate=rate, clients=clients, rows=rows, sequence_length=sequence_length or None
        )
        return _open_loop_of(arrivals, *limits, stateful)
    if sequence_length is None:
        sequence_length = SEQUENCE_LENGTH if stateful else 0
    if sequence_length < stateful:
        of_what = " of a stateful model" if stateful else ""
        raise InvalidArgumentError(f"sequence_length{of_what} expected {int(stateful)} or more, got {sequence_length}")
    if isinstance(arrivals, ClosedLoop):
        _reject_combination("a ClosedLoop", rate=rate, clients=clients, rows=rows)
        loop = arrivals
        limit = min(limits[0], loop.requests)
        return ClosedLoopWorkload(
            loop.clients, limit, limits[1], loop.think_ms, loop.rows, sequence_length=sequence_length
        )
    if clients is not None:
        _reject_combination("a closed loop (clients=)", rate=rate, arrivals=arrivals)
        return ClosedLoopWorkload(
            clients, *limits, rows=rows or 1, sets_rows=rows is not None, sequence_length=sequence_length
        )
    if rate is None:
        raise InvalidArgumentError(
            "workload expected rate=300 (an open loop of 300 requests/s), clients=8 (a closed loop of 8 clients), or "
            "arrivals= with a list such as rec.arrivals()"
        )
    process = arrivals or "constant"
    if process not in PROCESSES:
        raise InvalidArgumentError(f"arrivals expected one of {', '.join(PROCESSES)}, or a list, got '{process}'")
    endless = arrival_times_us(process, rate, burst=burst, seed=seed)
    times = takewhile(lambda time_us: time_us < limits[1] * 1e6, endless)
    sent: Iterator[Arrival] = (Arrival(time_us, rows or 1) for time_us in islice(times, requests))
    if sequence_length:
        sent = _in_sequences(sent, sequence_length, sequences)
    ends = any(map(math.isfinite, limits))
    return OpenLoop(sent, rate, ends, sets_rows=rows is not None, ends_sequences=bool(sequence_length))


def _open_loop_of(
    arrivals: Iterable[Arrival | tuple[float, int]], requests: float, duration: float, stateful: bool
) -> OpenLoop:
    ordered = sorted(as_arrivals(arrivals), key=lambda arrival: arrival.time_us)
    kept = [arrival for arrival in ordered if arrival.time_us < duration * 1e6]
    if requests < len(kept):
        kept = kept[: int(requests)]
    if not kept:
        raise InvalidArgumentError("arrivals expected at least one arrival to send, got an empty list")
    if stateful and not any(arrival.sequence_id for arrival in kept):
        raise InvalidArgumentError("arrivals for a stateful model expected a sequence_id, got none in the list")
    span = kept[-1].time_us / 1e6
    # n arrivals have n - 1 intervals.
    return OpenLoop(kept, (len(kept) - 1) / span if span else math.inf)


def _in_sequences(arrivals: Iterable[Arrival], length: int, streams: int) -> Iterator[Arrival]:
    """Distribute arrivals over streams in turn; each stream sends one sequence after the other."""
    sequences = [_sequence(Arrival(0.0), length) for _ in range(streams)]
    for number, arrival in enumerate(arrivals):
        yield replace(next(sequences[number % streams]), time_us=arrival.time_us, rows=arrival.rows)


def _sequence(plain: Arrival, length: int) -> Iterator[Arrival]:
    """Yield the requests of one client; with a length, divided into sequences."""
    while True:
        if not length:
            yield plain
            continue
        sequence_id = next(_sequence_ids)
        for step in range(length):
            yield replace(plain, sequence_id=sequence_id, sequence_start=step == 0, sequence_end=step == length - 1)


def _reject_combination(what: str, **arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise InvalidArgumentError(f"{name} cannot be combined with {what}")
