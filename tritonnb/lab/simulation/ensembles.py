"""Ensembles in a simulation: their requests become requests to the models of the steps, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from tritonnb.core.errors import TritonError
from tritonnb.core.events import BatchExecuted, CacheHit, EnsembleExecuted, Event, StepSent
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.simulation.engine import Columns, SimulatedRequest, Simulation, Target
from tritonnb.lab.simulation.replicas import RouterFunction
from tritonnb.scheduling.ensemble import (
    EnsembleDecision,
    EnsembleGraph,
    EnsemblePlan,
    EnsembleRun,
    EnsembleScheduler,
    RunStep,
    SendResponse,
)
from tritonnb.scheduling.virtual_time import ARRIVAL


class SimulatedRun(EnsembleRun):
    """A request to an ensemble; its tensors have names and no contents."""

    __slots__ = ("ended", "open", "routed", "serials")

    def __init__(self, request: SimulatedRequest, plan: EnsemblePlan) -> None:
        super().__init__(request, plan)
        self.open: dict[SimulatedRequest, Target] = {}  # requests of steps without a response
        self.serials: list[int] = []  # of all requests of steps
        self.ended = False
        self.routed = False  # to a replica, by the router of this ensemble


class SimulatedEnsemble(Target):
    """An ensemble: the scheduler of the server, and the models of its steps in the same simulation.

    Parameters
    ----------
    config : ModelConfig
    graph : EnsembleGraph
    models : sequence of Target
        By step.
    simulation : Simulation
    columns : Columns or None
        Has one batch for each request.
    replicas : int
        Number of servers; all steps of a request are executed on one of them.
    route : callable
        Chooses it.
    """

    def __init__(
        self,
        config: pb.ModelConfig,
        graph: EnsembleGraph,
        models: Sequence[Target],
        simulation: Simulation,
        columns: Columns | None,
        replicas: int,
        route: RouterFunction,
    ) -> None:
        super().__init__(config, simulation.clock, answer, columns)
        self._in_flight = [0] * replicas
        self._route = route
        self._simulation = simulation
        self._scheduler = EnsembleScheduler(graph)
        self._models = list(models)
        self._versions = [max(1, step.model_version) for step in graph.steps]
        self._plan = graph.plan(None)
        self._inputs: dict[str, object] = dict.fromkeys(graph.inputs)
        self._outputs: list[dict[str, object]] = [dict.fromkeys(step.outputs) for step in graph.steps]
        self._runs: dict[SimulatedRequest, SimulatedRun] = {}
        self._sent: list[Event] = []
        self._ended: list[tuple[int, SimulatedRun, bool]] = []

    def arrived(self, request: SimulatedRequest) -> None:
        """Handle the arrival of a request at the current time."""
        run = SimulatedRun(request, self._plan)
        self._runs[request] = run
        if len(self._in_flight) > 1 and request.replica < 0:
            run.routed, request.replica = True, self._route(self._in_flight)
            self._in_flight[request.replica] += 1
        self._apply(self._scheduler.start_run(run, self._inputs))

    def cancelled(self, request: SimulatedRequest) -> None:
        """Handle the cancellation of a request before its response, at the current time."""
        run = self._runs[request]
        self._apply(self._scheduler.cancel(run))
        for step_request, model in list(run.open.items()):
            model.cancel(step_request)

    def step_answered(self, cause: object, request: SimulatedRequest, error: TritonError | None) -> None:
        """Handle the response to the request of a step; ``cause`` is the decision to send it."""
        decision = cast("RunStep", cause)
        run = cast("SimulatedRun", decision.run)
        del run.open[request]
        scheduler, step = self._scheduler, decision.step
        if error is None:
            self._apply(scheduler.responded(run, step, decision.iteration, self._outputs[step.index], True))
        else:
            self._apply(scheduler.failed(run, step, error, True))

    def _apply(self, decisions: Sequence[EnsembleDecision]) -> None:
        for decision in decisions:
            run = cast("SimulatedRun", decision.run)
            if isinstance(decision, RunStep):
                self._send(run, decision)
            elif isinstance(decision, SendResponse):
                self._end(run, None)
            else:
                self._end(run, decision.error)

    def _send(self, run: SimulatedRun, decision: RunStep) -> None:
        step = decision.step
        model = self._models[step.index]
        now, serial = self.clock.now, self._simulation.new_serial()
        request = model.create(now, run.request.arrival, serial, (self, decision))
        request.cancelled, request.replica = run.request.cancelled, run.request.replica
        run.open[request] = model
        if request.batch_size:
            model.arrived(request)
        else:
            self.clock.schedule(now, ARRIVAL, self._answer_from_cache, (request, model.name))
        # As on the server, a request that its model refuses at once was not sent.
        if self.columns is None and request in run.open:
            run.serials.append(serial)
            version = self._versions[step.index]
            parts = (step.index, model.name, version, serial, decision.iteration, decision.reason.rule)
            self._sent.append(StepSent(now, self.name, 1, run.request.serial, *parts))

    def _answer_from_cache(self, step: tuple[SimulatedRequest, str]) -> None:
        request, model = step
        now = self.clock.now
        request.responded = True
        if self.columns is None:
            self._sent.append(CacheHit(now, model, 1, request.serial, request.received_ns, 0))
        answer(request, now, None)

    def _end(self, run: SimulatedRun, error: TritonError | None) -> None:
        # A request that failed is answered once, however many of its steps fail.
        if run.ended:
            return
        run.ended = True
        request: SimulatedRequest = run.request
        request.responded = True
        if run.routed:
            self._in_flight[request.replica] -= 1
        now = self.clock.now
        del self._runs[request]
        if self.columns is None:
            self._ended.append((now, run, error is not None))
        elif error is not None:
            self.columns.failed += 1
        else:
            self.columns.add_request(request.serial, request.batch_size, request.received_ns, request.received_ns)
            self.columns.add_batch(request.received_ns, now, 1, 0)
        self.answered(request, now, error)

    def events(self) -> list[Event]:
        """Return the events, in the order of `VirtualTime` if they have the same time."""
        return [*self.recorded, *self._sent]

    def executed(self, infer_ns: dict[int, int]) -> list[Event]:
        """Return the events of requests that ended, and add their times to the times of their steps.

        Parameters
        ----------
        infer_ns : dict of int to int
            How long each request was executed, by its serial.
        """
        events: list[Event] = []
        for now, run, failed in self._ended:
            request: SimulatedRequest = run.request
            received_ns = request.received_ns
            infer_ns[request.serial] = total = sum(infer_ns.get(serial, 0) for serial in run.serials)
            times = (received_ns, received_ns, received_ns, 0, total, 0, "OTHER" if failed else "")
            events.append(EnsembleExecuted(now, self.name, 1, request.serial, request.batch_size, *times))
        return events


def answer(request: SimulatedRequest, time_ns: int, error: TritonError | None) -> None:
    """Report a final response to the ensemble or the model that has sent the request, or to the client."""
    parent = request.parent
    if isinstance(parent, tuple):
        sender, cause = cast("tuple[Target, object]", parent)
        sender.step_answered(cause, request, error)
    elif parent is not None:
        cast("Callable[[int], None]", parent)(time_ns)


def execution_times(events: Sequence[Event]) -> dict[int, int]:
    """Return how long each request was executed, in ns, by its serial."""
    times: dict[int, int] = {}
    for event in events:
        if isinstance(event, BatchExecuted):
            for member in event.requests:
                times[member[0]] = times.get(member[0], 0) + event.exec_end_ns - event.exec_start_ns
    return times
