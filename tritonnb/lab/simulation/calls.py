"""What models that call others (BLS) do in an execution: their calls, and their own time between them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, NamedTuple

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.recording.arrivals import Arrival

#: Returns what an execution does that begins now: takes the rows of its requests.
Planner = Callable[[Sequence[int]], "ExecutionPlan"]


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call that an execution makes.

    Attributes
    ----------
    model : str
    arrival : Arrival
        The request; its time does not matter.
    after : frozenset of int
        The calls that have to end before, by their numbers in the execution.
    own_ns : int
        How long the model works before the call: from the end of those calls, or from the begin of the execution.
    """

    model: str
    arrival: Arrival
    after: frozenset[int]
    own_ns: int

    def shifted(self, count: int) -> PlannedCall:
        """Return the same call with ``count`` further calls before it in its execution."""
        return replace(self, after=frozenset(number + count for number in self.after))


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """What an execution does.

    Attributes
    ----------
    calls : tuple of PlannedCall
    awaited : frozenset of int
        The calls that have to end before the execution does.
    own_ns : int
        How long the model works after them, or in all if there are none.
    """

    calls: tuple[PlannedCall, ...]
    awaited: frozenset[int]
    own_ns: int

    @property
    def own_time_ns(self) -> int:
        """How long the execution takes if every call ends immediately."""
        begins: list[int] = []
        for call in self.calls:
            begins.append(max((begins[number] for number in call.after), default=0) + call.own_ns)
        return max((begins[number] for number in self.awaited), default=0) + self.own_ns

    def then(self, other: ExecutionPlan) -> ExecutionPlan:
        """Return a plan that does one after the other."""
        count = len(self.calls)
        following = (
            call.shifted(count) if call.after else replace(call, after=self.awaited, own_ns=self.own_ns + call.own_ns)
            for call in other.calls
        )
        if not other.awaited:
            return ExecutionPlan((*self.calls, *following), self.awaited, self.own_ns + other.own_ns)
        awaited = frozenset(number + count for number in other.awaited)
        return ExecutionPlan((*self.calls, *following), awaited, other.own_ns)

    def beside(self, other: ExecutionPlan) -> ExecutionPlan:
        """Return a plan that does both at the same time."""
        count = len(self.calls)
        awaited = self.awaited | {number + count for number in other.awaited}
        calls = (*self.calls, *(call.shifted(count) for call in other.calls))
        return ExecutionPlan(calls, awaited, max(self.own_ns, other.own_ns))


class CallingService:
    """A service model of a model that calls others; called with rows, it returns the model's own time in ns.

    Attributes
    ----------
    models : tuple of str
        The models that it may call.
    """

    models: tuple[str, ...]

    def __call__(self, rows: int) -> float:
        """Return the model's own time in ns, for a batch of this many rows."""
        raise NotImplementedError

    def plans(self, seed: int) -> Planner:
        """Return what the executions of one simulation do.

        Parameters
        ----------
        seed : int
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Call:
    """Calls of one model; see `calling`.

    Attributes
    ----------
    model : str
        A model or an ensemble.
    count : int or sequence of int
        The number of calls, 0 for none; a sequence of numbers for one of them at random.
    rows : int
        Rows of each call; 0 for the rows of the request that the model executes.

    Examples
    --------
    >>> Call("net", count=[0, 1, 1])
    Call(model='net', count=[0, 1, 1], rows=0)
    """

    model: str
    count: int | Sequence[int] = 1
    rows: int = 0

    @property
    def counts(self) -> Sequence[int]:
        """The possible numbers of calls."""
        return [self.count] if isinstance(self.count, int) else self.count


#: A model, or calls of it.
AnyCall = str | tuple[str, int | Sequence[int]] | tuple[str, int | Sequence[int], int] | Call


@with_short_traceback
def calling(
    calls: Iterable[AnyCall | Iterable[AnyCall]],
    *,
    before_ms: float = 0.0,
    between_ms: float = 0.0,
    after_ms: float = 0.0,
    per_request: bool = True,
) -> Calling:
    """Describe a model that calls others, as its service time for `simulate`.

    Its instance is busy while it waits. A call that fails counts as answered.

    Parameters
    ----------
    calls : iterable
        The models that it calls, one after another: ``"net"``, ``("net", 3)`` for three calls one after another, or a
        `Call`. Calls in a list are made at the same time: ``[["left", ("right", 2)], "net"]``.
    before_ms, between_ms, after_ms : float, optional
        Its own time before the first call, between calls, and after the last.
    per_request : bool, optional
        Whether each request of a batch makes these calls, one request after another; False for calls with the rows of
        the whole batch.

    Raises
    ------
    InvalidArgumentError
        If there are no calls, or a call or a time is invalid.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> service = {"caller": calling(["net", "net"], before_ms=1, between_ms=2, after_ms=3), "net": fixed(10)}
    >>> models = {"caller": "max_batch_size: 4", "net": "max_batch_size: 4 dynamic_batching { }"}
    >>> simulate(models, [(0, 1)], service, keep="summary")["latency_p50_ms"]
    26.0
    """
    times = {"before_ms": before_ms, "between_ms": between_ms, "after_ms": after_ms}
    for name, time in times.items():
        if not (isinstance(time, int | float) and 0 <= time < math.inf):
            raise InvalidArgumentError(f"calling: {name} expected a time in ms of at least 0, got {time!r}")
    if isinstance(calls, str) or not isinstance(calls, Iterable):
        raise InvalidArgumentError(f"calling expected a list of calls, such as ['net', ('net', 2)], got {calls!r}")
    steps = tuple(
        [
            _Step(tuple(map(_call, entry)), True) if isinstance(entry, list) else _Step((_call(entry),), False)
            for entry in calls
        ]
    )
    if not any(step.calls for step in steps):
        raise InvalidArgumentError("calling expected at least one call, got none")
    before_ns, between_ns, after_ns = (round(time * 1e6) for time in times.values())
    return Calling(steps, before_ns, between_ns, after_ns, per_request)


class _Step(NamedTuple):
    """Calls that follow each other, or are made together."""

    calls: tuple[Call, ...]
    together: bool


@dataclass(frozen=True)
class Calling(CallingService):
    """What a model that calls others does, by hand; see `calling`."""

    steps: tuple[_Step, ...]
    before_ns: int
    between_ns: int
    after_ns: int
    per_request: bool

    @property
    def models(self) -> tuple[str, ...]:  # type: ignore[override]
        """The models that it may call."""
        return tuple(dict.fromkeys(call.model for step in self.steps for call in step.calls))

    def __call__(self, rows: int) -> float:
        """Return the model's own time in ns, for a request of this many rows."""
        return self._plan(rows, random.Random(0)).own_time_ns

    def plans(self, seed: int) -> Planner:
        """Return what the executions of one simulation do; a seed draws numbers of calls."""
        rng = random.Random(seed)

        def plan(rows: Sequence[int]) -> ExecutionPlan:
            of_each = rows if self.per_request else [sum(rows)]
            return reduce(ExecutionPlan.then, (self._plan(each, rng) for each in of_each))

        return plan

    def _plan(self, rows: int, rng: random.Random) -> ExecutionPlan:
        calls: list[PlannedCall] = []
        last, own_ns = frozenset[int](), self.before_ns
        for step in self.steps:
            made = [call for call in step.calls for _ in range(rng.choice(call.counts))]
            for together in [made] if step.together and made else [[call] for call in made]:
                first = len(calls)
                calls += [PlannedCall(call.model, Arrival(0.0, call.rows or rows), last, own_ns) for call in together]
                last, own_ns = frozenset(range(first, len(calls))), self.between_ns
        return ExecutionPlan(tuple(calls), last, self.after_ns if calls else self.before_ns + self.after_ns)


def _call(entry: Any) -> Call:
    parts = (entry,) if isinstance(entry, str) else entry
    is_tuple = isinstance(parts, tuple) and 0 < len(parts) <= len(fields(Call))
    call = Call(*parts) if is_tuple else parts
    if isinstance(call, Call) and _is_valid(call):
        return call
    raise InvalidArgumentError(
        f"calling expected the name of a model, or a tuple of name, number of calls, and rows, got {entry!r}"
    )


def _is_valid(call: Call) -> bool:
    has_counts = isinstance(call.counts, Sequence) and len(call.counts) > 0 and all(map(_is_count, call.counts))
    return isinstance(call.model, str) and call.model != "" and has_counts and _is_count(call.rows)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
