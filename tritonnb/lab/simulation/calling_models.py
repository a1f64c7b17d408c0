"""Models that call others (BLS) in a simulation: an execution lasts until its calls have ended.

Compiled with mypyc, as the classes that it extends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from tritonnb.core.errors import TritonError
from tritonnb.core.events import Event, StepSent
from tritonnb.lab.simulation.calls import ExecutionPlan, Planner
from tritonnb.lab.simulation.engine import SimulatedModel, SimulatedReplica, SimulatedRequest, Simulation, Target
from tritonnb.scheduling.decisions import Execute
from tritonnb.scheduling.reasons import BLS_REQUEST
from tritonnb.scheduling.virtual_time import ARRIVAL, END


class CallingExecution:
    """An execution that runs: its plan, and the calls that have ended."""

    def __init__(
        self, replica: SimulatedReplica, decision: Execute, requests: list[SimulatedRequest], plan: ExecutionPlan
    ) -> None:
        self.replica = replica
        self.decision = decision
        self.requests = requests
        self.plan = plan
        self.begin_ns = replica.time.now
        self.ended: set[int] = set()
        self.is_ending = False
        # A call that nothing else precedes is sent after the model's own time, all others when a call has ended.
        self.unsent = [number for number, call in enumerate(plan.calls) if call.after]


class CallingModel(SimulatedModel):
    """A model whose executions call other models and ensembles of the same simulation."""

    def make_calls(self, planner: Planner, models: Mapping[str, Target], simulation: Simulation) -> None:
        """Set what its executions do.

        Parameters
        ----------
        planner : callable
        models : dict of str to Target
            By the names in the plans.
        simulation : Simulation
        """
        self.makes_calls = True
        self._planner = planner
        self._models = models
        self._simulation = simulation
        self._sent: list[Event] = []
        self.running = 0

    def begin(self, replica: SimulatedReplica, decision: Execute, requests: list[SimulatedRequest]) -> None:
        """Execute a batch that begins at the current time, until `VirtualTime.end`."""
        plan = self._planner([request.batch_size for request in requests])
        execution = CallingExecution(replica, decision, requests, plan)
        self.running += 1
        now = self.clock.now
        for number, call in enumerate(plan.calls):
            if not call.after:
                self.clock.schedule(now + call.own_ns, ARRIVAL, self._send, (execution, number))
        self._go_on(execution)

    def step_answered(self, cause: object, request: SimulatedRequest, error: TritonError | None) -> None:
        """Handle the response to a call; ``cause`` is the execution and the number of the call."""
        execution, number = cast("tuple[CallingExecution, int]", cause)
        execution.ended.add(number)
        self._go_on(execution)

    def _go_on(self, execution: CallingExecution) -> None:
        """Schedule what has waited for the calls that have ended."""
        now, plan, ended = self.clock.now, execution.plan, execution.ended
        ready = [number for number in execution.unsent if plan.calls[number].after <= ended]
        for number in ready:
            execution.unsent.remove(number)
            self.clock.schedule(now + plan.calls[number].own_ns, ARRIVAL, self._send, (execution, number))
        if not execution.is_ending and plan.awaited <= ended:
            execution.is_ending = True
            self.clock.schedule(now + plan.own_ns, END, self._end, execution)

    def _send(self, cause: tuple[CallingExecution, int]) -> None:
        execution, number = cause
        call = execution.plan.calls[number]
        model, now, serial = self._models[call.model], self.clock.now, self._simulation.new_serial()
        request = model.create(now, call.arrival, serial, (self, cause))
        if self.columns is None:
            caller = execution.requests[0].serial  # as a server reports it: the first request of the batch
            self._sent.append(StepSent(now, self.name, 1, caller, 0, model.name, 1, serial, 0, BLS_REQUEST))
        model.arrived(request)

    def _end(self, execution: CallingExecution) -> None:
        decision, requests = execution.decision, execution.requests
        self.running -= 1
        for request in requests:
            request.step += 1
        if self.columns is not None:
            self.columns.add_execution(decision.size, requests, execution.begin_ns, self.clock.now)
        execution.replica.time.end(decision.instance)

    def events(self) -> list[Event]:
        """Return the events, in the order of `VirtualTime` if they have the same time."""
        return [*super().events(), *self._sent]
