"""Time on an axis: from the beginning of the recording, in a unit that suits its length."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from mpl_toolkits.axes_grid1 import make_axes_locatable

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording

_UNITS = ((1e9, "s", 20e9), (1e6, "ms", 1e6), (1e3, "µs", 0.0))
_POINTS_PER_INCH = 72.0
#: Keeps words apart from what they label: other spaces beside them vanish in SVG.
SPACE = "\u00a0"
#: Characters of a lane's name that have room beside it, and of a legend below a figure in each line.
_NAME, _LEGEND = 32, 130


@dataclass(frozen=True, slots=True)
class TimeScale:
    """Nanoseconds of the clock to a position on the axis.

    Attributes
    ----------
    origin_ns : int
        Where the axis is 0: the beginning of the recording.
    begin_ns, end_ns : int
        What is drawn: the recording, or a part of its time.
    unit_ns : float
    unit : str
    """

    origin_ns: int
    begin_ns: int
    end_ns: int
    unit_ns: float
    unit: str

    @classmethod
    def of(cls, rec: Recording) -> TimeScale:
        """The scale for a recording."""
        begin, end = rec.span_ns
        unit_ns, unit = next((size, name) for size, name, least in _UNITS if end - begin >= least)
        return cls(rec.origin_ns, begin, end, unit_ns, unit)

    def at(self, time_ns: float) -> float:
        """Where a moment is; what lies outside is at the edge."""
        return (min(max(time_ns, self.begin_ns), self.end_ns) - self.origin_ns) / self.unit_ns

    def shows(self, begin_ns: int, end_ns: int) -> bool:
        """Whether something of a time is drawn."""
        return begin_ns <= self.end_ns and end_ns >= self.begin_ns

    @property
    def ends(self) -> tuple[float, float]:
        """Where what is drawn begins and ends."""
        return self.at(self.begin_ns), self.at(self.end_ns)

    @property
    def length(self) -> float:
        """All that is drawn."""
        return max((self.end_ns - self.begin_ns) / self.unit_ns, 1e-9)

    def fitting(self, ax: Axes) -> Callable[[str, float, float], bool]:
        """A test whether a text of a font size (points) is likely to fit into a width on the axis."""
        figure = ax.get_figure(root=True)
        assert figure is not None
        points = figure.get_figwidth() * ax.get_position().width * _POINTS_PER_INCH / (self.length * 1.04)
        return lambda text, width, fontsize: len(text) * fontsize * 0.58 <= width * points

    def frame(self, ax: Axes) -> None:
        """Set the axis up."""
        left, right = self.ends
        ax.set_xlim(left - 0.02 * self.length, right + 0.02 * self.length)


def duration(ns: float) -> str:
    """A time in words.

    Examples
    --------
    >>> duration(4_900_000)
    '4.9 ms'
    """
    if ns >= 10e9:
        return f"{ns / 1e9:.1f} s"
    return f"{ns / 1e6:.1f} ms" if ns >= 1e5 or ns == 0 else f"{ns / 1e3:.1f} µs"


def name_lanes(ax: Axes, names: Mapping[float, str]) -> None:
    """Write names beside lanes; of long ones the end, which tells instances from each other."""
    shown = [each if len(each) <= _NAME else f"…{each[1 - _NAME :]}" for each in names.values()]
    ax.set_yticks(list(names), shown)


def set_time_label(ax: Axes, unit: str, legend: str) -> None:
    """Write below an axis what its numbers are, and what the marks above it mean."""
    ax.set_xlabel(textwrap.fill(f"{unit}{3 * SPACE} {legend}", _LEGEND), fontsize=8)


def draw_empty(ax: Axes) -> Axes:
    """What stands in place of a figure of nothing."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, "Nothing was executed.", transform=ax.transAxes, fontsize=9, ha="center", va="center")
    return ax


def strip_spines(ax: Axes, *, keep: str = "bottom") -> None:
    """Take away what carries no information."""
    for side, spine in ax.spines.items():
        spine.set_visible(side in keep.split())
    ax.tick_params(axis="y", length=0)
    ax.tick_params(labelsize=8)


def panel_above(ax: Axes, share: float, title: str) -> Axes:
    """Axes on top of others that share their horizontal axis, in the room of those."""
    above: Axes = make_axes_locatable(ax).append_axes("top", size=f"{share:.0%}", pad=0.16, sharex=ax)
    above.text(1, 0.99, title, transform=above.transAxes, fontsize=8, ha="right", va="top")
    above.tick_params(labelbottom=False)
    strip_spines(above, keep="bottom left")
    return above


def box(left: float, right: float, low: float, high: float) -> list[tuple[float, float]]:
    """A rectangle, for a collection: thousands of patches would take minutes."""
    return [(left, low), (right, low), (right, high), (left, high)]
