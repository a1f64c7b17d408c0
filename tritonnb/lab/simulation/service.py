"""Service-time models of a simulation: how long an execution takes.

A service model is a function from the rows of a batch to nanoseconds. The functions here take times in milliseconds;
`service_time` wraps your own function with its unit.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.option_types import with_checked_types
from tritonnb.scheduling.reasons import pluralize

#: Decoded JSON of the statistics extension, from any server.
Statistics = Mapping[str, Any]

Service = Callable[[int], float]

_NS_OF_UNIT = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}
#: A function without a unit returns nanoseconds; an execution that is faster than this is implausible.
_IMPLAUSIBLE_NS = 1000


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """A service model with a unit; see `service_time`."""

    function: Callable[[int], float]
    unit: str

    def __call__(self, rows: int) -> int:
        """Return the nanoseconds for a batch of this many rows."""
        time = self.function(rows)
        if not _is_time(time):
            raise InvalidArgumentError(
                f"service model expected a time in {self.unit} of at least 0 for {pluralize(rows, 'row')}, got {time!r}"
            )
        return round(time * _NS_OF_UNIT[self.unit])


@with_short_traceback
def service_time(function: Callable[[int], float], *, unit: str) -> ServiceTime:
    """Create a service model from a function that returns times in a unit.

    Parameters
    ----------
    function : callable
        From the rows of a batch to the time of its execution.
    unit : str
        ``"ns"``, ``"us"``, ``"ms"`` or ``"s"``.

    Raises
    ------
    InvalidArgumentError
        If it is not a function, or the unit is unknown.

    Examples
    --------
    >>> service_time(lambda rows: 5.0 + rows, unit="ms")(2)
    7000000
    """
    if not callable(function):
        raise InvalidArgumentError(f"service_time expected a function from rows to a time, got {function!r}")
    if unit not in _NS_OF_UNIT:
        raise InvalidArgumentError(f"service_time: unit expected one of {', '.join(_NS_OF_UNIT)}, got {unit!r}")
    return ServiceTime(function, unit)


@with_checked_types
def fixed(ms: float) -> ServiceTime:
    """Return a service time that is the same for every batch, in milliseconds.

    Examples
    --------
    >>> fixed(ms=50)(8)
    50000000
    """
    return ServiceTime(_Linear(0, ms), "ms")


@with_checked_types
def linear(per_row_ms: float, base_ms: float) -> ServiceTime:
    """Return the service time ``per_row_ms * rows + base_ms`` (α and τ₀ in Inoue, arXiv:1912.06322).

    Parameters
    ----------
    per_row_ms : float
        Milliseconds per row.
    base_ms : float
        Milliseconds per batch.

    Examples
    --------
    >>> linear(per_row_ms=0.5, base_ms=5)(4)
    7000000
    """
    return ServiceTime(_Linear(per_row_ms, base_ms), "ms")


@with_short_traceback
def table(ms_of_rows: Mapping[int, float]) -> ServiceTime:
    """Return a service time from milliseconds by batch size, with linear interpolation and extrapolation.

    Raises
    ------
    InvalidArgumentError
        If the table is empty.

    Examples
    --------
    >>> table({1: 10, 3: 20})(2)
    15000000
    """
    if not isinstance(ms_of_rows, Mapping) or not ms_of_rows:
        raise InvalidArgumentError(
            f"table expected a dict from batch sizes to milliseconds with at least one entry, got {ms_of_rows!r}"
        )
    return ServiceTime(_Interpolated(dict(ms_of_rows)), "ms")


# Classes, not functions in functions: a service time can be pickled, and compared.


@dataclass(frozen=True)
class _Linear:
    per_row_ms: float
    base_ms: float

    def __call__(self, rows: int) -> float:
        return self.per_row_ms * rows + self.base_ms


@dataclass(frozen=True)
class _Interpolated:
    ms_of_rows: dict[int, float]
    _sizes: list[int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sizes", sorted(self.ms_of_rows))

    def __call__(self, rows: int) -> float:
        sizes, ms_of_rows = self._sizes, self.ms_of_rows
        if len(sizes) == 1:
            return ms_of_rows[sizes[0]]
        right = min(max(bisect_left(sizes, rows), 1), len(sizes) - 1)
        low, high = sizes[right - 1], sizes[right]
        slope = (ms_of_rows[high] - ms_of_rows[low]) / (high - low)
        return max(0.0, ms_of_rows[low] + slope * (rows - low))


@with_short_traceback
def measured(stats: Statistics) -> ServiceTime:
    """Return the mean times of a live model, from its statistics (``batch_stats``).

    Parameters
    ----------
    stats : mapping
        ``server["name"].stats()``, or what a client of any Triton gets: an entry of ``model_stats`` or the whole
        answer if it has one entry, over HTTP or over gRPC with ``as_json=True`` (where integers are strings, and
        zeros are left out).

    Raises
    ------
    InvalidArgumentError
        If nothing was executed, or it is not the statistics of one model.

    Examples
    --------
    >>> parts = {part: {"count": "2", "ns": "6000000"} for part in ("compute_input", "compute_infer", "compute_output")}
    >>> measured({"model_stats": [{"name": "m", "batch_stats": [{"batch_size": "4", **parts}]}]})(4)
    9000000
    """
    entry = _entry_of_one_model(stats)
    if not entry.get("batch_stats"):
        raise InvalidArgumentError(
            "statistics expected at least one execution in batch_stats, got none; send requests to the model first"
        )
    return table({int(batch["batch_size"]): mean_compute_ms(batch) for batch in entry["batch_stats"]})


def _entry_of_one_model(stats: Statistics) -> Statistics:
    if not isinstance(stats, Mapping):
        raise InvalidArgumentError(f"statistics expected a dict with 'batch_stats', got {type(stats).__name__}")
    if "model_stats" not in stats:
        return stats
    entries: list[Statistics] = stats["model_stats"]
    if len(entries) != 1:
        names = ", ".join(f"'{entry.get('name')}'" for entry in entries) or "none"
        raise InvalidArgumentError(f"statistics expected one model in 'model_stats', got {names}: give one entry")
    return entries[0]


def mean_compute_ms(batch: Statistics) -> float:
    """Return the mean time of an execution, from an entry of ``batch_stats``."""
    parts = [batch.get(part, {}) for part in ("compute_input", "compute_infer", "compute_output")]
    return sum(int(part.get("ns", 0)) / max(int(part.get("count", 0)), 1) for part in parts) / 1e6


#: Returns the time in ns of an execution: its rows, its begin in virtual time (ns), the number of busy instances,
#: how long its own instance was idle (ns), how long all instances were idle (ns), and the number of its instance.
Draw = Callable[[int, int, int, int, int, int], float]


class VaryingService:
    """A service model with times that vary; called with rows, it returns a typical time in ns.

    Attributes
    ----------
    function : Service
    gathering : float
        How often (0 to 1) an idle dynamic batcher of the model takes requests that come at the same time together.
    """

    function: Service
    gathering: float = 0.0

    def __call__(self, rows: int) -> float:
        """Return the nanoseconds for a batch of this many rows, without variation."""
        return self.function(rows)

    def draws(self, seed: int) -> Draw:
        """Return the times of one simulation.

        Parameters
        ----------
        seed : int

        Returns
        -------
        callable
            ``time_ns(rows, now_ns, busy, idle_ns, server_idle_ns, instance)``, with the number of busy instances, how
            long this one and all were idle, and the number of this one, from 0.

        Examples
        --------
        >>> time_ns = jittered(fixed(10), sigma=0.0).draws(seed=1)
        >>> time_ns(4, 0, 1, 0, 0, 0)
        10000000
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Jittered(VaryingService):
    """A service model with a random factor; see `jittered`."""

    function: Service
    sigma: float

    def draws(self, seed: int) -> Draw:
        """Return times with factors from a seed."""
        rng, service, sigma = random.Random(seed), self.function, self.sigma
        return lambda rows, *when: round(service(rows) * math.exp(rng.gauss(0.0, sigma)))


@with_checked_types
def jittered(service: Service, *, sigma: float) -> Jittered:
    """Multiply a service model by a log-normal factor with median 1; `simulate` seeds it.

    Parameters
    ----------
    service : Service
    sigma : float
        Standard deviation of the factor's logarithm.

    Examples
    --------
    >>> from tritonnb import simulate
    >>> batches = simulate("", [(0, 1), (0, 1)], jittered(fixed(10), sigma=0.1), seed=1).batches
    >>> len({batch.exec_end_ns - batch.exec_start_ns for batch in batches})
    2
    """
    return Jittered(service, sigma)


class ExecutionTimes:
    """The checked time of each simulated execution.

    Parameters
    ----------
    service : Service
    seed : int
        Seed of its random factor, if it has one.

    Attributes
    ----------
    warning : str
        Set if a function without a unit returned less than a microsecond; empty otherwise.

    Raises
    ------
    InvalidArgumentError
        If the service model is not a function.
    """

    def __init__(self, service: Service, seed: int) -> None:
        if not callable(service):
            raise InvalidArgumentError(f"service model expected a function, such as fixed(5), got {service!r}")
        self._function = service.function if isinstance(service, VaryingService) else service
        self._has_unit = isinstance(self._function, ServiceTime)
        self._draw = service.draws(seed) if isinstance(service, VaryingService) else None
        # By rows, of a function that depends on nothing else: a simulation has many batches and few sizes.
        function = self._function.function if isinstance(self._function, ServiceTime) else None
        is_constant = isinstance(function, _Linear | _Interpolated)
        self._known: dict[int, int] | None = {} if is_constant and self._draw is None else None
        self.warning = ""

    def __call__(
        self, rows: int, now_ns: int = 0, busy: int = 1, idle_ns: int = 0, server_idle_ns: int = 0, instance: int = 0
    ) -> int:
        """Return the nanoseconds for a batch of this many rows that starts now; arguments as of a `Draw`.

        Raises
        ------
        InvalidArgumentError
            If the service model does not return a time.
        """
        if self._known is not None:
            known = self._known.get(rows)
            if known is None:
                known = self._known[rows] = round(self._function(rows))
            return known
        draw = self._draw
        time = self._function(rows) if draw is None else draw(rows, now_ns, busy, idle_ns, server_idle_ns, instance)
        if type(time) is int and time >= _IMPLAUSIBLE_NS:
            return time
        if not _is_time(time):
            raise InvalidArgumentError(
                f"service model expected a time in ns of at least 0 for {pluralize(rows, 'row')}, got {time!r}"
            )
        if 0 < time < _IMPLAUSIBLE_NS and not self._has_unit and not self.warning:
            name = getattr(self._function, "__name__", "<lambda>").replace("<lambda>", "f")
            self.warning = (
                f"the service model returned {time:g} ns for {pluralize(rows, 'row')}; "
                f"wrap it as tnb.service_time({name}, unit='ms') if you meant {time:g} ms"
            )
        return round(time)


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < math.inf
