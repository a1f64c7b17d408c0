"""Ensembles: a lane for each instance of the models of the steps, with its executions.

A box is an execution, divided into strips if several requests shared the batch. A colour and a number identify one
request of the ensemble in all lanes. Executions for other requests are grey. Below the boxes are the waiting requests,
one line each.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.figures.palette import GREY, INK, LIGHT, PAPER, series, tint
from tritonnb.lab.figures.picture import axes_for
from tritonnb.lab.figures.scale import TimeScale, box, draw_empty, duration, label_lanes
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.lanes import assign_lanes

#: Vertical layout of a lane: top and bottom of the boxes, top and bottom of the waiting lines.
_TOP, _BOTTOM, _WAITS, _WAITS_END = 0.4, -0.14, -0.2, -0.44
#: Up to this many requests are described one by one in the alternative text.
_FEW = 12


def draw(rec: Recording, ax: Axes | None = None) -> Axes:
    """Draw it; see `Plot.steps`."""
    alt, lanes = describe(rec), _lanes(rec)
    ax = axes_for(ax, 0.9 + 0.7 * len(lanes), alt)
    if not lanes:
        return draw_empty(ax)
    scale = TimeScale.for_recording(rec)
    scale.frame(ax)
    ax.hlines([y - 0.5 for y in lanes.values()], *scale.ends, colors=LIGHT, linewidths=0.6, zorder=0)
    requests = enumerate(rec.ensemble_requests)
    numbers = {step.serial: number for number, request in requests for step in request.walk()}
    _draw_boxes(ax, scale, rec, lanes, numbers)
    for instance, y in lanes.items():
        _draw_waits(ax, scale, rec, instance, y, numbers)
    executed = Patch(facecolor=tint(GREY, 0.6), label="execution, colour and number: request of the ensemble")
    waiting = Line2D([], [], color=GREY, linewidth=1.2, label="waiting request of a step")
    label_lanes(ax, scale, {y: instance for instance, y in lanes.items()}, [executed, waiting])
    ax.set_ylim(min(lanes.values()) - 0.6, 0.6)
    return ax


def describe(rec: Recording) -> str:
    """Return the alternative text."""
    requests = rec.ensemble_requests
    if not requests:
        raise InvalidArgumentError(
            "figure 'steps' expected a recording of an ensemble, got one without ensemble requests"
        )
    begin, end = rec.span_ns
    models = list(dict.fromkeys(batch.model for batch in sorted(rec.batches, key=lambda batch: batch.exec_start_ns)))
    shared = sum(1 for batch in rec.batches if len(batch.requests) > 1)
    ensembles = " and ".join(dict.fromkeys(request.model for request in requests))
    words = (
        f"Steps over {duration(end - begin)}: {pluralize(len(requests), 'request')} of {ensembles} "
        f"through {', '.join(models) or '(no model)'}; {shared} of {len(rec.batches)} executions had several requests."
    )
    if len(requests) <= _FEW:
        durations = [
            f"{number} took {duration(request.latency_ns)}{' and failed' if request.failed else ''}"
            for number, request in enumerate(requests, 1)
            if request.complete
        ]
        words += f" Request {', '.join(durations)}." if durations else ""
    return words


def _lanes(rec: Recording) -> dict[str, float]:
    """Return the vertical position of each instance, ordered by first executions, which is the order of the steps."""
    instances = dict.fromkeys(batch.instance for batch in sorted(rec.batches, key=lambda batch: batch.exec_start_ns))
    return {instance: -float(number) for number, instance in enumerate(instances)}


def _draw_boxes(ax: Axes, scale: TimeScale, rec: Recording, lanes: dict[str, float], numbers: dict[int, int]) -> None:
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
            faces.append(tint(_color(number), 0.6))
            edges.append(PAPER if width > scale.length * 0.01 else "none")
            text = "" if number is None else str(number + 1)
            if height >= 0.1 and fits(text, right - left, 7.5):
                ax.text((left + right) / 2, low + height / 2, text, fontsize=7.5, color=INK, ha="center", va="center")
    ax.add_collection(PolyCollection(boxes, facecolors=faces, edgecolors=edges, linewidths=0.6))


def _draw_waits(ax: Axes, scale: TimeScale, rec: Recording, instance: str, y: float, numbers: dict[int, int]) -> None:
    started = {batch.number: batch.exec_start_ns for batch in rec.batches if batch.instance == instance}
    intervals = sorted(
        (request.queued_ns, started[request.batch], request.serial)
        for request in rec.requests
        if request.batch in started
    )
    begins, ends = [scale.at(begin) for begin, _, _ in intervals], [scale.at(end) for _, end, _ in intervals]
    places = assign_lanes(zip(begins, ends, strict=True))
    step = min(0.06, (_WAITS - _WAITS_END) / (max(places, default=0) + 1))
    heights = [y + _WAITS - place * step for place in places]
    ax.hlines(heights, begins, ends, colors=[_color(numbers.get(serial)) for _, _, serial in intervals], linewidths=1.2)


def _color(number: int | None) -> str:
    return GREY if number is None else series(number)
