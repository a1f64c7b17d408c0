"""Blame of pipelines: the latency of requests along their critical paths, by step and by cause within each step.

The critical path says which step kept a request from ending earlier at each time. Within a step the causes are those
of any request of its model (`tritonnb.lab.analysis.latency_split`); the rest is between the steps. A model that waits
for its calls is split in the same way: what it waits for are the steps below it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.html_table import html_report
from tritonnb.lab.analysis import latency_split as split
from tritonnb.lab.analysis.blame import INTERRUPTED
from tritonnb.lab.analysis.conditions import Condition
from tritonnb.lab.analysis.latency_split import Interval
from tritonnb.lab.analysis.pipeline_what_if import PipelineRerun
from tritonnb.lab.analysis.reproduction import is_near
from tritonnb.lab.analysis.rerun import unknown_instances
from tritonnb.lab.simulation.run import instance_count
from tritonnb.recording.batches import RequestRecord
from tritonnb.recording.pipelines import CALL, Path, Pipeline, PipelineRequest, Segment, step_paths
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.quantiles import quantile

BETWEEN_STEPS = "between_steps"
NOT_EXECUTED = "not_executed"
#: What the causes mean that only pipelines have.
_CAUSES = {
    BETWEEN_STEPS: "the ensemble passed tensors on: no step had its inputs, or none was left",
    NOT_EXECUTED: "it was refused, cancelled, or answered from the response cache",
}
#: The meaning of every cause, in the order in which they are reported.
CAUSES = {**_CAUSES, **split.CAUSES}
#: The quantities of a request that a condition may use; times in ms.
QUANTITIES = ("latency", "steps", "time")
#: Causes of a step with a smaller share of the latency are shown together.
_SMALL_SHARE = 0.01
#: A smaller change of the p99, as a share of it, is no effect.
_NO_EFFECT = 0.05
#: Of fewer requests, the p90 stands for the tail.
_ENOUGH = 1000
#: Recordings with more requests are not simulated for remedies.
_MOST_SIMULATED = 20_000


@dataclass(frozen=True, slots=True)
class StepInterval:
    """A time during which one cause in one step kept a request of a pipeline from advancing.

    Attributes
    ----------
    step : tuple of str
        The names of the steps from the root down to it; empty for the root itself.
    cause : str
        A key of `CAUSES`.
    begin_ns, end_ns : int
        Monotonic clock.
    """

    step: Path
    cause: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class PipelineBlame:
    """The latencies of requests of a pipeline, split into steps and causes; displayed as a table by a notebook.

    Attributes
    ----------
    requests : tuple of PipelineRequest
        The slowest first.
    intervals : tuple of tuple of StepInterval
        Of each request: adjacent, from its reception to its last response.
    selection : str
        Which requests these are; empty if one was given.
    waits : frozenset of tuple of str
        The steps that are calls, for which a model waited.
    recording : Recording

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     @server.model(max_batch_size=8)
    ...     def caller(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return next(iter(server["double"](X=X).values()))
    ...     with server.record() as rec:
    ...         _ = server["caller"](X=[[1.0]])
    >>> [request] = rec.pipelines["caller"].requests
    >>> blame = rec.blame(request)
    >>> sum(blame.steps.values()) == blame.latency_ns == request.latency_ns
    True
    >>> list(blame.steps)
    [(), ('double',)]
    """

    requests: tuple[PipelineRequest, ...]
    intervals: tuple[tuple[StepInterval, ...], ...]
    selection: str
    waits: frozenset[Path]
    recording: Recording = field(repr=False, compare=False)

    @property
    def latency_ns(self) -> int:
        """The sum of the latencies: that of all parts."""
        return sum(request.latency_ns for request in self.requests)

    @property
    def parts(self) -> dict[Path, dict[str, int]]:
        """The time of each cause in ns by step, added up over the requests; steps in the order in which they began."""
        times: dict[Path, Counter[str]] = defaultdict(Counter)
        for interval in (interval for intervals in self.intervals for interval in intervals):
            times[interval.step][interval.cause] += interval.end_ns - interval.begin_ns
        return {
            step: {cause: causes[cause] for cause in CAUSES if causes[cause]}
            for step, causes in sorted(times.items(), key=lambda item: bool(item[0]))
            if any(causes.values())
        }

    @property
    def steps(self) -> dict[Path, int]:
        """The time on the critical path of each step in ns, without the steps below it."""
        return {step: sum(causes.values()) for step, causes in self.parts.items()}

    def meaning_of(self, step: Path, cause: str = "") -> str:
        """Return the meaning of a cause in a step, or of a step.

        Parameters
        ----------
        step : tuple of str
        cause : str, optional
            A key of `CAUSES`.
        """
        if cause:
            return CAUSES[cause]
        if not step:
            return f"'{self.requests[0].model}' itself"
        caller = self.requests[0].model if len(step) == 1 else step[-2]
        return f"'{caller}' waited for '{step[-1]}'" if step in self.waits else f"step '{step[-1]}'"

    def rows(self) -> list[tuple[str, str, float, float, str]]:
        """Return rows: step, cause (empty for the sum of a step), ms, share (0 to 1), and meaning."""
        total = self.latency_ns or 1
        rows = []
        for step, causes in self.parts.items():
            own, name = sum(causes.values()), " / ".join(step) or self.requests[0].model
            rows.append((name, "", own / 1e6, own / total, self.meaning_of(step)))
            rows += [(name, cause, ns / 1e6, ns / total, CAUSES[cause]) for cause, ns in causes.items()]
        return rows

    @property
    def title(self) -> str:
        """The requests and their latencies, in one line."""
        model = self.requests[0].model
        if not self.selection:
            return f"Request {self.requests[0].label} of '{model}': {self.latency_ns / 1e6:.3f} ms"
        low, high = (self.requests[place].latency_ns / 1e6 for place in (-1, 0))
        count = pluralize(len(self.requests), "request")
        return f"{count} of '{model}' ({self.selection}), {low:.1f} to {high:.1f} ms; sums of all"

    @cached_property
    def remedies(self) -> tuple[str, ...]:
        """What one more instance of each step does to the p99 (or p90) of the ensemble, by simulation, the best first.

        Empty for a recording of several pipelines, a sample of a trace, and more than 20,000 requests.
        """
        if len(self.recording.requests) > _MOST_SIMULATED:
            return ()
        try:
            return tuple(_one_more_instance(self.recording))
        except InvalidArgumentError:  # the recording is not of one pipeline alone
            return ()

    def _shown_remedies(self) -> tuple[str, ...]:
        try:
            return self.remedies
        except KeyboardInterrupt:
            return (f"remedies: {INTERRUPTED}",)

    def _shown_rows(self) -> Iterator[tuple[str, str, float, float, str]]:
        """Yield the rows, those of small causes of a step together."""
        for _, rows in groupby(self.rows(), key=lambda row: row[0]):
            step, *causes = rows
            large = [row for row in causes if row[3] >= _SMALL_SHARE]
            small = [row for row in causes if row[3] < _SMALL_SHARE]
            if len(small) > 1 and large:
                names = ", ".join(row[1] for row in small)
                large.append(
                    (step[0], "other causes", sum(row[2] for row in small), sum(row[3] for row in small), names)
                )
            yield from [step, *(large if len(small) > 1 and large else causes)]

    def __repr__(self) -> str:
        lines = [f"{self.title}, along the critical path"]
        for name, cause, ms, share, meaning in self._shown_rows():
            label = f"  {cause}" if cause else name
            lines.append(f"  {label:<26}{ms:>11.3f} ms {share:>4.0%}  {meaning}")
        return "\n".join([*lines, *(f"  {remedy}" for remedy in self._shown_remedies())])

    def _repr_html_(self) -> str:
        rows = [
            ("" if cause else name, cause, f"{ms:.3f}", f"{share:.0%}", meaning)
            for name, cause, ms, share, meaning in self._shown_rows()
        ]
        titles = ("step", "cause", "ms", "share", "meaning")
        return html_report(f"{self.title}, along the critical path", titles, rows, self._shown_remedies())


def blame_pipeline(
    rec: Recording,
    requests: Sequence[PipelineRequest],
    *,
    percentile: float | None = None,
    where: str | None = None,
) -> PipelineBlame:
    """Split the latencies of requests of one pipeline; `Recording.blame` documents the parameters.

    Parameters
    ----------
    requests : sequence of PipelineRequest
        The one to split, or all of the pipeline, of which ``percentile`` or ``where`` selects some.

    Raises
    ------
    InvalidArgumentError
        If the recording lacks the configuration of a model, or none of the requests is selected.
    """
    chosen, selection = list(requests), ""
    if where is not None:
        condition, origin_ns = Condition(where, QUANTITIES), rec.origin_ns
        chosen, selection = [one for one in requests if condition(_quantities(one, origin_ns))], where
    elif percentile is not None:
        limit = quantile(sorted(float(one.latency_ns) for one in requests), percentile / 100)
        chosen, selection = [one for one in requests if one.latency_ns >= limit], f"p{percentile:g} and above"
    if not chosen:
        raise InvalidArgumentError(f"blame expected requests with {selection}, got none of {len(requests)}")
    chosen.sort(key=lambda one: -one.latency_ns)
    splitter = PipelineSplitter(rec)
    waits = frozenset(path for root in chosen for one, path in step_paths(root).values() if one.kind == CALL and path)
    return PipelineBlame(tuple(chosen), tuple(map(splitter.split, chosen)), selection, waits, rec)


def _one_more_instance(rec: Recording) -> Iterator[str]:
    """Yield what one more instance of each model of an ensemble does to its tail, by simulation, the best first."""
    rec.require_every_request("blame")
    rerun = PipelineRerun(rec)

    percent = 99 if len(rerun.arrivals[rerun.model]) >= _ENOUGH else 90  # of few requests, the p99 is one outlier

    def tail_ms(run: Recording) -> float:
        requests = run.pipelines[rerun.model].requests
        return quantile(sorted(request.latency_ns / 1e6 for request in requests), percent / 100)

    recorded, before = tail_ms(rec), tail_ms(rerun.run(rerun.configs, 0))
    doubt = "" if is_near("latency_p99_ms", recorded, before) else f", which does not reproduce the {recorded:.1f} ms"
    counts = {model: instance_count(rec.configs[model]) for model in rerun.services}
    runs = {model: rerun.run(rerun.edited({model: {"count": count + 1}}), 0) for model, count in counts.items()}
    for after, model in sorted((tail_ms(run), model) for model, run in runs.items()):
        is_same = abs(after - before) < _NO_EFFECT * before
        change = "no effect" if is_same else f"p{percent} {before:.1f} → {after:.1f} ms"
        instances = pluralize(counts[model], "instance")
        edited = rerun.edited({model: {"count": counts[model] + 1}})[model]
        unknown = unknown_instances(rerun.services[model], edited)
        basis = f"simulated{doubt}{unknown and '; '}{unknown}"
        yield f"{counts[model] + 1} instead of {instances} of '{model}': {change} ({basis})"


def pipeline_requests(
    rec: Recording, asked: RequestRecord | PipelineRequest | Pipeline | int | str | None, *, selects: bool
) -> list[PipelineRequest]:
    """Return the requests of a pipeline that a question is about; empty if it is about a request of one model.

    Parameters
    ----------
    rec : Recording
    asked : RequestRecord, PipelineRequest, Pipeline, int, str or None
        None for the only pipeline: if nothing else was recorded, or ``selects``.
    selects : bool
        Whether the question is about several requests.

    Raises
    ------
    InvalidArgumentError
        If the recording has several pipelines, and the question names none.
    """
    if isinstance(asked, Pipeline):
        return list(asked.requests)
    if isinstance(asked, PipelineRequest):
        return [asked]
    # The recording of one model has the calls of its requests, and not what became of them.
    roots = [
        root
        for pipeline in rec.pipelines.values()
        for root in pipeline.requests
        if any(step.complete for step in root.steps)
    ]
    if asked is not None:
        serial = asked.serial if isinstance(asked, RequestRecord) else asked
        return [root for root in roots if serial in (root.serial, root.label)][-1:]
    inside = {below.serial for root in roots for below in root.walk()}
    others = any(record.serial not in inside for record in rec.requests)
    if not roots or (others and not selects):
        return []
    names = sorted({root.model for root in roots})
    if len(names) > 1:
        listed = " or ".join(f"rec.pipelines[{name!r}]" for name in names)
        raise InvalidArgumentError(f"blame expected one pipeline, got a recording of {len(names)}: pass {listed}")
    return roots


def _quantities(request: PipelineRequest, origin_ns: int) -> dict[str, float | str | bool | None]:
    time_ms = (request.received_ns - origin_ns) / 1e6
    return {"latency": request.latency_ns / 1e6, "steps": len(list(request.walk())) - 1, "time": time_ms}


class PipelineSplitter:
    """The latencies of requests of pipelines, split into steps and causes.

    Parameters
    ----------
    rec : Recording
        Of all models of the pipelines, with their configurations.
    """

    def __init__(self, rec: Recording) -> None:
        self._rec = rec
        self._splitters: dict[str, Callable[..., list[Interval]]] = {}

    def split(self, root: PipelineRequest) -> tuple[StepInterval, ...]:
        """Return the intervals of a request, adjacent and in order; their durations sum to its latency.

        Parameters
        ----------
        root : PipelineRequest
        """
        paths = step_paths(root)
        parts: list[StepInterval] = []
        for segment in root.critical_path():
            path = paths[segment.request.serial][1]
            for cause, begin_ns, end_ns in self._causes(segment):
                last = parts[-1] if parts else None
                if last is not None and (last.step, last.cause) == (path, cause):
                    begin_ns = parts.pop().begin_ns
                if begin_ns < end_ns:
                    parts.append(StepInterval(path, cause, begin_ns, end_ns))
        return tuple(parts)

    def _causes(self, segment: Segment) -> Iterator[tuple[str, int, int]]:
        """Yield the causes of a part of a critical path with their begin and end."""
        request, now, end_ns = segment
        if request.record is None:
            yield BETWEEN_STEPS if request.steps else NOT_EXECUTED, now, end_ns
            return
        for interval in self._splitter(request.model)(request.record):
            if interval.begin_ns < end_ns and interval.end_ns > now:
                until_ns = min(interval.end_ns, end_ns)
                yield interval.cause, now, until_ns
                now = until_ns
        yield split.RESPONSE, now, end_ns  # a decoupled model responds after its execution

    def _splitter(self, model: str) -> Callable[..., list[Interval]]:
        if model not in self._splitters:
            if model not in self._rec.configs:
                raise InvalidArgumentError(f"recording expected the configuration of model '{model}', got none")
            splitter = split.LatencySplitter(self._rec.for_model(model), self._rec.configs[model])
            self._splitters[model] = splitter.split
        return self._splitters[model]
