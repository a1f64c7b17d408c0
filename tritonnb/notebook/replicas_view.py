"""``remote.dashboard()``: the replicas of a deployment, with their requests, queues, batch sizes and sequences."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import ipywidgets as widgets

from tritonnb.core.failures import with_short_traceback
from tritonnb.core.html_table import html_table
from tritonnb.core.json_types import Json
from tritonnb.notebook.html_reprs import activity_cells, remote_card
from tritonnb.notebook.views import PolledView
from tritonnb.remote.connection import Remote
from tritonnb.scale.merge import add_entries
from tritonnb.telemetry.difference import difference

#: Sequences that are named for each replica and model; the others are counted.
_NAMED = 12


@with_short_traceback
def dashboard(remote: Remote) -> ReplicasView:
    """Open the replicas of a deployment: requests, queues and batch sizes of each, and where sequences live.

    Returns
    -------
    ReplicasView
        A widget, which is updated every second; `close` ends it.

    Raises
    ------
    InvalidArgumentError
        If the server is not a deployment, or the connection is over gRPC.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> tnb.scale("model_repository", replicas=2).connect().dashboard()  # doctest: +SKIP
    """
    remote.require_open()
    return ReplicasView(remote)


class ReplicasView(PolledView):
    """The replicas of a deployment, read every second.

    Attributes
    ----------
    status, replicas, sequences, models : ipywidgets.HTML
        What is shown, and where from; a row for each replica; a row for each replica and model with live sequences;
        the models of the deployment when the view was opened.
    """

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._totals: dict[str, Json] = {}  # over the models of each replica
        self._read_s = time.monotonic()
        self.status, self.replicas, self.sequences = widgets.HTML(), widgets.HTML(), widgets.HTML()
        remote.replicas()  # raises an error if the server is not a deployment
        self.models = widgets.HTML(remote_card(remote))
        parts = {"Replicas": self.replicas, "Sequences": self.sequences, "Models": self.models}
        tabs = widgets.Tab(tuple(parts.values()), titles=tuple(parts), selected_index=0)
        for part in parts.values():
            part.add_class("jp-RenderedHTMLCommon")
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
