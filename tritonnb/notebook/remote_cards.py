"""Summaries of connections to other servers and of their models as HTML."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from tritonnb.core.errors import TritonError
from tritonnb.notebook.cards import html_table, mean_batch_text, served_model_card
from tritonnb.remote.text import CLOSED, findings_of, not_ready_text
from tritonnb.scheduling.description import describe_scheduling
from tritonnb.server.index_text import state_text

if TYPE_CHECKING:
    from tritonnb.remote.connection import Remote
    from tritonnb.remote.model import RemoteModelHandle


def remote_card(remote: Remote) -> str:
    """Return a server's address, version and extensions, and each model with its state and counts, as HTML."""
    if not remote.alive:
        return f"<p><b>{remote.url}</b>: {CLOSED}</p>"
    try:
        metadata, rows = remote.metadata(), _rows(remote)
    except TritonError as error:
        return f"<p><b>{html.escape(remote.url)}</b>: {html.escape(str(error))}</p>"
    titles = ("model", "version", "state", "backend", "scheduling", "rows", "executions", "mean batch")
    extensions = ", ".join(metadata.get("extensions", ()))
    return (
        f"<p><b>{html.escape(metadata['name'])} {html.escape(metadata['version'])}</b> at "
        f"{html.escape(remote.url)}</p>{html_table(titles, rows) if rows else '<p>No models.</p>'}"
        f"<p>Extensions: {html.escape(extensions)}.</p>"
        + "".join(f"<p><b>{html.escape(text)}</b></p>" for text in findings_of(remote))
    )


def remote_model_card(model: RemoteModelHandle) -> str:
    """Return a model's tensors, scheduler and statistics as HTML; if it is not ready, the reason."""
    try:
        return served_model_card(model.name, model.metadata(), model.stats(), model.running_config())
    except TritonError as error:
        return f"<p><b>model '{html.escape(model.name)}'</b>: {html.escape(not_ready_text(model, error))}</p>"


def _rows(remote: Remote) -> list[list[Any]]:
    """A row for each model version that is or was loaded."""
    stats = {(entry["name"], entry["version"]): entry for entry in remote.stats()["model_stats"]}
    rows: list[list[Any]] = []
    for entry in remote.index():
        key = (entry["name"], entry.get("version", ""))
        counts = stats.get(key)
        cells: list[Any] = [""] * 5
        if counts is not None:
            config = remote.server.config(entry["name"])
            runs = [config.backend or config.platform, describe_scheduling(config)]
            cells = [*runs, counts["inference_count"], counts["execution_count"], mean_batch_text(counts)]
        rows.append([*key, state_text(entry) if "state" in entry else "not loaded", *cells])
    return rows
