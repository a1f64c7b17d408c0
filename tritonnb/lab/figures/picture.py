"""Figures that a notebook displays on white and on dark, with an alternative text for screen readers.

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
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import same_color, to_rgb, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.text import Text

from tritonnb.core.forks import fork_safe
from tritonnb.core.json_types import Json
from tritonnb.lab.figures.palette import DARK, DARK_PAGES, INK, PAPER

#: Only the drawing for the page's theme is shown.
_STYLE = "<style>{pages} {{ display: inline !important; }} {hidden} {{ display: none !important; }}</style>".format(
    pages=", ".join(f"{page} img.tnb-on-dark" for page in DARK_PAGES),
    hidden=", ".join(f"{page} img.tnb-on-dark ~ img.tnb-on-light" for page in DARK_PAGES),
)
#: The same for the two drawings in one SVG document.
_SVG_STYLE = """<style>.tnb-on-dark { display: none; } @media (prefers-color-scheme: dark) {
  .tnb-on-dark { display: inline; } .tnb-on-light { display: none; } }</style>"""
#: Larger SVG documents, in bytes, are shown as PNG.
_LARGEST_SVG = 300_000

_svg_lock = fork_safe(threading.Lock())

#: Width of all figures in inches.
WIDTH = 10.0
_DPI = 160
#: The properties of artists that are colours.
_PROPERTIES = ("facecolor", "edgecolor", "color", "markerfacecolor", "markeredgecolor", "hatchcolor")
#: The colours on white and their counterparts; black is matplotlib's default for text and lines.
_COUNTERPARTS = {**DARK, "black": DARK[INK], "white": DARK[PAPER]}
_FROM = np.array([to_rgb(colour) for colour in _COUNTERPARTS])
_TO = np.array([to_rgb(colour) for colour in _COUNTERPARTS.values()])


class Picture(Figure):
    """A figure with an alternative text.

    Attributes
    ----------
    alt : str
        The alternative text: what the figure shows, with its numbers.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> recording = simulate("max_batch_size: 8 dynamic_batching { }", [(0, 2), (0, 3)], fixed(10))
    >>> picture = recording.plot.timeline()
    >>> picture.svg().lstrip()[:5], picture.svg_for_both_themes().count("tnb-on-dark") > 0
    ('<svg ', True)
    """

    def __init__(self, *args: Any, alt: str = "", **kwargs: Any) -> None:
        """Create a figure; the arguments apart from `alt` are the arguments of `matplotlib.figure.Figure`."""
        super().__init__(*args, **kwargs)
        self.alt = alt

    def svg(self) -> str:
        """Return the figure as an SVG document, with text as text elements and `alt` as the title."""
        raw = io.StringIO()
        with _svg_parameters():
            self.savefig(raw, format="svg", metadata={"Date": None})
        text = raw.getvalue()
        start = text.index("<svg ")
        head = text.index(">", start) + 1
        opened = text[start:head].replace("<svg ", '<svg role="img" ', 1)
        return f"{opened}<title>{html.escape(self.alt)}</title>{text[head:]}"

    def svg_for_both_themes(self) -> str:
        """Return an SVG document with a drawing for each theme; browsers show the drawing for the page's theme."""
        light = self.svg()
        with on_dark(self):
            dark = self.svg()
        body = light.index("</title>") + len("</title>")
        drawings = [
            f'<g class="tnb-on-{theme}">{drawing[body : drawing.rindex("</svg>")]}</g>'
            for theme, drawing in (("light", light), ("dark", dark))
        ]
        return f"{light[:body]}{_SVG_STYLE}{''.join(drawings)}</svg>\n"

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
    """Draw text as text elements, with the same names in every drawing.

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


@contextmanager
def on_dark(figure: Figure) -> Iterator[None]:
    """Change the colours of a figure's artists to colours for dark backgrounds until the block ends."""
    with ExitStack() as restore:
        for artist in figure.findobj():
            _recolour(artist, restore)
        yield


def _recolour(artist: Artist, restore: ExitStack) -> None:
    for name in _PROPERTIES:
        getter, setter = (getattr(artist, f"{verb}_{name}", None) for verb in ("get", "set"))
        if getter is None or setter is None or (name == "color" and hasattr(artist, "set_facecolor")):
            continue
        value = getter()
        changed = _counterparts(value)
        if changed is not None:
            setter(changed)
            restore.callback(setter, value)
    bbox = artist.get_bbox_patch() if isinstance(artist, Text) else None
    if bbox is not None:
        _recolour(bbox, restore)


def _counterparts(value: Any) -> Any:
    """Return the counterparts of one colour or of several, None if there are none."""
    if isinstance(value, str) and value in ("none", "auto", "face", "inherit", "edge"):
        return None
    colours: npt.NDArray[np.float64] = np.array(to_rgba_array(value))
    distances = np.abs(colours[:, np.newaxis, :3] - _FROM).max(axis=2)
    rows, known = np.nonzero(distances < 1 / 510)
    if not len(rows):
        return None
    colours[rows, :3] = _TO[known]
    return colours if np.ndim(value) == 2 else tuple(colours[0])
