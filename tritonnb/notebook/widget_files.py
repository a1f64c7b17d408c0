"""The JavaScript and CSS of the widgets: one module and one style sheet for each, made from the files in *static*."""

from __future__ import annotations

from pathlib import Path

from tritonnb.figures import palette
from tritonnb.notebook.es_modules import join_modules
from tritonnb.notebook.view_metadata import ON_DARK

STATIC = Path(__file__).parent / "static"

#: The colours of a widget by what they mean.
_MEANINGS = {
    "input": palette.SKY,
    "compute": palette.BLUE,
    "output": palette.ORANGE,
    "queue": palette.PINK,
    "limit": palette.VERMILION,
}


def javascript(widget: str) -> str:
    """Return the module of a widget: *static/<widget>/view.js* and what it imports."""
    return join_modules(STATIC / widget / "view.js")


def stylesheet(*names: str) -> str:
    """Return the colours, the shared style of controls, and *static/<name>.css* for each name."""
    files = ["shared/controls.css", *(f"{name}.css" for name in names)]
    return "\n".join([_colours(), *((STATIC / file).read_text("utf-8") for file in files)])


def _colours() -> str:
    light = "".join(f"--tnb-{meaning}:{colour};" for meaning, colour in _MEANINGS.items())
    dark = "".join(f"--tnb-{meaning}:{ON_DARK.get(colour, colour)};" for meaning, colour in _MEANINGS.items())
    return f".tnb-controls{{{light}}}body[data-jp-theme-light='false'] .tnb-controls{{{dark}}}"
