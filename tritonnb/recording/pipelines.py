"""Pipelines: the requests of ensembles and of models that call others, each with the tree of the requests it caused.

A step of an ensemble and a call of a model are ordinary requests, which `StepSent` joins to the request that caused
them. The calls of a model belong to all requests of the batch that it executed, since all of them wait for each call.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from tritonnb.core.events import (
    BatchExecuted,
    CacheHit,
    EnsembleExecuted,
    Event,
    RequestArrived,
    RequestRefused,
    ResponseSent,
    StepSent,
)
from tritonnb.core.html_table import html_report
from tritonnb.recording.batches import Batch, RequestRecord
from tritonnb.scheduling.reasons import BLS_REQUEST, pluralize
from tritonnb.telemetry.lanes import count_overlaps
from tritonnb.telemetry.quantiles import quantile

#: What caused a request: a client, the step of an ensemble, or a call of a model.
CLIENT, STEP, CALL = "client", "step", "call"
#: The path of a step: names of models from the root down to it; empty for the root itself.
Path = tuple[str, ...]
#: The outcome of a request that the statistics do not count.
_REFUSED = "REFUSED"
#: Requests from the root of a pipeline down to its deepest request: trees are read by recursion.
_MAX_LEVELS = 100
_CAUSED_ITSELF = "request {} caused itself"

K = TypeVar("K", bound=Hashable)


class Segment(NamedTuple):
    """A part of a critical path: the time in which a request had to advance so that its root advanced.

    Attributes
    ----------
    request : PipelineRequest
        The root, or a request below it.
    begin_ns, end_ns : int
        Monotonic clock.
    """

    request: PipelineRequest
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class PipelineRequest:
    """A request of a pipeline, and below it the requests that it caused.

    Attributes
    ----------
    serial : int
    model, version : str, int
    kind : str
        ``"client"``, ``"step"`` of an ensemble, or ``"call"`` of a model.
    number : int
        Number of the step in the ensemble, or of the call among those of an execution; 0 for a client's request.
    iteration : int
        Number of the decoupled response of an earlier step that caused it.
    parent : int
        Serial of the request that caused it; of a call that a model made for a batch, the first request of the batch.
        0 for a client's request.
    received_ns, ended_ns : int
        When it was received, and when its last response was complete (monotonic clock).
    answered_ns : int
        The earliest time at which a response can have been sent: before ``ended_ns`` if a server responds before it
        reports the end of an execution, as Triton does, and at the first response of a decoupled model.
    failed : str
        Failure reason of the statistics, or ``"REFUSED"``; empty for a success.
    record : RequestRecord or None
        Its last execution, with its batch; None for ensembles, refused requests, and responses from the cache.
    steps : tuple of PipelineRequest
        The requests that it caused, ordered by begin.
    complete : bool
        Whether the recording contains its beginning and its end.
    """

    serial: int
    model: str
    version: int
    kind: str
    number: int
    iteration: int
    parent: int
    received_ns: int
    ended_ns: int
    answered_ns: int
    failed: str
    record: RequestRecord | None
    steps: tuple[PipelineRequest, ...] = ()
    complete: bool = True

    @property
    def latency_ns(self) -> int:
        """The time from its reception to its last response."""
        return self.ended_ns - self.received_ns

    @property
    def is_ensemble(self) -> bool:
        """True if no instance executed it itself, but its steps."""
        return self.record is None and any(step.kind == STEP for step in self.steps)

    @property
    def label(self) -> str:
        """The request id given by the client, or else the serial."""
        if self.record is not None:
            return self.record.label
        # An ensemble passes the id on to its steps, and its own events do not have it.
        steps = ((step.label, str(step.serial)) for step in self.steps if step.kind == STEP)
        return next((label for label, serial in steps if label != serial), str(self.serial))

    @property
    def concurrency(self) -> int:
        """The largest number of requests directly below it that were in the server at the same time."""
        return max(count_overlaps((step.received_ns, step.ended_ns) for step in self.steps)[1], default=0)

    def walk(self) -> Iterator[PipelineRequest]:
        """Yield the request and all requests below it, each once: requests of a batch share the calls of the batch."""
        seen: set[int] = set()
        waiting = [self]
        while waiting:
            request = waiting.pop()
            if request.serial not in seen:
                seen.add(request.serial)
                yield request
                waiting += reversed(request.steps)

    def critical_path(self, until_ns: int | None = None) -> list[Segment]:
        """Return the adjacent times in which the request, or one below it, kept it from ending earlier.

        From the end backwards: before a request could go on, the step that ended last had to respond. A step that
        responds after the request is not waited for.

        Parameters
        ----------
        until_ns : int, optional
            The end of the path; by default that of the request.
        """
        parts: list[Segment] = []
        now = self.ended_ns if until_ns is None else until_ns
        waited = _LastSteps([step for step in self.steps if self.received_ns <= step.received_ns])
        while now > self.received_ns:
            last = waited.before(now)
            if last is None or last.answered_ns < last.received_ns:
                break
            end_ns = min(last.ended_ns, now)
            if end_ns < now:
                parts.append(Segment(self, end_ns, now))
            parts += reversed(last.critical_path(end_ns))
            now = last.received_ns
        if self.received_ns < now or not parts:
            parts.append(Segment(self, self.received_ns, now))
        return parts[::-1]

    def __repr__(self) -> str:
        failed = f"; failed: {self.failed}" if self.failed else ""
        return (
            f"<PipelineRequest {self.serial} of '{self.model}': {pluralize(len(self.steps), 'step')}; "
            f"{self.latency_ns / 1e6:.2f} ms{failed}>"
        )


class _LastSteps:
    """The step that a request waited for, at times that only decrease: found without a look at all steps each time."""

    def __init__(self, steps: Sequence[PipelineRequest]) -> None:
        self._steps = steps
        #: By (end, answer) and by answer, the last first; of equal ones, the first of the steps.
        self._ending: list[tuple[int, ...]] = [
            (-step.ended_ns, -step.answered_ns, place) for place, step in enumerate(steps)
        ]
        self._answering: list[tuple[int, ...]] = []  # those that end at the time or later
        heapq.heapify(self._ending)

    def before(self, now: int) -> PipelineRequest | None:
        """Return, of the steps that were received before a time and had answered by then, the one that ended last."""
        while self._ending and -self._ending[0][0] >= now:
            _, answered, place = heapq.heappop(self._ending)
            heapq.heappush(self._answering, (answered, place))
        for last in (self._answering, self._ending):
            while last:
                step = self._steps[last[0][-1]]
                if step.received_ns < now and step.answered_ns <= now:
                    return step
                heapq.heappop(last)
        return None


def step_paths(root: PipelineRequest) -> dict[int, tuple[PipelineRequest, Path]]:
    """Return the requests of a tree with the paths of their steps, by serial.

    The name of a step is the name of its model, with its number if several steps of the ensemble have the same model.

    Parameters
    ----------
    root : PipelineRequest
    """
    found: dict[int, tuple[PipelineRequest, Path]] = {}

    def visit(request: PipelineRequest, path: Path) -> None:
        if request.serial in found:
            return
        found[request.serial] = request, path
        numbers = defaultdict(set)
        for step in request.steps:
            numbers[step.model].add(0 if step.kind == CALL else step.number)
        for step in request.steps:
            is_one = len(numbers[step.model]) == 1
            visit(step, (*path, step.model if is_one else f"{step.model} (step {step.number})"))

    visit(root, ())
    return found


class StepStatistics(NamedTuple):
    """The requests of one step of a pipeline.

    Attributes
    ----------
    step : tuple of str
        Names of the steps from the root down to it; empty for the root.
    requests, failed : int
        A request of several batches is counted once.
    fan_out : float
        Requests of the step for each request of the pipeline.
    mean_ms, p99_ms : float
        Latency: from reception to the last response.
    share : float
        Share (0 to 1) of the latencies of the pipeline in which the step was on the critical path, without the steps
        below it.
    concurrency : int
        The largest number of its requests that were in the server at the same time.
    """

    step: Path
    requests: int
    failed: int
    fan_out: float
    mean_ms: float
    p99_ms: float
    share: float
    concurrency: int


@dataclass(frozen=True)
class Pipeline:
    """All requests of clients to one ensemble, or to one model that calls others; displayed as a table of its steps.

    Attributes
    ----------
    model : str
    requests : tuple of PipelineRequest
        In the order of their first steps.
    """

    model: str
    requests: tuple[PipelineRequest, ...]

    def statistics(self) -> list[StepStatistics]:
        """Return the statistics of the pipeline and its steps, the root first, then in the order of their begin."""
        steps: dict[Path, dict[int, PipelineRequest]] = defaultdict(dict)
        critical_ns: Counter[Path] = Counter()
        for root in self.requests:
            paths = step_paths(root)
            for request, path in paths.values():
                steps[path][request.serial] = request
            for request, begin_ns, end_ns in root.critical_path():
                critical_ns[paths[request.serial][1]] += end_ns - begin_ns
        total_ns = sum(critical_ns.values()) or 1
        rows = []
        for path, by_serial in steps.items():
            latencies = sorted(request.latency_ns / 1e6 for request in by_serial.values())
            overlaps = count_overlaps((one.received_ns, one.ended_ns) for one in by_serial.values())[1]
            rows.append(
                StepStatistics(
                    path,
                    len(latencies),
                    sum(bool(request.failed) for request in by_serial.values()),
                    len(latencies) / len(self.requests),
                    sum(latencies) / len(latencies),
                    quantile(latencies, 0.99),
                    critical_ns[path] / total_ns,
                    max(overlaps),
                )
            )
        return rows

    @property
    def title(self) -> str:
        """The number of requests, in one line."""
        return f"Pipeline '{self.model}': {pluralize(len(self.requests), 'request')}"

    def __repr__(self) -> str:
        lines = [f"{self.title}\n  {'step':<30}{' '.join(_TITLES[1:])}"]
        for name, *cells in self._cells():
            widths = map(len, _TITLES[1:])
            lines.append(
                f"  {name:<30}{' '.join(f'{cell:>{width}}' for cell, width in zip(cells, widths, strict=True))}"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_report(self.title, _TITLES, self._cells())

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (
                " / ".join(one.step) or self.model,
                f"{one.requests}",
                f"{one.failed}",
                f"{one.fan_out:.2f}",
                f"{one.mean_ms:.2f}",
                f"{one.p99_ms:.2f}",
                f"{one.share:.0%}",
                f"{one.concurrency}",
            )
            for one in self.statistics()
        ]


_TITLES = ("step", "requests", "failed", "per request", "mean ms", "p99 ms", "critical", "at once")


def pipelines_of(requests: Sequence[PipelineRequest]) -> dict[str, Pipeline]:
    """Return the pipelines by the name of the model that clients call; requests that begin or end outside are left out.

    Parameters
    ----------
    requests : sequence of PipelineRequest
    """
    by_model: dict[str, list[PipelineRequest]] = defaultdict(list)
    for request in requests:
        if request.complete:
            by_model[request.model].append(request)
    return {model: Pipeline(model, tuple(group)) for model, group in by_model.items()}


def pipeline_requests_of(
    events: Sequence[Event], executed: Sequence[tuple[Batch, list[RequestRecord]]]
) -> list[PipelineRequest]:
    """Return the requests of clients that caused others, ordered by the first request that they caused.

    Parameters
    ----------
    events : sequence of Event
    executed : sequence of (Batch, list of RequestRecord)
        The batches that ran, with their requests.

    Raises
    ------
    ValueError
        If a request is said to have caused itself, or requests are nested too deeply.
    """
    sent = [event for event in events if isinstance(event, StepSent)]
    return _Builder(events, executed, sent).roots() if sent else []


def without_root(causes: Mapping[K, K]) -> set[K]:
    """Return the requests whose causes go in a circle, or lead to a client's request after too many levels.

    Parameters
    ----------
    causes : mapping
        Requests, and the request that caused each.

    Examples
    --------
    >>> sorted(without_root({2: 1, 3: 2, 4: 4, 5: 6, 6: 5, 7: 5}))
    [4, 5, 6, 7]
    """
    levels: dict[K, int] = {}
    for request in causes:
        chain = []
        while request in causes and request not in levels:
            levels[request] = _MAX_LEVELS  # until its own level is known: who leads back here has no root
            chain.append(request)
            request = causes[request]
        level = levels.get(request, 0)
        for below in reversed(chain):
            levels[below] = level = min(level + 1, _MAX_LEVELS)
    return {request for request, level in levels.items() if level == _MAX_LEVELS}


def _require_levels(serial: int, levels: int) -> None:
    if levels > _MAX_LEVELS:
        raise ValueError(f"request {serial}: expected at most {_MAX_LEVELS} nested requests, got more")


class _Builder:
    """The trees, built from the events of a recording."""

    def __init__(
        self,
        events: Sequence[Event],
        executed: Sequence[tuple[Batch, list[RequestRecord]]],
        sent: Sequence[StepSent],
    ) -> None:
        self._causes = {event.step_serial: event for event in reversed(sent)}
        self._built: dict[int, PipelineRequest | None] = {}  # None while it is being built
        self._depths: dict[int, int] = {}  # levels from a request down
        self._executions: dict[int, list[RequestRecord]] = defaultdict(list)
        self._members: dict[int, list[RequestRecord]] = {}
        for batch, requests in executed:
            self._members[batch.number] = requests
            for request in requests:
                self._executions[request.serial].append(request)
        self._arrived_ns: dict[int, int] = {}
        self._computed_ns: dict[int, int] = {}
        self._responded_ns: dict[int, int] = {}  # first responses of decoupled models
        self._spans: dict[int, tuple[int, int, str]] = {}
        for event in events:
            self._add(event)
        self._steps: dict[int, list[StepSent]] = defaultdict(list)  # by the request that caused them
        self._calls: dict[int, list[StepSent]] = defaultdict(list)  # by the batch that made them
        for step in sorted(self._causes.values(), key=self._begin_ns):
            calling = self._calling_batch(step)
            (self._steps[step.serial] if calling is None else self._calls[calling]).append(step)

    def _add(self, event: Event) -> None:
        """Note the begin, the end and the outcome of requests."""
        if isinstance(event, BatchExecuted):
            for serial, _, received_ns, _, failed in event.requests:
                begin_ns = self._spans[serial][0] if serial in self._spans else received_ns  # of a generation
                self._spans[serial] = begin_ns, event.time_ns, failed
                self._computed_ns[serial] = event.compute_end_ns
        elif isinstance(event, EnsembleExecuted):
            self._spans[event.serial] = event.received_ns, event.time_ns, event.failed
        elif isinstance(event, RequestRefused):
            self._spans[event.serial] = event.received_ns, event.time_ns, event.counted_as or _REFUSED
        elif isinstance(event, CacheHit):
            self._spans[event.serial] = event.received_ns, event.time_ns, ""
        elif isinstance(event, ResponseSent):
            self._responded_ns.setdefault(event.serial, event.time_ns)
            if event.serial in self._spans:  # a decoupled model responds after its execution
                begin_ns, end_ns, failed = self._spans[event.serial]
                self._spans[event.serial] = begin_ns, max(end_ns, event.time_ns), failed
        elif isinstance(event, RequestArrived):
            self._arrived_ns[event.serial] = event.time_ns

    def _begin_ns(self, step: StepSent) -> int:
        """Return when the request of a step was received: `StepSent` comes after it."""
        known = self._spans.get(step.step_serial)
        return known[0] if known else self._arrived_ns.get(step.step_serial, step.time_ns)

    def _calling_batch(self, step: StepSent) -> int | None:
        """Return the batch that a model executed when it made a call; None for a step of an ensemble."""
        if step.rule != BLS_REQUEST:
            return None
        begin_ns, executions = self._begin_ns(step), self._executions.get(step.serial, ())
        running = (one.batch for one in executions if one.exec_start_ns <= begin_ns <= one.exec_end_ns)
        return next(running, None)

    def roots(self) -> list[PipelineRequest]:
        """Return the requests that no other request has caused."""
        causing: dict[tuple[int, str, int], None] = {}
        for step in self._causes.values():
            batch = self._calling_batch(step)
            if batch is None:
                causing[step.serial, step.model, step.version] = None
            else:
                causing.update({(mate.serial, mate.model, mate.version): None for mate in self._members[batch]})
        roots = [self._build(*key) for key in causing if key[0] not in self._causes]
        for serial, _, _ in causing:
            if serial not in self._built:  # no root leads to it
                raise ValueError(_CAUSED_ITSELF.format(serial))
        return sorted(roots, key=lambda root: (root.steps[0].received_ns, root.serial))

    def _build(self, serial: int, model: str, version: int, number: int = 0, level: int = 1) -> PipelineRequest:
        if serial in self._built:
            built = self._built[serial]
            if built is None:
                raise ValueError(_CAUSED_ITSELF.format(serial))
            return built
        _require_levels(serial, level)
        self._built[serial] = None
        executions = self._executions.get(serial, [])
        own = [(step, step.step) for step in self._steps.get(serial, ())]
        for batch in dict.fromkeys(one.batch for one in executions):
            own += [(call, place) for place, call in enumerate(self._calls.get(batch, ()))]
        steps = [
            self._build(step.step_serial, step.step_model, step.step_version, place, level + 1) for step, place in own
        ]
        # Requests that share calls can be nested more deeply than any of them was built.
        self._depths[serial] = depth = 1 + max((self._depths[step.serial] for step in steps), default=0)
        _require_levels(serial, depth)
        steps.sort(key=lambda step: (step.received_ns, step.serial))
        cause, span = self._causes.get(serial), self._spans.get(serial)
        times = [time_ns for step in steps for time_ns in (step.received_ns, step.ended_ns)]
        sent_ns = self._begin_ns(cause) if cause else 0
        begin_ns, end_ns, failed = span or (min(times, default=sent_ns), max(times, default=sent_ns), "")
        # Of an ensemble, when its steps have; of a decoupled model, its first response.
        answered_ns = self._computed_ns.get(serial, max((step.answered_ns for step in steps), default=end_ns))
        self._built[serial] = request = PipelineRequest(
            serial,
            model,
            version,
            CLIENT if cause is None else CALL if cause.rule == BLS_REQUEST else STEP,
            number,
            cause.iteration if cause else 0,
            cause.serial if cause else 0,
            begin_ns,
            end_ns,
            min(self._responded_ns.get(serial, answered_ns), end_ns),
            failed,
            record=executions[-1] if executions else None,
            steps=tuple(steps),
            complete=span is not None,
        )
        return request
