"""The scheduler of a recorded model, replayed on the recorded events: its verdicts, and the rules as a table."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tritonnb.core.errors import TritonError
from tritonnb.core.events import BatchExecuted, BatchSent, Event, RequestArrived, RequestCancelled, RequestRefused
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.sequence_flags import SEQUENCE_START
from tritonnb.lab.simulation.engine import SimulatedRequest
from tritonnb.lab.simulation.run import instance_names
from tritonnb.recording.arrivals import arrival_of
from tritonnb.recording.instance_names import replica_of
from tritonnb.scheduling import reasons
from tritonnb.scheduling.decisions import Decision, Execute, Reason, Refuse, Scheduler
from tritonnb.scheduling.from_config import make_scheduler
from tritonnb.scheduling.reasons import WAIT, Facts, pluralize

_WAIT_MEANING = "no rule applies: the batcher waits for more requests, or for the delay"


@dataclass(slots=True)
class _Running:
    """A batch that is running: the scheduler that sent it, the instance, and the requests."""

    scheduler: Scheduler
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

    Attributes
    ----------
    differences : int
        Number of recorded decisions that were not those of the scheduler.
    """

    def __init__(self, config: pb.ModelConfig, events: Iterable[Event]) -> None:
        self.differences = 0
        self._config = config
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
        self._waiting: dict[int, tuple[SimulatedRequest, int]] = {}  # by serial; since when
        self._running: dict[int, _Running] = {}
        self._decided: deque[Decision] = deque()  # and not recorded yet
        self._now = 0
        self._restart(0)

    def verdict(self, now: int) -> Reason | None:
        """Return the reason of the batch that the scheduler has decided to send, or else its `Scheduler.verdict`."""
        for decision in self._decided:
            if isinstance(decision, Execute):
                return decision.reason
        return self._scheduler.verdict(now)

    def follow(self, event: Event) -> None:
        """Continue with the next event."""
        now = event.time_ns
        if isinstance(event, BatchSent):
            self._wake_until(now)
            self._compare_batch(event)
        elif isinstance(event, RequestRefused):
            self._wake_until(now)
            self._compare_refusal(event)
        else:
            self._wake_until(now - 1)  # the scheduler is woken after everything else that happens at the same time
            self._now = max(self._now, now)
            if isinstance(event, RequestArrived):
                self._arrive(event)
            elif isinstance(event, RequestCancelled):
                self._cancel(event.serial)
            elif isinstance(event, BatchExecuted):
                self._end(event.batch)

    # What happened

    def _arrive(self, event: RequestArrived) -> None:
        if event.serial not in self._rejected:
            request = SimulatedRequest(arrival_of(event), event.serial)
            self._waiting[event.serial] = request, self._now
            self._enqueue(request, self._now)

    def _cancel(self, serial: int) -> None:
        requests = [request for request, _ in self._waiting.values()]
        requests += [request for batch in self._running.values() for request in batch.requests]
        for request in requests:
            if request.serial == serial:
                request.cancelled = True
                self._decided += self._scheduler.cancel(request, self._now)

    def _end(self, number: int) -> None:
        batch = self._running.pop(number, None)
        if batch is None:  # a warm-up, or it was sent before the recording began
            return
        for request in batch.requests:
            if self._last_batch[request.serial] != number:
                self._reschedule(request, batch)
            elif self._scheduler.needs_release_events:
                self._decided += self._scheduler.released(request, self._now)
        self._decided += self._scheduler.instance_idle(batch.instance, self._now)

    def _reschedule(self, request: SimulatedRequest, batch: _Running) -> None:
        self._waiting[request.serial] = request, self._now
        if batch.scheduler is not self._scheduler:
            self._enqueue(request, self._now)
            return
        try:
            self._decided += self._scheduler.reschedule(request, self._now)
        except TritonError:  # its sequence was idle for too long
            self._decided += self._scheduler.released(request, self._now)

    def _wake_until(self, time_ns: int) -> None:
        while (due := self._scheduler.next_wake_ns) is not None and due <= time_ns:
            self._now = max(self._now, due)
            self._decided += self._scheduler.wake(self._now)

    def _enqueue(self, request: SimulatedRequest, now: int) -> None:
        with suppress(TritonError):
            try:
                self._decided += self._scheduler.enqueue(request, now)
            except TritonError:
                request.flags |= SEQUENCE_START  # its sequence began before this scheduler
                self._decided += self._scheduler.enqueue(request, now)

    # What was decided

    def _compare_batch(self, event: BatchSent) -> None:
        members = [serial for serial in event.members if serial is not None]
        requests = [self._waiting.pop(serial)[0] for serial in members if serial in self._waiting]
        decided = next((decision for decision in self._decided if isinstance(decision, Execute)), None)
        if decided is not None and _members(decided) == event.members:
            self._decided.remove(decided)
            self._running[event.batch] = _Running(self._scheduler, decided.instance, requests)
        else:
            self._running[event.batch] = _Running(self._scheduler, self._instances[event.instance], requests)
            self._differ(event.time_ns)

    def _compare_refusal(self, event: RequestRefused) -> None:
        self._waiting.pop(event.serial, None)
        refusals = [decision for decision in self._decided if isinstance(decision, Refuse)]
        decided = [refusal for refusal in refusals if refusal.request.serial == event.serial]
        for decision in decided:
            self._decided.remove(decision)
        if event.counted_as and not decided:
            self._differ(event.time_ns)

    def _differ(self, now: int) -> None:
        self.differences += 1
        self._restart(now)

    def _restart(self, now: int) -> None:
        """Continue with a new scheduler: give it the requests that wait, and then the idle instances."""
        self._scheduler = make_scheduler(self._config, len(self._instances), {})
        self._decided.clear()
        self._now = 0
        for request, since_ns in self._waiting.values():
            self._wake_until(since_ns - 1)
            self._now = since_ns
            request.cancelled = False  # too late, or a recorded refusal follows
            self._enqueue(request, since_ns)
        self._wake_until(now - 1)
        self._now = now
        busy = {batch.instance for batch in self._running.values()}
        for instance in self._instances.values():
            if instance not in busy:
                self._decided += self._scheduler.instance_idle(instance, now)


def _number_instances(configured: list[str], recorded: Iterable[str]) -> dict[str, int]:
    """Number the instances: those that are configured first, as many in all as are configured or recorded."""
    unknown = [name for name in recorded if name not in configured]
    unused = [name for name in configured if name not in recorded]
    names = [unknown.pop(0) if name in unused and unknown else name for name in configured] + unknown
    return {name: number for number, name in enumerate(names)}


def _members(decision: Execute) -> tuple[int | None, ...]:
    return tuple([None if request is None else request.serial for request in decision.requests])


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule with its numbers.

    Attributes
    ----------
    rule : str
        A rule of `tritonnb.scheduling.reasons.RULES`, or ``wait``.
    meaning : str
    numbers : str
        What the rule compares, such as ``3.1 of 5.0 ms``.
    applies : bool
        Whether the rule decides.
    """

    rule: str
    meaning: str
    numbers: str
    applies: bool


def rule_table(verdict: Reason | None) -> list[RuleRow]:
    """Return the rules of a scheduler, in the order in which they are tried; one of them applies.

    Parameters
    ----------
    verdict : Reason or None
        That of `Scheduler.verdict`; without one there are no rows.

    Examples
    --------
    >>> facts = {"rows": 3, "next_rows": 0, "waited_ns": 3_100_000, "delay_ns": 5_000_000, "wait_ns": 1_900_000}
    >>> verdict = Reason(WAIT, {**facts, "preferred": (8,), "max_batch_size": 8})
    >>> [(row.rule, row.numbers) for row in rule_table(verdict) if row.applies]
    [('wait', '3 rows, another 1.900 ms')]
    """
    if verdict is None:
        return []
    facts = verdict.facts
    if "ready" in facts:
        numbers = _direct(facts)
    elif "preferred" in facts:
        numbers = _batcher(verdict.rule, facts)
    elif verdict.rule == WAIT:
        numbers = {WAIT: f"{pluralize(facts['requests'], 'request')}, for a slot or for the one before"}
    else:
        numbers = {verdict.rule: f"{pluralize(facts['rows'], 'row')} of the first request"}
    return [
        RuleRow(rule, reasons.RULES.get(rule, _WAIT_MEANING), text, rule == verdict.rule)
        for rule, text in numbers.items()
    ]


def _batcher(rule: str, facts: Facts) -> dict[str, str]:
    rows, following, delay_ns, preferred = (facts[name] for name in ("rows", "next_rows", "delay_ns", "preferred"))
    largest = max(preferred, default=0)
    delay_rule = reasons.DELAY_EXCEEDED if delay_ns else reasons.NO_DELAY
    numbers = {
        reasons.PREFERRED_SIZE: f"{rows} of exactly {' or '.join(map(str, preferred))} rows",
        reasons.OVERSHOOTS_PREFERRED: _with_next(rows, following, largest),
        reasons.FULL: f"{rows} of {largest} rows",
        reasons.DOES_NOT_FIT: _with_next(rows, following, facts["max_batch_size"]),
        reasons.DIFFERENT_INPUTS: "yes" if rule == reasons.DIFFERENT_INPUTS else "no",
        delay_rule: f"{_ms(facts['waited_ns'])} of {_ms(delay_ns)} ms" if delay_ns else "0 ms",
    }
    numbers.setdefault(rule, pluralize(rows, "row"))  # `GROWN`, and `EXCLUDED` by custom batching
    return {**numbers, WAIT: f"{pluralize(rows, 'row')}{_another(facts)}"}


def _with_next(rows: int, following: int, limit: int) -> str:
    return f"{rows} + {following} of {limit} rows" if following else f"{pluralize(rows, 'row')}, no next request"


def _direct(facts: Facts) -> dict[str, str]:
    delay_ms, share = _ms(facts["delay_ns"]), facts["minimum_slot_utilization"]
    return {
        reasons.NO_SLOT_WAIT: f"max_queue_delay {delay_ms} ms, minimum_slot_utilization {share:g}",
        reasons.SLOT_UTILIZATION: f"{facts['ready']} of {facts['slots']} slots, at least {share:g}",
        reasons.DELAY_EXCEEDED: f"{_ms(facts['waited_ns'])} of {delay_ms} ms",
        WAIT: f"{pluralize(facts['ready'], 'slot')} ready{_another(facts)}",
    }


def _another(facts: Facts) -> str:
    return f", another {_ms(facts['wait_ns'])} ms" if "wait_ns" in facts else ""


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3f}"
