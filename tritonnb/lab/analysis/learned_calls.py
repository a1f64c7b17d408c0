"""What models that call others do in an execution, learned from a recording."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from statistics import fmean, median

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.analysis.recorded_arrivals import RecordedArrivals
from tritonnb.lab.analysis.recorded_executions import executions_of
from tritonnb.lab.simulation.calls import CallingService, ExecutionPlan, PlannedCall, Planner
from tritonnb.recording.pipelines import CALL, PipelineRequest
from tritonnb.recording.recording import Recording

#: The number of requests of a batch, and its rows.
_Shape = tuple[int, int]


@dataclass(frozen=True)
class LearnedCalls(CallingService):
    """What the executions of a recorded model did, as a service model.

    The simulated executions of a number of requests and rows do what the recorded ones did, in their order, then one of
    them at random. Of other numbers: each request does what a recorded one did, if more requests made more calls; or
    else the batch does what the most similar one did, with its rows.

    Attributes
    ----------
    executions : tuple of (tuple of (int, int), ExecutionPlan)
        The number of requests and rows of each execution, ordered by begin, and what it did.
    """

    executions: tuple[tuple[_Shape, ExecutionPlan], ...]

    @cached_property
    def models(self) -> tuple[str, ...]:  # type: ignore[override]
        """The models that it called."""
        return tuple(dict.fromkeys(call.model for _, plan in self.executions for call in plan.calls))

    def __call__(self, rows: int) -> float:
        """Return the median of the model's own times in ns, for the recorded number of rows that is nearest."""
        nearest = min((shape[1] for shape, _ in self.executions), key=lambda recorded: abs(recorded - rows))
        return median(plan.own_time_ns for shape, plan in self.executions if shape[1] == nearest)

    @cached_property
    def _by_shape(self) -> dict[_Shape, list[ExecutionPlan]]:
        plans = defaultdict(list)
        for shape, plan in self.executions:
            plans[shape].append(plan)
        return dict(plans)

    @cached_property
    def _of_one_and_of_several(self) -> tuple[list[ExecutionPlan], list[tuple[int, ExecutionPlan]]]:
        """The executions of one request, and of several with their number."""
        one = [plan for (count, _), plan in self.executions if count == 1]
        return one, [(count, plan) for (count, _), plan in self.executions if count > 1]

    @cached_property
    def is_per_request(self) -> bool:
        """Whether more requests in a batch make more calls; assumed if only batches of one request were recorded."""
        one, several = self._of_one_and_of_several
        if not several:
            return True
        usual = fmean(len(plan.calls) for plan in one) if one else 1.0
        return fmean(len(plan.calls) for _, plan in several) >= usual * (1 + fmean(count for count, _ in several)) / 2

    @cached_property
    def _is_concurrent(self) -> bool:
        """Whether the requests of a batch make their calls at the same time."""
        one, several = self._of_one_and_of_several
        return bool(one and several) and fmean(map(_first_calls, one)) < fmean(
            _first_calls(plan) for _, plan in several
        )

    def plans(self, seed: int) -> Planner:
        """Return what the executions of one simulation do; a seed chooses when all that was recorded is used."""
        rng = random.Random(seed)
        unused = {shape: deque(plans) for shape, plans in self._by_shape.items()}
        join = ExecutionPlan.beside if self._is_concurrent else ExecutionPlan.then

        def drawn(shape: _Shape) -> ExecutionPlan:
            if shape in unused:
                return unused[shape].popleft() if unused[shape] else rng.choice(self._by_shape[shape])
            count, rows = shape
            nearest = min(self._by_shape, key=lambda known: (abs(known[0] - count), abs(known[1] - rows)))
            return _with_rows(rng.choice(self._by_shape[nearest]), nearest[1], rows)

        def plan(rows: Sequence[int]) -> ExecutionPlan:
            shape = len(rows), sum(rows)
            if shape in unused or not self.is_per_request:
                return drawn(shape)
            return reduce(join, (drawn((1, each)) for each in rows))

        return plan


def _first_calls(plan: ExecutionPlan) -> int:
    return sum(not call.after for call in plan.calls)


def _with_rows(plan: ExecutionPlan, recorded: int, rows: int) -> ExecutionPlan:
    """Return what an execution of another number of rows does: its calls have rows in proportion."""
    calls = [
        replace(call, arrival=replace(call.arrival, rows=max(1, round(call.arrival.rows * rows / recorded))))
        for call in plan.calls
    ]
    return replace(plan, calls=tuple(calls))


def learned_calls(rec: Recording, arrivals: RecordedArrivals) -> dict[str, LearnedCalls]:
    """Return what the models that call others did in a recording, by their names.

    Raises
    ------
    InvalidArgumentError
        If a model calls others after its execution.
    """
    calls: dict[str, dict[int, dict[int, PipelineRequest]]] = defaultdict(lambda: defaultdict(dict))
    executions = defaultdict(list)
    for record in rec.requests:
        executions[record.serial].append(record)
    for root in rec.ensemble_requests:
        for one in root.walk():
            for call in one.steps:
                if call.kind != CALL:
                    continue
                for record in executions[one.serial]:
                    if record.exec_start_ns <= call.received_ns <= record.exec_end_ns:
                        calls[one.model][record.batch][call.serial] = call
                        break
                else:
                    raise InvalidArgumentError(
                        f"what_if expected the calls of model '{one.model}' in its executions, got one outside"
                    )
    return {model: _learned(rec.for_model(model), by_batch, arrivals) for model, by_batch in calls.items()}


def _learned(
    alone: Recording, calls: dict[int, dict[int, PipelineRequest]], arrivals: RecordedArrivals
) -> LearnedCalls:
    origin_ns = alone.first_arrival_ns
    members = Counter(record.batch for record in alone.requests)
    plans = []
    for one in executions_of(alone):
        begin_ns = origin_ns + one.begin_ns
        own = sorted(calls.get(one.batch, {}).values(), key=lambda call: (call.received_ns, call.serial))
        plans.append(((members[one.batch], one.rows), _plan(own, begin_ns, begin_ns + one.time_ns, arrivals)))
    return LearnedCalls(tuple(plans))


def _plan(calls: Sequence[PipelineRequest], begin_ns: int, end_ns: int, arrivals: RecordedArrivals) -> ExecutionPlan:
    """Return what an execution did: a call was made after all that had ended before it."""
    planned: list[PlannedCall] = []
    known = [(call, arrival) for call in calls if (arrival := arrivals.of(call.serial)) is not None]
    ends_ns = [call.record.exec_end_ns if call.record else call.ended_ns for call, _ in known]

    def last_before(now: int) -> tuple[frozenset[int], int]:
        """Return the calls that had ended, without those that another one of them had waited for, and their end."""
        earlier = enumerate(known[: len(planned)])
        ended = [number for number, (call, _) in earlier if call.complete and call.answered_ns <= now]
        latest = max(ended, default=0)
        last = [number for number in ended if number == latest or number not in waited_for[latest]]
        return frozenset(last), max((min(ends_ns[number], now) for number in ended), default=begin_ns)

    waited_for: list[set[int]] = []
    for call, arrival in known:
        after, since_ns = last_before(call.received_ns)
        waited_for.append(set().union(after, *(waited_for[number] for number in after)))
        planned.append(PlannedCall(call.model, arrival, after, call.received_ns - since_ns))
    awaited, since_ns = last_before(end_ns)
    return ExecutionPlan(tuple(planned), awaited, end_ns - since_ns)
