"""The ensemble scheduler: which steps of an ensemble can run, and when its response is complete.

Scheduling follows the data: a step runs as soon as every tensor in its ``input_map`` is available, regardless of the
order of steps in the configuration. Steps that no requested output depends on do not run. Each response of a decoupled
step starts a new *iteration*, in which the steps that depend on it run again. A request has ended when none of its
steps is running or waiting; after the first failure no further step starts.

Implements ``ModelEnsembling`` of *model_config.proto*. Like every scheduler it is pure: tensors are opaque values here.
None is an optional tensor that is missing; it counts as available.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from tritonnb.core.errors import CancelledError, InvalidArgumentError, TritonError
from tritonnb.scheduling.decisions import Reason
from tritonnb.scheduling.reasons import INFLIGHT_FREE, INPUTS_READY

#: Tensors by name. The scheduler passes them on and never reads them.
Tensors = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One step of an ensemble.

    Attributes
    ----------
    index : int
        Position in the configuration.
    model_name, model_version : str, int
        -1 for the newest version.
    inputs, outputs : dict of str to str
        ``input_map`` and ``output_map``: the ensemble's tensor for each tensor of the model.
    decoupled : bool
        Its model may send any number of responses.
    reads : tuple of str
        The ensemble's tensors in ``inputs``, without duplicates.
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
    """The steps of an ensemble and the tensors that connect them.

    Parameters
    ----------
    name : str
    steps : sequence of EnsembleStep
    inputs, outputs : sequence of str
        Inputs and outputs of the ensemble.
    optional : collection of str
        The inputs that may be missing.
    max_inflight_requests : int
        How many requests of a step may be in flight, over all requests of the ensemble; 0 for no limit.
    """

    def __init__(
        self,
        name: str,
        steps: Sequence[EnsembleStep],
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
        # One writer for each tensor, and none for an input: other configurations are refused at load (Triton loads a
        # step that writes an input of its ensemble, and runs its steps for ever).
        self._writer = {tensor: step for step in steps for tensor in step.outputs.values()}
        self._plans: dict[tuple[str, ...], EnsemblePlan] = {}

    def steps_for(self, outputs: Iterable[str]) -> list[EnsembleStep]:
        """Return the steps that these outputs depend on, in the order of the configuration."""
        # From the outputs backwards. Triton prunes as well, but can end in "unexpected deadlock" although the requested
        # outputs are there.
        tensors, needed = list(outputs), set[int]()
        while tensors:
            step = self._writer.get(tensors.pop())
            if step is not None and step.index not in needed:
                needed.add(step.index)
                tensors += step.inputs.values()
        return [step for step in self.steps if step.index in needed]

    def plan(self, requested: Sequence[str] | None) -> EnsemblePlan:
        """Return the plan for a request with these outputs, None for all; requests with the same outputs share it."""
        outputs = self.outputs if requested is None else tuple(requested)
        plan = self._plans.get(outputs)
        if plan is None:
            unique = tuple(dict.fromkeys(outputs))
            plan = EnsemblePlan(self.inputs, self.steps_for(unique), unique)
            # Clients choose outputs and their order, so they could fill an unbounded cache.
            if len(self._plans) < _MAX_PLANS:
                self._plans[outputs] = plan
        return plan


#: Number of plans that are cached.
_MAX_PLANS: Final = 64


@dataclass(frozen=True, slots=True)
class TensorArrival:
    """The consequences when the tensors of the request, or the outputs of a step, arrive.

    Attributes
    ----------
    tensors : tuple of (str, str, int)
        For each tensor that is read: its name at the source, its name in the ensemble, and its number of readers.
    steps : tuple of (EnsembleStep, frozenset of str)
        The steps that read such a tensor, each with the other tensors that it needs.
    completes_response : bool
        The response may be complete then.
    """

    tensors: tuple[tuple[str, str, int], ...]
    steps: tuple[tuple[EnsembleStep, frozenset[str]], ...]
    completes_response: bool


class EnsemblePlan:
    """The steps that have to run for the requested outputs of an ensemble.

    Attributes
    ----------
    outputs : frozenset of str
        The requested outputs.
    order : tuple of str
        The requested outputs in the order of the request.
    begin : TensorArrival
        For the tensors of the request.
    after : dict of int to TensorArrival
        For the outputs of each step, by its index.
    """

    def __init__(self, inputs: Iterable[str], steps: Collection[EnsembleStep], outputs: tuple[str, ...]) -> None:
        self.order = outputs
        self.outputs = frozenset(outputs)
        self._readers: dict[str, list[EnsembleStep]] = {}
        for step in steps:
            for tensor in step.reads:
                self._readers.setdefault(tensor, []).append(step)
        self.begin = self._arrival({name: name for name in inputs})
        self.after = {step.index: self._arrival(step.outputs) for step in steps}

    def _arrival(self, names: Mapping[str, str]) -> TensorArrival:
        counts = [
            (name, tensor, len(self._readers.get(tensor, ())) + (tensor in self.outputs))
            for name, tensor in names.items()
        ]
        # A tensor that nobody reads is not even stored.
        read = tuple(entry for entry in counts if entry[2])
        reached = {step.index: step for _, tensor, _ in read for step in self._readers.get(tensor, ())}
        return TensorArrival(
            read,
            tuple((step, frozenset(step.reads).difference(names.values())) for step in reached.values()),
            not self.outputs.isdisjoint(names.values()) or not self.outputs,
        )


class EnsembleRun:
    """The state of one request to an ensemble; the driver may use a subclass with further state.

    Attributes
    ----------
    request : Schedulable
    plan : EnsemblePlan
        `EnsembleGraph.plan` for its requested outputs.
    running : int
        Number of step requests without a final response.
    waiting : int
        Number of step requests that wait because of ``max_inflight_requests``.
    responses : int
        Number of responses sent.
    error : TritonError or None
        The error of the first step that failed.
    """

    __slots__ = ("_iterations", "_left", "_values", "error", "plan", "request", "responses", "running", "waiting")

    def __init__(self, request: Any, plan: EnsemblePlan) -> None:
        self.request = request
        self.plan = plan
        self.running = self.waiting = self.responses = 0
        self.error: TritonError | None = None
        self._values: dict[int, Tensors] = {}
        self._left: dict[tuple[str, int], int] = {}  # remaining readers of tensors with several readers
        self._iterations: dict[int, int] = {}

    @property
    def has_ended(self) -> bool:
        """True if no step request is running or waiting."""
        return not self.running and not self.waiting

    def iteration_of(self, step: EnsembleStep, iteration: int) -> int:
        """Return the iteration that a response of a step belongs to."""
        if not step.decoupled:
            return iteration
        # Counted for each step: the numbers of two decoupled steps never meet, since a step that reads from both is
        # refused at load.
        number = self._iterations.get(step.index, 0)
        self._iterations[step.index] = number + 1
        return number

    def put(self, arrival: TensorArrival, tensors: Mapping[str, object], iteration: int) -> list[EnsembleStep]:
        """Add tensors, by their names at the source; return the steps that can run now."""
        values = self._values.get(iteration)
        if values is None:
            values = self._values[iteration] = {}
        for name, tensor, readers in arrival.tensors:
            # None stands for Triton's empty placeholder: the step runs without the input, and its model decides whether
            # that is an error.
            values[tensor] = tensors.get(name)
            if readers > 1:
                self._left[tensor, iteration] = readers
        return [step for step, others in arrival.steps if not others or others <= values.keys()]

    def collect_tensors(self, tensors: Iterable[str], iteration: int) -> Tensors:
        """Get tensors for a reader; they are dropped after the last reader."""
        values, left = self._values[iteration], self._left
        taken = {}
        for name in tensors:
            # Most tensors have one reader and no entry.
            readers = left.pop((name, iteration), 1) if left else 1
            if readers > 1:
                left[name, iteration] = readers - 1
                taken[name] = values[name]
            else:
                # Dropped with its last reader and not with the request: a long pipeline would hold all of its
                # intermediate tensors.
                taken[name] = values.pop(name)
        if not values:
            del self._values[iteration]
        return taken

    def answer(self, iteration: int) -> Tensors | None:
        """Return the requested outputs of an iteration; None if some are missing."""
        available = self._values.get(iteration, {}).keys()
        return self.collect_tensors(self.plan.order, iteration) if self.plan.outputs <= available else None


@final
class RunStep:
    """The decision to send a request to the model of a step; ``inputs`` have the model's names."""

    __slots__ = ("inputs", "iteration", "reason", "run", "step")

    def __init__(self, run: EnsembleRun, step: EnsembleStep, iteration: int, inputs: Tensors, reason: Reason) -> None:
        self.run = run
        self.step = step
        self.iteration = iteration
        self.inputs = inputs
        self.reason = reason


@final
class SendResponse:
    """The decision to answer the request with these outputs; some may be None."""

    __slots__ = ("final", "outputs", "run")

    def __init__(self, run: EnsembleRun, outputs: Tensors, final: bool) -> None:
        self.run = run
        self.outputs = outputs
        self.final = final


@dataclass(slots=True)
class EndRequest:
    """The decision to end the request with an error, or (decoupled) with only the final flag."""

    run: EnsembleRun
    error: TritonError | None


EnsembleDecision = RunStep | SendResponse | EndRequest


class EnsembleScheduler:
    """The scheduler for all requests of one ensemble; every stimulus returns the resulting decisions, in order.

    Parameters
    ----------
    graph : EnsembleGraph
    """

    def __init__(self, graph: EnsembleGraph) -> None:
        self.graph = graph
        self._running = [0] * len(graph.steps)
        self._waiting: list[deque[tuple[EnsembleRun, int]]] = [deque() for _ in graph.steps]
        # Made once: a step has the same facts in every request.
        self._reasons = {
            (step.index, rule): Reason(rule, {"tensors": step.reads, "limit": graph.max_inflight_requests})
            for step in graph.steps
            for rule in (INPUTS_READY, INFLIGHT_FREE)
        }

    def start_run(self, run: EnsembleRun, inputs: Mapping[str, object]) -> list[EnsembleDecision]:
        """Start a request; it ends at once if a required input is missing."""
        if not self.graph.required <= inputs.keys():
            return self._end_if_done(run)
        return self._advance(run, run.plan.begin, inputs, 0)

    def responded(
        self, run: EnsembleRun, step: EnsembleStep, iteration: int, outputs: Mapping[str, object] | None, final: bool
    ) -> list[EnsembleDecision]:
        """Handle a response of a step; ``outputs`` is None if it has only the final flag."""
        released = self._release(run, step) if final else []
        if run.error is None and outputs is not None:
            # A request that waits for the place of this step goes before the steps that follow from the response: it
            # has waited longer.
            arrival = run.plan.after[step.index]
            return released + self._advance(run, arrival, outputs, run.iteration_of(step, iteration))
        return released + self._end_if_done(run)

    def failed(self, run: EnsembleRun, step: EnsembleStep, error: TritonError, final: bool) -> list[EnsembleDecision]:
        """Handle the failure of a step, or its refusal of a request."""
        released = self._release(run, step) if final else []
        # Triton's text, with the status of the step.
        self._fail(run, TritonError(f"in ensemble '{self.graph.name}', {error.message}", error.status))
        return released + self._end_if_done(run)

    def cancel(self, run: EnsembleRun) -> list[EnsembleDecision]:
        """Cancel a request for its client: no further step starts."""
        self._fail(run, CancelledError(""))
        return self._end_if_done(run)

    def _fail(self, run: EnsembleRun, error: TritonError) -> None:
        if run.error is None:
            run.error = error
            # Its entries stay in the queues of the steps, where `_release` skips them; a search for them would cost
            # more.
            run.waiting = 0

    def _advance(
        self, run: EnsembleRun, arrival: TensorArrival, tensors: Mapping[str, object], iteration: int
    ) -> list[EnsembleDecision]:
        decisions: list[EnsembleDecision] = []
        for step in run.put(arrival, tensors, iteration):
            self._start(run, step, iteration, decisions)
        # After the steps: the tensors of the response may be among their inputs, and `has_ended` is right only then.
        outputs = run.answer(iteration) if arrival.completes_response else None
        if outputs is None:
            return decisions or self._end_if_done(run)
        run.responses += 1
        decisions.append(SendResponse(run, outputs, run.has_ended))
        return decisions

    def _start(self, run: EnsembleRun, step: EnsembleStep, iteration: int, decisions: list[EnsembleDecision]) -> None:
        limit = self.graph.max_inflight_requests
        if limit and self._running[step.index] >= limit:
            # Triton blocks the thread that sends for up to 300 s instead, and every other request of that thread.
            self._waiting[step.index].append((run, iteration))
            run.waiting += 1
        else:
            decisions.append(self._run(run, step, iteration, INPUTS_READY))

    def _run(self, run: EnsembleRun, step: EnsembleStep, iteration: int, rule: str) -> RunStep:
        self._running[step.index] += 1
        run.running += 1
        tensors = run.collect_tensors(step.reads, iteration)
        inputs = {name: tensors[tensor] for name, tensor in step.inputs.items()}
        return RunStep(run, step, iteration, inputs, self._reasons[step.index, rule])

    def _release(self, run: EnsembleRun, step: EnsembleStep) -> list[EnsembleDecision]:
        """Start a waiting step request, if there is one: another has ended."""
        run.running -= 1
        self._running[step.index] -= 1
        queue = self._waiting[step.index]
        while queue:
            next_run, iteration = queue.popleft()
            if next_run.error is None:
                next_run.waiting -= 1
                return [self._run(next_run, step, iteration, INFLIGHT_FREE)]
        return []

    def _end_if_done(self, run: EnsembleRun) -> list[EnsembleDecision]:
        if not run.has_ended:
            return []
        # A decoupled step may send no response at all, which is no error of the ensemble.
        if run.error is None and not run.responses and not self.graph.decoupled:
            run.error = InvalidArgumentError(
                f"in ensemble '{self.graph.name}', {run.request.id_prefix}unexpected deadlock, at least one output is "
                "not set while no more ensemble steps can be made"
            )
        return [EndRequest(run, run.error)]
