"""The JavaScript and CSS of the widgets: one module and one style sheet for each, made from the files in *static*."""

from __future__ import annotations

from pathlib import Path

from tritonnb.figures import palette
from tritonnb.notebook.es_modules import join_modules

STATIC = Path(__file__).parent / "static"


def javascript(widget: str) -> str:
    """Return the module of a widget: *static/<widget>/view.js* and what it imports."""
    return join_modules(STATIC / widget / "view.js")


def stylesheet(*names: str) -> str:
    """Return the colours, the shared style of controls, and *static/<name>.css* for each name."""
    files = ["shared/controls.css", *(f"{name}.css" for name in names)]
    return "\n".join([palette.style_sheet(".tnb-controls"), *((STATIC / file).read_text("utf-8") for file in files)])
