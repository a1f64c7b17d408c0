"""The waterfall of a request of a pipeline: a bar for it and for each request that it caused, on one time axis.

The light part of a bar is the time before the execution, the dark part the execution. The line below a bar is the time
in which it was on the critical path: only a change of these times makes the request faster.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.figures.palette import COMPUTE, GREY, INK, QUEUE, REFUSAL, SELECTION, tint
from tritonnb.lab.figures.picture import axes_for
from tritonnb.lab.figures.scale import TimeScale, duration, label_lanes
from tritonnb.recording.pipelines import PipelineRequest, step_paths
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import pluralize

#: Vertical layout of a lane: height of the bars, and the line of the critical path below them.
_HEIGHT, _LINE = 0.5, -0.36
#: More requests of one tree are not drawn: the figure would be taller than a page.
_MOST_BARS = 60


def draw(rec: Recording, ax: Axes | None = None, request: PipelineRequest | None = None) -> Axes:
    """Draw it; see `Plot.waterfall`."""
    root = request or slowest(rec)
    below = list(step_paths(root).values())[:_MOST_BARS]
    ax = axes_for(ax, 0.8 + 0.34 * len(below), describe(rec, root))
    scale = TimeScale.between(root.received_ns, root.ended_ns)
    scale.frame(ax)
    places = {one.serial: -float(place) for place, (one, _) in enumerate(below)}
    for one, _ in below:
        y, color = places[one.serial], tint(REFUSAL if one.failed else QUEUE, 0.35)
        begin_ns, end_ns = (one.received_ns, one.ended_ns) if one.record is None else _execution(one)
        bars = [(scale.at(one.received_ns), scale.at(one.ended_ns), tint(GREY, 0.35) if one.is_ensemble else color)]
        if one.record is not None:
            bars.append((scale.at(begin_ns), scale.at(end_ns), tint(REFUSAL if one.failed else COMPUTE, 0.75)))
        for left, right, face in bars:
            ax.barh(y, right - left, _HEIGHT, left, color=face)
        ax.text(scale.at(one.ended_ns), y, f" {duration(one.latency_ns)}", fontsize=7, color=INK, va="center")
    for one, begin_ns, end_ns in root.critical_path():
        if one.serial in places:
            y = places[one.serial] + _LINE
            ax.hlines(y, scale.at(begin_ns), scale.at(end_ns), colors=SELECTION, linewidths=2)
    names = {places[one.serial]: f"{'  ' * len(path)}{path[-1] if path else one.model}" for one, path in below}
    marks = [
        Patch(facecolor=tint(QUEUE, 0.35), label="waiting"),
        Patch(facecolor=tint(COMPUTE, 0.75), label="execution"),
        Patch(facecolor=tint(GREY, 0.35), label="ensemble"),
        Line2D([], [], color=SELECTION, linewidth=2, label="critical path"),
    ]
    label_lanes(ax, scale, names, marks)
    ax.set_ylim(-len(below) + 0.4, 0.6)
    return ax


def describe(rec: Recording, request: PipelineRequest | None = None) -> str:
    """Return the alternative text."""
    root = request or slowest(rec)
    paths = step_paths(root)
    times: dict[str, int] = {}
    for one, begin_ns, end_ns in root.critical_path():
        name = " / ".join(paths[one.serial][1]) or f"{one.model} itself"
        times[name] = times.get(name, 0) + end_ns - begin_ns
    parts = ", ".join(f"{name} {duration(ns)}" for name, ns in times.items())
    below = pluralize(len(paths) - 1, "request")
    return (
        f"Waterfall of request {root.label} of {root.model}: {duration(root.latency_ns)}, {below} below it. "
        f"Critical path: {parts}."
    )


def slowest(rec: Recording) -> PipelineRequest:
    """Return the slowest request of the pipelines in a recording.

    Raises
    ------
    InvalidArgumentError
        If it contains none.
    """
    requests = [request for pipeline in rec.pipelines.values() for request in pipeline.requests]
    if not requests:
        raise InvalidArgumentError(
            "figure 'waterfall' expected a recording of a pipeline, got one without its requests"
        )
    return max(requests, key=lambda request: request.latency_ns)


def _execution(request: PipelineRequest) -> tuple[int, int]:
    assert request.record is not None
    return request.record.exec_start_ns, request.record.exec_end_ns
