"""Summaries of servers, models, statistics and connections as HTML, which GitHub and screen readers also show."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tritonnb.client.connection import CLOSED, findings_of, not_ready_text
from tritonnb.client.index_text import models_of, state_text
from tritonnb.core.errors import TritonError
from tritonnb.core.html_table import Html, html_table
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.lab.figures.palette import PARTS
from tritonnb.scheduling.from_config import describe_scheduling
from tritonnb.scheduling.reasons import pluralize
from tritonnb.server.model_handle import ModelHandle
from tritonnb.server.server import Server
from tritonnb.telemetry.statistics_entry import SETTLED, DurationEntry, StatisticsEntry, mean_ms

if TYPE_CHECKING:
    from tritonnb.client.connection import Remote, RemoteModelHandle


#: What the parts of an execution are called here.
_PART_NAMES = ("input", "compute", "output")
_BAR_EM = 12
_VERSION_TITLES = ("model", "version", "state", "backend", "scheduling", "rows", "executions", "mean batch")


def server_card(server: Server) -> str:
    """Return a server's address, and each model with its state, scheduler and counts, as HTML."""
    if not server.alive:
        return "<p><b>tritonnb server</b>: stopped</p>"
    configs = {(model.name, str(model.version)): model.config for model in server.call(server.engine.models)}
    versions, absent = models_of(server)
    rows = [_version_row(entry, stats, configs.get(_key(entry))) for entry, stats in versions]
    rest = f"<p>Not loaded: {html.escape(', '.join(absent))}.</p>" if absent else ""
    return f"{server_title(server)}{html_table(_VERSION_TITLES, rows)}{rest}"


def _key(entry: Mapping[str, Any]) -> tuple[str, str]:
    return entry["name"], entry.get("version", "")


def _version_row(entry: Mapping[str, Any], stats: StatisticsEntry | None, config: Any) -> list[object]:
    """Return a row with the values of `_VERSION_TITLES`; unknown values are empty."""
    state = state_text(entry) if "state" in entry else "not loaded"
    runs = ["", ""] if config is None else [config.backend or config.platform, describe_scheduling(config)]
    counts = [stats["inference_count"], stats["execution_count"], mean_batch_text(stats)] if stats else ["", "", ""]
    return [*_key(entry), state, *runs, *counts]


def server_title(server: Server) -> str:
    """Return a server's address as HTML; not as a link, which leads nowhere if the browser is on another machine."""
    return f"<p><b>tritonnb server</b> at {html.escape(server.url or 'no HTTP endpoint')}</p>"


def model_card(model: ModelHandle) -> str:
    """Return a model's tensors, scheduler and statistics as HTML; if it failed to load, the reason."""
    if failure := model.server.call(model.server.engine.table.failure, model.name):
        return (
            f"<p><b>model '{html.escape(model.name)}' failed to load</b> and is not served. "
            "Correct its configuration and apply it.</p>"
            f"<pre style='white-space:pre-wrap'>{html.escape(failure)}</pre>"
        )
    try:
        served = model.server.call(model.server.engine.model, model.name, model.version)
        card = served_model_card(model.name, model.metadata(), model.stats(), model.config)
        return card + model.server.call(processes_card, served)
    except TritonError as error:
        return f"<p><b>model '{html.escape(model.name)}'</b>: not ready ({html.escape(str(error))})</p>"


def processes_card(served: ServedModel) -> str:
    """Return the processes of a model's instances as HTML; empty if it runs in the server's process.

    Called on the server's event loop.
    """
    lost = served.statistics.lost_instances
    rows = []
    for instance in served.instances:
        name, process = instance.spec.name, instance.backend_instance.process_id
        if process is not None or name in lost:
            count, reason = lost.get(name, (0, ""))
            rows.append([name, "starts again" if process is None else process, count, reason or "–"])
    return html_table(("instance", "process", "restarts", "reason of the last one"), rows)


def served_model_card(name: str, metadata: Mapping[str, Any], stats: StatisticsEntry, config: Any) -> str:
    """Return the tensors, scheduler and statistics of a model that is served, as HTML."""
    return tensors_card(name, metadata, config) + statistics_card(stats)


def tensors_card(name: str, metadata: Mapping[str, Any], config: Any) -> str:
    """Return the tensors and the scheduler of a model as HTML."""
    batched = " (first dimension: the rows of the batch)" if config.max_batch_size else ""
    rows = [
        [kind, tensor["name"], tensor["datatype"], " × ".join(map(_dimension, tensor["shape"]))]
        for kind, key in (("input", "inputs"), ("output", "outputs"))
        for tensor in metadata[key]
    ]
    return (
        f"<p><b>model '{html.escape(name)}'</b>, version {html.escape(', '.join(metadata['versions']))}, "
        f"{html.escape(metadata['platform'])}: {html.escape(describe_scheduling(config))}</p>"
        f"{html_table(('kind', 'tensor', 'datatype', f'shape{batched}'), rows)}"
    )


def statistics_card(stats: Mapping[str, Any]) -> str:
    """Return the statistics of one model version as HTML: the mean times of executions by batch size."""
    if not stats["execution_count"]:
        return "<p>No request has been executed yet.</p>"
    success, queue = stats["inference_stats"]["success"], stats["inference_stats"]["queue"]
    failed = stats["inference_stats"]["fail"]["count"]
    lead = (
        f"<p>{pluralize(stats['inference_count'], 'row')} of {pluralize(success['count'], 'request')} in "
        f"{pluralize(stats['execution_count'], 'execution')}: "
        f"{mean_batch_text(stats)} rows on average. "
        f"A request took {_mean_ms(success)}, of which {_mean_ms(queue)} in the queue."
        f"{f' {failed} failed.' if failed else ''}</p>"
    )
    entries = stats["batch_stats"]
    # A mean of a few executions is hollow, and does not determine the scale.
    counts = [entry["compute_infer"]["count"] for entry in entries]
    means = [[mean_ms(entry[part]) for part in PARTS] for entry in entries]
    totals = [sum(parts) for parts in means]
    settled = [total for total, count in zip(totals, counts, strict=True) if count >= SETTLED]
    longest = max(settled or totals, default=0.0)
    rows = [
        [
            entry["batch_size"],
            count,
            *(f"{part:.2f}" for part in parts),
            f"{total / entry['batch_size']:.3f}" if entry["batch_size"] else "",
            Html(_bar(parts, longest, hollow=count < SETTLED)),
        ]
        for entry, parts, total, count in zip(entries, means, totals, counts, strict=True)
    ]
    named = zip(_PART_NAMES, PARTS.values(), strict=True)
    legend = " ".join(f"<span aria-hidden='true' style='color:{colour}'>■</span> {name}" for name, colour in named)
    titles = ("batch size (rows)", "executions", "input ms", "compute ms", "output ms", "ms per row", Html(legend))
    return lead + html_table(titles, rows)


def _bar(parts: Sequence[float], longest: float, *, hollow: bool) -> str:
    """Return a stacked bar, hidden from screen readers: the numbers are in the same row. A longer one ends in "…"."""
    scale = max(longest, sum(parts)) or 1.0
    style = "box-sizing:border-box;border:1px solid" if hollow else "background:"
    pieces = "".join(
        f"<span style='display:inline-block;height:0.8em;width:{_BAR_EM * part / scale:.2f}em;{style} {colour}'></span>"
        for part, colour in zip(parts, PARTS.values(), strict=True)
    )
    pieces += " …" if scale > longest else ""
    return (
        f"<span aria-hidden='true' style='display:inline-block;min-width:{_BAR_EM}em;text-align:left'>{pieces}</span>"
    )


def _dimension(dim: int) -> str:
    return "any" if dim == -1 else str(dim)


def _mean_ms(duration: DurationEntry) -> str:
    return f"{mean_ms(duration):.2f} ms"


def mean_batch_text(stats: Mapping[str, Any]) -> str:
    """Return the mean rows of an execution, or a dash."""
    return f"{stats['inference_count'] / stats['execution_count']:.1f}" if stats["execution_count"] else "–"


def activity_cells(new: Mapping[str, Any], seconds: float) -> list[str]:
    """Return requests per second, mean rows, and batches of each size of the difference between two readings."""
    rate = new["inference_stats"]["success"]["count"] / seconds
    batches = (f"{row['batch_size']}×{row['compute_infer']['count']}" for row in new["batch_stats"])
    return [f"{rate:,.0f}", mean_batch_text(new), ", ".join(batches) or "–"]


def remote_card(remote: Remote) -> str:
    """Return a server's address, version and extensions, and each model with its state and counts, as HTML."""
    if not remote.alive:
        return f"<p><b>{html.escape(remote.url)}</b>: {CLOSED}</p>"
    try:
        metadata, rows = remote.metadata(), _rows(remote)
    except TritonError as error:
        return f"<p><b>{html.escape(remote.url)}</b>: {html.escape(str(error))}</p>"
    extensions = ", ".join(metadata.get("extensions", ()))
    return (
        f"<p><b>{html.escape(metadata['name'])} {html.escape(metadata['version'])}</b> at "
        f"{html.escape(remote.url)}</p>{html_table(_VERSION_TITLES, rows) or '<p>No models.</p>'}"
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
    """Return a row for each model version that is or was loaded."""
    known = {_key(entry): entry for entry in remote.stats()["model_stats"]}
    rows = []
    for entry in remote.index():
        stats = known.get(_key(entry))
        rows.append(_version_row(entry, stats, None if stats is None else remote.server.config(entry["name"])))
    return rows
