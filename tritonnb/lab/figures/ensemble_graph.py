"""The graph of an ensemble: a box for each step with its mean queue and execution time, and the tensors between."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import StepSent
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.figures.palette import COMPUTE, GREY, INK, QUEUE, tint
from tritonnb.lab.figures.picture import axes_for
from tritonnb.recording.batches import RequestRecord
from tritonnb.recording.ensemble_graph import GraphNode, StepGraph, ensemble_graph
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import pluralize

#: The width and height of a box; layers have a distance of one, and so have the boxes of a layer.
_WIDTH, _HEIGHT = 0.66, 0.6
#: Characters of tensors' names in the width of a figure.
_LABEL_CHARACTERS = 170
#: The share of a box's height that is a bar of its queue and execution time.
_BAR = 0.09


@dataclass(frozen=True, slots=True)
class _StepTimes:
    """The requests of a step, their mean times in ms, and their mean number in the queue."""

    requests: int = 0
    queue_ms: float = 0.0
    compute_ms: float = 0.0
    waiting: float = 0.0


def draw(rec: Recording, ax: Axes | None = None) -> Axes:
    """Draw it; see `Plot.graph`."""
    config = _config_of(rec)
    graph, times = ensemble_graph(config), _step_times(rec, config)
    ax = axes_for(ax, 0.6 + 1.15 * graph.places, describe(rec))
    longest = max((step.queue_ms + step.compute_ms for step in times.values()), default=0.0)
    for edge in graph.edges:
        _draw_edge(ax, graph, graph.nodes[edge.source], graph.nodes[edge.target], edge.tensors)
    for node in graph.nodes:
        _draw_node(ax, graph, node, times.get(node.step, _StepTimes()), longest)
    has_skips = any(_is_skip(graph.nodes[edge.source], graph.nodes[edge.target]) for edge in graph.edges)
    ax.set_xlim(-_WIDTH / 2 - 0.05, graph.layers - 1 + _WIDTH / 2 + 0.05)
    ax.set_ylim(-graph.places + 0.5 - (0.35 if has_skips else 0), 0.5)
    ax.set_axis_off()
    note = "means per request; bar: queue, then execution, on the same scale in all steps; waiting: mean queue depth"
    ax.set_title(f"{config.name}: {note}", fontsize=8, loc="left")
    return ax


def describe(rec: Recording) -> str:
    """Return the alternative text."""
    config = _config_of(rec)
    graph, times = ensemble_graph(config), _step_times(rec, config)
    steps = [
        f"{node.label}: {', '.join(_lines(times.get(node.step, _StepTimes())))}"
        for node in graph.nodes
        if node.step >= 0
    ]
    count = pluralize(len(steps), "step")
    return f"Graph of the ensemble {config.name}: {count} in {graph.layers - 2} layers. {'; '.join(steps)}."


def _config_of(rec: Recording) -> pb.ModelConfig:
    for config in rec.configs.values():
        if config.HasField("ensemble_scheduling") and any(
            request.model == config.name for request in rec.ensemble_requests
        ):
            return config
    raise InvalidArgumentError("figure 'graph' expected a recording of an ensemble, got one without ensemble requests")


def _step_times(rec: Recording, config: pb.ModelConfig) -> dict[int, _StepTimes]:
    """Return the times by the number of the step; steps of nested ensembles are not counted."""
    step_of = {
        event.step_serial: event.step
        for event in rec.events
        if isinstance(event, StepSent) and event.model == config.name
    }
    executed: dict[int, list[RequestRecord]] = defaultdict(list)
    for request in rec.requests:
        if request.serial in step_of:
            executed[step_of[request.serial]].append(request)
    begin, end = rec.span_ns
    times = {}
    for step, requests in executed.items():
        queue_ns = sum(request.queue_ns for request in requests)
        compute_ns = sum(request.exec_end_ns - request.exec_start_ns for request in requests)
        count, waiting = len(requests), queue_ns / max(1, end - begin)
        times[step] = _StepTimes(count, queue_ns / count / 1e6, compute_ns / count / 1e6, waiting)
    return times


def _lines(times: _StepTimes) -> list[str]:
    if not times.requests:
        return ["not executed"]
    return [f"queue {times.queue_ms:.3g} ms", f"{times.waiting:.2g} waiting", f"execution {times.compute_ms:.3g} ms"]


def _position(graph: StepGraph, node: GraphNode) -> tuple[float, float]:
    count = sum(other.layer == node.layer for other in graph.nodes)
    return float(node.layer), -(node.place + (graph.places - count) / 2)


def _draw_node(ax: Axes, graph: StepGraph, node: GraphNode, times: _StepTimes, longest: float) -> None:
    x, y = _position(graph, node)
    left, low = x - _WIDTH / 2, y - _HEIGHT / 2
    is_step = node.step >= 0
    ax.add_patch(
        FancyBboxPatch(
            (left, low), _WIDTH, _HEIGHT, boxstyle="round,pad=0,rounding_size=0.04", facecolor="white",
            edgecolor=INK if is_step else GREY, linestyle="-" if is_step else "--",
        )
    )  # fmt: skip
    if not is_step:
        ax.text(x, y, node.label, fontsize=9, ha="center", va="center", color=INK)
        return
    ax.text(left + 0.03, low + _HEIGHT - 0.1, node.label, fontsize=9, va="center", fontweight="bold", color=INK)
    for number, line in enumerate(_lines(times)):
        ax.text(left + 0.03, low + _HEIGHT - 0.21 - 0.115 * number, line, fontsize=7.5, va="center", color=INK)
    scale = _WIDTH / longest if longest else 0.0
    for milliseconds, colour in ((times.queue_ms, QUEUE), (times.compute_ms, COMPUTE)):
        width = milliseconds * scale
        ax.add_patch(Rectangle((left, low), width, _BAR, facecolor=tint(colour), edgecolor=colour))
        left += width


def _is_skip(source: GraphNode, target: GraphNode) -> bool:
    return target.layer - source.layer > 1


def _draw_edge(ax: Axes, graph: StepGraph, source: GraphNode, target: GraphNode, tensors: tuple[str, ...]) -> None:
    (x1, y1), (x2, y2) = _position(graph, source), _position(graph, target)
    skip = _is_skip(source, target)
    drop = 0.18 if skip else 0.0
    begin, end = (x1 + _WIDTH / 2, y1 - drop), (x2 - _WIDTH / 2, y2 - drop)
    curve = "arc3,rad=0.25" if skip else "arc3,rad=0"
    ax.add_patch(
        FancyArrowPatch(
            begin, end, arrowstyle="-|>", mutation_scale=9, color=GREY, connectionstyle=curve, shrinkA=0, shrinkB=0
        )
    )
    middle = (begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2 - (0.125 * (end[0] - begin[0]) if skip else -0.03)
    text = ", ".join(tensors)
    room = int((1 - _WIDTH) * _LABEL_CHARACTERS / (graph.layers - 1 + _WIDTH))
    if not skip and len(text) > room:
        text = "\n".join(name if len(name) <= room else f"{name[: room - 1]}…" for name in tensors)
    ax.text(*middle, text, fontsize=7, ha="center", va="top" if skip else "bottom", color=INK)
