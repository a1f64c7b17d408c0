"""A recording: the events of a server or a simulation over a period, and the requests and batches derived from them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tritonnb.core.accessors import extensible
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_tracebacks
from tritonnb.core.html_table import html_report
from tritonnb.recording import files
from tritonnb.recording.arrivals import arrivals_of
from tritonnb.recording.batches import RequestRecord
from tritonnb.recording.blame import Blame, blame
from tritonnb.recording.comparison import Comparison
from tritonnb.recording.diagnoses import Diagnosis, diagnose
from tritonnb.recording.recorded_events import RecordedEvents
from tritonnb.recording.summary import summary, verdict
from tritonnb.simulation.arrivals import Arrival
from tritonnb.simulation.service import Service

if TYPE_CHECKING:
    import pandas


@extensible
@with_short_tracebacks
class Recording(RecordedEvents):
    """The events of a server or a simulation over a period.

    Attributes
    ----------
    events : list of Event
        All events, in order.
    configs : dict of str to ModelConfig
        The configurations of the models, by name.
    simulated : bool
        True for a simulation, whose times are virtual.
    source : TraceSource or None
        What is known about the trace that it was made from (`from_trace`); None for other recordings.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> recording = simulate("max_batch_size: 8 dynamic_batching { }", [(0, 2), (0, 3)], fixed(10))
    >>> [batch.size for batch in recording.batches]
    [2, 3]
    >>> recording.verdict().split(";")[0]
    '2 requests ran in 2 batches: mean batch size 2.5 rows'
    >>> recording.remarks()
    ['Simulated: times and rates are virtual, not measured.']
    >>> [(arrival.time_us, arrival.rows) for arrival in recording.arrivals()]
    [(0.0, 2), (0.0, 3)]
    >>> recording.for_model("simulated").to_pandas()[["rows", "sent_ms"]].to_numpy().tolist()
    [[2.0, 0.0], [3.0, 10.0]]
    >>> [diagnosis.name for diagnosis in recording.diagnoses()]
    []
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as directory:
    ...     recording.save(f"{directory}/recording.json")
    ...     recording.to_perfetto(f"{directory}/trace.json")
    ...     len(Recording.load(f"{directory}/recording.json").batches)
    2
    """

    plot: ClassVar[Any]
    view: ClassVar[Callable[..., Any]]
    to_html: ClassVar[Callable[..., None]]
    debug: ClassVar[Callable[..., Any]]
    between: ClassVar[Callable[..., Recording]]
    twin: ClassVar[Callable[..., Any]]
    worksheet: ClassVar[Callable[..., Any]]
    from_trace: ClassVar[Callable[..., Recording]]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Read a recording that `save` wrote.

        Parameters
        ----------
        path : path

        Returns
        -------
        Recording

        Raises
        ------
        InvalidArgumentError
            If the file is not a recording.
        """
        events, configs, simulated, source = files.read(path)
        recording = cls(events, configs, simulated=simulated, source=source)
        try:
            recording.derive()
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"recording '{path}': expected events that fit together, got {type(error).__name__}: {error}"
            ) from error
        return recording

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to a file: JSON, one event per line.

        Parameters
        ----------
        path : path
        """
        files.write(path, self)

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write the recording as a trace for https://ui.perfetto.dev.

        Parameters
        ----------
        path : path
            File to write (JSON, Chrome's trace event format).
        """
        from tritonnb.recording.perfetto import trace_events

        content = json.dumps({"traceEvents": trace_events(self), "displayTimeUnit": "ms"})
        Path(path).write_text(content, encoding="utf-8")

    def for_model(self, model: str) -> Recording:
        """Return the part of the recording that concerns one model.

        Parameters
        ----------
        model : str
            Name of a model that was served during the recording.

        Returns
        -------
        Recording

        Raises
        ------
        InvalidArgumentError
            If the recording has neither events nor a configuration of that model.
        """
        known = self.configs.keys() | {event.model for event in self.events}
        if model not in known:
            names = ", ".join(map(repr, sorted(known))) or "(none)"
            raise InvalidArgumentError(f"recording expected one of the models {names}, got '{model}'")
        configs = {name: config for name, config in self.configs.items() if name == model}
        events = (event for event in self.events if event.model == model)
        source = None if self.source is None else self.source.for_model(model)
        return Recording(events, configs, simulated=self.simulated, source=source)

    def arrivals(self) -> list[Arrival]:
        """Return the arrival of each request, in µs after the first one: for `simulate`, `load` or `sweep`."""
        self.require_every_request("arrivals()")
        return arrivals_of(self)

    def what_if(
        self, *, service: Service | None = None, seed: int = 0, continuous: bool | None = None, **edits: object
    ) -> Comparison:
        """Simulate the same arrivals under an edited configuration.

        Both the recorded and the edited configuration are simulated, with as many replicas as were recorded. Arrival
        times stay as recorded, although clients that wait for responses would have sent earlier or later under the
        edited configuration.

        Parameters
        ----------
        service : Service, optional
            Service-time model; by default the recorded one (`service`), whose times vary as recorded.
        seed : int, optional
            Seed of service times that vary.
        continuous : bool, optional
            Of a recording of generations: True for continuous batching (iterative sequences), where a generation leaves
            its slot with its last token; False for static batching, where a batch of generations lasts until the end of
            the longest one. ``service`` is then the time of a step.
        **edits
            Fields of the configuration: ``max_queue_delay_microseconds=0``, ``max_batch_size=16``,
            ``preferred_batch_size=[4]``, ``count=2``, …

        Returns
        -------
        Comparison

        Raises
        ------
        InvalidArgumentError
            If the recording is not of exactly one model (see `for_model`), or a field does not exist.

        Examples
        --------
        >>> from tritonnb import fixed, simulate
        >>> recording = simulate("max_batch_size: 4 dynamic_batching { }", [(0, 1)] * 8, fixed(10))
        >>> [batch.size for batch in recording.what_if(max_batch_size=8).after.batches]
        [1, 7]
        """
        from tritonnb.recording.what_if import what_if

        return what_if(self, service, seed, continuous, edits)

    def blame(self, request: RequestRecord | int | str | None = None, *, service: Service | None = None) -> Blame:
        """Split the latency of a request into causes, exactly, and find what would remove each.

        Parameters
        ----------
        request : RequestRecord, int or str, optional
            The request, its serial, or the id given by the client; by default the slowest request.
        service : Service, optional
            Service-time model of the simulations that find remedies; by default the recorded one (`service`).

        Returns
        -------
        Blame
            ``parts`` are the times of the causes in ns, which sum to ``latency_ns``; ``remedies`` the smallest changes
            of the configuration that remove them.

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
        """
        return blame(self, request, service)

    def summary(self) -> dict[str, float]:
        """Return the key figures of the recording.

        Returns
        -------
        dict
            ``requests``, ``rows``, ``batches`` : int
                What ran. A request that runs several times (iterative sequences) counts each time.
            ``rate`` : float
                Requests per second, from the first reception to the end of the last execution; virtual in a simulation.
            ``refused``, ``failed`` : int
                Requests that did not run, and requests that ran with an error.
            ``mean_batch_size`` : float
                Rows per batch.
            ``rows_batched`` : float
                Share (0 to 1) of the rows that ran in a batch with rows of another request.
            ``null_rows`` : int
                Null requests, the padding of the direct strategy of the sequence batcher.
            ``longest_queue_ms`` : float
                Longest time of a request in the queue, in milliseconds.
            ``latency_p50_ms``, ``latency_p99_ms`` : float
                Quantiles of the time from reception to the end of the execution, in milliseconds.
            ``tokens``, ``tokens_per_second``, ``time_to_first_token_p50_ms``, ``time_to_first_token_p99_ms``, \
            ``time_per_output_token_p50_ms``, ``time_per_output_token_p99_ms``, ``idle_slots`` : float
                Only with `generations`: what was computed when, without the way to the client; and the share (0 to 1)
                of the time in slots, or in places of static batches, after the end of a generation.

        Examples
        --------
        >>> from tritonnb import fixed, simulate
        >>> rec = simulate("max_batch_size: 2 dynamic_batching { }", [(0, 2)] * 2, fixed(5))
        >>> rec.summary()["mean_batch_size"], rec.summary()["latency_p50_ms"]
        (2.0, 7.5)
        """
        return summary(self)

    def verdict(self) -> str:
        """Summarize the recording in one sentence."""
        return verdict(self)

    def diagnoses(self) -> list[Diagnosis]:
        """Find mismatches of workload and configuration, each with its evidence and a remedy; empty if none."""
        self.require_every_request("diagnoses()")
        return diagnose(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row for each batch; ``sent_ms`` counts from the first batch sent.

        Returns
        -------
        pandas.DataFrame

        Raises
        ------
        ImportError
            Where pandas is not installed.
        """
        import pandas

        begin = min((batch.sent_ns for batch in self.batches), default=0)
        rows = [
            {
                "batch": batch.number,
                "model": batch.model,
                "instance": batch.instance,
                "requests": len(batch.requests),
                "rows": batch.size,
                "sent_ms": (batch.sent_ns - begin) / 1e6,
                "queue_ms": batch.queue_ns / 1e6,
                "compute_ms": batch.compute_ns / 1e6,
                "why": batch.why,
            }
            for batch in self.batches
        ]
        return pandas.DataFrame(rows)

    def remarks(self) -> list[str]:
        """Explain how to read the numbers: whether they are simulated, and facts about the trace."""
        remarks = ["Simulated: times and rates are virtual, not measured."] if self.simulated else []
        if self.source is not None:
            remarks += [f"From a trace: {text}." for text in self.source.remarks()]
        return remarks

    def __repr__(self) -> str:
        remarks = [f"  {remark}" for remark in self.remarks()]
        if self.source is not None and self.source.sampled:
            return "\n".join([self.verdict(), *remarks])
        lines = [self.verdict()]
        for size, count in self.batch_sizes().items():
            lines.append(f"  batch size {size:>4}: {count:>5} x {self.median_ms(size):8.2f} ms (median)")
        return "\n".join([*lines, *remarks, *(f"  ! {diagnosis}" for diagnosis in self.diagnoses())])

    def _repr_html_(self) -> str:
        if self.source is not None and self.source.sampled:
            return html_report(self.verdict(), (), (), self.remarks())
        rows = [(size, count, f"{self.median_ms(size):.2f}") for size, count in self.batch_sizes().items()]
        titles = ("batch size (rows)", "batches", "compute, median (ms)")
        return html_report(self.verdict(), titles, rows, [*self.diagnoses(), *self.remarks()])
