"""Figures that a notebook displays with an alternative text for screen readers.

They are created without pyplot, whose global table of figures is not thread-safe: these can be drawn on any thread and
are freed with their last reference. Saved files have a white background. A notebook gets two drawings, for light and
for dark pages, unless the background colour was changed; they are SVG if that is not too large.
"""

from __future__ import annotations

import base64
import html
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.colors import same_color
from matplotlib.figure import Figure

from tritonnb.core.json_types import Json
from tritonnb.figures.dark import on_dark
from tritonnb.figures.palette import DARK_PAGES, PAPER

#: Of the two drawings, only the one for the page's theme is shown.
_STYLE = "<style>{pages} {{ display: inline !important; }} {hidden} {{ display: none !important; }}</style>".format(
    pages=", ".join(f"{page} img.tnb-on-dark" for page in DARK_PAGES),
    hidden=", ".join(f"{page} img.tnb-on-dark ~ img.tnb-on-light" for page in DARK_PAGES),
)
#: Larger SVG documents, in bytes, are shown as PNG.
_LARGEST_SVG = 300_000

_svg_lock = threading.Lock()

#: Width of all figures in inches.
WIDTH = 10.0
_DPI = 160


class Picture(Figure):
    """A figure with an alternative text.

    Attributes
    ----------
    alt : str
        The alternative text: what the figure shows, with its numbers.
    """

    def __init__(self, *args: Any, alt: str = "", **kwargs: Any) -> None:
        """Create a figure; the arguments apart from `alt` are those of `matplotlib.figure.Figure`."""
        super().__init__(*args, **kwargs)
        self.alt = alt

    def svg(self) -> str:
        """The figure as an SVG document, with text as text elements and `alt` as the title."""
        raw = io.StringIO()
        with _svg_parameters():
            self.savefig(raw, format="svg", metadata={"Date": None})
        text = raw.getvalue()
        start = text.index("<svg ")
        head = text.index(">", start) + 1
        opened = text[start:head].replace("<svg ", '<svg role="img" ', 1)
        return f"{opened}<title>{html.escape(self.alt)}</title>{text[head:]}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Json:
        png = base64.b64encode(self._png()).decode()
        shown = self._image("tnb-on-light")
        if same_color(self.get_facecolor(), PAPER):
            with on_dark(self):
                shown = f"{self._image('tnb-on-dark', hidden=True)}{shown}{_STYLE}"
        return {"text/html": shown, "image/png": png, "text/plain": self.alt or repr(self)}

    def _png(self) -> bytes:
        raw = io.BytesIO()
        self.savefig(raw, format="png", dpi=_DPI)
        return raw.getvalue()

    def _image(self, name: str, hidden: bool = False) -> str:
        kind, content = "svg+xml", self.svg().encode()
        if len(content) > _LARGEST_SVG:
            kind, content = "png", self._png()
        alt = html.escape(self.alt, quote=True)
        look = f"max-width: 100%{'; display: none' if hidden else ''}"
        source = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
        return f'<img alt="{alt}" title="{alt}" class="{name}" style="{look}" src="{source}">'


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


@contextmanager
def _svg_parameters() -> Iterator[None]:
    """Have text drawn as text elements, and the same names in every drawing.

    `matplotlib.rc_context` would restore all global parameters at the end. Figures are also drawn on threads of
    widgets, while the user may be changing other parameters.
    """
    with _svg_lock:
        before = rcParams["svg.fonttype"], rcParams["svg.hashsalt"]
        rcParams["svg.fonttype"], rcParams["svg.hashsalt"] = "none", "tritonnb"
        try:
            yield
        finally:
            rcParams["svg.fonttype"], rcParams["svg.hashsalt"] = before
