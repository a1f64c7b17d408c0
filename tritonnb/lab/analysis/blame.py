"""`Recording.blame`: which causes the latency of a request consists of, and what would remove each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from tritonnb.core.accessors import extensible
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.html_table import html_report
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis import latency_split as split
from tritonnb.lab.simulation.service import Service
from tritonnb.recording.batches import RequestRecord, last_executions
from tritonnb.recording.recording import Recording

#: The causes that executions are part of, the execution of the request's batch or of earlier batches.
_WITH_EXECUTIONS = (split.WAITS - {split.QUEUE_DELAY, split.OVERHEAD}) | {split.COMPUTE_INFER}
#: What is shown in place of remedies if an interrupt ends the search for them: the causes are known.
INTERRUPTED = "not known, since the search was interrupted"


@extensible
@dataclass(frozen=True)
class Blame:
    """The latency of one request, split into causes; displayed as a table by a notebook.

    Attributes
    ----------
    request : RequestRecord
    intervals : tuple of Interval
        Adjacent, from the reception of the request to its response.
    recording : Recording
        Of the model of the request.
    service : Service or None
        Service-time model of the simulations that find remedies; the recorded one by default.

    Examples
    --------
    Two requests arrive while the only instance runs a batch of 5 ms:

    >>> from tritonnb import fixed, simulate
    >>> rec = simulate("max_batch_size: 8 dynamic_batching { }", [(0, 1), (2000, 8), (3000, 1)], fixed(5))
    >>> rec.blame(3).parts
    {'instances_busy': 2000000, 'earlier_requests': 5000000, 'compute_infer': 5000000}
    >>> rec.blame(3).remedies["earlier_requests"].edits
    {'max_batch_size': 9}
    >>> rec.blame(3).meaning_of("instances_busy")
    'every instance that could run it was busy'
    >>> rec.blame(3).rows()[0][:3]
    ('instances_busy', 2.0, 0.16666666666666666)
    """

    remedies: ClassVar[Mapping[str, Any]]

    request: RequestRecord
    intervals: tuple[split.Interval, ...]
    recording: Recording = field(repr=False, compare=False)
    service: Service | None = field(default=None, repr=False, compare=False)

    @property
    def latency_ns(self) -> int:
        """The time from the request's reception to its response: the sum of the parts."""
        return sum(interval.duration_ns for interval in self.intervals)

    @property
    def parts(self) -> dict[str, int]:
        """The time of each cause in ns, in the order of `CAUSES`; causes without a time are left out."""
        times = dict.fromkeys(split.CAUSES, 0)
        for interval in self.intervals:
            times[interval.cause] += interval.duration_ns
        return {cause: ns for cause, ns in times.items() if ns}

    @cached_property
    def outliers(self) -> Mapping[str, str]:
        """The executions in each cause that took much longer than others of their size, or began late.

        An outlier takes at least 3 times as long as `LearnedTimes` expects of its size; what waited before it began is
        not a part of that.
        """
        remarks = {}
        late_ns = self.recording.late_starts.get(self.request.batch)
        if late_ns is not None and split.OVERHEAD in self.parts:
            waited_ms, typical_ms = (ns / 1e6 for ns in late_ns)
            remarks[split.OVERHEAD] = (
                f"its batch began {waited_ms:.1f} ms after it could have; the median is {typical_ms:.1f} ms"
            )
        if split.RATE_LIMITER in self.parts:
            batch = next(batch for batch in self.recording.batches if batch.number == self.request.batch)
            remarks[split.RATE_LIMITER] = str(batch.reason.facts.get("limited_by", ""))
        for cause in _WITH_EXECUTIONS & self.parts.keys():
            spans = [(part.begin_ns, part.end_ns) for part in self.intervals if part.cause == cause]
            outliers = [
                outlier
                for outlier in self.recording.outliers
                if (outlier.batch.number == self.request.batch) == (cause == split.COMPUTE_INFER)
                and any(outlier.batch.exec_start_ns < end and outlier.batch.exec_end_ns > begin for begin, end in spans)
            ]
            if outliers:
                worst = max(outliers, key=lambda outlier: outlier.batch.compute_ns)
                subject = "this execution" if cause == split.COMPUTE_INFER else f"batch {worst.batch.number}"
                remarks[cause] = f"{subject} took {worst}"
        return remarks

    def meaning_of(self, cause: str) -> str:
        """Return the meaning of a cause, and anything unusual about it for this request.

        Parameters
        ----------
        cause : str
            A key of `parts`.
        """
        return "; ".join(filter(None, (split.CAUSES[cause], self.outliers.get(cause))))

    def rows(self, *, with_remedies: bool = True) -> list[tuple[str, float, float, str, str | None]]:
        """Return rows: cause, milliseconds, share of the latency (0 to 1), meaning, and remedy or an empty string.

        Parameters
        ----------
        with_remedies : bool, optional
            Whether to simulate; without it, the remedies are None.
        """
        total = self.latency_ns or 1
        remedies = {cause: str(self.remedies.get(cause, "")) for cause in self.parts} if with_remedies else {}
        return [
            (cause, ns / 1e6, ns / total, self.meaning_of(cause), remedies.get(cause))
            for cause, ns in self.parts.items()
        ]

    @property
    def title(self) -> str:
        """The request and its latency, in one line."""
        return f"Request {self.request.label}: {self.latency_ns / 1e6:.3f} ms from reception to response"

    def _shown_rows(self) -> list[tuple[str, float, float, str, str | None]]:
        """Return the rows; without remedies if an interrupt ends the search for them."""
        try:
            return self.rows()
        except KeyboardInterrupt:
            return [(*row[:4], INTERRUPTED) for row in self.rows(with_remedies=False)]

    def __repr__(self) -> str:
        lines = [self.title]
        for cause, ms, share, meaning, remedy in self._shown_rows():
            lines.append(f"  {cause:<17}{ms:>10.3f} ms {share:>4.0%}  {meaning}")
            lines += [f"{'':<37}remedy: {remedy}"] if remedy else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [(cause, f"{ms:.3f}", f"{share:.0%}", *texts) for cause, ms, share, *texts in self._shown_rows()]
        return html_report(self.title, ("cause", "ms", "share", "meaning", "remedy"), rows)


def blame_request(rec: Recording, request: RequestRecord | int | str | None, service: Service | None = None) -> Blame:
    """Split the latency of a request; `Recording.blame` documents the parameters."""
    record = _find(rec, request)
    config = rec.configs.get(record.model)
    if config is None:
        raise InvalidArgumentError(f"recording expected the configuration of model '{record.model}', got none")
    selected = rec.for_model(record.model)
    return Blame(record, tuple(split.LatencySplitter(selected, config).split(record)), selected, service)


def blame_slowest(rec: Recording, config: pb.ModelConfig, most: int) -> list[Blame]:
    """Split the latencies of the slowest requests of a recording of one model, the slowest first."""
    splitter = split.LatencySplitter(rec, config)
    slowest = sorted(last_executions(rec.requests), key=lambda record: -record.latency_ns)[:most]
    return [Blame(record, tuple(splitter.split(record)), rec) for record in slowest]


def _find(rec: Recording, request: RequestRecord | int | str | None) -> RequestRecord:
    """Return the last execution of a request."""
    if isinstance(request, RequestRecord):
        return request
    if request is None:
        if not rec.requests:
            raise InvalidArgumentError("blame expected a recording with at least one executed request, got none")
        return max(rec.requests, key=lambda record: record.latency_ns)
    matches = [record for record in rec.requests if request in (record.serial, record.id or None)]
    if not matches:
        refused = [event.message for event in rec.refused if event.serial == request]
        raise InvalidArgumentError(
            f"recording expected the serial or the id of a request that ran, got {request!r}"
            + (f", which was refused: {refused[0] or 'cancelled'}" if refused else "")
        )
    return matches[-1]
