"""Generations in the slots of an instance, or in the places of its static batches: a lane each, a cell for each step.

The first cell of a generation, in which its prompt is read, is solid; the time for which its place is kept after its
last token is hatched. The number of waiting prompts is drawn above.
"""

from __future__ import annotations

from bisect import bisect_right

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.figures.palette import GREY, INK, LIGHT, NULL, PAPER, QUEUE, series, tint
from tritonnb.lab.figures.picture import axes_for
from tritonnb.lab.figures.scale import SPACE, TimeScale, box, duration, label_lanes, panels_above
from tritonnb.recording.generations import Generation, idle_share, token_times_of
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.lanes import count_overlaps

_BOX = 0.72


def draw(rec: Recording, ax: Axes | None = None) -> Axes:
    """Draw it; see `Plot.generations`."""
    alt, generations, scale = describe(rec), rec.generations, TimeScale.for_recording(rec)
    names = dict.fromkeys(sorted((generation.instance, generation.lane) for generation in generations))
    lanes = {name: -float(number) for number, name in enumerate(names)}
    ax = axes_for(ax, 1.6 + 0.34 * len(lanes), alt)
    scale.frame(ax)
    ax.hlines([y - 0.5 for y in lanes.values()], *scale.ends, colors=LIGHT, linewidths=0.6, zorder=0)
    _draw_steps(ax, scale, generations, lanes)
    ticks = {y: f"{instance} {_place(rec)} {lane}" for (instance, lane), y in lanes.items()}
    label_lanes(ax, scale, ticks, _marks(generations))
    ax.set_ylim(min(lanes.values()) - 0.6, 0.6)
    _draw_waiting(ax, scale, generations)
    return ax


def describe(rec: Recording) -> str:
    """Return the alternative text; it counts only what the drawn range shows."""
    if not rec.generations:
        raise InvalidArgumentError(
            "figure 'generations' expected a recording of a model that generates token by token, got none"
        )
    (begin, end), scale = rec.span_ns, TimeScale.for_recording(rec)
    generations = [part for part in rec.generations if scale.shows(part.steps[0][0], part.end_ns)]
    lanes = {(generation.instance, generation.lane) for generation in generations}
    places = pluralize(len(lanes), _place(rec))
    longest = max(len(generation.steps) for generation in generations)
    times = token_times_of([generation for generation in generations if begin <= generation.end_ns <= end])
    words = f" Those that end: {times.verdict()}" if times.count else ""
    return (
        f"{pluralize(len(generations), 'generation')} of at most {pluralize(longest, 'token')} in {places} over "
        f"{duration(end - begin)}; {idle_share(generations):.0%} of the time in them is idle.{words}"
    )


def _place(rec: Recording) -> str:
    return "slot" if any(batch.slots for batch in rec.batches) else "place"


def _marks(generations: list[Generation]) -> list[Artist]:
    """Return the entries of the legend."""
    marks: list[Artist] = [
        Patch(facecolor=tint(GREY, 0.95), label="step that reads the prompt"),
        Patch(facecolor=tint(GREY, 0.35), edgecolor=GREY, label="step"),
        Line2D([], [], color=INK, marker="|", markeredgewidth=2.2, linewidth=0, label="last token"),
    ]
    if any(generation.idle_ns > 0 for generation in generations):
        marks.append(Patch(facecolor=PAPER, edgecolor=NULL, hatch="////", label="idle until the batch ends"))
    return marks


def _draw_steps(ax: Axes, scale: TimeScale, generations: list[Generation], lanes: dict[tuple[str, int], float]) -> None:
    """Draw the cells of the steps, the moment of each last token, and the time in which a place is idle."""
    fits = scale.fitting(ax)
    boxes, colours, faces, ends, idle = [], [], [], [], []
    lines = []  # the widths of edges: narrow cells have none, else they would look solid
    for number, generation in enumerate(generations):
        y, colour = lanes[generation.instance, generation.lane], series(number)
        low, high = y - _BOX / 2, y + _BOX / 2
        for step, (begin, end) in enumerate(generation.steps):
            if scale.shows(begin, end):
                boxes.append(box(scale.at(begin), scale.at(end), low, high))
                colours.append(colour)
                faces.append(tint(colour, 0.35 if step else 0.95))
                lines.append(0.6 if fits("0", (end - begin) / scale.unit_ns, 5) else 0.0)
        if generation.idle_ns > 0 and scale.shows(generation.end_ns, generation.free_ns):
            idle.append(box(scale.at(generation.end_ns), scale.at(generation.free_ns), low, high))
        left, right = scale.at(generation.steps[0][1]), scale.at(generation.end_ns)
        if scale.shows(generation.end_ns, generation.end_ns):
            ends.append([(right, low), (right, high)])
        label = f"{SPACE}{number + 1}: {len(generation.steps)} tokens"
        text = next((text for text in (label, f"{SPACE}{number + 1}") if fits(text, right - left, 7.5)), "")
        ax.text(left, y, text, fontsize=7.5, va="center", color=INK, zorder=5)
    ax.add_collection(PolyCollection(boxes, facecolors=faces, edgecolors=colours, linewidths=lines, zorder=3))
    ax.add_collection(PolyCollection(idle, facecolors=PAPER, edgecolors=NULL, hatch="////", linewidths=0.6, zorder=2))
    ax.add_collection(LineCollection(ends, colors=INK, linewidths=2.2, capstyle="butt", zorder=4))


def _draw_waiting(ax: Axes, scale: TimeScale, generations: list[Generation]) -> None:
    """Draw how many prompts wait for a slot."""
    times, waiting = count_overlaps((generation.arrived_ns, generation.steps[0][0]) for generation in generations)
    shown = bisect_right(times, scale.end_ns)
    counts = [0, *waiting[:shown]]
    begin, end = scale.ends
    (above,) = panels_above(ax, (0.28, "prompts waiting"))
    above.step(
        [begin, *map(scale.at, times[:shown]), end], [*counts, counts[-1]], where="post", color=QUEUE, linewidth=1
    )
    above.set_ylim(0, max(counts) * 1.25 + 1)
