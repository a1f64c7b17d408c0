"""Figures that a notebook displays with an alternative text for screen readers.

They are created without pyplot, whose global table of figures is not thread-safe: these can be drawn on any thread and
are freed with their last reference. Saved files have a white background. In a dark notebook the displayed figure is
inverted in lightness, not in hue, unless its background colour was changed.
"""

from __future__ import annotations

import base64
import html
import io
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import same_color
from matplotlib.figure import Figure

#: CSS class of figures that dark notebooks (JupyterLab, Visual Studio Code) invert: white becomes #111111.
_PAPER = "tnb-paper"
_STYLE = (
    f"<style>body[data-jp-theme-light='false'] .{_PAPER}, body.vscode-dark .{_PAPER} "
    "{ filter: invert(0.933) hue-rotate(180deg); }</style>"
)

#: Width of all figures in inches.
WIDTH = 10.0
_DPI = 110


class Picture(Figure):
    """A figure with an alternative text.

    Attributes
    ----------
    alt : str
        The alternative text: what the figure shows, with its numbers.
    """

    def __init__(self, *args: Any, alt: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.alt = alt

    def svg(self) -> str:
        """The figure as an SVG document, with text as text elements and `alt` as the title."""
        raw = io.StringIO()
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tritonnb"}):
            self.savefig(raw, format="svg", metadata={"Date": None})
        text = raw.getvalue()
        start = text.index("<svg ")
        head = text.index(">", start) + 1
        opened = text[start:head].replace("<svg ", f'<svg role="img" class="{self._class}" ', 1)
        return f"{opened}<title>{html.escape(self.alt)}</title>{_STYLE}{text[head:]}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        raw = io.BytesIO()
        self.savefig(raw, format="png", dpi=_DPI)
        png = base64.b64encode(raw.getvalue()).decode()
        alt = html.escape(self.alt, quote=True)
        look = f'class="{self._class}" style="max-width: 100%"'
        shown = f'<img alt="{alt}" title="{alt}" {look} src="data:image/png;base64,{png}">{_STYLE}'
        return {"text/html": shown, "image/png": png, "text/plain": self.alt or repr(self)}

    @property
    def _class(self) -> str:
        return _PAPER if same_color(self.get_facecolor(), "white") else ""


def axes_for(ax: Axes | None, height: float, alt: str) -> Axes:
    """Return ``ax``, or the axes of a new picture."""
    if ax is not None:
        return ax
    figure = Picture(figsize=(WIDTH, height), layout="constrained", alt=alt)
    return figure.add_subplot()


def figure_of(ax: Axes) -> Figure:
    """Return the figure that contains the axes."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure
