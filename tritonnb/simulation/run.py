"""Simulating a configuration with arrivals: the scheduler in virtual time.

The schedulers are those that also serve; only the clock and the instances are simulated. The result is the events that
a live server would emit.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter

from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.events import BatchExecuted, BatchSent, Event, RequestCancelled, ResponseSent
from tritonnb.core.failures import warn
from tritonnb.core.packed_events import unpack
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.sequence_flags import SEQUENCE_END, SEQUENCE_START
from tritonnb.model_config.diagnose import ProblemContext
from tritonnb.model_config.validate import check_scheduling
from tritonnb.scheduling.decisions import Execute, Schedulable, batch_sent, request_arrived, request_refused
from tritonnb.scheduling.from_config import make_scheduler
from tritonnb.scheduling.virtual_time import FinalResponse, VirtualBatch, VirtualClock, VirtualTime
from tritonnb.simulation.arrivals import Arrival, Arrivals, ClosedLoop, as_arrivals
from tritonnb.simulation.replicas import Replicas, Router, RouterFunction, instance_on, make_router
from tritonnb.simulation.service import ExecutionTimes, Service


class SimulatedRequest:
    """The attributes of a request that schedulers use."""

    __slots__ = (
        "batch_key",
        "batch_size",
        "cancelled",
        "correlation_id",
        "flags",
        "id",
        "priority",
        "queued_ns",
        "received_ns",
        "serial",
        "step",
        "steps",
        "timeout_us",
    )

    def __init__(self, arrival: Arrival, serial: int) -> None:
        self.id = str(serial)
        self.serial = serial
        self.batch_size = arrival.rows
        self.batch_key = arrival.batch_key
        self.priority = arrival.priority
        self.timeout_us = arrival.timeout_us
        self.correlation_id = arrival.sequence_id
        self.flags = SEQUENCE_START * arrival.sequence_start | SEQUENCE_END * arrival.sequence_end
        self.cancelled = False
        self.queued_ns = 0
        self.received_ns = 0
        self.steps = arrival.steps
        self.step = 0  # the number of those that have been executed

    @property
    def id_prefix(self) -> str:
        """The prefix of many of Triton's error messages."""
        return f"[request id: {self.id}] "


def run(
    config: pb.ModelConfig,
    arrivals: Arrivals,
    service: Service,
    seed: int,
    *,
    first_step_ns: int = 0,
    replicas: int = 1,
    router: Router = "two_choices",
) -> list[Event]:
    """Simulate a workload and return its events.

    Parameters
    ----------
    config : ModelConfig
        ``instance_group`` determines the number of instances.
    arrivals : iterable of Arrival or of (time in µs, rows), or ClosedLoop
    service : Service
    seed : int
        Seed of random service times, and of a random router.
    first_step_ns : int, optional
        What the first step of each request adds to the time of an execution: a model of language reads its prompt.
    replicas : int, optional
        The number of servers with this configuration.
    router : str or callable, optional
        Which of them gets a request; see `make_router`.

    Warns
    -----
    UserWarning
        If a function without a unit, which returns nanoseconds, returned less than a microsecond.

    Raises
    ------
    InvalidArgumentError
        If the number of replicas is not positive or the router is unknown; if an arrival is invalid, or has more rows
        than ``max_batch_size``; if the configuration violates a rule of its scheduler, or is an ensemble; or if the
        service model does not return a time.
    """
    with ProblemContext(config):
        check_scheduling(config)
    if config.HasField("ensemble_scheduling"):
        raise InvalidArgumentError(
            f"model '{config.name}': simulation expected a model that is executed, got an ensemble; simulate its steps"
        )
    if replicas < 1:
        raise InvalidArgumentError(f"model '{config.name}': simulation expected at least 1 replica, got {replicas}")
    times = ExecutionTimes(service, seed)
    route = make_router(router, seed)
    with _without_garbage_collection():
        simulation = _Simulation(config, times, first_step_ns, replicas, route)
        if isinstance(arrivals, ClosedLoop):
            simulation.closed_loop(arrivals)
        else:
            simulation.open_loop(arrivals)
        events = simulation.events()
    if times.warning:
        warn(times.warning)
    return events


def instance_count(config: pb.ModelConfig) -> int:
    """Return the number of instances in a configuration."""
    return len(instance_names(config))


def instance_names(config: pb.ModelConfig) -> list[str]:
    """Return the names of the instances in a configuration, as a server names them.

    Examples
    --------
    >>> instance_names(pb.ModelConfig(name="m", instance_group=[{"count": 2}, {"name": "slow"}]))
    ['m_0_0', 'm_0_1', 'slow_0']
    """
    names = []
    for index, group in enumerate(config.instance_group or [pb.ModelInstanceGroup()]):
        count = max(1, group.count) * max(1, len(group.gpus))
        names += [f"{group.name or f'{config.name}_{index}'}_{number}" for number in range(count)]
    return names


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A simulation creates many objects that it keeps; garbage collection took half of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Replica:
    """One server: its scheduler in virtual time, and what its executions record.

    Attributes
    ----------
    time : VirtualTime
    queued_ns : list of list of int
        Since when the requests of each batch were queued: they may be queued again.
    responses : list of ResponseSent
        The responses of steps.
    """

    def __init__(
        self,
        config: pb.ModelConfig,
        times: ExecutionTimes,
        first_step_ns: int,
        on_response: Callable[[FinalResponse], None],
        clock: VirtualClock,
    ) -> None:
        self._model = config.name
        self._times = times
        self._first_step_ns = first_step_ns
        self._iterative = config.sequence_batching.iterative_sequence
        self._responded_ns: dict[int, int] = {}
        self.queued_ns: list[list[int]] = []
        self.responses: list[ResponseSent] = []
        instances = instance_count(config)
        self.time = VirtualTime(
            make_scheduler(config, instances, os.environ),
            self._execute,
            instances,
            on_response=on_response,
            rescheduled=self._is_rescheduled if self._iterative else None,
            clock=clock,
        )

    def _execute(self, decision: Execute) -> int:
        """The time of an execution that begins now: of one step, or of all steps if the model is not iterative."""
        requests: list[SimulatedRequest] = [request for request in decision.requests if request is not None]
        self.queued_ns.append([request.queued_ns for request in requests])
        time_ns = self._first_step_ns * sum(1 for request in requests if request.step == 0)
        steps = max([request.steps for request in requests], default=1)
        for _ in range(1 if self._iterative else steps):
            time_ns += self._times(decision.size)
            for request in requests:
                if request.step < request.steps:
                    self._finish_step(request, self.time.now + time_ns, generates=steps > 1)
        return time_ns

    def _finish_step(self, request: SimulatedRequest, now_ns: int, generates: bool) -> None:
        if generates:
            previous_ns = self._responded_ns.get(request.serial, request.received_ns)
            elapsed_ns = now_ns - previous_ns
            event = ResponseSent(now_ns, self._model, 1, request.serial, request.step, "success", elapsed_ns)
            self.responses.append(event)
            self._responded_ns[request.serial] = now_ns
        request.step += 1

    def _is_rescheduled(self, request: Schedulable) -> bool:
        assert isinstance(request, SimulatedRequest)
        return request.step < request.steps


class _Simulation:
    def __init__(
        self, config: pb.ModelConfig, times: ExecutionTimes, first_step_ns: int, replicas: int, route: RouterFunction
    ) -> None:
        self._name = config.name
        self._instances = instance_names(config)
        self._max_rows = config.max_batch_size
        self._requests: list[SimulatedRequest] = []
        self._arrived: list[Event] = []  # as clients send them: the scheduler may give a request a correlation ID
        self._cancelled: list[RequestCancelled] = []
        self._next_request: Callable[[FinalResponse], None] = lambda response: None
        self._clock = VirtualClock()
        route = route if replicas > 1 else lambda loads: 0
        self._replicas = [_Replica(config, times, first_step_ns, self._responded, self._clock) for _ in range(replicas)]
        self._routed = Replicas(self._clock, [replica.time for replica in self._replicas], route)

    def _responded(self, response: FinalResponse) -> None:
        self._routed.responded(response.request)
        self._next_request(response)

    def open_loop(self, arrivals: Iterable[Arrival | tuple[float, int]]) -> None:
        for arrival in as_arrivals(arrivals):
            request = self._send(round(arrival.time_us * 1000), arrival)
            if arrival.cancel_us is not None:
                time_ns = round(arrival.cancel_us * 1000)
                self._cancelled.append(RequestCancelled(time_ns, self._name, 1, request.serial))
                self._routed.cancel(time_ns, request)
        self._clock.run()

    def closed_loop(self, loop: ClosedLoop) -> None:
        arrival = Arrival(0.0, loop.rows)
        remaining = loop.requests
        think_ns = round(loop.think_ms * 1e6)

        def send_next(response: FinalResponse) -> None:
            nonlocal remaining
            if remaining:
                remaining -= 1
                self._send(response.time_ns + think_ns, arrival)

        self._next_request = send_next
        for _ in range(min(loop.clients, loop.requests)):
            remaining -= 1
            self._send(0, arrival)
        self._clock.run()

    def events(self) -> list[Event]:
        batches = [
            (batch, queued_ns, number)
            for number, replica in enumerate(self._replicas, 1)
            for batch, queued_ns in zip(replica.time.batches, replica.queued_ns, strict=True)
        ]
        batches.sort(key=lambda entry: entry[0].start_ns)  # stable, so those of one replica keep their order
        executions = [self._batch(number, *entry) for number, entry in enumerate(batches, 1)]
        # Sorting is stable, so events at the same time keep this order, which is that of `VirtualTime`.
        events: list[Event] = [
            *(response for replica in self._replicas for response in replica.responses),
            *(executed for _, executed in executions),
            *self._arrived,
            *self._cancelled,
            *(
                self._refused(response, response.error)
                for response in self._routed.responses
                if response.error is not None
            ),
            *(sent for sent, _ in executions),
        ]
        events.sort(key=attrgetter("time_ns"))
        return events

    def _send(self, time_ns: int, arrival: Arrival) -> SimulatedRequest:
        if 0 < self._max_rows < arrival.rows:
            raise InvalidArgumentError(
                f"inference request batch-size must be <= {self._max_rows} for '{self._name}', got {arrival.rows}"
            )
        request = SimulatedRequest(arrival, len(self._requests) + 1)
        request.received_ns = time_ns
        self._requests.append(request)
        self._arrived.append(unpack(request_arrived(request, self._name, 1, time_ns)))
        self._routed.arrive(time_ns, request)
        return request

    def _batch(
        self, number: int, batch: VirtualBatch, queued_ns: list[int], replica: int
    ) -> tuple[BatchSent, BatchExecuted]:
        decision: Execute = batch.decision
        instance = self._instances[decision.instance]
        if len(self._replicas) > 1:
            instance = instance_on(replica, instance)
        executed = tuple(
            [
                (request.serial, request.batch_size, request.received_ns, since_ns, "")
                for request, since_ns in zip(filter(None, decision.requests), queued_ns, strict=True)
            ]
        )
        start, end = batch.start_ns, batch.end_ns
        sent = batch_sent(decision, self._name, 1, number, instance, batch.queue_depth, start)
        ran = BatchExecuted(end, self._name, 1, number, instance, decision.size, start, start, end, end, executed)
        return (sent, ran)

    def _refused(self, response: FinalResponse, error: TritonError) -> Event:
        counted_as = response.refusal.counted_as if response.refusal else ""
        return request_refused(response.request, self._name, 1, error, counted_as, response.time_ns)
