"""A scheduler that is replayed along a record: it follows what is recorded, and restarts where it decides otherwise.

`ReplayedScheduler` gets the recorded arrivals, cancellations and ends of executions, and is asked what it has decided
when a batch is recorded. If that is another batch, a new scheduler continues with the requests that wait according to
the record: one difference does not cause others. `SchedulerReplay` follows the events of a recording, for the debugger;
`tritonnb.lab.traces.replay` follows what it infers from a trace.

The events of this project determine the scheduler's state. A trace of Triton does not: a timer, an arrival or the end
of an execution wakes Triton's batcher, which then makes a pass. The trace does not contain the passes, and on a busy
machine they come later, with the requests that arrived in the meantime. A pass without some of these also lets another
number of rows wake the batcher next, which shows only a few batches later. Therefore all states are followed that such
passes lead to, as long as their payloads are parts of the recorded batches.
"""

from __future__ import annotations

import copy
import copyreg
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tritonnb.core.errors import TritonError
from tritonnb.core.events import BatchExecuted, BatchSent, Event, RequestArrived, RequestCancelled, RequestRefused
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.schedulable import SEQUENCE_START, Schedulable
from tritonnb.lab.simulation.engine import SimulatedRequest
from tritonnb.lab.simulation.run import instance_names
from tritonnb.recording.arrivals import arrival_of
from tritonnb.recording.instance_names import replica_of
from tritonnb.scheduling.decisions import Decision, Execute, Reason, Refuse, ResponseOrder, Scheduler
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.from_config import make_scheduler
from tritonnb.scheduling.instances import Instances
from tritonnb.scheduling.payload import Payload
from tritonnb.scheduling.queue import Deadlines, Level, PriorityQueue

T = TypeVar("T")

#: Most states that are followed.
_MOST_STATES = 32


def _make_copyable(kind: type[T], arguments: Callable[[T], tuple[Any, ...]]) -> None:
    """Let `copy.deepcopy` make an object by calling its class, and then set its attributes.

    Without that it calls ``__new__`` only, which for most compiled classes needs the arguments of ``__init__``.
    """
    copyreg.pickle(kind, lambda original: (kind, arguments(original), original.__reduce_ex__(4)[2]))


# The schedulers know nothing of copies, which only a replay of traces makes: a test copies one in every state.
_make_copyable(DynamicBatcher, lambda batcher: (batcher.settings, 0))
_make_copyable(PriorityQueue, lambda queue: (queue.settings,))
_make_copyable(Level, lambda level: (level.number, level.policy))
_make_copyable(Deadlines, lambda deadlines: ())
_make_copyable(Payload, lambda payload: (payload.oldest_ns,))
_make_copyable(Instances, lambda instances: (0,))
_make_copyable(ResponseOrder, lambda order: ())


@dataclass(slots=True)
class _State:
    """A possible state of the scheduler.

    Attributes
    ----------
    scheduler : Scheduler
    decided : list of Decision
        What it has decided, and is not recorded yet.
    now : int
        The time of the last stimulus.
    assumptions : int
        How many passes were assumed to be late, or to come before an instance takes a batch.
    pass_since_ns : int or None
        Since when the pass is due that the end of an execution causes.
    """

    scheduler: Scheduler
    decided: list[Decision] = field(default_factory=list)
    now: int = 0
    assumptions: int = 0
    pass_since_ns: int | None = None

    @property
    def batch(self) -> Execute | None:
        """The first batch that the scheduler has decided to send."""
        return next((decision for decision in self.decided if isinstance(decision, Execute)), None)

    @property
    def due_ns(self) -> int | None:
        """When the scheduler wakes by itself."""
        return self.scheduler.next_wake_ns if self.pass_since_ns is None else self.pass_since_ns

    def wake(self) -> None:
        """Wake the scheduler, which is due."""
        assert self.due_ns is not None
        self.now = max(self.now, self.due_ns)
        if self.pass_since_ns is None:
            self.decided += self.scheduler.wake(self.now)
        else:
            self.make_pass()

    def make_pass(self) -> None:
        """Make the pass of the dynamic batcher that the end of an execution causes."""
        assert isinstance(self.scheduler, DynamicBatcher)
        self.decided += self.scheduler.make_pass(self.now)
        self.pass_since_ns = None

    def enqueue(self, request: SimulatedRequest) -> None:
        """Enqueue a request, unless the scheduler rejects it: then the record has it in no batch."""
        with suppress(TritonError):
            try:
                self.decided += self.scheduler.enqueue(request, self.now)
            except TritonError:
                request.flags |= SEQUENCE_START  # its sequence began before this scheduler
                self.decided += self.scheduler.enqueue(request, self.now)

    def assume(self) -> _State:
        """Return a copy, with the same requests, for one more assumption."""
        scheduler = copy.deepcopy(self.scheduler)
        return replace(self, scheduler=scheduler, decided=[*self.decided], assumptions=self.assumptions + 1)


class ReplayedScheduler:
    """The scheduler of one model, driven along a record, in all its possible states.

    Parameters
    ----------
    config : ModelConfig
    instance_count : int
    late_ns : int, optional
        A pass of the batcher may be made this much later than it is due; by default the record determines all passes.
    is_recorded : callable, optional
        Whether the requests of a payload are parts of one recorded batch: other states are dropped.

    Attributes
    ----------
    waiting : dict
        The requests that wait according to the record, by serial number, and since when.
    differences : int
        Number of recorded decisions that were not those of the scheduler.
    """

    def __init__(
        self,
        config: pb.ModelConfig,
        instance_count: int,
        late_ns: int = 0,
        is_recorded: Callable[[Sequence[Schedulable]], bool] = lambda requests: True,
    ) -> None:
        self._config, self._instance_count = config, instance_count
        self._late_ns, self._is_recorded = late_ns, is_recorded
        self.waiting: dict[int, tuple[SimulatedRequest, int]] = {}
        self.differences = 0
        self._states = [self._new_state()]

    def verdict(self, now: int) -> Reason | None:
        """Return the reason of the batch that the scheduler has decided to send, or else its `Scheduler.verdict`."""
        state = self._states[0]  # with the fewest assumptions
        return state.scheduler.verdict(now) if state.batch is None else state.batch.reason

    # Stimuli

    def arrive(self, request: SimulatedRequest, now: int) -> None:
        """Enqueue a request."""
        self.waiting[request.serial] = request, now
        for state in self._states_at(now):
            state.enqueue(request)

    def cancel(self, request: SimulatedRequest, now: int) -> None:
        """Cancel a request."""
        request.cancelled = True
        for state in self._states_at(now):
            state.decided += state.scheduler.cancel(request, now)

    def release(self, request: SimulatedRequest, now: int) -> None:
        """Release a request after its last execution."""
        for state in self._states_at(now):
            if state.scheduler.needs_release_events:
                state.decided += state.scheduler.released(request, now)

    def reschedule(self, request: SimulatedRequest, now: int) -> None:
        """Schedule a request again, after an execution by a batch of this scheduler."""
        self.waiting[request.serial] = request, now
        for state in self._states_at(now):
            try:
                state.decided += state.scheduler.reschedule(request, now)
            except TritonError:  # its sequence was idle for too long
                state.decided += state.scheduler.released(request, now)

    def end_execution(self, instance: int, now: int) -> None:
        """Let an instance take a batch, or wait for one."""
        states = self._states_at(now)
        if self._late_ns:
            states = self._states = self._possible(_with_passes(states))
        for state in states:
            scheduler = state.scheduler
            if self._late_ns and isinstance(scheduler, DynamicBatcher) and scheduler.payloads:
                state.pass_since_ns = now if state.pass_since_ns is None else state.pass_since_ns
                state.decided += scheduler.take_payload(instance, now)
            else:
                state.pass_since_ns = None
                state.decided += scheduler.instance_idle(instance, now)

    # What is recorded

    def leave(self, serials: Iterable[int]) -> list[SimulatedRequest]:
        """Return the requests among some that wait; they do not any more."""
        return [self.waiting.pop(serial)[0] for serial in serials if serial in self.waiting]

    def compare_batch(self, latest_ns: int, difference: Callable[[Execute | None], str]) -> tuple[Execute | None, str]:
        """Compare a recorded batch with what was decided until a time; the states that decided otherwise are dropped.

        Parameters
        ----------
        latest_ns : int
        difference : callable
            Describes how a decision differs from the recorded batch; empty if it does not. The decision is None if no
            batch was to be sent.

        Returns
        -------
        tuple of (Execute or None, str)
            The decision of the state with the fewest assumptions, and its difference. If there is one, all states
            differ, and the caller has to `restart`.
        """
        for state in self._states:
            while state.batch is None and (due_ns := state.due_ns) is not None and due_ns <= latest_ns:
                state.wake()
        differing = [difference(state.batch) for state in self._states]
        same = [state for state, text in zip(self._states, differing, strict=True) if not text]
        if not same:
            return self._states[0].batch, differing[0]
        self._states, batch = same, same[0].batch
        for state in same:
            state.decided = [decision for decision in state.decided if decision is not state.batch]
        return batch, ""

    def compare_refusal(self, serial: int, now: int) -> bool:
        """Return whether the scheduler has refused a request until a time."""
        self._pass_time(now)
        refused = False
        for state in self._states:
            others = [decision for decision in state.decided if not _refuses(decision, serial)]
            refused = refused or len(others) < len(state.decided)
            state.decided = others
        return refused

    def restart(self, now: int, idle: Iterable[int] = ()) -> None:
        """Continue with a new scheduler after a difference: give it the requests that wait, then the idle instances."""
        self.differences += 1
        self._states = [self._new_state()]
        for request, since_ns in self.waiting.values():
            request.cancelled = False  # too late, or a recorded refusal follows
            self.arrive(request, since_ns)
        self._states_at(now)
        for instance in idle:
            self.end_execution(instance, now)

    # States

    def _new_state(self) -> _State:
        return _State(make_scheduler(self._config, self._instance_count, {}))

    def _states_at(self, now: int) -> list[_State]:
        # A recorded scheduler is woken after everything else that happens at the same time. In a trace, the time is
        # often computed from the pass that is due then.
        self._pass_time(now if self._late_ns else now - 1)
        for state in self._states:
            state.now = max(state.now, now)
        return self._states

    def _pass_time(self, time_ns: int) -> None:
        later = [later for state in self._states for later in self._later(state, time_ns)]
        self._states = self._possible(later) if self._late_ns else later

    def _later(self, state: _State, time_ns: int) -> Iterator[_State]:
        """Yield the states at a time, after the passes that are due by then, or before one that is late."""
        while (due_ns := state.due_ns) is not None and due_ns <= time_ns:
            if 0 < self._late_ns >= time_ns - due_ns and isinstance(state.scheduler, DynamicBatcher):
                yield state.assume()
            state.wake()
        yield state

    def _possible(self, states: Iterable[_State]) -> list[_State]:
        """Return the states whose payloads are parts of recorded batches, or else all; equal states count once."""
        distinct: dict[Hashable, _State] = {}
        for state in sorted(states, key=lambda state: state.assumptions):
            distinct.setdefault(_key(state), state)
        every = list(distinct.values())
        recorded = [state for state in every if all(map(self._is_recorded, _payloads(state.scheduler)))]
        return (recorded or every)[:_MOST_STATES]


def _refuses(decision: Decision, serial: int) -> bool:
    return isinstance(decision, Refuse) and decision.request.serial == serial


def _payloads(scheduler: Scheduler) -> list[list[Schedulable]]:
    return [payload.requests for payload in scheduler.payloads] if isinstance(scheduler, DynamicBatcher) else []


def _with_passes(states: Iterable[_State]) -> Iterator[_State]:
    """Yield the states at the end of an execution, before and after a pass: the batcher may be before the instance."""
    for state in states:
        yield state
        scheduler = state.scheduler
        if isinstance(scheduler, DynamicBatcher) and scheduler.payloads and scheduler.queue.size:
            first = state.assume()
            first.make_pass()
            yield first


def _key(state: _State) -> Hashable:
    """Return what distinguishes the states of one scheduler at one time."""
    scheduler = state.scheduler
    if not isinstance(scheduler, DynamicBatcher):
        return None
    payloads = tuple([(len(payload.requests), payload.full) for payload in scheduler.payloads])
    rest = len(scheduler.queue.pending), scheduler.rows_to_wake, scheduler.next_wake_ns, state.pass_since_ns
    return payloads, rest


@dataclass(slots=True)
class _Running:
    """A batch that is running: how many differences there were before, the instance, and the requests."""

    differences: int
    instance: int
    requests: list[SimulatedRequest]


def scheduler_replays(config: pb.ModelConfig, events: Sequence[Event]) -> list[SchedulerReplay]:
    """Return the replay that each event belongs to: there is one for each replica of the server."""
    chosen: dict[int, str] = {}  # the replica of each request that was sent
    for event in events:
        if isinstance(event, BatchSent):
            chosen.update(dict.fromkeys(filter(None, event.members), replica_of(event.instance)))
    replicas = [
        replica_of(event.instance)
        if isinstance(event, BatchSent | BatchExecuted)
        else chosen.get(getattr(event, "serial", 0), "")
        for event in events
    ]
    groups: dict[str, list[Event]] = defaultdict(list)
    for replica, event in zip(replicas, events, strict=True):
        groups[replica].append(event)
    replays = {replica: SchedulerReplay(config, group) for replica, group in groups.items()}
    return [replays[replica] for replica in replicas]


class SchedulerReplay:
    """The scheduler of one model, driven by recorded events.

    For a simulation or a recording of this project's server, it makes the recorded decisions. If another server decided
    otherwise, or requests were waiting when the recording began, a new scheduler continues with the requests that wait
    according to the recording.

    Parameters
    ----------
    config : ModelConfig
    events : iterable of Event
        Those that `follow` will be called with, in order.
    """

    def __init__(self, config: pb.ModelConfig, events: Iterable[Event]) -> None:
        self._rejected: set[int] = set()  # requests that the scheduler did not accept
        #: The last batch of each request; None if it was refused after that. From all others it is rescheduled.
        self._last_batch: dict[int, int | None] = {}
        names: dict[str, None] = {}
        for event in events:
            if isinstance(event, BatchSent):
                self._last_batch.update(dict.fromkeys(filter(None, event.members), event.batch))
                names[event.instance] = None
            elif isinstance(event, RequestRefused):
                if not event.counted_as and event.serial not in self._last_batch:
                    self._rejected.add(event.serial)
                self._last_batch[event.serial] = None
        self._instances = _number_instances(instance_names(config), names)
        self._running: dict[int, _Running] = {}
        self._scheduler = ReplayedScheduler(config, len(self._instances))
        for instance in self._instances.values():
            self._scheduler.end_execution(instance, 0)

    @property
    def differences(self) -> int:
        """Number of recorded decisions that were not those of the scheduler."""
        return self._scheduler.differences

    def verdict(self, now: int) -> Reason | None:
        """Return the reason of the batch that the scheduler has decided to send, or else its `Scheduler.verdict`."""
        return self._scheduler.verdict(now)

    def follow(self, event: Event) -> None:
        """Continue with the next event."""
        if isinstance(event, RequestArrived):
            if event.serial not in self._rejected:
                self._scheduler.arrive(SimulatedRequest(arrival_of(event), event.serial), event.time_ns)
        elif isinstance(event, RequestCancelled):
            self._cancel(event.serial, event.time_ns)
        elif isinstance(event, BatchSent):
            self._compare_batch(event)
        elif isinstance(event, BatchExecuted):
            self._end(event.batch, event.time_ns)
        elif isinstance(event, RequestRefused):
            self._scheduler.leave([event.serial])
            if not self._scheduler.compare_refusal(event.serial, event.time_ns) and event.counted_as:
                self._restart(event.time_ns)

    def _cancel(self, serial: int, now: int) -> None:
        requests = [request for request, _ in self._scheduler.waiting.values()]
        requests += [request for batch in self._running.values() for request in batch.requests]
        for request in requests:
            if request.serial == serial:
                self._scheduler.cancel(request, now)

    def _compare_batch(self, event: BatchSent) -> None:
        requests = self._scheduler.leave([serial for serial in event.members if serial is not None])
        decided, difference = self._scheduler.compare_batch(
            event.time_ns, lambda decided: "" if decided and _members(decided) == event.members else "other requests"
        )
        instance = self._instances[event.instance] if decided is None or difference else decided.instance
        self._running[event.batch] = _Running(self.differences, instance, requests)
        if difference:
            self._restart(event.time_ns)

    def _end(self, number: int, now: int) -> None:
        batch = self._running.pop(number, None)
        if batch is None:  # a warm-up, or it was sent before the recording began
            return
        for request in batch.requests:
            if self._last_batch[request.serial] == number:
                self._scheduler.release(request, now)
            elif batch.differences == self.differences:
                self._scheduler.reschedule(request, now)
            else:  # the present scheduler does not know the request
                self._scheduler.arrive(request, now)
        self._scheduler.end_execution(batch.instance, now)

    def _restart(self, now: int) -> None:
        busy = {batch.instance for batch in self._running.values()}
        self._scheduler.restart(now, [instance for instance in self._instances.values() if instance not in busy])


def _number_instances(configured: list[str], recorded: Iterable[str]) -> dict[str, int]:
    """Number the instances: those that are configured first, as many in all as are configured or recorded."""
    unknown = [name for name in recorded if name not in configured]
    unused = [name for name in configured if name not in recorded]
    names = [unknown.pop(0) if name in unused and unknown else name for name in configured] + unknown
    return {name: number for number, name in enumerate(names)}


def _members(decision: Execute) -> tuple[int | None, ...]:
    return tuple([None if request is None else request.serial for request in decision.requests])
