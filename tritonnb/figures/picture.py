"""Figures that show themselves in a notebook, with their description for who cannot see them.

They are made without pyplot, which keeps figures in a global table: these may be drawn on any thread and
vanish with their last reference. As files they are ink on white paper. Where the notebook is dark, what it shows of
them is turned round, lightness but not hue; a figure to which somebody gave another background stays as it is.
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

#: What is turned round in a dark notebook (JupyterLab, Visual Studio Code): white becomes its #111111.
_PAPER = "tnb-paper"
_STYLE = (
    f"<style>body[data-jp-theme-light='false'] .{_PAPER}, body.vscode-dark .{_PAPER} "
    "{ filter: invert(0.933) hue-rotate(180deg); }</style>"
)

#: Inches. Height is the figure's own affair.
WIDTH = 10.0
_DPI = 110


class Picture(Figure):
    """A figure with an alternative text.

    Attributes
    ----------
    alt : str
        What it shows, in words and numbers.
    """

    def __init__(self, *args: Any, alt: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.alt = alt

    def svg(self) -> str:
        """The figure as SVG, its text as text and `alt` as its title."""
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
    """The given axes, or those of a new picture."""
    if ax is not None:
        return ax
    figure = Picture(figsize=(WIDTH, height), layout="constrained", alt=alt)
    return figure.add_subplot()


def figure_of(ax: Axes) -> Figure:
    """What every figure function gives: the figure that its axes are in."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure
