"""Views of another server from its statistics alone, read every second: of a model, and of all models.

Statistics count executions by batch size. Their differences from second to second are a picture: a column for each
second, with a cell for each batch size, as dark as its share of the executions.
"""

from __future__ import annotations

import html
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from tritonnb.client.connection import Remote, RemoteModelHandle
from tritonnb.core.errors import TritonError
from tritonnb.core.html_table import html_table
from tritonnb.core.json_types import Json
from tritonnb.lab.figures.palette import DARK_PAGES, style_sheet
from tritonnb.notebook.containers import Group, Markup
from tritonnb.notebook.dashboard import ModelList, Tiles
from tritonnb.notebook.html_reprs import activity_cells, statistics_card, tensors_card
from tritonnb.notebook.views import PolledView
from tritonnb.notebook.widget_files import STATIC, stylesheet
from tritonnb.scale.merge import add_entries
from tritonnb.telemetry.statistics_entry import difference

#: Seconds of a picture, rows of a table, and seconds that tiles are the mean of.
_SHOWN, _LISTED, _RECENT = 60, 10, 5
#: Batch sizes that have their own row in a picture; of more, neighbours share a row.
_MOST_SIZES = 12
_TITLES = ("from", "requests/s", "mean batch (rows)", "batches (rows×count)", "queue (ms)", "compute (ms)")
#: A widget around it knows what is painted behind it; alone, in saved notebooks, it has the colours of the page.
_COLOURS = style_sheet(".tnb-statistics:not(.tnb-controls *)", DARK_PAGES)
_STYLE = f"<style>{_COLOURS}{(STATIC / 'statistics.css').read_text('utf-8')}</style>"

#: Pixels: of a picture, of the names at its left, of a row of sizes, of the other parts, and between parts.
_WIDTH, _LEFT, _ROW, _BAND, _GAP = 900, 150, 14, 56, 22


@dataclass(frozen=True, slots=True)
class Second:
    """What a model did between two readings.

    Attributes
    ----------
    begin_s, seconds : float
        Since the view was opened; the length.
    new : dict
        The difference of the statistics.
    """

    begin_s: float
    seconds: float
    new: Json

    @property
    def rate(self) -> float:
        """Successful requests per second."""
        return float(self.new["inference_stats"]["success"]["count"] / self.seconds)

    @property
    def errors(self) -> float:
        """Failed requests per second."""
        return float(self.new["inference_stats"]["fail"]["count"] / self.seconds)

    @property
    def sizes(self) -> dict[int, int]:
        """Executions by batch size."""
        counts = {row["batch_size"]: row["compute_infer"]["count"] for row in self.new["batch_stats"]}
        return {size: count for size, count in counts.items() if count > 0}

    @property
    def mean_ms(self) -> tuple[float, float] | None:
        """Mean times of a successful request in the queue, and in its execution; None without one."""
        parts = self.new["inference_stats"]
        count = parts["success"]["count"]
        if not count:
            return None
        compute_ns = sum(parts[f"compute_{part}"]["ns"] for part in ("input", "infer", "output"))
        return parts["queue"]["ns"] / count / 1e6, compute_ns / count / 1e6

    def cells(self) -> list[str]:
        """Return the cells of a table: begin, requests and batches, queue and compute time."""
        times = self.mean_ms or (None, None)
        return [
            f"{self.begin_s:.0f} s",
            *activity_cells(self.new, self.seconds),
            *("–" if time_ms is None else f"{time_ms:.2f}" for time_ms in times),
        ]


class StatisticsHistory:
    """The seconds of a model, from readings of its statistics.

    Parameters
    ----------
    stats : dict
        The first reading: an entry of the statistics, or a sum of entries.

    Attributes
    ----------
    seconds : deque of Second
        The last `_SHOWN`, the oldest first.
    """

    def __init__(self, stats: Mapping[str, Any]) -> None:
        self._first = self._last = stats
        self._began_s = self._read_s = time.monotonic()
        self.seconds: deque[Second] = deque(maxlen=_SHOWN)

    def add(self, stats: Mapping[str, Any]) -> None:
        """Add a reading."""
        now_s = time.monotonic()
        if stats["inference_count"] < self._last["inference_count"]:  # the model was loaded again
            self._first = self._last = stats
        elapsed_s = max(1e-3, now_s - self._read_s)
        self.seconds.append(Second(self._read_s - self._began_s, elapsed_s, difference(stats, self._last)))
        self._last, self._read_s = stats, now_s

    @property
    def total(self) -> Json:
        """The statistics since the view was opened, or the model loaded."""
        return difference(self._last, self._first)

    def recent(self) -> Second | None:
        """Return the last seconds as if they were one; None before the first."""
        last = list(self.seconds)[-_RECENT:]
        if not last:
            return None
        entries = [second.new for second in last]
        return Second(last[0].begin_s, sum(second.seconds for second in last), reduce(add_entries, entries, Json()))


class StatisticsView(PolledView):
    """The differences of the statistics of a model on another server, from second to second.

    Attributes
    ----------
    status, picture, table, batch_sizes : Markup
        The source, the last minute, the last seconds as a table, and the batch sizes since the view was opened.
    """

    def __init__(self, model: RemoteModelHandle) -> None:
        self._model = model
        self._history = StatisticsHistory(model.stats())
        status = Markup(
            f"<b>{html.escape(model.name)}</b>, from differences of the statistics, without traces: batch sizes and "
            "mean times, but no single batches and no reasons."
        )
        self.picture, self.table, self.batch_sizes = Markup(picture(())), Markup(), Markup()
        parts = [self.picture, self.table, self.batch_sizes]
        super().__init__(f"tritonnb statistics {model.name}", status, parts)

    def refresh(self) -> None:
        """Read the statistics and show the difference from the last reading; the view does so every second."""
        self._history.add(self._model.stats())
        self.picture.value = picture(self._history.seconds)
        self.table.value = seconds_table(self._history.seconds)
        self.batch_sizes.value = statistics_card(self._history.total)
        self.keep_last_state()

    def last_state(self) -> str:
        """Return the displayed data as HTML."""
        return f"<p>{self.status.value}</p>{self.picture.value}{self.table.value}{self.batch_sizes.value}"


class StatisticsDashboard(PolledView):
    """All models of another server from its statistics, and one of them in detail.

    Attributes
    ----------
    status, picture, details : Markup
        The server; the last minute of the selected model; its table, tensors and scheduler.
    models : ModelList
    tiles : Tiles

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     with tnb.connect(server.url) as remote:
    ...         dashboard = remote.dashboard()
    ...         print(dashboard.models.selected)
    ...         dashboard.close()
    double
    """

    _css = stylesheet("group", "dashboard")

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._histories: dict[str, StatisticsHistory] = {}
        self._card = ""  # of the model that is shown
        self.models, self.tiles, self.picture, self.details = ModelList(), Tiles(), Markup(), Markup()
        main = Group([self.tiles, self.picture, self.details], css_class="tnb-main")
        body = Group([self.models, main], css_class="tnb-body")
        metadata = remote.metadata()
        server = html.escape(f"{metadata['name']} {metadata['version']}")
        status = Markup(f"<b>{server}</b> at {html.escape(remote.url)}, from its statistics, read every second.")
        self._read()
        self.models.selected = next((model["name"] for model in self.models.models), "")
        self._show_selected()
        super().__init__(f"tritonnb dashboard {remote.url}", status, [body], css_class="tnb-dashboard")
        self._parts += [main, self.models, self.tiles, self.picture, self.details]
        self.models.observe(lambda change: self._worker.submit(self._show_selected), "selected")

    def refresh(self) -> None:
        """Read the statistics of all models; the view does so every second."""
        self._read()
        self._show_selected()
        self.keep_last_state()

    def last_state(self) -> str:
        """Return the displayed data as HTML."""
        tiles = "".join(
            f"<li>{tile['label']}: <b>{tile['value']}</b> {tile['unit']} ({tile['note']})</li>"
            for tile in self.tiles.tiles
        )
        name = html.escape(self.models.selected)
        return f"<p>{self.status.value}</p><p><b>{name}</b></p><ul>{tiles}</ul>{self.picture.value}{self.details.value}"

    def _read(self) -> None:
        entries = defaultdict[str, list[Any]](list)
        for entry in self._remote.server.statistics():
            entries[entry["name"]].append(entry)
        for name, versions in entries.items():
            stats = reduce(add_entries, versions, Json())
            if name in self._histories:
                self._histories[name].add(stats)
            else:
                self._histories[name] = StatisticsHistory(stats)
        for name in self._histories.keys() - entries.keys():
            del self._histories[name]
        self.models.models = [self._listed(entry) for entry in _newest(self._remote.index())]

    def _listed(self, entry: Mapping[str, str]) -> Json:
        name = entry["name"]
        history = self._histories.get(name)
        recent = None if history is None else history.recent()
        errors = 0.0 if recent is None else recent.errors
        return {
            "name": name, "state": entry.get("state") or "UNAVAILABLE", "reason": entry.get("reason", ""),
            "scheduling": "", "rate": 0.0 if recent is None else recent.rate, "errors": errors,
            "problem": f"{errors:,.3g} requests/s fail" if errors else "",
            "curve": [] if history is None else [round(second.rate) for second in history.seconds],
        }  # fmt: skip

    def _show_selected(self) -> None:
        name = self.models.selected
        history = self._histories.get(name)
        seconds: Sequence[Second] = () if history is None else history.seconds
        self.tiles.tiles = [] if history is None else tiles(history.recent())
        self.picture.value = picture(seconds)
        if self.models.shown != name:
            self._card = _model_card(self._remote, name) if name else "<p>No models.</p>"
        executed = "" if history is None else statistics_card(history.total)
        self.details.value = seconds_table(seconds) + executed + self._card
        self.models.shown = name


def _model_card(remote: Remote, name: str) -> str:
    try:
        model = remote[name]
        return tensors_card(name, model.metadata(), model.running_config())
    except TritonError as error:  # it is not ready
        return f"<p><b>{html.escape(name)}</b>: {html.escape(error.message)}</p>"


def _newest(index: Iterable[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Return an entry for each model: that of a ready version, if there is one."""
    models: dict[str, Mapping[str, str]] = {}
    for entry in index:
        if entry["name"] not in models or entry.get("state") == "READY":
            models[entry["name"]] = entry
    return list(models.values())


def seconds_table(seconds: Sequence[Second]) -> str:
    """Return the last seconds as a table, the newest first."""
    return html_table(_TITLES, [second.cells() for second in reversed(list(seconds)[-_LISTED:])])


def tiles(recent: Second | None) -> list[Json]:
    """Return the most important numbers of the last seconds."""
    if recent is None:
        return []
    rows, batches = recent.new["inference_count"], recent.new["execution_count"]
    queue, compute = recent.mean_ms or (None, None)
    values = [
        ("throughput", recent.rate, "requests/s", ""),
        ("errors", recent.errors, "requests/s", "error" if recent.errors else ""),
        ("mean batch", rows / batches if batches else None, "rows", ""),
        ("queue", queue, "ms (mean)", ""),
        ("execution", compute, "ms (mean)", ""),
    ]
    return [
        {
            "label": label, "value": "–" if value is None else f"{value:,.3g}", "unit": unit, "level": level,
            "note": f"last {recent.seconds:.0f} s",
        }
        for label, value, unit, level in values
    ]  # fmt: skip


def picture(seconds: Iterable[Second]) -> str:
    """Return the last minute as HTML: requests/s, executions by batch size, and mean times, a column for each second.

    Examples
    --------
    >>> "No execution yet" in picture(())
    True
    """
    shown = list(seconds)
    sizes = sorted({size for second in shown for size in second.sizes})
    if not sizes:
        return f"{_STYLE}<div class='tnb-statistics'><p>No execution yet: a column follows for each second.</p></div>"
    groups = _groups(sizes)
    column = (_WIDTH - _LEFT) / _SHOWN
    left = [_LEFT + (_SHOWN - len(shown) + place) * column for place in range(len(shown))]
    sizes_top = _BAND + _GAP
    times_top = sizes_top + len(groups) * _ROW + _GAP
    height = times_top + _BAND + 20
    most_rate = max(second.rate + second.errors for second in shown) or 1
    times = [second.mean_ms or (0.0, 0.0) for second in shown]
    most_ms = max(map(sum, times)) or 1
    parts = [
        *_labels("requests/s", f"{most_rate:,.3g}", 0),
        *_labels("mean time (ms):", f"{most_ms:,.3g}", times_top),
        *_legend("execution", times_top + 40),
        *_legend("queue", times_top + 26),
        _text(_LEFT - 50, sizes_top - 6, "batch size"),
        *(_text(_LEFT - 6, sizes_top + row * _ROW + 11, _name(group)) for row, group in enumerate(reversed(groups))),
    ]
    for x, second, (queue_ms, compute_ms) in zip(left, shown, times, strict=True):
        title = _words(second)
        bars = [
            ("tnb-execution", _BAND * second.rate / most_rate, _BAND),
            ("tnb-errors", _BAND * second.errors / most_rate, _BAND - _BAND * second.rate / most_rate),
            ("tnb-execution", _BAND * compute_ms / most_ms, times_top + _BAND),
            ("tnb-queue", _BAND * queue_ms / most_ms, times_top + _BAND - _BAND * compute_ms / most_ms),
        ]
        rectangles = [_rectangle(name, x, bottom - tall, column - 1, tall) for name, tall, bottom in bars if tall > 0]
        counts = second.sizes
        total = sum(counts.values())
        for row, group in enumerate(reversed(groups)):
            share = sum(counts.get(size, 0) for size in group) / total if total else 0
            if share:
                opacity = f' fill-opacity="{0.15 + 0.85 * share:.2f}"'
                y = sizes_top + row * _ROW
                rectangles.append(_rectangle("tnb-execution", x, y + 1, column - 1, _ROW - 2, opacity))
        parts.append(f"<g><title>{html.escape(title)}</title>{''.join(rectangles)}</g>")
    parts += [_text(_WIDTH, height - 4, "now"), _text(_LEFT + 26, height - 4, f"{_SHOWN} s ago")]
    parts += [f'<path d="M{_LEFT},{y} H{_WIDTH}"/>' for y in (_BAND, times_top - _GAP + 4, times_top + _BAND)]
    words = f"The last {len(shown)} seconds. {_words(shown[-1])}"
    return (
        f"{_STYLE}<div class='tnb-statistics'><svg viewBox='0 0 {_WIDTH} {height}' role='img' "
        f"aria-label='{html.escape(words)}'>{''.join(parts)}</svg><p>A column for each second. Batch sizes: the darker "
        "a cell, the larger the share of the executions.</p></div>"
    )


def _groups(sizes: Sequence[int]) -> list[list[int]]:
    """Return the sizes that share a row, in order."""
    each = -(-len(sizes) // _MOST_SIZES)
    return [list(sizes[at : at + each]) for at in range(0, len(sizes), each)]


def _name(group: Sequence[int]) -> str:
    return str(group[0]) if len(group) == 1 else f"{group[0]}–{group[-1]}"


def _labels(name: str, most: str, top: float) -> list[str]:
    return [_text(_LEFT - 50, top + 12, name), _text(_LEFT - 6, top + 12, most), _text(_LEFT - 6, top + _BAND, "0")]


def _legend(name: str, y: float) -> list[str]:
    return [_rectangle(f"tnb-{name}", _LEFT - 58, y - 8, 8, 8), _text(_LEFT - 62, y, name)]


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="end">{html.escape(text)}</text>'


def _rectangle(name: str, x: float, y: float, width: float, height: float, more: str = "") -> str:
    return f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{more}/>'


def _words(second: Second) -> str:
    """Describe a second in words."""
    sizes = ", ".join(f"{count} of {size}" for size, count in second.sizes.items()) or "none"
    times = second.mean_ms
    mean = "" if times is None else f"; mean time in the queue {times[0]:.2f} ms, in execution {times[1]:.2f} ms"
    return f"From {second.begin_s:.0f} s: {second.rate:,.3g} requests/s; executions by rows: {sizes}{mean}"
