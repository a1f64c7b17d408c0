"""Cards of servers, models and statistics: plain HTML, readable on GitHub and by screen readers, and plain text."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tritonnb.core.errors import TritonError
from tritonnb.figures.palette import BLUE, ORANGE, SKY
from tritonnb.scheduling.reasons import pluralize

if TYPE_CHECKING:
    from tritonnb.server.model_handle import ModelHandle
    from tritonnb.server.server import Server

#: The parts of an execution, in words and colours.
PARTS = (("compute_input", "input", SKY), ("compute_infer", "infer", BLUE), ("compute_output", "output", ORANGE))
_BAR_EM = 12


def server_card(server: Server) -> str:
    """Where a server is, and every model with its state, scheduler and counts."""
    configs = {(each.name, str(each.version)): each.config for each in server.call(server.engine.models)}
    versions, absent = _models(server)
    rows = []
    for entry, found in versions:
        key = (entry["name"], entry.get("version", ""))
        config = configs.get(key)
        runs = [config.backend or config.platform, scheduling_words(config)] if config is not None else ["", ""]
        numbers = [found["inference_count"], found["execution_count"], _mean_batch(found)] if found else ["", "", ""]
        rows.append([*key, _state(entry), *runs, *numbers])
    titles = ("model", "version", "state", "backend", "scheduling", "rows", "executions", "mean batch")
    link = f"<a href='{server.url}/v2'>{server.url}</a>" if server.url else "no HTTP endpoint"
    rest = f"<p>Not loaded: {html.escape(', '.join(absent))}.</p>" if absent else ""
    return f"<p><b>tritonnb server</b> at {link}</p>{_table(titles, rows) if rows else ''}{rest}"


def server_text(server: Server) -> str:
    """As much of it as fits into plain text."""
    versions, absent = _models(server)
    rows = [["model", "version", "rows", "executions", "state"]]
    for entry, found in versions:
        numbers = [str(found["inference_count"]), str(found["execution_count"])] if found else ["", ""]
        rows.append([entry["name"], entry.get("version", ""), *numbers, _state(entry)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(each.ljust(width) for each, width in zip(row, widths, strict=True)) for row in rows]
    title = f"tritonnb server at {server.url}" if server.url else "tritonnb server without HTTP"
    rest = [f"not loaded: {', '.join(absent)}"] if absent else []
    return "\n  ".join([title, *(each.rstrip() for each in lines if len(rows) > 1), *rest])


def _models(server: Server) -> tuple[list[tuple[dict[str, str], dict[str, Any] | None]], list[str]]:
    """The versions of the index, those that are served with their statistics; and the models that are not loaded."""
    stats = {(each["name"], each["version"]): each for each in server.stats()["model_stats"]}
    entries = server.index()
    versions = [(each, stats.get((each["name"], each.get("version", "")))) for each in entries if "state" in each]
    return versions, [each["name"] for each in entries if "state" not in each]


def _state(entry: dict[str, str]) -> str:
    return entry["state"] + (f": {entry['reason']}" if entry.get("reason") else "")


def model_card(model: ModelHandle) -> str:
    """A model's tensors, how it is scheduled, and what it did; of one that failed to load, why."""
    if failure := model.server.call(model.server.engine.failure, model.name):
        return (
            f"<p><b>model '{html.escape(model.name)}' failed to load</b> and is not served. "
            "Its configuration can be mended, and applied.</p>"
            f"<pre style='white-space:pre-wrap'>{html.escape(failure)}</pre>"
        )
    try:
        found, stats, config = model.metadata(), model.stats(), model.config
    except TritonError as error:
        return f"<p><b>model '{html.escape(model.name)}'</b>: not ready ({html.escape(str(error))})</p>"
    batched = " (first dimension: the rows of the batch)" if config.max_batch_size else ""
    rows = [
        [kind, each["name"], each["datatype"], " × ".join(_dimension(dim) for dim in each["shape"])]
        for kind, key in (("input", "inputs"), ("output", "outputs"))
        for each in found[key]
    ]
    return (
        f"<p><b>model '{html.escape(model.name)}'</b>, version {', '.join(found['versions'])}, "
        f"{html.escape(found['platform'])}: {html.escape(scheduling_words(config))}</p>"
        f"{_table(('', 'tensor', 'datatype', f'shape{batched}'), rows)}"
        f"{statistics_card(stats)}"
    )


def statistics_card(stats: dict[str, Any]) -> str:
    """The statistics of one model version: what executions of each batch size cost."""
    if not stats["execution_count"]:
        return "<p>Nothing has run yet.</p>"
    success, queue = stats["inference_stats"]["success"], stats["inference_stats"]["queue"]
    failed = stats["inference_stats"]["fail"]["count"]
    lead = (
        f"<p>{stats['inference_count']} rows of {success['count']} requests in {stats['execution_count']} executions: "
        f"{_mean_batch(stats)} rows each. A request took {_mean_ms(success)}, of which it waited {_mean_ms(queue)}."
        f"{f' {failed} failed.' if failed else ''}</p>"
    )
    entries = stats["batch_stats"]
    longest = max((sum(_ms(each[key]) for key, _, _ in PARTS) for each in entries), default=0.0)
    rows = []
    for each in entries:
        parts = [_ms(each[key]) for key, _, _ in PARTS]
        total = sum(parts)
        rows.append(
            [
                each["batch_size"],
                each["compute_infer"]["count"],
                *(f"{part:.2f}" for part in parts),
                f"{total / each['batch_size']:.3f}" if each["batch_size"] else "",
                _Html(_bar(parts, longest)),
            ]
        )
    legend = " ".join(f"<span style='color:{colour}'>■</span> {name}" for _, name, colour in PARTS)
    titles = ("batch size (rows)", "executions", "input ms", "infer ms", "output ms", "ms for a row", _Html(legend))
    return lead + (_table(titles, rows) if rows else "")


def scheduling_words(config: Any) -> str:
    """How requests are brought to the model, in a few words."""
    if config.HasField("ensemble_scheduling"):
        return "ensemble"
    words = [f"batches up to {config.max_batch_size}" if config.max_batch_size else "no batches"]
    if config.HasField("dynamic_batching"):
        words.append(f"dynamic batcher{_waits(config.dynamic_batching)}")
    if config.HasField("sequence_batching"):
        choice = config.sequence_batching.WhichOneof("strategy_choice") or "direct"
        words.append(f"sequence batcher, {choice}{_waits(getattr(config.sequence_batching, choice))}")
    instances = sum(max(1, each.count) for each in config.instance_group)
    words.append(pluralize(instances, "instance"))
    return ", ".join(words)


def _waits(batching: Any) -> str:
    delay = batching.max_queue_delay_microseconds
    return f" that waits up to {delay / 1000:g} ms" if delay else ""


class _Html(str):
    """Text that is HTML already."""


def _table(titles: Iterable[object], rows: Iterable[Sequence[object]]) -> str:
    lines = [list(each) for each in rows]
    sides = ["right" if all(_is_number(each) for each in column) else "left" for column in zip(*lines, strict=True)]
    head = _row("th", titles, sides)
    body = "".join(_row("td", each, sides) for each in lines)
    return f"<table style='margin-left:0'><thead>{head}</thead><tbody>{body}</tbody></table>"


def _row(tag: str, cells: Iterable[object], sides: Iterable[str]) -> str:
    pieces = (
        f"<{tag} style='text-align:{side}'>{each if isinstance(each, _Html) else html.escape(str(each))}</{tag}>"
        for each, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{''.join(pieces)}</tr>"


def _is_number(cell: object) -> bool:
    return not isinstance(cell, _Html) and (cell in ("", "–") or str(cell).replace(".", "", 1).isdigit())


def _bar(parts: Sequence[float], longest: float) -> str:
    """A stacked bar for the eye; the numbers stand beside it."""
    pieces = "".join(
        f"<span style='display:inline-block;height:0.8em;width:{_BAR_EM * part / longest if longest else 0:.2f}em;"
        f"background:{colour}'></span>"
        for part, (_, _, colour) in zip(parts, PARTS, strict=True)
    )
    return (
        f"<span aria-hidden='true' style='display:inline-block;min-width:{_BAR_EM}em;text-align:left'>{pieces}</span>"
    )


def _dimension(dim: int) -> str:
    return "any" if dim == -1 else str(dim)


def _ms(duration: dict[str, int]) -> float:
    return duration["ns"] / duration["count"] / 1e6 if duration["count"] else 0.0


def _mean_ms(duration: dict[str, int]) -> str:
    return f"{_ms(duration):.2f} ms"


def _mean_batch(stats: dict[str, Any]) -> str:
    return f"{stats['inference_count'] / stats['execution_count']:.1f}" if stats["execution_count"] else "–"
