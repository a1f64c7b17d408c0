"""The timeline: a lane for each instance with its batches, the waiting requests, and the queue depth.

A box is a batch: its width is the execution time, its height the share of ``max_batch_size``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tritonnb.lab.figures.palette import COMPUTE, GREY, INK, LIGHT, PAPER, QUEUE, REFUSAL, priority, series, tint
from tritonnb.lab.figures.picture import axes_for
from tritonnb.lab.figures.scale import (
    SPACE,
    TimeScale,
    box,
    draw_empty,
    duration,
    label_lanes,
)
from tritonnb.recording.batches import Batch
from tritonnb.recording.recording import Recording
from tritonnb.recording.waits import Wait, queue_depth, visible_waits, waits_of
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.lanes import assign_lanes

#: Up to this many requests, each has its own colour and label.
_FEW = 14
#: Maximum number of lines drawn; of more lines every n-th is drawn.
_MOST_LINES = 4000
_GAP, _WAITING, _DEPTH = 0.4, 1.6, 0.8
#: The width of the edges of batches, in points.
_EDGE = 0.7


def draw(rec: Recording, ax: Axes | None = None) -> Axes:
    """Draw it; see `Plot.timeline`."""
    instances = rec.instances
    height = 1.1 + 0.75 * len(instances) + 1.5
    ax = axes_for(ax, height, describe(rec))
    waits = waits_of(rec)
    if not rec.batches and not waits:
        return draw_empty(ax)
    scale = TimeScale.for_recording(rec)
    scale.frame(ax)
    colours = {wait.serial: series(number) for number, wait in enumerate(waits)} if len(waits) <= _FEW else {}
    levels = _priority_colours(rec, waits)
    ticks: dict[float, str] = {}
    top = len(instances) * (1 + _GAP) + _GAP  # room for the label of a full batch above its lane
    has_short_labels = False
    for number, instance in enumerate(instances):
        base = top - _GAP - number * (1 + _GAP) - 1
        has_short_labels |= _lane(ax, scale, rec, instance, base, colours)
        ticks[base + 0.5] = instance
    waiting = visible_waits(rec)
    ticks |= _waiting_band(ax, scale, waiting, -_GAP, colours, levels)
    ticks |= _depth_band(ax, scale, waiting, -2 * _GAP - _WAITING - _DEPTH)
    label_lanes(ax, scale, ticks, _marks(rec, has_short_labels, levels))
    ax.set_ylim(-2 * _GAP - _WAITING - _DEPTH - 0.1, top + 0.1)
    return ax


def describe(rec: Recording) -> str:
    """Return the alternative text."""
    if not rec.batches:
        return f"Timeline without batches. {rec.verdict()}"
    _, depths = queue_depth(visible_waits(rec))
    begin, end = rec.span_ns
    words = f"Timeline of {duration(end - begin)} on {pluralize(len(rec.instances), 'instance')}. {rec.verdict()}"
    words += f" At most {pluralize(max(depths, default=0), 'request')} waited at the same time."
    if len(rec.batches) <= _FEW:
        label = [
            f"{pluralize(batch.size, 'row')} on {batch.instance} "
            f"at {(batch.exec_start_ns - rec.origin_ns) / 1e6:.1f} ms"
            for batch in rec.batches
        ]
        words += f" Batches: {'; '.join(label)}."
    return words


def _lane(ax: Axes, scale: TimeScale, rec: Recording, instance: str, base: float, colours: Mapping[int, str]) -> bool:
    """Draw the lane of an instance; return whether labels are abbreviated."""
    on_instance = [batch for batch in rec.batches if batch.instance == instance]
    batches = [batch for batch in on_instance if scale.shows(batch.exec_start_ns, batch.exec_end_ns)]
    full, preferred = rec.sizes_of(instance)
    ax.hlines([base, base + 1], *scale.ends, colors=LIGHT, linewidths=0.8, zorder=0)
    lines = [base + size / full for size in preferred if size < full]
    ax.hlines(lines, *scale.ends, colors=GREY, linewidths=0.6, linestyles=(0, (4, 4)), zorder=0)
    members = {(request.batch, request.serial): request for request in rec.requests} if colours else {}
    fits = scale.fitting(ax)
    boxes: list[list[tuple[float, float]]] = []
    faces: list[str] = []
    has_short_labels = False
    for batch in batches:
        left, right = scale.at(batch.exec_start_ns), scale.at(batch.exec_end_ns)
        height = min(batch.size, full) / full
        if not colours:
            boxes.append(box(left, right, base, base + height))
            faces.append(tint(COMPUTE, 0.45))
        low = base
        for serial in batch.requests if colours else ():
            request = None if serial is None else members[batch.number, serial]
            high = low + (request.size if request else 1) / full
            boxes.append(box(left, right, low, high))
            faces.append(tint(colours[request.serial], 0.6) if request else LIGHT)
            text = "null" if request is None else request.label
            if high - low >= 0.17 and fits(text, right - left, 7.5):
                ax.text((left + right) / 2, (low + high) / 2, text, fontsize=7.5, ha="center", va="center", zorder=3)
            low = high
        has_short_labels |= _label(ax, fits, batch, left, right, base + height)
    edge = PAPER if colours else COMPUTE
    lengths = [scale.at(batch.exec_end_ns) - scale.at(batch.exec_start_ns) for batch in batches]
    # The edges of narrow batches would cover the time between them: an area is as large as the time that it shows.
    width = _EDGE if _median_points(ax, scale, lengths) > 6 * _EDGE else 0
    ax.add_collection(PolyCollection(boxes, facecolors=faces, edgecolors=edge, linewidths=width, zorder=2))
    return has_short_labels


def _label(
    ax: Axes, fits: Callable[[str, float, float], bool], batch: Batch, left: float, right: float, top: float
) -> bool:
    """Label a batch if there is room; return whether the label is abbreviated."""
    requests = len(batch.requests)
    short = f"{requests}/{batch.size}"
    for text in (f"{pluralize(requests, 'request')}, {pluralize(batch.size, 'row')}", short):
        if fits(text, right - left, 7.5):
            label = ax.text(left, top + 0.04, text, fontsize=7.5, color=INK, va="bottom", zorder=3)
            label.set_bbox({"facecolor": PAPER, "linewidth": 0, "alpha": 0.8, "pad": 0})
            return text == short
    return False


def _waiting_band(
    ax: Axes,
    scale: TimeScale,
    waits: list[Wait],
    top: float,
    colours: Mapping[int, str],
    levels: Mapping[int, str],
) -> dict[float, str]:
    shown = waits[:: max(1, -(-len(waits) // _MOST_LINES))]
    begins = [scale.at(wait.begin_ns) for wait in shown]
    ends = [scale.at(wait.end_ns) for wait in shown]
    if colours:  # with room for the labels
        margin, mark = scale.length * 0.03, scale.length * 0.006
        spans = [(begin - margin, max(end, begin + mark)) for begin, end in zip(begins, ends, strict=True)]
    else:  # as many rows as requests waited at once
        spans = [(wait.begin_ns, max(wait.end_ns, wait.begin_ns + 1)) for wait in shown]
    places = assign_lanes(spans)
    step = min(0.32, _WAITING / (max(places, default=0) + 1))
    heights = [top - (place + 0.5) * step for place in places]
    color = [colours.get(wait.serial) or levels.get(wait.priority, QUEUE) for wait in shown]
    lines = [[(b, y), (e, y)] for b, e, y in zip(begins, ends, heights, strict=True)]
    ax.add_collection(LineCollection(lines, colors=color, linewidths=min(2.0, 40 * step), zorder=2))
    mark = _median_points(ax, scale, [end - begin for begin, end in zip(begins, ends, strict=True)]) / 3
    size = min(22.0, 700 * step**2, mark**2)  # the square of its diameter in points
    if colours or mark > 1:
        ax.scatter(begins, heights, s=22.0 if colours else size, c=color, zorder=3, linewidths=0)
    refused = [number for number, wait in enumerate(shown) if wait.refused]
    ax.scatter([ends[n] for n in refused], [heights[n] for n in refused], s=30, marker="x", c=REFUSAL, zorder=4)
    for wait, begin, y in zip(shown, begins, heights, strict=True) if colours else ():
        ax.text(begin, y, f"{wait.label}{SPACE}", fontsize=7.5, ha="right", va="center", color=INK)
    every = f" (1 of {len(waits) // len(shown)} drawn)" if len(shown) < len(waits) else ""
    return {top - _WAITING / 2: f"waiting{every}"}


def _median_points(ax: Axes, scale: TimeScale, lengths: list[float]) -> float:
    return statistics.median(lengths) * scale.points(ax) if lengths else 0.0


def _depth_band(ax: Axes, scale: TimeScale, waits: list[Wait], base: float) -> dict[float, str]:
    times, depths = queue_depth(waits)
    most = max(depths, default=0)
    if most:
        heights = [base + _DEPTH * count / most for count in depths]
        xs = [scale.at(time_ns) for time_ns in times]
        ax.fill_between(xs, heights, base, step="post", color=tint(QUEUE, 0.3), linewidth=0)
        ax.step(xs, heights, where="post", color=QUEUE, linewidth=0.8)
    ax.axhline(base, color=LIGHT, linewidth=0.8, zorder=0)
    return {base: "0", base + _DEPTH: f"queue depth {most}"} if most else {base: "queue depth 0"}


def _priority_colours(rec: Recording, waits: list[Wait]) -> dict[int, str]:
    """Return a colour for each priority, if there are several; requests without one have the default level."""
    batchers = [config.dynamic_batching for config in rec.configs.values()]
    default = max([batcher.default_priority_level for batcher in batchers], default=0)
    levels = {wait.priority: wait.priority or default for wait in waits if not wait.refused}
    if len(set(levels.values())) < 2:
        return {}
    count = max([batcher.priority_levels for batcher in batchers] + list(levels.values()))
    return {level: priority(levels[level], count) for level in sorted(levels)}


def _marks(rec: Recording, has_short_labels: bool, levels: Mapping[int, str]) -> list[Artist]:
    """Return the entries of the legend."""
    label = "batch, height: share of max_batch_size" + (", label: requests/rows" if has_short_labels else "")
    marks: list[Artist] = [Patch(facecolor=tint(COMPUTE, 0.45), label=label)]
    if any(size < full for full, preferred in map(rec.sizes_of, rec.instances) for size in preferred):
        marks.append(Line2D([], [], color=GREY, linewidth=0.6, linestyle=(0, (4, 4)), label="preferred size"))
    names = {color: f"priority {level}" if level else "default priority" for level, color in levels.items()}
    marks += [Line2D([], [], color=color, linewidth=3, label=name) for color, name in names.items()]
    if any(wait.refused for wait in waits_of(rec)):
        marks.append(Line2D([], [], color=REFUSAL, marker="x", linewidth=0, label="refused"))
    return marks
