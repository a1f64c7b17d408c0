"""The engine of simulations: requests, clients, models in virtual time, and what is kept of a run.

Compiled with mypyc: a sweep or a what-if simulates millions of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from struct import Struct
from typing import TypeAlias

from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.events import BatchExecuted, BatchSent, Event, RequestArrived, RequestCancelled, ResponseSent
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.schedulable import SEQUENCE_END, SEQUENCE_START, Schedulable
from tritonnb.lab.simulation.arrivals import ClosedLoop, timed_arrivals
from tritonnb.lab.simulation.replicas import Replicas, RouterFunction
from tritonnb.recording.arrivals import Arrival
from tritonnb.recording.instance_names import instance_on
from tritonnb.scheduling.decisions import Execute, Scheduler, batch_sent, request_refused
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.virtual_time import ARRIVAL, CANCEL, OPEN, FinalResponse, VirtualClock, VirtualTime
from tritonnb.telemetry.quantiles import quantile

_pack = Struct("4q").pack


class SimulatedRequest(Schedulable):
    """A request of an `Arrival`; its ID is its serial number.

    Attributes
    ----------
    steps, step : int
        The steps that a model executes for it, and the number of those that it has executed.
    arrival : Arrival
        What a client sent; the requests of an ensemble's steps have that of their ensemble.
    parent : object
        Who waits for the response: for the step of an ensemble the ensemble and its decision, for a call the calling
        model and the call, for a client of a closed loop a function that takes the time; None if nobody does.
    responded : bool
        Whether the final response has been sent.
    replica : int
        The server that executes it, as all steps of its ensemble; -1 if the router of its model decides.
    """

    __slots__ = ("arrival", "parent", "replica", "responded", "step", "steps")

    def __init__(self, arrival: Arrival, serial: int) -> None:
        super().__init__(
            str(serial),
            priority=arrival.priority,
            timeout_us=arrival.timeout_us,
            correlation_id=arrival.sequence_id,
            flags=SEQUENCE_START * arrival.sequence_start | SEQUENCE_END * arrival.sequence_end,
            batch_size=arrival.rows,
            batch_key=arrival.batch_key,
            serial=serial,
        )
        self.arrival = arrival
        self.parent: object = None
        self.responded = False
        self.replica = -1
        self.steps = arrival.steps
        self.step = 0

    def __deepcopy__(self, memo: dict[int, object]) -> SimulatedRequest:
        """Return the request itself: copies of a scheduler, such as the states of a replay, share their requests."""
        return self


#: Takes a request, the time of its final response in ns, and its error.
Answered: TypeAlias = Callable[[SimulatedRequest, int, TritonError | None], None]


class Columns:
    """Numbers of the batches and requests of a run, four integers of 64 bits for each.

    Attributes
    ----------
    batches : bytearray
        Of each batch in the order in which they started: begin and end in ns, number of requests, number of null rows.
    requests : bytearray
        Of each request that ran, batch by batch: serial, rows, time of reception and of queuing in ns.
    refused, failed : int
        Number of requests that did not run, and that failed when they ran.
    """

    def __init__(self) -> None:
        self.batches, self.requests = bytearray(), bytearray()
        self.refused = 0
        self.failed = 0

    def add_batch(self, start_ns: int, end_ns: int, requests: int, null_rows: int) -> None:
        """Add a batch, whose requests have been added."""
        self.batches += _pack(start_ns, end_ns, requests, null_rows)

    def add_request(self, serial: int, rows: int, received_ns: int, queued_ns: int) -> None:
        """Add a request of the next batch."""
        self.requests += _pack(serial, rows, received_ns, queued_ns)

    def add_execution(self, rows: int, requests: Sequence[SimulatedRequest], start_ns: int, end_ns: int) -> None:
        """Add a batch with its requests; ``rows`` includes its null rows."""
        null_rows = rows
        for request in requests:
            null_rows -= request.batch_size
            self.add_request(request.serial, request.batch_size, request.received_ns, request.queued_ns)
        self.add_batch(start_ns, end_ns, len(requests), null_rows)

    def summary(self) -> dict[str, float]:
        """Return the key figures; `Recording.summary` documents keys and units."""
        last: dict[int, int] = {}  # the latency of each request at the end of its last execution
        serials, rows, received, queued = _columns(self.requests)
        starts, ends, counts, null_rows = _columns(self.batches)
        position = shared_rows = longest_ns = 0
        for batch, count in enumerate(counts):
            start_ns, end_ns, begin = starts[batch], ends[batch], position
            position += count
            for index in range(begin, position):
                last[serials[index]] = end_ns - received[index]
                longest_ns = max(longest_ns, start_ns - queued[index])
            if count > 1:
                shared_rows += sum(rows[begin:position])
        latencies_ms = [latency_ns / 1e6 for latency_ns in sorted(last.values())]
        all_rows, batches = sum(rows), len(starts)
        span_ns = max(ends) - min(received) if position else 0
        return {
            "requests": len(last),
            "rate": len(last) / span_ns * 1e9 if span_ns else 0.0,
            "rows": all_rows,
            "batches": batches,
            "refused": self.refused,
            "failed": self.failed,
            "mean_batch_size": all_rows / batches if batches else 0.0,
            "rows_batched": shared_rows / all_rows if all_rows else 0.0,
            "null_rows": sum(null_rows),
            "longest_queue_ms": longest_ns / 1e6,
            "latency_p50_ms": quantile(latencies_ms, 0.50),
            "latency_p99_ms": quantile(latencies_ms, 0.99),
        }


class NoColumns(Columns):
    """What is kept of a model below the one that is asked about: nothing."""

    def add_batch(self, start_ns: int, end_ns: int, requests: int, null_rows: int) -> None:
        """Do nothing."""

    def add_request(self, serial: int, rows: int, received_ns: int, queued_ns: int) -> None:
        """Do nothing."""

    def add_execution(self, rows: int, requests: Sequence[SimulatedRequest], start_ns: int, end_ns: int) -> None:
        """Do nothing."""


def _columns(numbers: bytearray) -> list[list[int]]:
    """Return the four columns as lists, whose items compiled code reads faster than the items of arrays."""
    flat = memoryview(numbers).cast("q")
    return [flat[column::4].tolist() for column in range(4)]


class SimulatedReplica:
    """One server: its scheduler in virtual time, and what its executions record.

    Attributes
    ----------
    time : VirtualTime
    queued_ns : list of list of int
        Since when the requests of each batch were queued, if events are kept: they may be queued again.
    responses : list of ResponseSent
        The responses of steps.
    """

    def __init__(self, model: SimulatedModel, scheduler: Scheduler, first_idle_ns: Sequence[int]) -> None:
        self._model = model
        self._responded_ns: dict[int, int] = {}
        self._free_ns = list(first_idle_ns)  # since when each instance is idle
        self.queued_ns: list[list[int]] = []
        self.responses: list[ResponseSent] = []
        self.time = VirtualTime(
            scheduler,
            self._execute,
            first_idle_ns,
            on_response=model.respond,
            rescheduled=self._is_rescheduled if model.iterative else None,
            clock=model.clock,
            keep=model.columns is None,
            gathers=model.gathers if isinstance(scheduler, DynamicBatcher) else None,
        )

    def _execute(self, decision: Execute) -> int:
        """Return the time of an execution that begins now: of one step, or of all if the model is not iterative."""
        model = self._model
        requests: list[SimulatedRequest] = [request for request in decision.requests if request is not None]
        if model.columns is None:
            self.queued_ns.append([request.queued_ns for request in requests])
        if model.makes_calls:
            model.begin(self, decision, requests)
            return OPEN
        now, time_ns, steps = model.clock.now, 0, 1
        idle_ns, server_idle_ns = now - self._free_ns[decision.instance], max(0, now - max(self._free_ns))
        for request in requests:
            steps = max(steps, request.steps)
            if request.step == 0:
                time_ns += model.first_step_ns
        for _ in range(1 if model.iterative else steps):
            busy = self.time.running + 1
            time_ns += model.times(decision.size, now + time_ns, busy, idle_ns, server_idle_ns, decision.instance)
            idle_ns = server_idle_ns = 0
            for request in requests:
                if request.step < request.steps:
                    if steps > 1 and model.columns is None:
                        self._generate(request, now + time_ns)
                    request.step += 1
        self._free_ns[decision.instance] = now + time_ns
        if model.columns is not None:
            model.columns.add_execution(decision.size, requests, now, now + time_ns)
        return time_ns

    def _generate(self, request: SimulatedRequest, now_ns: int) -> None:
        elapsed_ns = now_ns - self._responded_ns.get(request.serial, request.received_ns)
        final, name = request.step + 1 == request.steps, self._model.name
        self.responses.append(ResponseSent(now_ns, name, 1, request.serial, request.step, "success", elapsed_ns, final))
        self._responded_ns[request.serial] = now_ns

    def _is_rescheduled(self, request: Schedulable) -> bool:
        assert isinstance(request, SimulatedRequest)
        return request.step < request.steps


class Target:
    """What requests are sent to: a model with its replicas, or an ensemble.

    Parameters
    ----------
    config : ModelConfig
    clock : VirtualClock
    answered : callable
        Called with each request, the time of its final response, and its error or None.
    columns : Columns or None
        What is kept; None to keep everything, from which `events` are made.
    """

    def __init__(
        self, config: pb.ModelConfig, clock: VirtualClock, answered: Answered, columns: Columns | None
    ) -> None:
        self.name: str = config.name
        self.clock = clock
        self.columns = columns
        self.answered = answered
        self.recorded: list[Event] = []
        self._max_rows: int = config.max_batch_size
        # A server reports the requests of an ensemble when they end, and the requests of its steps as they arrive.
        self._reports_arrivals = not config.HasField("ensemble_scheduling")

    def create(self, time_ns: int, arrival: Arrival, serial: int, parent: object = None) -> SimulatedRequest:
        """Make a request that arrives at a time.

        Raises
        ------
        InvalidArgumentError
            If it has more rows than ``max_batch_size``.
        """
        request = SimulatedRequest(arrival, serial)
        request.received_ns = time_ns
        if parent is not None:
            request.parent = parent
            if arrival.step_rows is not None:
                request.batch_size = arrival.step_rows.get(self.name, arrival.rows)
            if arrival.step_keys is not None:
                request.batch_key = arrival.step_keys.get(self.name, arrival.batch_key)
        if 0 < self._max_rows < request.batch_size:
            raise InvalidArgumentError(
                f"inference request batch-size must be <= {self._max_rows} for '{self.name}', got {request.batch_size}"
            )
        if parent is not None and not self._max_rows and request.batch_size:
            request.batch_size = 1  # the tensors of a model that does not batch have no dimension of rows
        if self._reports_arrivals and self.columns is None and request.batch_size:
            # As clients send it: the scheduler may give a request a correlation ID.
            key = request.batch_key
            numbers = (request.batch_size, request.priority, request.timeout_us)
            last = (request.correlation_id, request.flags, 0 if key is None else hash(key))
            self.recorded.append(RequestArrived(time_ns, self.name, 1, serial, *numbers, request.id, *last))
        return request

    def arrived(self, request: SimulatedRequest) -> None:
        """Handle the arrival of a request at the current time."""
        raise NotImplementedError

    def cancel(self, request: SimulatedRequest) -> None:
        """Cancel a request at the current time."""
        self.record_cancel(request, self.clock.now)
        if not request.responded:
            self.cancelled(request)
        request.cancelled = True

    def record_cancel(self, request: SimulatedRequest, time_ns: int) -> None:
        """Add the event of a cancellation."""
        if self._reports_arrivals and self.columns is None:
            self.recorded.append(RequestCancelled(time_ns, self.name, 1, request.serial))

    def cancelled(self, request: SimulatedRequest) -> None:
        """Handle the cancellation of a request before its response, at the current time."""
        raise NotImplementedError

    def step_answered(self, cause: object, request: SimulatedRequest, error: TritonError | None) -> None:
        """Handle the response to a request of a step, or to a call; ``cause`` is the second item of its parent."""
        raise NotImplementedError

    def events(self) -> list[Event]:
        """Return the events that a live server would emit; in order, if they have the same time."""
        raise NotImplementedError


class SimulatedModel(Target):
    """A model in one or several replicas.

    Attributes
    ----------
    makes_calls : bool
        Whether `begin` executes its batches.

    Parameters
    ----------
    config, clock, answered, columns
        As of `Target`.
    instances : list of str
        The names of the instances of each replica.
    schedulers : sequence of Scheduler
        One for each replica.
    first_idle_ns : sequence of sequence of int
        When the instances of each replica are idle for the first time.
    times : callable
        The time in ns of an execution: takes its rows, when it begins, how many instances are busy with it, how
        long its own and all of them were idle, and the number of its own.
    first_step_ns : int
        What the first step of each request adds to it.
    route : callable
        Chooses one of several replicas.
    gathers : callable, optional
        As of `VirtualTime`.
    """

    def __init__(
        self,
        config: pb.ModelConfig,
        clock: VirtualClock,
        answered: Answered,
        columns: Columns | None,
        instances: list[str],
        schedulers: Sequence[Scheduler],
        first_idle_ns: Sequence[Sequence[int]],
        times: Callable[[int, int, int, int, int, int], int],
        first_step_ns: int,
        route: RouterFunction,
        gathers: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(config, clock, answered, columns)
        self.makes_calls = False
        self.gathers = gathers
        self.times = times
        self.first_step_ns = first_step_ns
        self.iterative: bool = config.sequence_batching.iterative_sequence
        self._instances = instances
        self._refused: list[Event] = []
        replicas = zip(schedulers, first_idle_ns, strict=True)
        self._replicas = [SimulatedReplica(self, scheduler, idle_ns) for scheduler, idle_ns in replicas]
        drivers = [replica.time for replica in self._replicas]
        self._routed = Replicas(drivers, route) if len(drivers) > 1 else None
        self._first = drivers[0]

    def arrived(self, request: SimulatedRequest) -> None:
        """Handle the arrival of a request at the current time."""
        if self._routed is None:
            self._first.arrived(request)
        else:
            self._routed.arrived(request)

    def cancelled(self, request: SimulatedRequest) -> None:
        """Handle the cancellation of a request before its response, at the current time."""
        if self._routed is None:
            self._first.cancelled(request)
        else:
            self._routed.cancelled(request)

    def begin(self, replica: SimulatedReplica, decision: Execute, requests: list[SimulatedRequest]) -> None:
        """Execute a batch that begins at the current time, until `VirtualTime.end`."""
        raise NotImplementedError

    def respond(self, response: FinalResponse) -> None:
        """Handle a replica's response to a request."""
        request = response.request
        assert isinstance(request, SimulatedRequest)
        request.responded = True
        if response.error is not None:
            self._refuse(response, response.error)
        if self._routed is not None:
            self._routed.responded(request)
        self.answered(request, response.time_ns, response.error)

    def _refuse(self, response: FinalResponse, error: TritonError) -> None:
        if self.columns is not None:
            self.columns.refused += 1
        else:
            counted_as = response.refusal.counted_as if response.refusal else ""
            time_ns, request = response.time_ns, response.request
            self._refused.append(request_refused(request, self.name, 1, error, counted_as, time_ns))

    def events(self) -> list[Event]:
        """Return the events, in the order of `VirtualTime` if they have the same time."""
        batches = [
            (batch, queued_ns, number)
            for number, replica in enumerate(self._replicas, 1)
            for batch, queued_ns in zip(replica.time.batches, replica.queued_ns, strict=True)
        ]
        if len(self._replicas) > 1:
            batches.sort(key=lambda entry: entry[0].start_ns)  # stable, so the batches of one replica keep their order
        sent: list[Event] = []
        # The order of events at the same time is the order of `VirtualTime`.
        events: list[Event] = [response for replica in self._replicas for response in replica.responses]
        for number, (batch, queued_ns, replica) in enumerate(batches, 1):
            decision, start, end = batch.decision, batch.start_ns, batch.end_ns
            instance = self._instances[decision.instance]
            if len(self._replicas) > 1:
                instance = instance_on(replica, instance)
            record = batch_sent(decision, self.name, 1, number, instance, batch.queue_depth, start)
            sent.append(BatchSent(*record[1:]))
            requests = [request for request in decision.requests if request is not None]
            members = [
                (request.serial, request.batch_size, request.received_ns, since_ns, "")
                for request, since_ns in zip(requests, queued_ns, strict=True)
            ]
            size = decision.size
            events.append(
                BatchExecuted(end, self.name, 1, number, instance, size, start, start, end, end, tuple(members))
            )
        return [*events, *self.recorded, *self._refused, *sent]


class Simulation:
    """A run: the clock, and the clients that send requests to models and ensembles.

    Parameters
    ----------
    has_steps : bool
        Whether requests may cause others, with which they share the numbers from 1.

    Attributes
    ----------
    clock : VirtualClock
    """

    def __init__(self, has_steps: bool = False) -> None:
        self.clock = VirtualClock(self._next_arrives)
        self._has_steps = has_steps
        self._serial = 0
        self._source: Iterator[tuple[int, int, Arrival]] = iter(())
        self._targets: Sequence[Target] = ()  # of the source's numbers; one for all of them, if there is only one
        self._next: SimulatedRequest | None = None
        self._next_target: Target | None = None

    def new_serial(self) -> int:
        """Return the serial of a request that a server would make: of the step of an ensemble."""
        self._serial += 1
        return self._serial

    def open_loop(self, arrivals: Mapping[Target, Iterable[Arrival | tuple[float, int]]], read_ahead: bool) -> None:
        """Add requests that arrive at given times.

        Parameters
        ----------
        arrivals : dict of Target to iterable
        read_ahead : bool
            Sort them first; otherwise the arrivals at a single target may be an iterator in the order of time.
        """
        self._targets = targets = list(arrivals)
        if len(targets) == 1:
            entries = timed_arrivals(arrivals[targets[0]])
            self._source = iter(sorted(entries)) if read_ahead else entries
        else:
            entries_of = [(entry, target) for target in targets for entry in timed_arrivals(arrivals[target])]
            entries_of.sort(key=lambda entry: entry[0][0])
            self._targets = [target for _, target in entries_of]
            self._source = iter([(time_ns, n, arrival) for n, ((time_ns, _, arrival), _) in enumerate(entries_of, 1)])
        self._send_next()

    def closed_loop(self, loop: ClosedLoop, target: Target) -> None:
        """Add clients that wait for their responses."""
        arrival = Arrival(0.0, loop.rows)
        think_ns = round(loop.think_ms * 1e6)
        sent = 0

        def send(time_ns: int) -> None:
            nonlocal sent
            sent += 1
            request = target.create(time_ns, arrival, self.new_serial())
            request.parent = send_next
            self.clock.schedule(time_ns, ARRIVAL, target.arrived, request)

        def send_next(time_ns: int) -> None:
            if sent < loop.requests:
                send(time_ns + think_ns)

        for _ in range(min(loop.clients, loop.requests)):
            send(0)

    def _send_next(self) -> None:
        """Announce the next arrival to the clock."""
        entry = next(self._source, None)
        self.clock.arrival_ns = -1
        if entry is None:
            return
        time_ns, number, arrival = entry
        if time_ns < self.clock.now:
            raise InvalidArgumentError(
                f"arrivals expected a list, or an iterator in the order of time, got {arrival.time_us:g} after "
                f"{self.clock.now / 1000:g} µs"
            )
        target = self._targets[0] if len(self._targets) == 1 else self._targets[number - 1]
        request = target.create(time_ns, arrival, self.new_serial() if self._has_steps else number)
        if arrival.cancel_us is not None:
            self._cancel_at(round(arrival.cancel_us * 1000), target, request)
        self._next, self._next_target, self.clock.arrival_ns = request, target, time_ns

    def _next_arrives(self) -> None:
        request, target = self._next, self._next_target
        assert request is not None
        assert target is not None
        self._send_next()
        target.arrived(request)

    def _cancel_at(self, time_ns: int, target: Target, request: SimulatedRequest) -> None:
        if time_ns < request.received_ns:
            target.record_cancel(request, time_ns)
            request.cancelled = True
        else:
            self.clock.schedule(time_ns, CANCEL, target.cancel, request)


def in_order(events: list[Event]) -> list[Event]:
    """Sort events by time; events at the same time keep their order, which is the order of `VirtualTime`."""
    events.sort(key=attrgetter("time_ns"))
    return events
