"""A recording: the event stream of a while, as requests and batches that one can ask why.

Everything here is derived from the events, which stay available as they came.
"""

from __future__ import annotations

import html
import json
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import Event, RequestArrived, RequestCancelled, RequestRefused
from tritonnb.core.messages import SEQUENCE_END, SEQUENCE_START
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.field_overrides import with_overrides
from tritonnb.recording import files
from tritonnb.recording.batches import Batch, RequestRecord, batches_of
from tritonnb.recording.comparison import Comparison
from tritonnb.recording.diagnoses import Diagnosis, diagnose
from tritonnb.recording.ensemble_requests import EnsembleRequest, ensemble_requests_of
from tritonnb.recording.instances import instances_of, natural
from tritonnb.recording.sequences import SlotOccupancy, slot_count, stays
from tritonnb.recording.summary import summary, verdict
from tritonnb.scheduling.reasons import pluralize
from tritonnb.simulation.arrivals import Arrival
from tritonnb.simulation.run import run
from tritonnb.simulation.service import Service, table

if TYPE_CHECKING:
    import pandas

    from tritonnb.figures.plot import Plot
    from tritonnb.notebook.batch_view import BatchView


_VIRTUAL = "Simulated: times and rates are virtual, not measured."


class Recording:
    """What happened while it was recorded.

    Attributes
    ----------
    events : list of Event
        Everything, in order.
    configs : dict of str to ModelConfig
        The configurations of the models, by name.
    simulated : bool
        Whether its times are virtual.

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
    ) -> None:
        self.simulated = simulated
        self.fill(events, configs or {})

    def fill(self, events: Iterable[Event], configs: Mapping[str, pb.ModelConfig]) -> None:
        """Make this the recording of these events; a recording in progress is empty until it ends."""
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
        """The requests that did not run."""
        return [each for each in self.events if isinstance(each, RequestRefused)]

    @cached_property
    def _executed(self) -> tuple[list[Batch], list[RequestRecord]]:
        found = list(batches_of(self.events))
        return [batch for batch, _ in found], [each for _, requests in found for each in requests]

    @cached_property
    def slot_occupancy(self) -> list[SlotOccupancy]:
        """Sequences in the slots of their instances; empty without a stateful model."""
        return stays(batches_of(self.events), self.configs, self.span_ns[1])

    @cached_property
    def ensemble_requests(self) -> list[EnsembleRequest]:
        """Requests of ensembles on their way through the steps."""
        return ensemble_requests_of(self.events)

    @property
    def plot(self) -> Plot:
        """Still figures: ``rec.plot()`` for an overview; ``rec.plot.timeline()``, ``slots``, ``steps``, ...

        Each takes ``start_ms=`` and ``end_ms=`` for a part of the time, and gives a figure.
        """
        from tritonnb.figures.plot import Plot  # matplotlib takes a while to import

        return Plot(self)

    def view(self) -> BatchView:
        """The recording in the view that `ModelHandle.watch` shows live: to scrub through, step, zoom and export.

        Raises
        ------
        InvalidArgumentError
            If it is of no model or of several; see `of`.
        """
        from tritonnb.notebook.batch_view import view

        return view(self)

    @property
    def span_ns(self) -> tuple[int, int]:
        """From the first event, or the acceptance of the first request that ran, to the last."""
        times = [each.time_ns for each in self.events] or [0]
        begin = min(times[0], *(each.queued_ns for each in self.requests)) if self.requests else times[0]
        return begin, max(times)

    @property
    def origin_ns(self) -> int:
        """The moment from which times of figures count: the beginning."""
        return self.span_ns[0]

    def between(self, start_ms: float | None = None, end_ms: float | None = None) -> Recording:
        """The requests that were in the server in a part of the time, and their batches.

        Parameters
        ----------
        start_ms, end_ms : float, optional
            Milliseconds from the beginning; by default from the beginning, and to the end.

        Raises
        ------
        InvalidArgumentError
            If the part has no length.
        """
        from tritonnb.recording.excerpt import excerpt

        return excerpt(self, start_ms, end_ms)

    @property
    def instances(self) -> list[str]:
        """The instances that ran something, and those that are known to have had nothing to do."""
        seen = {each.instance for each in self.batches}
        for name, config in self.configs.items():
            if any(each.model == name for each in self.batches):
                seen.update(instances_of(name, config))
        return sorted(seen, key=natural)

    def sizes_of(self, instance: str) -> tuple[int, list[int]]:
        """The largest batch of an instance in rows, and the preferred sizes of its model."""
        batches = [each for each in self.batches if each.instance == instance]
        config = self._config_of(instance)
        seen = max((each.size for each in batches), default=1)
        if config is None:
            return seen, []
        batching = config.sequence_batching.oldest if config.HasField("sequence_batching") else config.dynamic_batching
        return max(config.max_batch_size, seen), sorted(set(batching.preferred_batch_size))

    def slots_of(self, instance: str) -> int:
        """Slots of an instance of a stateful model."""
        config = self._config_of(instance)
        seen = max(
            (max(each.slots) + 1 for each in self.batches if each.instance == instance and each.slots), default=1
        )
        return seen if config is None else max(seen, slot_count(config))

    def _config_of(self, instance: str) -> pb.ModelConfig | None:
        models = {each.model for each in self.batches if each.instance == instance}
        names = models or {name for name in self.configs if instance.startswith(f"{name}_")}
        return next((self.configs[name] for name in names if name in self.configs), None)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Read a recording that was saved.

        Raises
        ------
        InvalidArgumentError
            If the file is no recording.
        """
        events, configs, simulated = files.read(path)
        return cls(events, configs, simulated=simulated)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to a file, one event a line (JSON)."""
        files.write(path, self.events, self.configs, self.simulated)

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write the recording as a timeline, to be opened in https://ui.perfetto.dev.

        Parameters
        ----------
        path : path
            Of the file (JSON, Chrome's trace event format).
        """
        from tritonnb.recording.perfetto import trace_events

        content = json.dumps({"traceEvents": trace_events(self), "displayTimeUnit": "ms"})
        Path(path).write_text(content, encoding="utf-8")

    def of(self, model: str) -> Recording:
        """Only what concerns one model.

        Parameters
        ----------
        model : str
            One that was served while it was recorded.

        Raises
        ------
        InvalidArgumentError
            If nothing was recorded of a model of that name.
        """
        known = self.configs.keys() | {each.model for each in self.events}
        if model not in known:
            names = ", ".join(map(repr, sorted(known))) or "no model"
            raise InvalidArgumentError(f"nothing was recorded of model '{model}', only of {names}")
        configs = {name: each for name, each in self.configs.items() if name == model}
        events = (each for each in self.events if each.model == model)
        return Recording(events, configs, simulated=self.simulated)

    def arrivals(self) -> list[Arrival]:
        """When each request arrived, from the first on, to simulate again or to send again."""
        arrived = [each for each in self.events if isinstance(each, RequestArrived)]
        given_up = {each.serial: each.time_ns for each in self.events if isinstance(each, RequestCancelled)}
        return [_arrival(each, arrived[0].time_ns, given_up.get(each.serial)) for each in arrived]

    def service(self) -> Service:
        """How long executions took, by rows (medians): a service-time model.

        Raises
        ------
        InvalidArgumentError
            If nothing was executed.
        """
        sizes = self.batch_sizes()
        if not sizes:
            raise InvalidArgumentError("nothing was executed while it was recorded, so no service time is known")
        return table({size: self.median_ms(size) for size in sizes})

    def what_if(self, *, service: Service | None = None, seed: int = 0, **edits: Any) -> Comparison:
        """What the same arrivals would have met under another configuration, in virtual time.

        Both configurations, the recorded and the other one, are simulated. Arrivals stay as they were recorded:
        clients that wait for answers would have sent earlier or later under the other configuration.

        Parameters
        ----------
        service : Service, optional
            By default as recorded (`service`).
        seed : int, optional
            Of what is random in the service times.
        **edits
            Fields of the configuration: ``max_queue_delay_microseconds=0``, ``max_batch_size=16``,
            ``preferred_batch_size=[4]``, ``count=2``, …

        Returns
        -------
        Comparison

        Raises
        ------
        InvalidArgumentError
            If the recording is of no model or of several (see `of`), or a field does not exist.
        """
        models = {each.model for each in self.events if isinstance(each, RequestArrived)}
        if len(models) != 1:
            found = f"{', '.join(sorted(models))}: use rec.of()" if models else "no model"
            raise InvalidArgumentError(f"what_if needs a recording of one model, and this is of {found}")
        name = models.pop()
        config = self.configs[name]
        runs = [
            Recording(run(each, self.arrivals(), service or self.service(), seed), {name: each}, simulated=True)
            for each in (config, with_overrides(config, edits))
        ]
        return Comparison(runs[0], runs[1], edits, self)

    def batch_sizes(self) -> dict[int, int]:
        """How many batches of each number of rows ran."""
        return dict(sorted(Counter(each.size for each in self.batches).items()))

    def summary(self) -> dict[str, Any]:
        """The recording in numbers; times in milliseconds."""
        return summary(self)

    def verdict(self) -> str:
        """The recording in one sentence."""
        return verdict(self)

    def diagnoses(self) -> list[Diagnosis]:
        """What does not suit the workload or the configuration, with the evidence; empty if nothing stands out."""
        return diagnose(self)

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each batch; times in milliseconds from the first batch sent.

        Raises
        ------
        ImportError
            Where pandas is not installed.
        """
        import pandas

        return pandas.DataFrame(self._table())

    def _table(self) -> list[dict[str, Any]]:
        begin = min((each.sent_ns for each in self.batches), default=0)
        return [
            {
                "batch": each.number,
                "model": each.model,
                "instance": each.instance,
                "requests": len(each.requests),
                "rows": each.size,
                "sent_ms": (each.sent_ns - begin) / 1e6,
                "queue_ms": each.queue_ns / 1e6,
                "compute_ms": each.compute_ns / 1e6,
                "why": each.why,
            }
            for each in self.batches
        ]

    def __repr__(self) -> str:
        lines = [self.verdict()]
        for size, count in self.batch_sizes().items():
            lines.append(f"  batch size {size:>4}: {count:>5} x {self.median_ms(size):8.2f} ms (median)")
        lines += [f"  {_VIRTUAL}"] if self.simulated else []
        return "\n".join([*lines, *(f"  ! {each}" for each in self.diagnoses())])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{size}</td><td>{count}</td><td>{self.median_ms(size):.2f}</td></tr>"
            for size, count in self.batch_sizes().items()
        )
        table = (
            "<table><thead><tr><th>batch size (rows)</th><th>batches</th><th>compute, median (ms)</th></tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )
        findings = "".join(f"<li>{html.escape(str(each))}</li>" for each in self.diagnoses())
        return (
            f"<p><b>{html.escape(self.verdict())}</b></p>"
            + (table if rows else "")
            + (f"<ul>{findings}</ul>" if findings else "")
            + (f"<p><i>{_VIRTUAL}</i></p>" if self.simulated else "")
        )

    def median_ms(self, size: int) -> float:
        """How long a batch of this many rows ran: the median, in milliseconds.

        Raises
        ------
        InvalidArgumentError
            If none ran.
        """
        times = [each.compute_ns / 1e6 for each in self.batches if each.size == size]
        if not times:
            raise InvalidArgumentError(f"no batch of {pluralize(size, 'row')} ran")
        return statistics.median(times)


def _arrival(event: RequestArrived, begin_ns: int, given_up_ns: int | None) -> Arrival:
    return Arrival(
        (event.time_ns - begin_ns) / 1000,
        event.size,
        event.priority,
        event.timeout_us,
        event.correlation_id,
        bool(event.flags & SEQUENCE_START),
        bool(event.flags & SEQUENCE_END),
        event.shape_key,
        None if given_up_ns is None else (given_up_ns - begin_ns) / 1000,
    )
