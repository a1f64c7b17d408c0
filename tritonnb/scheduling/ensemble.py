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
from dataclasses import dataclass, field
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
    reads : tuple of str
        The ensemble's tensors among ``inputs``, each once.
    """

    index: int
    model_name: str
    model_version: int
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    decoupled: bool = False
    reads: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", tuple(dict.fromkeys(self.inputs.values())))


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
        self.required = frozenset(inputs) - frozenset(optional)
        self.max_inflight_requests = max_inflight_requests
        self.decoupled = any(step.decoupled for step in steps)
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
            found = Plan(self.inputs, self.steps_for(once), once)
            if len(self._plans) < _MOST_PLANS:
                self._plans[wanted] = found
        return found


#: Different lists of requested outputs whose plans are kept.
_MOST_PLANS = 64


@dataclass(frozen=True, slots=True)
class TensorArrival:
    """What follows when the tensors from one place come: those of the request, or those of a step.

    Attributes
    ----------
    tensors : tuple of (str, str, int)
        The name at its place, the ensemble's name, and the number of readers, of each that somebody reads.
    steps : tuple of (Step, frozenset of str)
        Those that read one of them, and all that they need.
    answers : bool
        The answer may be complete then.
    """

    tensors: tuple[tuple[str, str, int], ...]
    steps: tuple[tuple[Step, frozenset[str]], ...]
    answers: bool


class Plan:
    """What has to run for some outputs of an ensemble.

    Attributes
    ----------
    wanted : frozenset of str
        The outputs.
    order : tuple of str
        The same, as they were asked for.
    begin : TensorArrival
        Of the request's own tensors.
    after : dict of int to TensorArrival
        Of those of a step, by its index.
    """

    def __init__(self, inputs: Iterable[str], steps: Collection[Step], wanted: tuple[str, ...]) -> None:
        self.order = wanted
        self.wanted = frozenset(wanted)
        self._readers: dict[str, list[Step]] = {}
        for step in steps:
            for tensor in step.reads:
                self._readers.setdefault(tensor, []).append(step)
        self.begin = self._arrival({name: name for name in inputs})
        self.after = {step.index: self._arrival(step.outputs) for step in steps}

    def _arrival(self, names: Mapping[str, str]) -> TensorArrival:
        counts = [
            (name, tensor, len(self._readers.get(tensor, ())) + (tensor in self.wanted))
            for name, tensor in names.items()
        ]
        read = tuple(entry for entry in counts if entry[2])
        reached = {step.index: step for _, tensor, _ in read for step in self._readers.get(tensor, ())}
        return TensorArrival(
            read,
            tuple((step, frozenset(step.reads)) for step in reached.values()),
            not self.wanted.isdisjoint(names.values()) or not self.wanted,
        )


class EnsembleRun:
    """One request on its way through an ensemble; whoever drives the scheduler may keep more in one of its own.

    Attributes
    ----------
    request : Schedulable
    plan : Plan
        `EnsembleGraph.plan` of the outputs that it asks for.
    running : int
        Step requests that have not had their final response.
    held : int
        Step requests that wait until fewer of their kind run.
    responses : int
        How many answers it gave.
    error : TritonError or None
        What the first failing step said.
    """

    __slots__ = ("_iterations", "_left", "_values", "error", "held", "plan", "request", "responses", "running")

    def __init__(self, request: Any, plan: Plan) -> None:
        self.request = request
        self.plan = plan
        self.running = self.held = self.responses = 0
        self.error: TritonError | None = None
        self._values: dict[int, dict[str, Any]] = {}
        self._left: dict[tuple[str, int], int] = {}  # readers to come, of tensors with several
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

    def put(self, arrival: TensorArrival, given: Mapping[str, Any], iteration: int) -> list[Step]:
        """Tensors have come, by their names where they come from; the steps that can run now."""
        values = self._values.get(iteration)
        if values is None:
            values = self._values[iteration] = {}
        for name, tensor, readers in arrival.tensors:
            values[tensor] = given.get(name)
            if readers > 1:
                self._left[tensor, iteration] = readers
        there = values.keys()
        return [step for step, needs in arrival.steps if needs <= there]

    def take(self, tensors: Iterable[str], iteration: int) -> dict[str, Any]:
        """Tensors for one of their readers; the last reader's are forgotten."""
        values, left = self._values[iteration], self._left
        taken = {}
        for name in tensors:
            readers = left.pop((name, iteration), 1)
            if readers > 1:
                left[name, iteration] = readers - 1
                taken[name] = values[name]
            else:
                taken[name] = values.pop(name)
        if not values:
            del self._values[iteration]
        return taken

    def answer(self, iteration: int) -> dict[str, Any] | None:
        """The requested outputs of an iteration; None unless all are there."""
        there = self._values.get(iteration, {}).keys()
        return self.take(self.plan.order, iteration) if self.plan.wanted <= there else None


@dataclass(slots=True)
class RunStep:
    """Send a request to the model of a step; ``inputs`` are by the model's own names."""

    run: EnsembleRun
    step: Step
    iteration: int
    inputs: dict[str, Any]
    reason: Reason


@dataclass(slots=True)
class SendResponse:
    """SendResponse the request with these outputs; some may be None."""

    run: EnsembleRun
    outputs: dict[str, Any]
    final: bool


@dataclass(slots=True)
class EndRequest:
    """The request is over: with an error, or (decoupled) with the final flag alone."""

    run: EnsembleRun
    error: TritonError | None


EnsembleDecision = RunStep | SendResponse | EndRequest


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
        self._reasons = {
            (step.index, rule): Reason(rule, {"tensors": step.reads, "limit": graph.max_inflight_requests})
            for step in graph.steps
            for rule in (INPUTS_READY, INFLIGHT_FREE)
        }

    def begin(self, run: EnsembleRun, inputs: Mapping[str, Any]) -> list[EnsembleDecision]:
        """A request arrived; without an input that is not optional nothing can run."""
        if not self.graph.required <= inputs.keys():
            return self._ending(run)
        return self._advance(run, run.plan.begin, inputs, 0)

    def responded(
        self, run: EnsembleRun, step: Step, iteration: int, outputs: Mapping[str, Any] | None, final: bool
    ) -> list[EnsembleDecision]:
        """A step gave a response; ``outputs`` is None where it gave the final flag alone."""
        released = self._release(run, step) if final else []
        if run.error is None and outputs is not None:
            arrival = run.plan.after[step.index]
            return released + self._advance(run, arrival, outputs, run.iteration_of(step, iteration))
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

    def _advance(
        self, run: EnsembleRun, arrival: TensorArrival, given: Mapping[str, Any], iteration: int
    ) -> list[EnsembleDecision]:
        decisions: list[EnsembleDecision] = []
        for step in run.put(arrival, given, iteration):
            self._start(run, step, iteration, decisions)
        outputs = run.answer(iteration) if arrival.answers else None
        if outputs is None:
            return decisions or self._ending(run)
        run.responses += 1
        decisions.append(SendResponse(run, outputs, run.over))
        return decisions

    def _start(self, run: EnsembleRun, step: Step, iteration: int, decisions: list[EnsembleDecision]) -> None:
        limit = self.graph.max_inflight_requests
        if limit and self._running[step.index] >= limit:
            self._held[step.index].append((run, iteration))
            run.held += 1
        else:
            decisions.append(self._run(run, step, iteration, INPUTS_READY))

    def _run(self, run: EnsembleRun, step: Step, iteration: int, rule: str) -> RunStep:
        self._running[step.index] += 1
        run.running += 1
        tensors = run.take(step.reads, iteration)
        inputs = {name: tensors[tensor] for name, tensor in step.inputs.items()}
        return RunStep(run, step, iteration, inputs, self._reasons[step.index, rule])

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
        return [EndRequest(run, run.error)]
