"""The tail: causes of the latencies of slow requests added up, what they share, and what helps most of them.

One request says what happened to it; the p99 is many requests. They often wait for the same few batches, and the causes
that matter for a tail are the causes of its sum.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.html_table import html_report
from tritonnb.core.option_types import with_checked_types
from tritonnb.lab.analysis import latency_split as split
from tritonnb.lab.analysis.blame import INTERRUPTED, Blame, blame_request
from tritonnb.lab.analysis.conditions import Condition
from tritonnb.lab.analysis.pipeline_blame import PipelineBlame, blame_pipeline, pipeline_requests
from tritonnb.lab.analysis.remedies import edits_for
from tritonnb.lab.analysis.rerun import Rerun, unknown_instances
from tritonnb.lab.simulation.service import Service
from tritonnb.recording.batches import Outlier, RequestRecord, last_executions, latencies_ms
from tritonnb.recording.pipelines import Pipeline, PipelineRequest
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.quantiles import quantile

#: The quantities of a request that a condition may use; times in ms.
QUANTITIES = ("latency", "queue", "compute", "rows", "batch", "priority", "time")
#: A request is helped by a change that shortens its latency by this share.
_HELPED = 0.1
#: A larger change of the configuration must help this share of the requests more than a smaller change.
_WORTH_MORE = 0.05
#: Candidates come from the causes with the largest sums; each candidate is one simulation.
_MOST_CAUSES, _MOST_CANDIDATES = 3, 12
#: Shared batches and stalls that are listed.
_LISTED = 5


@dataclass(frozen=True, slots=True)
class Shared:
    """A batch, or a stall of the machine during several, that delays several of the requests.

    Attributes
    ----------
    batches : tuple of int
        Their numbers.
    requests : int
        The requests that waited for one of the batches or were in it.
    stall : str
        How much longer than expected an execution took; empty if none was stalled.
    """

    batches: tuple[int, ...]
    requests: int
    stall: str

    def _text(self, total: int) -> str:
        """Return it as a sentence, of the number of all requests."""
        numbers = ", ".join(map(str, self.batches))
        what = f"batch {numbers}" if len(self.batches) == 1 else f"batches {numbers}"
        stalled = f", stalled: {self.stall}" if self.stall else ""
        return f"{what} ({self.requests} of {total} requests{stalled})"


@dataclass(frozen=True, slots=True)
class TailRemedy:
    """A change of the configuration that makes most of the requests faster, by simulation.

    Attributes
    ----------
    edits : dict
        As for `Recording.what_if`.
    helped, requests : int
        How many of the requests become faster by a tenth, and how many there are.
    mean_before_ms, mean_after_ms : float
        The mean of their latencies.
    p99_before_ms, p99_after_ms : float
        Of all requests.
    unknown : str
        As of `Remedy`.
    """

    edits: dict[str, Any]
    helped: int
    requests: int
    mean_before_ms: float
    mean_after_ms: float
    p99_before_ms: float
    p99_after_ms: float
    unknown: str

    def __str__(self) -> str:
        edits = ", ".join(f"{name}: {value}" for name, value in self.edits.items())
        return (
            f"{edits} helps {self.helped} of {self.requests} requests (simulated: their mean latency "
            f"{self.mean_before_ms:.1f} → {self.mean_after_ms:.1f} ms, p99 of all {self.p99_before_ms:.1f} → "
            f"{self.p99_after_ms:.1f} ms{self.unknown and '; '}{self.unknown})"
        )


@dataclass(frozen=True)
class TailBlame:
    """The latencies of several requests, split into causes and added up; displayed as a table by a notebook.

    Attributes
    ----------
    blames : tuple of Blame
        Of the requests, the slowest first.
    selection : str
        Which requests these are.
    recording : Recording
        Of their model.
    service : Service or None
        As for `Recording.blame`.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> rec = simulate("max_batch_size: 2 dynamic_batching { }", [(0, 1)] * 40, fixed(10))
    >>> tail = rec.blame(percentile=90)
    >>> len(tail.requests), list(tail.parts)
    (5, ['instances_busy', 'earlier_requests', 'compute_infer'])
    >>> tail.remedy.edits
    {'max_batch_size': 3}
    >>> tail.rows()[0][0]
    'earlier_requests'
    """

    blames: tuple[Blame, ...]
    selection: str
    recording: Recording = field(repr=False, compare=False)
    service: Service | None = field(default=None, repr=False, compare=False)

    @property
    def requests(self) -> list[RequestRecord]:
        """The requests, the slowest first."""
        return [blame.request for blame in self.blames]

    @property
    def latency_ns(self) -> int:
        """The sum of the latencies."""
        return sum(blame.latency_ns for blame in self.blames)

    @property
    def parts(self) -> dict[str, int]:
        """The time of each cause in ns, added up over the requests, in the order of `CAUSES`."""
        times: Counter[str] = Counter()
        for blame in self.blames:
            times.update(blame.parts)
        return {cause: times[cause] for cause in split.CAUSES if times[cause]}

    @cached_property
    def shared(self) -> list[Shared]:
        """The batches and stalls that delay at least two of the requests; first those that delay the most requests."""
        stalls = {number: stall for stall in _stalls(self.recording.outliers) for number in stall}
        factors = {outlier.batch.number: outlier for outlier in self.recording.outliers}
        users: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for blame in self.blames:
            for number in _batches_of(blame):
                users[stalls.get(number, (number,))].add(blame.request.serial)
        found = []
        for numbers, serials in users.items():
            worst = max(
                (factors[number] for number in numbers if number in factors), key=lambda one: one.factor, default=None
            )
            if len(serials) > 1:
                found.append(Shared(numbers, len(serials), "" if worst is None else str(worst)))
        return sorted(found, key=lambda one: (-one.requests, one.batches))

    @cached_property
    def remedy(self) -> TailRemedy | None:
        """The smallest change of the configuration that helps most of the requests; None if none does.

        It is found by simulation when this is first read, like those of `Blame.remedies`.
        """
        return _find_remedy(self)

    def rows(self) -> list[tuple[str, float, float, int, str]]:
        """Return rows, the largest first: cause, ms in all, share (0 to 1), number of requests, and meaning."""
        total = self.latency_ns or 1
        counts = Counter(cause for blame in self.blames for cause in blame.parts)
        rows = [(cause, ns / 1e6, ns / total, counts[cause], split.CAUSES[cause]) for cause, ns in self.parts.items()]
        return sorted(rows, key=lambda row: -row[1])

    @property
    def title(self) -> str:
        """The selection of the requests and the range of their latencies, in one line."""
        low, high = self.blames[-1].latency_ns / 1e6, self.blames[0].latency_ns / 1e6
        count = pluralize(len(self.blames), "request")
        return f"{count} ({self.selection}), {low:.1f} to {high:.1f} ms from reception to response"

    def _notes(self) -> list[str]:
        """Return what the requests share, what helps most of them, and whether instances have different speeds."""
        total = len(self.blames)
        notes = []
        stalled = {outlier.batch.number for outlier in self.recording.outliers}
        met = [_batches_of(blame) & stalled for blame in self.blames]
        if count := sum(map(bool, met)):
            executions = pluralize(len(set().union(*met)), "stalled execution")
            notes.append(
                f"{count} of {pluralize(total, 'request')} waited for a stalled execution or were in it: {executions}"
            )
        notes += [f"shared: {one._text(total)}" for one in self.shared[:_LISTED]]
        late = sum(split.OVERHEAD in blame.outliers for blame in self.blames)
        if late:
            notes.append(f"{late} of {pluralize(total, 'request')}: the batch began late although an instance was idle")
        try:
            found = str(self.remedy or "no change of the configuration helps most of them")
        except KeyboardInterrupt:
            found = INTERRUPTED
        notes.append(f"remedy: {found}")
        speeds = self.recording.service().speeds_text()
        return [*notes, *([speeds] if speeds else [])]

    def __repr__(self) -> str:
        lines = [self.title]
        for cause, ms, share, count, meaning in self.rows():
            lines.append(f"  {cause:<17}{ms:>10.1f} ms {share:>4.0%} {count:>4} x  {meaning}")
        return "\n".join([*lines, *(f"  {note}" for note in self._notes())])

    def _repr_html_(self) -> str:
        rows = [
            (cause, f"{ms:.1f}", f"{share:.0%}", str(count), meaning)
            for cause, ms, share, count, meaning in self.rows()
        ]
        return html_report(self.title, ("cause", "ms", "share", "requests", "meaning"), rows, self._notes())


@with_short_traceback
@with_checked_types
def blame(
    rec: Recording,
    request: RequestRecord | PipelineRequest | Pipeline | int | str | None = None,
    *,
    percentile: float | None = None,
    where: str | None = None,
    service: Service | None = None,
) -> Blame | TailBlame | PipelineBlame:
    """Split the latency of a request, or of the slowest requests, into causes, and find what would remove each.

    Parameters
    ----------
    request : RequestRecord, PipelineRequest, Pipeline, int or str, optional
        The request, its serial, or the id given by the client; by default the slowest request. The latency of a request
        of a pipeline (`Recording.pipelines`) is split into its steps, along its critical path. Of a pipeline, the
        slowest request, or those that ``percentile`` or ``where`` selects; it may be left out if there is only one.
    percentile : float, optional
        Instead of one request, all that are at least as slow as this percentile (0 to 100) of the latencies: why is my
        p99 bad?
    where : str, optional
        Instead of one request, all that satisfy a condition such as ``"latency > 50 and rows < 4"``: on ``latency``,
        ``queue``, ``compute`` and ``time`` (of its reception after the first arrival) in ms, ``rows``, ``batch`` (rows
        of its batch) and ``priority``; of a pipeline on ``latency``, ``time``, and ``steps``, the requests below it.
    service : Service, optional
        Service-time model of the simulations that find remedies; by default the recorded one (`service`).

    Returns
    -------
    Blame, TailBlame or PipelineBlame
        ``parts`` are the times of the causes in ns, which sum to ``latency_ns``; ``remedies`` the smallest changes
        of the configuration that remove them. Of several requests: the sums, the batches and stalls that they
        share (``shared``), and the change that helps most of them (``remedy``). Of a pipeline: by step and cause.

    Raises
    ------
    InvalidArgumentError
        If no such request ran, or the recording has no configuration of its model.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> recording = simulate("max_batch_size: 4 dynamic_batching { }", [(0, 1)] * 8, fixed(10))
    >>> recording.blame().parts
    {'instances_busy': 10000000, 'earlier_requests': 10000000, 'compute_infer': 10000000}
    >>> len(recording.blame(where="latency > 25").requests)
    3
    """
    is_one = request is not None and not isinstance(request, Pipeline)
    if is_one + (percentile is not None) + (where is not None) > 1:
        raise InvalidArgumentError("blame expected a request, percentile= or where=, got several: give one of them")
    if percentile is not None and not (isinstance(percentile, int | float) and 0 <= percentile < 100):
        raise InvalidArgumentError(f"blame: percentile expected a number from 0 to below 100, got {percentile!r}")
    selects = percentile is not None or where is not None
    if found := pipeline_requests(rec, request, selects=selects):
        if not selects:
            found = [max(found, key=lambda one: one.latency_ns)]
        return blame_pipeline(rec, found, percentile=percentile, where=where)
    if not selects:
        return blame_request(rec, cast("RequestRecord | int | str | None", request), service)
    requests = last_executions(rec.requests)
    if not requests:
        raise InvalidArgumentError("blame expected a recording with at least one executed request, got none")
    models = {request.model for request in requests}
    if len(models) > 1:
        raise InvalidArgumentError(
            f"blame expected a recording of one model, got one of {', '.join(sorted(models))}: use rec.for_model()"
        )
    [model] = models
    if model not in rec.configs:
        raise InvalidArgumentError(f"recording expected the configuration of model '{model}', got none")
    selected = rec.for_model(model)
    if where is None:
        limit_ms = quantile(latencies_ms(requests), (percentile or 0.0) / 100)
        chosen = [request for request in requests if request.latency_ns / 1e6 >= limit_ms - 1e-9]
        selection = f"p{percentile:g} and above"
    else:
        condition = Condition(where, QUANTITIES)
        sizes = {batch.number: batch.size for batch in rec.batches}
        origin_ns = rec.first_arrival_ns
        chosen = [request for request in requests if condition(_quantities(request, sizes, origin_ns))]
        selection = where
        if not chosen:
            raise InvalidArgumentError(f"blame expected requests with {where}, got none of {len(requests)}")
    splitter = split.LatencySplitter(selected, rec.configs[model])
    blames = [Blame(request, tuple(splitter.split(request)), selected, service) for request in chosen]
    blames.sort(key=lambda blame: -blame.latency_ns)
    return TailBlame(tuple(blames), selection, selected, service)


def _quantities(request: RequestRecord, sizes: dict[int, int], origin_ns: int) -> dict[str, float | str | bool | None]:
    return {
        "latency": request.latency_ns / 1e6,
        "queue": request.queue_ns / 1e6,
        "compute": (request.exec_end_ns - request.exec_start_ns) / 1e6,
        "rows": request.size,
        "batch": sizes[request.batch],
        "priority": request.priority,
        "time": (request.received_ns - origin_ns) / 1e6,
    }


def _stalls(outliers: Sequence[Outlier]) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of outlying batches that ran at the same time: one stall of the machine."""
    group: list[int] = []
    end_ns = 0
    for outlier in sorted(outliers, key=lambda one: one.batch.exec_start_ns):
        if group and outlier.batch.exec_start_ns >= end_ns:
            yield tuple(group)
            group = []
        group.append(outlier.batch.number)
        end_ns = max(end_ns, outlier.batch.exec_end_ns)
    if group:
        yield tuple(group)


def _batches_of(blame: Blame) -> set[int]:
    """Return the batches that a request was in or waited for."""
    waited = {part.batch for part in blame.intervals if part.batch is not None}
    spans = [(part.begin_ns, part.end_ns) for part in blame.intervals if part.cause in split.WAITS]
    stalled = {
        outlier.batch.number
        for outlier in blame.recording.outliers
        if any(outlier.batch.exec_start_ns < end and outlier.batch.exec_end_ns > begin for begin, end in spans)
    }
    return {blame.request.batch} | waited | stalled


def _find_remedy(tail: TailBlame) -> TailRemedy | None:
    rec = tail.recording
    rerun = Rerun(rec, "blame", tail.service)
    serials = {serial: number for number, serial in enumerate(rec.arrived, 1)}  # a simulation counts from 1
    slow = [serials[request.serial] for request in tail.requests if request.serial in serials]
    if not slow:
        return None
    before = _executed(rerun.run(rerun.config, rerun.arrivals))
    known_ms = {serial: wait_ms + execution_ms for serial, (wait_ms, execution_ms, _) in before.items()}
    slow = [serial for serial in slow if serial in known_ms]
    total_ms = sum(known_ms[serial] for serial in slow)
    best: TailRemedy | None = None
    for edits in _candidates(tail):
        try:
            after = _executed(rerun.run(rerun.edited(edits), rerun.arrivals))
        except InvalidArgumentError:
            continue
        if not all(serial in after for serial in slow):
            continue
        # Slow requests are chosen by their times: an execution that is drawn again is shorter without any remedy.
        after_ms = {
            serial: wait_ms + before[serial][1] * rerun.times(rows) / rerun.times(before[serial][2])
            for serial, (wait_ms, _, rows) in after.items()
            if serial in before
        }
        helped = sum(after_ms[serial] < (1 - _HELPED) * known_ms[serial] for serial in slow)
        if helped <= (0 if best is None else best.helped + _WORTH_MORE * len(slow)):
            continue
        best = TailRemedy(
            edits,
            helped,
            len(slow),
            total_ms / len(slow),
            sum(after_ms[serial] for serial in slow) / len(slow),
            quantile(sorted(known_ms.values()), 0.99),
            quantile(sorted(after_ms.values()), 0.99),
            unknown_instances(rerun.times, rerun.edited(edits)),
        )
    return best if best is not None and best.helped > len(slow) / 2 else None


def _executed(rec: Recording) -> dict[int, tuple[float, float, int]]:
    """Return the wait and the execution of each request in ms, and the rows of its batch, by serial."""
    rows = {batch.number: batch.size for batch in rec.batches}
    return {
        request.serial: (
            (request.exec_start_ns - request.received_ns) / 1e6,
            (request.exec_end_ns - request.exec_start_ns) / 1e6,
            rows[request.batch],
        )
        for request in last_executions(rec.requests)
    }


def _candidates(tail: TailBlame) -> list[dict[str, Any]]:
    """Return the changes that reduce the largest causes, each once, the smallest first."""
    found: dict[str, dict[str, Any]] = {}
    config = tail.recording.configs[tail.requests[0].model]
    for cause, *_ in tail.rows()[:_MOST_CAUSES]:
        worst = max(tail.blames, key=lambda blame: blame.parts.get(cause, 0))
        found |= {repr(edits): edits for edits in edits_for(cause, config, worst)}
    return list(found.values())[:_MOST_CANDIDATES]
