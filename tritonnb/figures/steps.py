"""Ensembles: a lane for each model, and in it the executions of its part in every request's journey.

A box is an execution; where several requests shared its batch, each has its strip. A colour and a number stand
for one request of the ensemble through all lanes. Models without a part in an ensemble have grey boxes: those
that call others, for example. Below the boxes are the requests that wait, a line each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.figures.palette import GREY, INK, LIGHT, colour, tint
from tritonnb.figures.picture import axes_for
from tritonnb.figures.scale import TimeScale, box, draw_empty, duration, name_lanes, set_time_label, strip_spines
from tritonnb.recording.waits import rows

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording

#: Of a lane: where its boxes end, and the lines of those who wait begin and end.
_TOP, _BOTTOM, _WAITS, _WAITS_END = 0.4, -0.14, -0.2, -0.44
#: Up to this many requests are described one by one.
_FEW = 12


def draw(rec: Recording, ax: Axes | None = None) -> Axes:
    """Draw it; see `Plot.steps`."""
    alt, lanes = describe(rec), _lanes(rec)
    ax = axes_for(ax, 0.9 + 0.7 * len(lanes), alt)
    if not lanes:
        return draw_empty(ax)
    scale = TimeScale.of(rec)
    scale.frame(ax)
    ax.hlines([y - 0.5 for y in lanes.values()], *scale.ends, colors=LIGHT, linewidths=0.6, zorder=0)
    numbers = {step: number for number, journey in enumerate(rec.ensemble_requests) for step in journey.steps}
    _boxes(ax, scale, rec, lanes, numbers)
    for instance, y in lanes.items():
        _waits(ax, scale, rec, instance, y, numbers)
    name_lanes(ax, {y: instance for instance, y in lanes.items()})
    ax.set_ylim(min(lanes.values()) - 0.6, 0.6)
    legend = "box: an execution; colour and number: a request of the ensemble; line below: its step waits"
    set_time_label(ax, scale.unit, legend)
    strip_spines(ax)
    return ax


def describe(rec: Recording) -> str:
    """The alternative text."""
    found = rec.ensemble_requests
    if not found:
        raise InvalidArgumentError("no request of this recording ran through the steps of an ensemble")
    begin, end = rec.span_ns
    models = list(dict.fromkeys(each.model for each in sorted(rec.batches, key=lambda each: each.exec_start_ns)))
    shared = sum(1 for each in rec.batches if len(each.requests) > 1)
    ensembles = " and ".join(dict.fromkeys(each.model for each in found))
    words = (
        f"Steps over {duration(end - begin)}: {len(found)} requests of {ensembles} "
        f"through {', '.join(models) or 'no model'}; {shared} of {len(rec.batches)} executions served several requests."
    )
    if len(found) <= _FEW:
        took = [
            f"{number} took {duration(each.ended_ns - each.received_ns)}{' and failed' if each.failed else ''}"
            for number, each in enumerate(found, 1)
            if each.ended_ns is not None and each.received_ns is not None
        ]
        words += f" Request {', '.join(took)}." if took else ""
    return words


def _lanes(rec: Recording) -> dict[str, float]:
    """Where each instance is: the order in which they began is that of the steps."""
    instances = dict.fromkeys(each.instance for each in sorted(rec.batches, key=lambda each: each.exec_start_ns))
    return {instance: -float(number) for number, instance in enumerate(instances)}


def _boxes(ax: Axes, scale: TimeScale, rec: Recording, lanes: dict[str, float], numbers: dict[int, int]) -> None:
    fits = scale.fitting(ax)
    boxes, faces, edges = [], [], []
    for batch in rec.batches:
        if not scale.shows(batch.exec_start_ns, batch.exec_end_ns):
            continue
        left, right = scale.at(batch.exec_start_ns), scale.at(batch.exec_end_ns)
        width = max(right - left, scale.length * 0.002)
        height = (_TOP - _BOTTOM) / len(batch.requests)
        for place, serial in enumerate(batch.requests):
            number = None if serial is None else numbers.get(serial)
            low = lanes[batch.instance] + _TOP - (place + 1) * height
            boxes.append(box(left, left + width, low, low + height))
            faces.append(tint(_paint(number), 0.6))
            edges.append("white" if width > scale.length * 0.01 else "none")
            text = "" if number is None else str(number + 1)
            if height >= 0.1 and fits(text, right - left, 7.5):
                ax.text((left + right) / 2, low + height / 2, text, fontsize=7.5, color=INK, ha="center", va="center")
    ax.add_collection(PolyCollection(boxes, facecolors=faces, edgecolors=edges, linewidths=0.6))


def _waits(ax: Axes, scale: TimeScale, rec: Recording, instance: str, y: float, numbers: dict[int, int]) -> None:
    started = {each.number: each.exec_start_ns for each in rec.batches if each.instance == instance}
    waits = sorted((each.queued_ns, started[each.batch], each.serial) for each in rec.requests if each.batch in started)
    begins, ends = [scale.at(begin) for begin, _, _ in waits], [scale.at(end) for _, end, _ in waits]
    places = rows(zip(begins, ends, strict=True))
    step = min(0.06, (_WAITS - _WAITS_END) / (max(places, default=0) + 1))
    heights = [y + _WAITS - place * step for place in places]
    ax.hlines(heights, begins, ends, colors=[_paint(numbers.get(serial)) for _, _, serial in waits], linewidths=1.2)


def _paint(number: int | None) -> str:
    return GREY if number is None else colour(number)
