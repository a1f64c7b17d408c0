"""Arrivals of requests: the workload of a simulation, of a load on a server, and of a recording."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from typing import cast

from tritonnb.core.arguments import require_positive
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import Event, RequestArrived, RequestCancelled
from tritonnb.core.schedulable import SEQUENCE_END, SEQUENCE_START
from tritonnb.recording.batches import RequestRecord


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
        them runs all steps in one execution, which takes as long as the request with the most steps.
    step_rows : dict of str to int, optional
        Of an ensemble, the rows of its requests to models whose rows differ, by name: the lines of text in an image. 0
        if the response cache answers the request.
    step_keys : dict of str to hashable, optional
        The batch keys of those requests, where they differ.

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
    step_rows: Mapping[str, int] | None = field(default=None, hash=False)
    step_keys: Mapping[str, Hashable] | None = field(default=None, hash=False)
    _: KW_ONLY
    us: InitVar[float | None] = None
    ms: InitVar[float | None] = None

    def __post_init__(self, us: float | None, ms: float | None) -> None:
        is_usual = us is None and ms is None and type(self.time_us) in (int, float)
        is_usual = is_usual and type(self.rows) is type(self.steps) is int  # there may be a million of them
        if self.step_rows is not None:
            require_positive(**{f"step_rows[{name!r}]": rows for name, rows in self.step_rows.items() if rows != 0})
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
            self.step_rows,
            self.step_keys,
        )


def arrivals_of(
    events: Iterable[Event], arrived: Mapping[int, RequestArrived], requests: Iterable[RequestRecord]
) -> list[Arrival]:
    """Return the arrival of each request of a recording, in µs after the first arrival.

    Parameters
    ----------
    events : iterable of Event
        All events, for cancellations.
    arrived : mapping of int to RequestArrived
        By serial, in the order of time.
    requests : iterable of RequestRecord
        What ran: a generation has a record for each of its steps.
    """
    cancelled_ns = {event.serial: event.time_ns for event in events if isinstance(event, RequestCancelled)}
    steps = Counter(request.serial for request in requests)
    begin_ns = next((event.time_ns for event in arrived.values()), 0)
    return [
        arrival_of(event, begin_ns, cancelled_ns.get(serial), max(1, steps[serial]))
        for serial, event in arrived.items()
    ]


def arrival_of(event: RequestArrived, begin_ns: int = 0, cancelled_ns: int | None = None, steps: int = 1) -> Arrival:
    """Return the arrival of a request, in µs after ``begin_ns``."""
    return Arrival(
        (event.time_ns - begin_ns) / 1000,
        event.size,
        event.priority,
        event.timeout_us,
        event.correlation_id,
        bool(event.flags & SEQUENCE_START),
        bool(event.flags & SEQUENCE_END),
        event.shape_key or None,
        None if cancelled_ns is None else (cancelled_ns - begin_ns) / 1000,
        steps,
    )
