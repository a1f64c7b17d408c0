"""Arrivals and a configuration through the real scheduler in virtual time.

The scheduler objects are those that serve; only the clock and the instances are imitated. What comes
out are the events that a live server would give.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from operator import attrgetter

from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.events import BatchExecuted, BatchSent, Event, RequestCancelled, unpack
from tritonnb.core.messages import SEQUENCE_END, SEQUENCE_START
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.diagnose import ProblemContext
from tritonnb.model_config.validate import check_scheduling
from tritonnb.scheduling import decision_events
from tritonnb.scheduling.decisions import Execute
from tritonnb.scheduling.from_config import make_scheduler
from tritonnb.scheduling.virtual_time import Batch, FinalResponse, VirtualTime
from tritonnb.simulation.arrivals import Arrival, Arrivals, ClosedLoop, as_arrivals
from tritonnb.simulation.service import ExecutionTimes, Service


class SimulatedRequest:
    """What a scheduler needs to know of a request, and nothing else."""

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

    @property
    def id_prefix(self) -> str:
        """What Triton puts before many of its error texts."""
        return f"[request id: {self.id}] "


def run(config: pb.ModelConfig, arrivals: Arrivals, service: Service, seed: int) -> list[Event]:
    """Run a workload against a configuration in virtual time, and tell what happened.

    Parameters
    ----------
    config : ModelConfig
        ``instance_group`` gives the number of instances.
    arrivals : iterable of Arrival or of (time in µs, rows), or ClosedLoop
    service : Service
    seed : int
        Of what is random in the service times.

    Warns
    -----
    UserWarning
        If a function without a unit, which returns nanoseconds, returned less than a microsecond.

    Raises
    ------
    InvalidArgumentError
        If an arrival is none, or has more rows than a batch may have; if the configuration breaks a rule of
        its scheduler, or is an ensemble's; or if the service model gives no time.
    """
    with ProblemContext(config):
        check_scheduling(config)
    if config.HasField("ensemble_scheduling"):
        raise InvalidArgumentError(f"model '{config.name}' is an ensemble, which runs nothing itself: try its steps")
    times = ExecutionTimes(service, seed)
    with _no_collector():
        world = _World(config, instance_count(config), times)
        if isinstance(arrivals, ClosedLoop):
            world.closed_loop(arrivals)
        else:
            world.open_loop(arrivals)
        events = world.events()
    if times.warning:
        warnings.warn(times.warning, stacklevel=3)  # the caller of `simulate` or `what_if`
    return events


def instance_count(config: pb.ModelConfig) -> int:
    """How many instances a configuration asks for."""
    return sum(max(1, group.count) * max(1, len(group.gpus)) for group in config.instance_group) or 1


@contextmanager
def _no_collector() -> Iterator[None]:
    """A run makes many objects, all of which stay: looking through them for garbage took half of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _World:
    def __init__(self, config: pb.ModelConfig, instances: int, times: ExecutionTimes) -> None:
        self._name = config.name
        self._most_rows = config.max_batch_size
        self._requests: list[SimulatedRequest] = []
        self._cancelled: list[RequestCancelled] = []
        self._more: Callable[[FinalResponse], None] = lambda answer: None
        self._time = VirtualTime(
            make_scheduler(config, instances, os.environ),
            lambda decision: times(decision.size),
            instances,
            on_response=lambda answer: self._more(answer),
        )

    def open_loop(self, arrivals: Iterable[Arrival | tuple[float, int]]) -> None:
        for arrival in as_arrivals(arrivals):
            request = self._send(round(arrival.time_us * 1000), arrival)
            if arrival.cancel_us is not None:
                time_ns = round(arrival.cancel_us * 1000)
                self._cancelled.append(RequestCancelled(time_ns, self._name, 1, request.serial))
                self._time.cancel(time_ns, request)
        self._time.run()

    def closed_loop(self, loop: ClosedLoop) -> None:
        arrival = Arrival(0.0, loop.rows)
        left = loop.requests
        think_ns = round(loop.think_ms * 1e6)

        def more(answer: FinalResponse) -> None:
            nonlocal left
            if left:
                left -= 1
                self._send(answer.time_ns + think_ns, arrival)

        self._more = more
        for _ in range(min(loop.clients, loop.requests)):
            left -= 1
            self._send(0, arrival)
        self._time.run()

    def events(self) -> list[Event]:
        ran = list(map(self._batch, count(1), self._time.batches))
        # Sorting is stable, so this is the order inside a moment: that of `VirtualTime`.
        events: list[Event] = [
            *(executed for _, executed in ran),
            *map(self._arrived, self._requests),
            *self._cancelled,
            *(
                self._refused(response, response.error)
                for response in self._time.responses
                if response.error is not None
            ),
            *(sent for sent, _ in ran),
        ]
        events.sort(key=attrgetter("time_ns"))
        return events

    def _send(self, time_ns: int, arrival: Arrival) -> SimulatedRequest:
        if 0 < self._most_rows < arrival.rows:
            raise InvalidArgumentError(
                f"inference request batch-size must be <= {self._most_rows} for '{self._name}', got {arrival.rows}"
            )
        request = SimulatedRequest(arrival, len(self._requests) + 1)
        request.received_ns = time_ns
        self._requests.append(request)
        self._time.arrive(time_ns, request)
        return request

    def _batch(self, number: int, batch: Batch) -> tuple[BatchSent, BatchExecuted]:
        decision: Execute = batch.decision
        instance = f"{self._name}_0_{decision.instance}"
        real = [request for request in decision.requests if request is not None]
        told = tuple(
            [(request.serial, request.batch_size, request.received_ns, request.queued_ns, "") for request in real]
        )
        start, end = batch.start_ns, batch.end_ns
        sent = decision_events.batch_sent(decision, self._name, 1, number, instance, batch.queue_depth, start)
        ran = BatchExecuted(end, self._name, 1, number, instance, decision.size, start, start, end, end, told)
        return (sent, ran)

    def _arrived(self, request: SimulatedRequest) -> Event:
        return unpack(decision_events.request_arrived(request, self._name, 1, request.received_ns))

    def _refused(self, answer: FinalResponse, error: TritonError) -> Event:
        counted_as = answer.refusal.counted_as if answer.refusal else ""
        return decision_events.request_refused(answer.request, self._name, 1, error, counted_as, answer.time_ns)
