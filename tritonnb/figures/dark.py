"""Draws a figure on a dark background: every colour of the palette becomes its counterpart, others stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.colors import to_rgb, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.text import Text

from tritonnb.figures.palette import DARK, INK, PAPER

#: The properties of artists that are colours.
_PROPERTIES = ("facecolor", "edgecolor", "color", "markerfacecolor", "markeredgecolor", "hatchcolor")
#: The colours on white and their counterparts; black is matplotlib's default for text and lines.
_COUNTERPARTS = {**DARK, "black": DARK[INK], "white": DARK[PAPER]}
_FROM = np.array([to_rgb(colour) for colour in _COUNTERPARTS])
_TO = np.array([to_rgb(colour) for colour in _COUNTERPARTS.values()])


@contextmanager
def on_dark(figure: Figure) -> Iterator[None]:
    """Change the colours of a figure's artists to those of dark backgrounds until the block ends."""
    restore: list[Callable[[], object]] = []
    try:
        for artist in figure.findobj():
            _recolour(artist, restore)
        yield
    finally:
        for undo in reversed(restore):
            undo()


def _recolour(artist: Artist, restore: list[Callable[[], object]]) -> None:
    for name in _PROPERTIES:
        getter, setter = (getattr(artist, f"{verb}_{name}", None) for verb in ("get", "set"))
        if getter is None or setter is None or (name == "color" and hasattr(artist, "set_facecolor")):
            continue
        value = getter()
        changed = _counterparts(value)
        if changed is not None:
            setter(changed)
            restore.append(_call(setter, value))
    bbox = artist.get_bbox_patch() if isinstance(artist, Text) else None
    if bbox is not None:
        _recolour(bbox, restore)


def _call(setter: Callable[[Any], object], value: Any) -> Callable[[], object]:
    return lambda: setter(value)


def _counterparts(value: Any) -> Any:
    """The counterparts of one colour or of several, None if there are none."""
    if isinstance(value, str) and value in ("none", "auto", "face", "inherit", "edge"):
        return None
    colours: npt.NDArray[np.float64] = np.array(to_rgba_array(value))
    changed = False
    for before, after in zip(_FROM, _TO, strict=True):
        same = np.abs(colours[:, :3] - before).max(axis=1) < 1 / 510 if len(colours) else np.zeros(0, bool)
        if same.any():
            after_rows = np.where(same)[0]
            colours[after_rows, :3] = after + 2  # marked, so that no counterpart is replaced again
            changed = True
    if not changed:
        return None
    colours[:, :3] = np.where(colours[:, :3] >= 2, colours[:, :3] - 2, colours[:, :3])
    return colours if np.ndim(value) == 2 else tuple(colours[0])
