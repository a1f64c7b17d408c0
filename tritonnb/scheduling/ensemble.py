"""The ensemble scheduler: which steps of an ensemble can run, and when its answer is there.

Data flows: a step runs as soon as every tensor that its inputs are mapped to exists, whatever the order of
the steps in the configuration. Steps that no requested output depends on do not run. Each response of a
decoupled step begins a new *iteration*, in which the steps behind it run once more. An ensemble is over
when nothing of it runs; the first step that fails lets no further one begin.

Implements ``ModelEnsembling`` of *model_config.proto*. Like every scheduler it is pure: tensors are opaque
values here, and None stands for an optional one that is not there, which satisfies whoever reads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritonnb.core.errors import CancelledError, InvalidArgumentError, TritonError
from tritonnb.scheduling.decisions import Reason
from tritonnb.scheduling.reasons import INFLIGHT_FREE, INPUTS_READY


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an ensemble.

    Attributes
    ----------
    index : int
        Its place in the configuration.
    model_name, model_version : str, int
        -1 is the newest version.
    inputs, outputs : dict of str to str
        ``input_map`` and ``output_map``: the ensemble's tensor for each tensor of the model.
    decoupled : bool
        Its model may respond any number of times.
    """

    index: int
    model_name: str
    model_version: int
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    decoupled: bool = False


class EnsembleGraph:
    """The steps of an ensemble and how tensors lead from one to the next.

    Parameters
    ----------
    name : str
    steps : sequence of Step
    inputs, outputs : sequence of str
        The ensemble's own.
    optional : collection of str
        The inputs that may be missing.
    max_inflight_requests : int
        How often a step may run at the same time, over all requests of the ensemble; 0 for any number.
    """

    def __init__(
        self,
        name: str,
        steps: Sequence[Step],
        inputs: Sequence[str],
        outputs: Sequence[str],
        optional: Collection[str] = (),
        max_inflight_requests: int = 0,
    ) -> None:
        self.name = name
        self.steps = tuple(steps)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.optional = frozenset(optional)
        self.max_inflight_requests = max_inflight_requests
        self.decoupled = any(each.decoupled for each in steps)
        self._writer = {tensor: step for step in steps for tensor in step.outputs.values()}
        self._plans: dict[tuple[str, ...], Plan] = {}

    def steps_for(self, outputs: Iterable[str]) -> list[Step]:
        """The steps that some of these outputs depend on, in the order of the configuration."""
        ahead, needed = list(outputs), set[int]()
        while ahead:
            step = self._writer.get(ahead.pop())
            if step is not None and step.index not in needed:
                needed.add(step.index)
                ahead += step.inputs.values()
        return [step for step in self.steps if step.index in needed]

    def plan(self, requested: Sequence[str] | None) -> Plan:
        """The plan for a request of these outputs, None for all; requests for the same ones share it."""
        wanted = self.outputs if requested is None else tuple(requested)
        found = self._plans.get(wanted)
        if found is None:
            once = tuple(dict.fromkeys(wanted))
            found = Plan(self.steps_for(once), once)
            if len(self._plans) < _MOST_PLANS:
                self._plans[wanted] = found
        return found


#: Different lists of requested outputs whose plans are kept.
_MOST_PLANS = 64


class Plan:
    """What has to run for some outputs of an ensemble.

    Attributes
    ----------
    wanted : tuple of str
        The outputs.
    steps : dict of str to tuple of Step
        The steps that read a tensor.
    readers : dict of str to int
        How many look at a tensor: steps, and the answer.
    """

    def __init__(self, steps: Iterable[Step], wanted: tuple[str, ...]) -> None:
        self.wanted = wanted
        reading: dict[str, list[Step]] = {}
        for step in steps:
            for tensor in dict.fromkeys(step.inputs.values()):
                reading.setdefault(tensor, []).append(step)
        self.steps = {tensor: tuple(several) for tensor, several in reading.items()}
        self.readers = {
            tensor: len(self.steps.get(tensor, ())) + (tensor in wanted) for tensor in (*self.steps, *wanted)
        }


class EnsembleRun:
    """One request on its way through an ensemble.

    Attributes
    ----------
    request : object
        Whatever it was begun for.
    running : int
        Step requests that have not had their final response.
    held : int
        Step requests that wait until fewer of their kind run.
    responses : int
        How many answers it gave.
    error : TritonError or None
        What the first failing step said.
    """

    __slots__ = ("_iterations", "_left", "_plan", "_values", "error", "held", "request", "responses", "running")

    def __init__(self, request: Any, plan: Plan) -> None:
        self.request = request
        self.running = self.held = self.responses = 0
        self.error: TritonError | None = None
        self._plan = plan
        self._values: dict[tuple[str, int], Any] = {}
        self._left: dict[tuple[str, int], int] = {}
        self._iterations: dict[int, int] = {}

    @property
    def over(self) -> bool:
        """Nothing of it runs or waits."""
        return not self.running and not self.held

    def iteration_of(self, step: Step, iteration: int) -> int:
        """The iteration that a response of a step belongs to."""
        if not step.decoupled:
            return iteration
        number = self._iterations.get(step.index, 0)
        self._iterations[step.index] = number + 1
        return number

    def put(self, tensors: Mapping[str, Any], iteration: int) -> list[Step]:
        """Tensors have come; the steps that can run now."""
        plan = self._plan
        reached: dict[int, Step] = {}
        for name, value in tensors.items():
            readers = plan.readers.get(name)
            if readers:
                self._values[name, iteration] = value
                self._left[name, iteration] = readers
                for step in plan.steps.get(name, ()):
                    reached[step.index] = step
        return [step for step in reached.values() if self._has(step.inputs.values(), iteration)]

    def take(self, tensors: Iterable[str], iteration: int) -> dict[str, Any]:
        """Tensors for one of their readers; the last reader's are forgotten."""
        taken = {}
        for name in tensors:
            if name in taken:
                continue
            key = (name, iteration)
            taken[name] = self._values[key]
            left = self._left[key] - 1
            if left:
                self._left[key] = left
            else:
                del self._values[key], self._left[key]
        return taken

    def answer(self, iteration: int) -> dict[str, Any] | None:
        """The requested outputs of an iteration; None unless all are there."""
        wanted = self._plan.wanted
        return self.take(wanted, iteration) if self._has(wanted, iteration) else None

    def _has(self, tensors: Iterable[str], iteration: int) -> bool:
        values = self._values
        for name in tensors:  # noqa: SIM110 -- a generator costs more than the rest of it
            if (name, iteration) not in values:
                return False
        return True


@dataclass(slots=True)
class RunStep:
    """Send a request to the model of a step; ``inputs`` are by the model's own names."""

    run: EnsembleRun
    step: Step
    iteration: int
    inputs: dict[str, Any]
    reason: Reason


@dataclass(slots=True)
class Answer:
    """Answer the request with these outputs; some may be None."""

    run: EnsembleRun
    outputs: dict[str, Any]
    final: bool


@dataclass(slots=True)
class Finish:
    """The request is over: with an error, or (decoupled) with the final flag alone."""

    run: EnsembleRun
    error: TritonError | None


EnsembleDecision = RunStep | Answer | Finish


class EnsembleScheduler:
    """Decides for all requests of one ensemble; every method returns the decisions that follow, in order.

    Parameters
    ----------
    graph : EnsembleGraph
    """

    def __init__(self, graph: EnsembleGraph) -> None:
        self.graph = graph
        self._running = [0] * len(graph.steps)
        self._held: list[deque[tuple[EnsembleRun, int]]] = [deque() for _ in graph.steps]

    def begin(self, request: Any, inputs: Mapping[str, Any], requested: Sequence[str] | None) -> list[EnsembleDecision]:
        """A request arrived; ``requested`` are the outputs it asks for, None for all."""
        run = EnsembleRun(request, self.graph.plan(requested))
        graph = self.graph
        given = {name: inputs.get(name) for name in graph.inputs if name in inputs or name in graph.optional}
        return self._advance(run, given, 0)

    def responded(
        self, run: EnsembleRun, step: Step, iteration: int, outputs: Mapping[str, Any] | None, final: bool
    ) -> list[EnsembleDecision]:
        """A step gave a response; ``outputs`` is None where it gave the final flag alone."""
        released = self._release(run, step) if final else []
        if run.error is None and outputs is not None:
            tensors = {tensor: outputs.get(name) for name, tensor in step.outputs.items()}
            return released + self._advance(run, tensors, run.iteration_of(step, iteration))
        return released + self._ending(run)

    def failed(self, run: EnsembleRun, step: Step, error: TritonError, final: bool) -> list[EnsembleDecision]:
        """A step gave an error, or did not take the request."""
        released = self._release(run, step) if final else []
        self._give_up(run, TritonError(f"in ensemble '{self.graph.name}', {error.message}", error.status))
        return released + self._ending(run)

    def cancel(self, run: EnsembleRun) -> list[EnsembleDecision]:
        """Nobody waits for the answer any more: no further step begins."""
        self._give_up(run, CancelledError(""))
        return self._ending(run)

    def _give_up(self, run: EnsembleRun, error: TritonError) -> None:
        if run.error is None:
            run.error = error
            run.held = 0

    def _advance(self, run: EnsembleRun, tensors: Mapping[str, Any], iteration: int) -> list[EnsembleDecision]:
        decisions: list[EnsembleDecision] = []
        for step in run.put(tensors, iteration):
            decisions += self._start(run, step, iteration)
        outputs = run.answer(iteration)
        if outputs is None:
            return decisions + self._ending(run)
        run.responses += 1
        return [*decisions, Answer(run, outputs, run.over)]

    def _start(self, run: EnsembleRun, step: Step, iteration: int) -> list[EnsembleDecision]:
        limit = self.graph.max_inflight_requests
        if limit and self._running[step.index] >= limit:
            self._held[step.index].append((run, iteration))
            run.held += 1
            return []
        return [self._run(run, step, iteration, INPUTS_READY)]

    def _run(self, run: EnsembleRun, step: Step, iteration: int, rule: str) -> RunStep:
        self._running[step.index] += 1
        run.running += 1
        tensors = run.take(step.inputs.values(), iteration)
        inputs = {name: tensors[each] for name, each in step.inputs.items()}
        facts = {"tensors": tuple(tensors), "limit": self.graph.max_inflight_requests}
        return RunStep(run, step, iteration, inputs, Reason(rule, facts))

    def _release(self, run: EnsembleRun, step: Step) -> list[EnsembleDecision]:
        """A step request had its final response: another one may begin."""
        run.running -= 1
        self._running[step.index] -= 1
        held = self._held[step.index]
        while held:
            waiting, iteration = held.popleft()
            if waiting.error is None:
                waiting.held -= 1
                return [self._run(waiting, step, iteration, INFLIGHT_FREE)]
        return []

    def _ending(self, run: EnsembleRun) -> list[EnsembleDecision]:
        if not run.over:
            return []
        if run.error is None and not run.responses and not self.graph.decoupled:
            run.error = InvalidArgumentError(
                f"in ensemble '{self.graph.name}', {run.request.id_prefix}unexpected deadlock, at least one output is "
                "not set while no more ensemble steps can be made"
            )
        return [Finish(run, run.error)]
