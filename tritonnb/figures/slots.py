"""Slots of a stateful model: a lane for each instance and slot, the backlog below.

The pale band is the sequence that holds the slot; a box is a request of it that runs, numbered within its
sequence; hatched boxes are null requests, the padding of the direct strategy.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import RequestArrived
from tritonnb.figures.palette import GREY, INK, LIGHT, VERMILION, colour, tint
from tritonnb.figures.picture import axes_for
from tritonnb.figures.scale import SPACE, TimeScale, box, duration, name_lanes, set_time_label, strip_spines
from tritonnb.recording.sequences import END, IDLE, SlotOccupancy, numbered
from tritonnb.recording.waits import rows

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording

_Lanes = dict[tuple[str, int], float]
_Numbers = dict[int | str, int]

_BOX = 0.72
_ROW = 0.42


def draw(rec: Recording, ax: Axes | None = None) -> Axes:
    """Draw it; see `Plot.slots`."""
    alt, held, lanes, scale = describe(rec), rec.slot_occupancy, _lanes(rec), TimeScale.of(rec)
    backlog = [each for each in held if each.backlog_ns > 0 and scale.shows(each.arrived_ns, each.assigned_ns)]
    refused = _refused(rec)
    places = _backlog_rows(rec, backlog, refused)
    depth = (max(places) + 1) * _ROW if places else 0
    ax = axes_for(ax, 1.0 + 0.36 * len(lanes) + 0.36 * depth, alt)
    scale.frame(ax)
    numbers = numbered(held)
    for y, (instance, _) in zip(lanes.values(), lanes, strict=True):
        ax.axhspan(y - 0.5, y + 0.5, color="#F6F6F6" if rec.instances.index(instance) % 2 else "white", zorder=0)
    ax.hlines([y - 0.5 for y in lanes.values()], *scale.ends, colors=LIGHT, linewidths=0.6, zorder=0)
    line = _line_width(ax, scale, rec)
    _stays(ax, scale, held, lanes, numbers)
    _requests(ax, scale, held, lanes, numbers, line)
    _batches(ax, scale, rec, lanes, line)
    ticks = {y: f"{instance} slot {slot}" for (instance, slot), y in lanes.items()}
    if places:
        top = min(lanes.values()) - 1
        _backlog(ax, scale, backlog, refused, places, top, numbers)
        ticks[top - (max(places) * _ROW) / 2] = "backlog"
    name_lanes(ax, ticks)
    ax.set_ylim(min(lanes.values()) - 0.6 - (0.7 + depth if places else 0), max(lanes.values()) + 0.6)
    set_time_label(
        ax,
        scale.unit,
        "band: the sequence that holds the slot; triangle: a request of it comes; box: its n-th request runs "
        f"(thick left edge START, right edge END){_padding_words(rec, line)}",
    )
    strip_spines(ax)
    return ax


def describe(rec: Recording) -> str:
    """The alternative text."""
    held = rec.slot_occupancy
    if not held:
        raise InvalidArgumentError("no batch of this recording has slots: it is of no stateful model")
    nulls = sum(each.requests.count(None) for each in rec.batches if each.slots)
    total = sum(len(each.requests) for each in rec.batches if each.slots)
    backlog = [each for each in held if each.backlog_ns > 0]
    begin, end = rec.span_ns
    words = (
        f"Slots over {duration(end - begin)}: {len(numbered(held))} sequences in {len(_lanes(rec))} slots of "
        f"{len(rec.instances)} instances, {sum(1 for each in rec.batches if each.slots)} batches; "
        f"{nulls} of {total} rows are null requests."
    )
    if backlog:
        longest = max(each.backlog_ns for each in backlog)
        words += f" {len(backlog)} sequences waited in the backlog, the longest {duration(longest)}."
    if len(held) <= 12:
        told = [f"{each.sequence} in slot {each.slot} of {each.instance}, {_ending(each)}" for each in held]
        words += f" {'; '.join(told)}."
    return words


def _ending(stay: SlotOccupancy) -> str:
    return f"{len(stay.requests)} requests, " + {END: "ended", IDLE: "timed out idle"}.get(stay.ended, "still open")


def _lanes(rec: Recording) -> _Lanes:
    """Where each slot is, the first at the top. Of many slots, those above the highest used one are left out."""
    used: dict[str, int] = {}
    for batch in rec.batches:
        if batch.slots:
            used[batch.instance] = max(used.get(batch.instance, 0), *(each + 1 for each in batch.slots))
    lanes: _Lanes = {}
    y = 0.0
    for instance in rec.instances:
        count = rec.slots_of(instance)
        for slot in range(count if count <= 8 else max(used.get(instance, 1), 1)):
            lanes[instance, slot] = y
            y -= 1
    return lanes


def _padding_words(rec: Recording, line: float) -> str:
    return (
        f"; {'hatched' if line else 'grey'}: null request" if any(None in each.requests for each in rec.batches) else ""
    )


def _line_width(ax: Axes, scale: TimeScale, rec: Recording) -> float:
    """Of what is around boxes; where those are too narrow for it, it would be all that one sees."""
    widths = [(each.exec_end_ns - each.exec_start_ns) / scale.unit_ns for each in rec.batches if each.slots]
    return 1.0 if scale.fitting(ax)("0", median(widths), 7.5) else 0.0


def _stays(ax: Axes, scale: TimeScale, held: list[SlotOccupancy], lanes: _Lanes, numbers: _Numbers) -> None:
    """The bands of the sequences that hold slots, and when their requests came."""
    fits = scale.fitting(ax)
    bands, paints, arrivals, marks = [], [], [], []
    for stay in held:
        y, paint = lanes[stay.instance, stay.slot], colour(numbers[stay.sequence])
        left, right = scale.at(stay.assigned_ns), scale.at(stay.released_ns or scale.end_ns)
        bands.append(box(left, right, y - 0.5, y + 0.5))
        paints.append(tint(paint, 0.22))
        came = [each.queued_ns for _, each in stay.requests if scale.shows(each.queued_ns, each.queued_ns)]
        arrivals += [(scale.at(each), y - 0.42) for each in came]
        marks += [paint] * len(came)
        name = str(stay.sequence)
        shortest = min(batch.exec_end_ns - batch.exec_start_ns for batch, _ in stay.requests) / scale.unit_ns
        if not fits(f"{name}·1", shortest, 7.5) and fits(f" {name}", right - left, 8):
            ax.text(left, y + 0.36, f"{SPACE}{name}", fontsize=7, va="center", color=INK, zorder=5)
        if stay.ended == IDLE:
            ax.text(right, y, "idle ✕", fontsize=7, ha="right", va="center", color=VERMILION, zorder=5)
    ax.add_collection(PolyCollection(bands, facecolors=paints, linewidths=0, zorder=1))
    ax.scatter([x for x, _ in arrivals], [y for _, y in arrivals], c=marks, s=14, marker="^", linewidths=0, zorder=2)


def _requests(
    ax: Axes, scale: TimeScale, held: list[SlotOccupancy], lanes: _Lanes, numbers: _Numbers, line: float
) -> None:
    """A box for each request that ran, numbered within its sequence, with START and END at its edges."""
    fits = scale.fitting(ax)
    boxes, paints, flags = [], [], []
    for stay in held:
        y, paint = lanes[stay.instance, stay.slot], colour(numbers[stay.sequence])
        low, high = y - _BOX / 2, y + _BOX / 2
        for number, (batch, request) in enumerate(stay.requests, 1):
            if not scale.shows(batch.exec_start_ns, batch.exec_end_ns):
                continue
            begin, end = scale.at(batch.exec_start_ns), scale.at(batch.exec_end_ns)
            boxes.append(box(begin, end, low, high))
            paints.append(paint)
            flags += [[(x, low), (x, high)] for flag, x in ((request.starts, begin), (request.ends, end)) if flag]
            fitting = (text for text in (f"{stay.sequence}·{number}", str(number)) if fits(text, end - begin, 7.5))
            if text := next(fitting, ""):
                ax.text((begin + end) / 2, y, text, fontsize=7.5, ha="center", va="center", color=INK, zorder=5)
    faces = [tint(paint, 0.65) for paint in paints]
    ax.add_collection(PolyCollection(boxes, facecolors=faces, edgecolors=paints, linewidths=line, zorder=3))
    ax.add_collection(LineCollection(flags, colors=INK, linewidths=2.6, capstyle="butt", zorder=4))


def _batches(ax: Axes, scale: TimeScale, rec: Recording, lanes: _Lanes, line: float) -> None:
    """What holds each batch together, and the null rows."""
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
    hatch, face = ("////", "white") if line else (None, tint(GREY, 0.4))
    padding = PolyCollection(nulls, facecolors=face, edgecolors=GREY, hatch=hatch, linewidths=0.8 * line, zorder=3)
    ax.add_collection(padding)
    ax.add_collection(PolyCollection(frames, facecolors="none", edgecolors=INK, linewidths=0.9 * line, zorder=6))
    ax.add_collection(LineCollection(links, colors=INK, linewidths=0.9, zorder=6))
    if dots:
        ax.scatter([x for x, _ in dots], [y for _, y in dots], s=12, color=INK, zorder=7)


def _is_direct(rec: Recording, model: str) -> bool:
    return model not in rec.configs or not rec.configs[model].sequence_batching.HasField("oldest")


def _refused(rec: Recording) -> list[tuple[int | str, int, int]]:
    """Sequence, beginning and end of the wait of each request that was refused."""
    ids = {each.serial: each.correlation_id for each in rec.events if isinstance(each, RequestArrived)}
    return [(ids.get(each.serial, 0), each.received_ns, each.time_ns) for each in rec.refused]


def _backlog_rows(rec: Recording, backlog: list[SlotOccupancy], refused: list[tuple[int | str, int, int]]) -> list[int]:
    """The row of each sequence of the backlog, and of each refused request, with room for its name."""
    begin, end = rec.span_ns
    room = (end - begin) * 0.05
    spans = [(each.arrived_ns, each.assigned_ns) for each in backlog] + [(a, b) for _, a, b in refused]
    order = sorted(range(len(spans)), key=lambda each: spans[each])
    placed = rows((spans[each][0] - room, max(spans[each][1], spans[each][0] + room)) for each in order)
    found = dict(zip(order, placed, strict=True))
    return [found[each] for each in range(len(spans))]


def _backlog(
    ax: Axes,
    scale: TimeScale,
    backlog: list[SlotOccupancy],
    refused: list[tuple[int | str, int, int]],
    places: list[int],
    top: float,
    numbers: _Numbers,
) -> None:
    for stay, place in zip(backlog, places, strict=False):
        y, paint = top - place * _ROW, colour(numbers[stay.sequence])
        begin, end = scale.at(stay.arrived_ns), scale.at(stay.assigned_ns)
        ax.plot([begin, end], [y, y], color=paint, linewidth=3, solid_capstyle="butt", zorder=2)
        waiting = [scale.at(each.queued_ns) for _, each in stay.requests if each.queued_ns < stay.assigned_ns]
        ax.scatter(waiting, [y] * len(waiting), s=16, color=paint, edgecolors="white", linewidths=0.6, zorder=3)
        ax.text(begin, y, f"{stay.sequence}{2 * SPACE}", fontsize=7.5, ha="right", va="center", color=INK)
    for (sequence, begin_ns, end_ns), place in zip(refused, places[len(backlog) :], strict=True):
        y, end = top - place * _ROW, scale.at(end_ns)
        ax.plot([scale.at(begin_ns), end], [y, y], color=GREY, linewidth=1, zorder=2)
        ax.scatter([end], [y], s=30, marker="x", color=VERMILION, zorder=3)
        ax.text(
            scale.at(begin_ns), y, f"{sequence} refused{2 * SPACE}", fontsize=7.5, ha="right", va="center", color=INK
        )
