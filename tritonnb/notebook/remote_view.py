"""Views of another server: a model's batches or statistics, its configuration, and the replicas of a deployment."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import reduce
from typing import Any, cast

from tritonnb.client.connection import Remote, RemoteModelHandle
from tritonnb.client.trace_state import TRACE_COUNT, changed_settings
from tritonnb.core.errors import TritonError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.html_table import html_table
from tritonnb.core.json_types import Json
from tritonnb.core.packed_events import pack
from tritonnb.lab.traces.from_trace import recording_of
from tritonnb.lab.traces.live_events import LiveEvents
from tritonnb.lab.traces.otlp_receiver import OtlpReceiver
from tritonnb.notebook.batch_view import BatchView
from tritonnb.notebook.config_editor import ConfigEditor
from tritonnb.notebook.containers import Group, Markup
from tritonnb.notebook.html_reprs import activity_cells, remote_card
from tritonnb.notebook.statistics_view import StatisticsDashboard, StatisticsView
from tritonnb.notebook.view_session import ViewSession
from tritonnb.notebook.views import PolledView, open_view
from tritonnb.recording.recording import Recording
from tritonnb.scale.merge import add_entries
from tritonnb.telemetry.statistics_entry import difference

#: What is traced while a view is open: a limited number of requests, so that a killed process leaves nothing on.
_TRACED = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": str(TRACE_COUNT)}
#: Seconds until the number is renewed; a recording of the model that has ended switched its traces off.
_RENEWAL_S = 10.0
#: Sequences that are named for each replica and model; the others are counted.
_NAMED = 12


@with_short_traceback
def watch(model: RemoteModelHandle, receiver: OtlpReceiver | None = None) -> RemoteBatchView | StatisticsView:
    """Open a live view of the batches, or of the statistics without traces.

    Parameters
    ----------
    receiver : OtlpReceiver, optional
        To which the server sends its spans. The trace settings of the model are changed while the view is open.
        Without it, the view shows the differences of the statistics from second to second.

    Returns
    -------
    RemoteBatchView or StatisticsView
        A widget, which says which of the two it shows; `close` ends it.

    Raises
    ------
    TritonError
        If the server does not respond, or cannot trace.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     with tnb.connect(server.url) as remote:
    ...         remote["double"].watch().close()
    """
    return StatisticsView(model) if receiver is None else RemoteBatchView(model, receiver)


class RemoteBatchView(PolledView):
    """The batches of a model on another server, as its traces arrive.

    The trace settings of the model are changed while the view is open; `close` restores them.

    Attributes
    ----------
    batches : BatchView or None
        None until the first batches have come.
    status : Markup
        Says where the batches come from, and how many were received.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> receiver = tnb.otlp_receiver(port=0)
    >>> trace = tnb.TraceOptions(mode="opentelemetry", exporting=(("url", receiver.url),))
    >>> with tnb.Server(port=0, trace=trace) as server, tnb.connect(server.url) as remote:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     view = remote["double"].watch(receiver)
    ...     print(len(view.recording().batches))
    ...     view.close()
    0
    >>> receiver.close()
    """

    def __init__(self, model: RemoteModelHandle, receiver: OtlpReceiver) -> None:
        self.name = model.name
        self._config = model.running_config()
        self._events = LiveEvents(model.name, self._config)
        self._session: ViewSession | None = None
        self._settings = ExitStack()
        self._server = model.server.server
        model.server.require_extension("trace")
        self._settings.enter_context(changed_settings(self._server, [model.name], _TRACED))
        self._renewed_s = time.monotonic()
        receiver.subscribe(self._events.add)
        self._settings.callback(receiver.unsubscribe, self._events.add)
        self.batches: BatchView | None = None
        super().__init__(f"tritonnb remote view {model.name}", Markup(self._text()))

    def recording(self) -> Recording:
        """Return the newest requests as a recording."""
        return recording_of(list(self._events.requests), {self.name: self._config}, 1)

    def refresh(self) -> None:
        """Show the received data; the view does so every second."""
        if time.monotonic() - self._renewed_s > _RENEWAL_S:
            self._server.update_trace_settings(_TRACED, self.name)
            self._renewed_s = time.monotonic()
        events = self._events.take_events()
        if not events:
            self.status.value = self._text()
            return
        now_ns = max(event.time_ns for event in events)
        if self._session is None:
            self._session = ViewSession(self.name, self._config, events[0].time_ns)
        self.status.value = self._text()
        self._session.tracker.fold(map(pack, events))
        delivery = self._session.flush(now_ns)
        if self.batches is None:  # its first picture shows the time span of the first batches
            self.batches = BatchView(self._session.history(), self.recording())
            self._parts.append(self.batches)
            self.children = tuple(self._parts)
        else:
            self.batches.send(delivery)
            self.batches.history = self._session.history()

    def close(self) -> None:
        """Stop following the model, restore its trace settings, and close the view.

        Raises
        ------
        UnavailableError
            If they could not be restored.
        """
        super().close()
        self._settings.close()

    def last_state(self) -> str:
        """Return the displayed data as HTML."""
        return f"<p>{self.status.value}</p>{'' if self.batches is None else self.batches.last_state()}"

    def refresh_last_state(self) -> bool:
        """Show the received data; return whether there is anything new."""
        before = self.status.value
        self.refresh()
        return bool(self.status.value != before)

    def _text(self) -> str:
        received = f"<b>{html.escape(self.name)}</b>, from traces (OTLP): {self._events.received:,} requests received."
        if self._session is None:
            return received
        origin = "reported by the server" if self._events.reports else "inferred from the times of the requests"
        return f"{received} Batches, instances and reasons: {origin}."


@with_short_traceback
def dashboard(remote: Remote) -> ReplicasView | StatisticsDashboard:
    """Open the models of a server with their rates and batch sizes; or the replicas of a deployment.

    Returns
    -------
    ReplicasView or StatisticsDashboard
        A widget, which is updated every second; `close` ends it. Of a deployment of `tnb.scale` that is connected over
        HTTP, it shows requests, queues and batch sizes of each replica, and where sequences live.

    Raises
    ------
    TritonError
        If the server does not respond.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     with tnb.connect(server.url) as remote:
    ...         remote.dashboard().close()
    """
    remote.require_open()
    try:
        remote.replicas()
    except TritonError:  # another server than a deployment, or gRPC, which does not list replicas
        return StatisticsDashboard(remote)
    return ReplicasView(remote)


class ReplicasView(PolledView):
    """The replicas of a deployment, read every second.

    Attributes
    ----------
    status, replicas, sequences, models : Markup
        What is shown, and where from; a row for each replica; a row for each replica and model with live sequences;
        the models of the deployment when the view was opened.
    """

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._totals: dict[str, Json] = {}  # over the models of each replica
        self._read_s = time.monotonic()
        self.status, self.replicas, self.sequences = Markup(), Markup(), Markup()
        remote.replicas()  # raises an error if the server is not a deployment
        self.models = Markup(remote_card(remote))
        parts = {"Replicas": self.replicas, "Sequences": self.sequences, "Models": self.models}
        tabs = Group(tuple(parts.values()), titles=tuple(parts))
        self.refresh()
        super().__init__(f"tritonnb replicas {remote.url}", self.status, [tabs])
        self._parts += parts.values()

    def refresh(self) -> None:
        """Read the state of the replicas; the view does so every second."""
        replicas, statistics, now = self._remote.replicas(), self._remote.replica_stats(), time.monotonic()
        seconds, self._read_s = now - self._read_s, now
        totals = {name: reduce(add_entries, entries, Json()) for name, entries in statistics.items() if entries}
        live = sum(len(replica["sequences"]) for replica in replicas)
        self.status.value = (
            f"<b>{html.escape(self._remote.url)}</b>: {len(replicas)} replicas, {live} live sequences. "
            f"Requests per second and batches are those of the last {seconds:.0f} s."
        )
        rows = [self._row(replica, totals.get(str(replica["replica"])), seconds) for replica in replicas]
        titles = ("replica", "group", "state", "requests/s", "in flight", "queued", "mean batch (rows)",
                  "batches (rows×count)", "live sequences")  # fmt: skip
        self.replicas.value = html_table(titles, rows)
        self.sequences.value = _sequences_table(replicas)
        self._totals = totals
        self.keep_last_state()

    def last_state(self) -> str:
        """Return the displayed data as HTML."""
        return f"<p>{self.status.value}</p>{self.replicas.value}{self.sequences.value}"

    def _row(self, replica: Mapping[str, Any], total: Json | None, seconds: float) -> list[Any]:
        name = str(replica["replica"])
        cells = ["–"] * 3
        if total is not None:
            new = difference(total, self._totals.get(name, total))
            if new["execution_count"] >= 0:  # else a model was loaded again
                cells = activity_cells(new, seconds)
        rate, *batches = cells
        state = [name, replica["group"], replica["state"], rate, replica["in_flight"], replica["queued"]]
        return [*state, *batches, len(replica["sequences"])]


def _sequences_table(replicas: Sequence[Mapping[str, Any]]) -> str:
    rows = [row for replica in replicas for row in _placement(replica)]
    return html_table(("replica", "model", "live", "correlation IDs"), rows) or "<p>No live sequences.</p>"


def _placement(replica: Mapping[str, Any]) -> list[list[Any]]:
    """Return the live sequences of a replica: a row for each model."""
    rows = []
    for model in sorted({str(sequence["model"]) for sequence in replica["sequences"]}):
        ids = [str(sequence["sequence_id"]) for sequence in replica["sequences"] if sequence["model"] == model]
        more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
        rows.append([replica["replica"], model, len(ids), ", ".join(ids[:_NAMED]) + more])
    return rows


@with_short_traceback
def edit_remote_config(model: RemoteModelHandle) -> RemoteConfigEditor:
    """Open a live editor of the configuration; what it applies is restored when it is closed.

    Returns
    -------
    ConfigEditor
        A widget. Every call returns the same widget until it is closed.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0, model_control_mode="explicit") as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     with tnb.connect(server.url) as remote:
    ...         remote["double"].edit().close()
    """
    return open_view(RemoteConfigEditor, model.server, model.name, lambda: RemoteConfigEditor(model))


class RemoteConfigEditor(ConfigEditor):
    """A `ConfigEditor` of a model on another server.

    It applies through the load API, and restores the original configuration when it is closed.
    """

    def close(self) -> None:
        """Close the editor, and restore the configuration that the model had before.

        Raises
        ------
        TritonError
            If it could not be restored.
        """
        handle = self._handle
        super().close()
        if handle is not None and handle.server.alive:
            cast(Remote, handle.server).changed_configs.restore(handle.name)

    def __enter__(self) -> RemoteConfigEditor:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.close()
        else:
            with suppress(TritonError):
                self.close()
