"""A recording: the events of a server or a simulation over a period, and the requests and batches derived from them."""

from __future__ import annotations

import html
import json
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import Event, RequestArrived, RequestRefused
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.field_overrides import with_overrides
from tritonnb.recording import files
from tritonnb.recording.arrivals import arrivals_of
from tritonnb.recording.batches import Batch, RequestRecord, batch_rows, batches_of
from tritonnb.recording.blame import Blame, blame
from tritonnb.recording.comparison import Comparison
from tritonnb.recording.diagnoses import Diagnosis, diagnose
from tritonnb.recording.ensemble_requests import EnsembleRequest, ensemble_requests_of
from tritonnb.recording.instances import instances_of, natural_sort_key
from tritonnb.recording.recorded_times import recorded_times
from tritonnb.recording.sequences import SlotOccupancy, slot_count, slot_occupancy_of
from tritonnb.recording.summary import summary, verdict
from tritonnb.recording.trace_source import Agreement, TraceSource
from tritonnb.scheduling.reasons import pluralize
from tritonnb.simulation.arrivals import Arrival
from tritonnb.simulation.run import run
from tritonnb.simulation.service import Service, table

if TYPE_CHECKING:
    import pandas

    from tritonnb.figures.plot import Plot
    from tritonnb.notebook.batch_view import BatchView
    from tritonnb.recording.debugger import Debugger
    from tritonnb.remote.from_trace import Configs, Paths
    from tritonnb.teaching.worksheet import Worksheet


_VIRTUAL = "Simulated: times and rates are virtual, not measured."


class Recording:
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
    >>> with server.record() as rec:  # doctest: +SKIP
    ...     server["digits"](image=images)
    >>> rec.batches[0].why  # doctest: +SKIP
    """

    def __init__(
        self,
        events: Iterable[Event] = (),
        configs: Mapping[str, pb.ModelConfig] | None = None,
        *,
        simulated: bool = False,
        source: TraceSource | None = None,
    ) -> None:
        self.simulated = simulated
        self.source = source
        self.fill(events, configs or {})

    def fill(self, events: Iterable[Event], configs: Mapping[str, pb.ModelConfig]) -> None:
        """Replace the content; a recording in progress is empty until it ends."""
        self.events = list(events)
        self.configs = dict(configs)
        for derived in ("_executed", "ensemble_requests", "slot_occupancy"):
            self.__dict__.pop(derived, None)

    @property
    def batches(self) -> list[Batch]:
        """The batches that ran, in the order in which they finished."""
        return self._executed[0]

    @property
    def requests(self) -> list[RequestRecord]:
        """The requests that ran."""
        return self._executed[1]

    @property
    def refused(self) -> list[RequestRefused]:
        """The requests that were refused or cancelled before they ran."""
        return [event for event in self.events if isinstance(event, RequestRefused)]

    @cached_property
    def _executed(self) -> tuple[list[Batch], list[RequestRecord]]:
        executed = list(batches_of(self.events))
        return [batch for batch, _ in executed], [request for _, requests in executed for request in requests]

    @cached_property
    def slot_occupancy(self) -> list[SlotOccupancy]:
        """Which sequence held which batch slot, and when; empty without a stateful model."""
        return slot_occupancy_of(batches_of(self.events), self.configs, self.span_ns[1])

    @cached_property
    def ensemble_requests(self) -> list[EnsembleRequest]:
        """Requests of ensembles, with the requests of their steps."""
        return ensemble_requests_of(self.events)

    @property
    def plot(self) -> Plot:
        """Static figures: ``rec.plot()`` for an overview; ``rec.plot.timeline()``, ``slots``, ``steps``, ...

        Each takes ``start_ms=`` and ``end_ms=`` to select a time range and returns a figure.
        """
        from tritonnb.figures.plot import Plot  # matplotlib takes a while to import

        return Plot(self)

    def view(self) -> BatchView:
        """Open the recording in the widget of `ModelHandle.watch`, to step, zoom and export.

        Raises
        ------
        InvalidArgumentError
            If the recording is not of exactly one model; see `for_model`.
        """
        from tritonnb.notebook.batch_view import view

        self.require_every_request("view()")
        return view(self)

    @property
    def span_ns(self) -> tuple[int, int]:
        """Monotonic times of the first event, or acceptance of a request that ran, and of the last event."""
        times = [event.time_ns for event in self.events] or [0]
        begin = min(times[0], *(request.queued_ns for request in self.requests)) if self.requests else times[0]
        return begin, max(times)

    @property
    def origin_ns(self) -> int:
        """The time (monotonic clock, ns) that figures show as 0: the beginning."""
        return self.span_ns[0]

    def between(self, start_ms: float | None = None, end_ms: float | None = None) -> Recording:
        """Return the requests that were in the server during a time range, and their batches.

        Parameters
        ----------
        start_ms, end_ms : float, optional
            Milliseconds from the beginning of the recording; by default its beginning and its end.

        Raises
        ------
        InvalidArgumentError
            If ``start_ms`` is not before ``end_ms``.
        """
        from tritonnb.recording.excerpt import excerpt

        return excerpt(self, start_ms, end_ms)

    @property
    def instances(self) -> list[str]:
        """Names of the instances that ran a batch, and of those that the configuration defines but that stayed idle."""
        seen = {batch.instance for batch in self.batches}
        for name, config in self.configs.items():
            if any(batch.model == name for batch in self.batches):
                seen.update(instances_of(name, config))
        return sorted(seen, key=natural_sort_key)

    def sizes_of(self, instance: str) -> tuple[int, list[int]]:
        """The largest possible batch of an instance in rows, and the preferred batch sizes of its model."""
        batches = [batch for batch in self.batches if batch.instance == instance]
        config = self._config_of(instance)
        seen = max((batch.size for batch in batches), default=1)
        if config is None:
            return seen, []
        batching = config.sequence_batching.oldest if config.HasField("sequence_batching") else config.dynamic_batching
        return max(config.max_batch_size, seen), sorted(set(batching.preferred_batch_size))

    def slots_of(self, instance: str) -> int:
        """Number of batch slots of an instance of a stateful model."""
        config = self._config_of(instance)
        seen = max(
            (max(batch.slots) + 1 for batch in self.batches if batch.instance == instance and batch.slots), default=1
        )
        return seen if config is None else max(seen, slot_count(config))

    def _config_of(self, instance: str) -> pb.ModelConfig | None:
        models = {batch.model for batch in self.batches if batch.instance == instance}
        names = models or {name for name in self.configs if instance.startswith(f"{name}_")}
        return next((self.configs[name] for name in names if name in self.configs), None)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Read a recording that `save` wrote.

        Raises
        ------
        InvalidArgumentError
            If the file is not a recording.
        """
        events, configs, simulated, source = files.read(path)
        return cls(events, configs, simulated=simulated, source=source)

    @classmethod
    def from_trace(cls, paths: Paths, config: Configs = None, *, trace_rate: int | None = None) -> Recording:
        """Read the traces of a Triton server.

        Requests that were executed at the same time are a batch. A trace does not contain why a batch was sent: the
        reasons are inferred by a replay of the scheduler with the recorded arrivals and execution times, and marked as
        inferred. `agreement` says how many batches that replay reproduces, `source` what else the trace leaves open.

        Parameters
        ----------
        paths : path or sequence of paths
            Trace files of the mode ``triton``, whole or cut off; the name of a series ``NAME.0``, ``NAME.1``, … stands
            for all of its files. Or files with OTLP messages (mode ``opentelemetry``), in JSON or protobuf.
        config : configuration, mapping of str to configuration, or path, optional
            The configuration of the model, in any form that `simulate` accepts; of several models, a dict by name or a
            model repository. Without it there are no reasons and no `what_if`.
        trace_rate : int, optional
            The server's trace rate: one of so many requests was traced. By default it is estimated whether the trace
            contains every request.

        Raises
        ------
        InvalidArgumentError
            If a file is not a trace, or the configuration cannot be read.

        Examples
        --------
        >>> rec = tnb.Recording.from_trace("trace.json", "model_repository/dense/config.pbtxt")  # doctest: +SKIP
        >>> print(rec.agreement)  # doctest: +SKIP
        >>> rec.diagnoses()  # doctest: +SKIP
        """
        from tritonnb.remote.from_trace import from_trace

        return from_trace(paths, config, trace_rate)

    @property
    def agreement(self) -> Agreement | None:
        """How many batches of a trace a replay of the scheduler reproduces; None if it was not made from a trace."""
        return None if self.source is None else self.source.agreement

    def require_every_request(self, purpose: str) -> None:
        """Raise an error if the recording was made from a sampled trace.

        Raises
        ------
        InvalidArgumentError
            If it does not contain every request.
        """
        if self.source is not None and self.source.sampled:
            raise InvalidArgumentError(
                f"{purpose} expected a recording of every request, got a sample: {self.source.sampled}; "
                "set trace_rate to 1"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to a file: JSON, one event per line."""
        files.write(path, self.events, self.configs, self.simulated, self.source)

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

    def to_html(self, path: str | os.PathLike[str], *, title: str = "", remedies: int = 3) -> None:
        """Write the recording as one web page with its views, which needs neither a kernel nor a network.

        The page is for people who do not have the recording, or no Python. What the recording contains is shown as text
        only: the page's security policy does not allow any script but its own.

        Parameters
        ----------
        path : path
            File to write (HTML).
        title : str, optional
            Title of the page; by default the names of the models.
        remedies : int, optional
            For how many of the slowest requests of each model the page includes remedies (see `blame`), which are found
            by simulation. Their latencies are split for the 2,000 slowest requests.

        Raises
        ------
        InvalidArgumentError
            If the recording has no events of a model.
        """
        from tritonnb.notebook.page import recording_page

        Path(path).write_text(recording_page(self, title, remedies), encoding="utf-8")

    def for_model(self, model: str) -> Recording:
        """Return the part of the recording that concerns one model.

        Parameters
        ----------
        model : str
            Name of a model that was served during the recording.

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
        """Arrival of each request, in µs after the first one: for `simulate`, `load` or `sweep`."""
        self.require_every_request("arrivals()")
        return arrivals_of(self.events)

    def service(self) -> Service:
        """Return a service-time model with the median execution time of each batch size.

        Raises
        ------
        InvalidArgumentError
            If nothing was executed.
        """
        sizes = self.batch_sizes()
        if not sizes:
            raise InvalidArgumentError("service() expected a recording with at least one executed batch, got none")
        return table({size: self.median_ms(size) for size in sizes})

    def what_if(self, *, service: Service | None = None, seed: int = 0, **edits: object) -> Comparison:
        """Simulate the same arrivals under an edited configuration.

        Both the recorded and the edited configuration are simulated. Arrival times stay as recorded, although clients
        that wait for responses would have sent earlier or later under the edited configuration.

        Parameters
        ----------
        service : Service, optional
            Service-time model; by default the recorded one (`service`). For a recording of a trace its times vary as
            they did on the server.
        seed : int, optional
            Seed of random service times.
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
        """
        models = {event.model for event in self.events if isinstance(event, RequestArrived)}
        if len(models) != 1:
            names = f"{', '.join(sorted(models))}: use rec.for_model()" if models else "no model"
            raise InvalidArgumentError(f"what_if expected a recording of one model, got one of {names}")
        name = models.pop()
        if name not in self.configs:
            raise InvalidArgumentError(f"what_if expected the configuration of model '{name}', got none: give config=")
        config = self.configs[name]
        times = service or (self.service() if self.source is None else recorded_times(self))
        runs = [
            Recording(run(candidate, self.arrivals(), times, seed), {name: candidate}, simulated=True)
            for candidate in (config, with_overrides(config, edits))
        ]
        return Comparison(runs[0], runs[1], edits, self)

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
        """
        return blame(self, request, service)

    def debug(self) -> Debugger:
        """Step through the events, forwards and backwards, with the future hidden and with breakpoints.

        Returns
        -------
        Debugger
            A notebook shows it as a widget.

        Raises
        ------
        InvalidArgumentError
            If the recording is not of exactly one model with its configuration.
        """
        from tritonnb.recording.debugger import Debugger

        return Debugger(self)

    def worksheet(self, start_ms: float = 0.0, requests: int = 10) -> Worksheet:
        """Make an exercise of recorded requests: predict their batches, then reveal them.

        Parameters
        ----------
        start_ms : float, optional
            The exercise begins with the first request after this time, in milliseconds from the beginning of the
            recording. The instances are idle then, whatever they did in the recording.
        requests : int, optional
            Number of requests, at most 26.

        Returns
        -------
        Worksheet
            With the recorded configuration and the median execution times. A notebook shows it as a widget.

        Raises
        ------
        InvalidArgumentError
            If the recording is not of exactly one model, or no request arrived after ``start_ms``.
        """
        from tritonnb.teaching.recorded_worksheet import recorded_worksheet

        return recorded_worksheet(self, start_ms, requests)

    def batch_sizes(self) -> dict[int, int]:
        """Number of batches that ran, by batch size in rows."""
        self.require_every_request("batch_sizes()")
        return dict(sorted(Counter(batch.size for batch in self.batches).items()))

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
        """Mismatches of workload and configuration, each with its evidence and a remedy; empty if there are none."""
        self.require_every_request("diagnoses()")
        return diagnose(self)

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each batch; ``sent_ms`` counts from the first batch sent.

        Raises
        ------
        ImportError
            Where pandas is not installed.
        """
        import pandas

        return pandas.DataFrame(batch_rows(self.batches))

    def __repr__(self) -> str:
        remarks = [f"  {remark}" for remark in self._remarks()]
        if self.source is not None and self.source.sampled:
            return "\n".join([self.verdict(), *remarks])
        lines = [self.verdict()]
        for size, count in self.batch_sizes().items():
            lines.append(f"  batch size {size:>4}: {count:>5} x {self.median_ms(size):8.2f} ms (median)")
        return "\n".join([*lines, *remarks, *(f"  ! {diagnosis}" for diagnosis in self.diagnoses())])

    def _remarks(self) -> list[str]:
        """How the numbers are to be read."""
        remarks = [_VIRTUAL] if self.simulated else []
        if self.source is not None:
            remarks += [f"From a trace: {text}." for text in self.source.remarks()]
        return remarks

    def _repr_html_(self) -> str:
        verdict = f"<p><b>{html.escape(self.verdict())}</b></p>"
        remarks = "".join(f"<p><i>{html.escape(remark)}</i></p>" for remark in self._remarks())
        if self.source is not None and self.source.sampled:
            return verdict + remarks
        rows = "".join(
            f"<tr><td>{size}</td><td>{count}</td><td>{self.median_ms(size):.2f}</td></tr>"
            for size, count in self.batch_sizes().items()
        )
        table = (
            "<table><thead><tr><th>batch size (rows)</th><th>batches</th><th>compute, median (ms)</th></tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )
        findings = "".join(f"<li>{html.escape(str(diagnosis))}</li>" for diagnosis in self.diagnoses())
        return verdict + (table if rows else "") + (f"<ul>{findings}</ul>" if findings else "") + remarks

    def median_ms(self, size: int) -> float:
        """Median execution time of batches with this many rows, in milliseconds.

        Raises
        ------
        InvalidArgumentError
            If no such batch ran.
        """
        times = [batch.compute_ns / 1e6 for batch in self.batches if batch.size == size]
        if not times:
            raise InvalidArgumentError(f"no batch of {pluralize(size, 'row')} ran")
        return statistics.median(times)
