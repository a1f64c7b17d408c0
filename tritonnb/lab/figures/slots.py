"""Batch slots of a stateful model: a lane for each slot of each instance, and the backlog below.

A pale band is the sequence that occupies the slot; a box is the execution of one of its requests, numbered within the
sequence; hatched boxes are null requests, the padding of the direct strategy.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.figures.palette import GREY, INK, LIGHT, NULL, PAPER, REFUSAL, series, tint
from tritonnb.lab.figures.picture import axes_for
from tritonnb.lab.figures.scale import SPACE, TimeScale, box, duration, label_lanes
from tritonnb.recording.recording import Recording
from tritonnb.recording.sequences import END, IDLE, SlotOccupancy, number_sequences
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.lanes import assign_lanes

_Lanes = dict[tuple[str, int], float]
#: Occupancies with the vertical position of their slot and the colour of their sequence.
_Drawn = list[tuple[SlotOccupancy, float, str]]

_BOX = 0.72
_ROW = 0.42


@dataclass(frozen=True, slots=True)
class _Wait:
    """A sequence in the backlog, until it occupies a slot, or a refused request."""

    begin_ns: int
    end_ns: int
    name: str
    colour: str
    occupancy: SlotOccupancy | None = None


def draw(rec: Recording, ax: Axes | None = None) -> Axes:
    """Draw it; see `Plot.slots`."""
    alt, lanes, scale = describe(rec), _lanes(rec), TimeScale.for_recording(rec)
    numbers = number_sequences(rec.slot_occupancy)
    drawn = [
        (occupancy, lanes[occupancy.instance, occupancy.slot], series(numbers[occupancy.sequence]))
        for occupancy in rec.slot_occupancy
    ]
    waits = _waits(rec, scale, drawn)
    margin_ns = (scale.end_ns - scale.begin_ns) * 0.05  # for the name
    places = assign_lanes((wait.begin_ns - margin_ns, max(wait.end_ns, wait.begin_ns + margin_ns)) for wait in waits)
    depth = (max(places) + 1) * _ROW if places else 0
    ax = axes_for(ax, 1.0 + 0.36 * len(lanes) + 0.36 * depth, alt)
    scale.frame(ax)
    for y, (instance, _) in zip(lanes.values(), lanes, strict=True):
        ax.axhspan(y - 0.5, y + 0.5, color=tint(GREY, 0.07) if rec.instances.index(instance) % 2 else PAPER, zorder=0)
    ax.hlines([y - 0.5 for y in lanes.values()], *scale.ends, colors=LIGHT, linewidths=0.6, zorder=0)
    line = _line_width(ax, scale, rec)
    _draw_occupancies(ax, scale, drawn)
    _draw_requests(ax, scale, drawn, line)
    _draw_batches(ax, scale, rec, lanes, line)
    ticks = {y: f"{instance} slot {slot}" for (instance, slot), y in lanes.items()}
    if places:
        top = min(lanes.values()) - 1
        _draw_waits(ax, scale, waits, places, top)
        ticks[top - (max(places) * _ROW) / 2] = "backlog"
    label_lanes(ax, scale, ticks, _marks(rec, line))
    ax.set_ylim(min(lanes.values()) - 0.6 - (0.7 + depth if places else 0), max(lanes.values()) + 0.6)
    return ax


def describe(rec: Recording) -> str:
    """Return the alternative text."""
    occupancies = rec.slot_occupancy
    if not occupancies:
        raise InvalidArgumentError(
            "figure 'slots' expected a recording of a stateful model, got one without batch slots"
        )
    nulls = sum(batch.requests.count(None) for batch in rec.batches if batch.slots)
    total = sum(len(batch.requests) for batch in rec.batches if batch.slots)
    backlog = [occupancy for occupancy in occupancies if occupancy.backlog_ns > 0]
    begin, end = rec.span_ns
    sequences = len(number_sequences(occupancies))
    batches = sum(1 for batch in rec.batches if batch.slots)
    words = (
        f"Slots over {duration(end - begin)}: {pluralize(sequences, 'sequence')} in "
        f"{pluralize(len(_lanes(rec)), 'slot')} of {pluralize(len(rec.instances), 'instance')}, "
        f"{pluralize(batches, 'batch', 'batches')}; "
        f"{nulls} of {total} rows are null requests."
    )
    if backlog:
        longest = max(occupancy.backlog_ns for occupancy in backlog)
        words += f" {pluralize(len(backlog), 'sequence')} waited in the backlog, at most {duration(longest)}."
    if len(occupancies) <= 12:
        sentences = [
            f"{occupancy.sequence} in slot {occupancy.slot} of {occupancy.instance}, {_ending(occupancy)}"
            for occupancy in occupancies
        ]
        words += f" {'; '.join(sentences)}."
    return words


def _ending(occupancy: SlotOccupancy) -> str:
    return f"{pluralize(len(occupancy.requests), 'request')}, " + {END: "ended", IDLE: "idle timeout"}.get(
        occupancy.ended, "still open"
    )


def _lanes(rec: Recording) -> _Lanes:
    """Return the vertical position of each slot, the first at the top, up to the highest used one if there are many."""
    used: dict[str, int] = {}
    for batch in rec.batches:
        if batch.slots:
            used[batch.instance] = max(used.get(batch.instance, 0), *(slot + 1 for slot in batch.slots))
    lanes: _Lanes = {}
    y = 0.0
    for instance in rec.instances:
        count = rec.slots_of(instance)
        for slot in range(count if count <= 8 else max(used.get(instance, 1), 1)):
            lanes[instance, slot] = y
            y -= 1
    return lanes


def _marks(rec: Recording, line: float) -> list[Artist]:
    """Return the entries of the legend."""
    edges = "thick left edge: START, thick right edge: END"
    marks: list[Artist] = [
        Patch(facecolor=tint(GREY, 0.22), label="sequence in the slot"),
        Line2D([], [], color=GREY, marker="^", linewidth=0, markersize=4, label="arrival of a request"),
        Patch(facecolor=tint(GREY, 0.65), edgecolor=GREY, label=f"execution of its n-th request, {edges}"),
    ]
    if any(None in batch.requests for batch in rec.batches):
        marks.append(Patch(**_null_style(line), label="null request"))
    return marks


def _line_width(ax: Axes, scale: TimeScale, rec: Recording) -> float:
    """Return the line width of boxes; 0 if their outlines would cover them."""
    widths = [(batch.exec_end_ns - batch.exec_start_ns) / scale.unit_ns for batch in rec.batches if batch.slots]
    return 1.0 if scale.fitting(ax)("0", median(widths), 7.5) else 0.0


def _draw_occupancies(ax: Axes, scale: TimeScale, drawn: _Drawn) -> None:
    """Draw the bands of the sequences in the slots, and the arrivals of their requests."""
    fits = scale.fitting(ax)
    bands, colors, arrivals, marks = [], [], [], []
    for occupancy, y, color in drawn:
        left, right = scale.at(occupancy.assigned_ns), scale.at(occupancy.released_ns or scale.end_ns)
        bands.append(box(left, right, y - 0.5, y + 0.5))
        colors.append(tint(color, 0.22))
        arrived = [
            request.queued_ns for _, request in occupancy.requests if scale.shows(request.queued_ns, request.queued_ns)
        ]
        arrivals += [(scale.at(time_ns), y - 0.42) for time_ns in arrived]
        marks += [color] * len(arrived)
        name = str(occupancy.sequence)
        shortest = min(batch.exec_end_ns - batch.exec_start_ns for batch, _ in occupancy.requests) / scale.unit_ns
        if not fits(f"{name}·1", shortest, 7.5) and fits(f" {name}", right - left, 8):
            ax.text(left, y + 0.36, f"{SPACE}{name}", fontsize=7, va="center", color=INK, zorder=5)
        if occupancy.ended == IDLE:
            ax.text(right, y, "idle ✕", fontsize=7, ha="right", va="center", color=REFUSAL, zorder=5)
    ax.add_collection(PolyCollection(bands, facecolors=colors, linewidths=0, zorder=1))
    ax.scatter([x for x, _ in arrivals], [y for _, y in arrivals], c=marks, s=14, marker="^", linewidths=0, zorder=2)


def _draw_requests(ax: Axes, scale: TimeScale, drawn: _Drawn, line: float) -> None:
    """Draw a box for each execution, numbered within the sequence, with START and END at its edges."""
    fits = scale.fitting(ax)
    boxes, colors, flags = [], [], []
    for occupancy, y, color in drawn:
        low, high = y - _BOX / 2, y + _BOX / 2
        for number, (batch, request) in enumerate(occupancy.requests, 1):
            if not scale.shows(batch.exec_start_ns, batch.exec_end_ns):
                continue
            begin, end = scale.at(batch.exec_start_ns), scale.at(batch.exec_end_ns)
            boxes.append(box(begin, end, low, high))
            colors.append(color)
            flags += [[(x, low), (x, high)] for flag, x in ((request.starts, begin), (request.ends, end)) if flag]
            text = f"{occupancy.sequence}·{number}"  # a number alone would read as that of a sequence
            if fits(text, end - begin, 7.5):
                ax.text((begin + end) / 2, y, text, fontsize=7.5, ha="center", va="center", color=INK, zorder=5)
    faces = [tint(color, 0.65) for color in colors]
    ax.add_collection(PolyCollection(boxes, facecolors=faces, edgecolors=colors, linewidths=line, zorder=3))
    ax.add_collection(LineCollection(flags, colors=INK, linewidths=2.6, capstyle="butt", zorder=4))


def _draw_batches(ax: Axes, scale: TimeScale, rec: Recording, lanes: _Lanes, line: float) -> None:
    """Draw which requests share a batch, and the null requests."""
    nulls, frames, links, dots = [], [], [], []
    for batch in rec.batches:
        if not batch.slots or not scale.shows(batch.exec_start_ns, batch.exec_end_ns):
            continue
        left, right = scale.at(batch.exec_start_ns), scale.at(batch.exec_end_ns)
        heights = [lanes[batch.instance, slot] for slot in batch.slots]
        empty = [y for y, serial in zip(heights, batch.requests, strict=True) if serial is None]
        nulls += [box(left, right, y - _BOX / 2, y + _BOX / 2) for y in empty]
        if len(heights) > 1 and _is_direct(rec, batch.model):
            frames.append(box(left, right, min(heights) - 0.45, max(heights) + 0.45))
        elif len(heights) > 1:
            links.append([(left, min(heights)), (left, max(heights))])
            dots += [(left, y) for y in heights]
    ax.add_collection(PolyCollection(nulls, zorder=3, **_null_style(line)))
    ax.add_collection(PolyCollection(frames, facecolors="none", edgecolors=INK, linewidths=0.9 * line, zorder=6))
    ax.add_collection(LineCollection(links, colors=INK, linewidths=0.9, zorder=6))
    if dots:
        ax.scatter([x for x, _ in dots], [y for _, y in dots], s=12, color=INK, zorder=7)


def _null_style(line: float) -> dict[str, Any]:
    hatch, face = ("////", PAPER) if line else (None, tint(NULL, 0.4))
    return {"facecolor": face, "edgecolor": NULL, "hatch": hatch, "linewidth": 0.8 * line}


def _is_direct(rec: Recording, model: str) -> bool:
    return model not in rec.configs or not rec.configs[model].sequence_batching.HasField("oldest")


def _waits(rec: Recording, scale: TimeScale, drawn: _Drawn) -> list[_Wait]:
    """Return the sequences in the backlog and the refused requests, in the order of their begin."""
    waits = [
        _Wait(occupancy.arrived_ns, occupancy.assigned_ns, str(occupancy.sequence), colour, occupancy)
        for occupancy, _, colour in drawn
        if occupancy.backlog_ns > 0 and scale.shows(occupancy.arrived_ns, occupancy.assigned_ns)
    ]
    for refusal in rec.refused:
        arrived = rec.arrived.get(refusal.serial)
        sequence = 0 if arrived is None else arrived.correlation_id
        waits.append(_Wait(refusal.received_ns, refusal.time_ns, f"{sequence} refused", GREY))
    return sorted(waits, key=lambda wait: (wait.begin_ns, wait.end_ns))


def _draw_waits(ax: Axes, scale: TimeScale, waits: list[_Wait], places: list[int], top: float) -> None:
    for wait, place in zip(waits, places, strict=True):
        y, begin, end = top - place * _ROW, scale.at(wait.begin_ns), scale.at(wait.end_ns)
        width = 1 if wait.occupancy is None else 3
        ax.plot([begin, end], [y, y], color=wait.colour, linewidth=width, solid_capstyle="butt", zorder=2)
        if wait.occupancy is None:
            ax.scatter([end], [y], s=30, marker="x", color=REFUSAL, zorder=3)
        else:
            queued_ns = [request.queued_ns for _, request in wait.occupancy.requests]
            arrivals = [scale.at(time_ns) for time_ns in queued_ns if time_ns < wait.end_ns]
            ys = [y] * len(arrivals)
            ax.scatter(arrivals, ys, s=16, color=wait.colour, edgecolors=PAPER, linewidths=0.6, zorder=3)
        ax.text(begin, y, f"{wait.name}{2 * SPACE}", fontsize=7.5, ha="right", va="center", color=INK)
