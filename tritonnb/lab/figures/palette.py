"""The colours of all figures and widgets by their meaning, on white and on dark backgrounds.

A colour has one meaning wherever it appears: in matplotlib figures, on the canvas of the batch view, in its legend and
in style sheets, which are all generated from this module. Constants are the colours on white; `DARK` has them for dark
backgrounds. Each has a contrast of at least 3:1 with its background, and those that appear together are distinguishable
with protanopia, deuteranopia and tritanopia. Colours are always used together with labels or shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: Parts of a request's time: waiting in the queue, and the three parts of the execution.
QUEUE, INPUT, COMPUTE, OUTPUT = "#2A1C84", "#31939E", "#0072B2", "#DB6D01"
#: The parts of an execution by their names in the statistics.
PARTS: Mapping[str, str] = {"compute_input": INPUT, "compute_infer": COMPUTE, "compute_output": OUTPUT}
#: Refused and failed requests; the selected object and the cursor; null requests; limits of the configuration.
REFUSAL, SELECTION, NULL, LIMIT = "#B91F0D", "#7B4053", "#767676", "#121F00"
#: Priority levels, in the order of lightness: `priority` spreads the levels of a model over them.
PRIORITIES = ("#0F0F0F", "#3C2D2D", "#5A3C2D", "#875A4B", "#A57869")
#: Distinguish requests, sequences and other items of a series; their order has no meaning.
SERIES = ("#5372BE", "#5D2B3C", "#D95E35", "#42908E", "#3A3BA3", "#6D220A", "#AB7866")
#: Text and lines with a colour that has no meaning.
INK, GREY, LIGHT, PAPER = "#222222", "#6E6E6E", "#D9D9D9", "#FFFFFF"
#: The background of lanes.
PANEL = "#F4F4F4"

#: The same colours on a dark background.
DARK: Mapping[str, str] = {
    QUEUE: "#A27FAB", INPUT: "#7FFBFE", COMPUTE: "#56A9F0", OUTPUT: "#D8921D",
    REFUSAL: "#EB475F", SELECTION: "#E1B1C2", NULL: "#8F8F8F", LIMIT: "#DDE29C",
    **dict(zip(PRIORITIES, ("#D2FFE1", "#A5D2B4", "#96B487", "#789678", "#78784B"), strict=True)),
    **dict(zip(SERIES, ("#9BE5FB", "#DFE05C", "#149B73", "#D18CFC", "#13F7B8", "#F3511D", "#6D8BB4"), strict=True)),
    INK: "#E6E6E6", GREY: "#A0A0A0", LIGHT: "#4D4D4D", PAPER: "#111111", PANEL: "#2A2A2A",
}  # fmt: skip

MEANINGS: Mapping[str, str] = {
    "queue": QUEUE, "input": INPUT, "compute": COMPUTE, "output": OUTPUT,
    "refusal": REFUSAL, "selection": SELECTION, "null": NULL, "limit": LIMIT,
}  # fmt: skip


def series(number: int) -> str:
    """Return the colour of the n-th item of a series, from 0; the colours repeat."""
    return SERIES[number % len(SERIES)]


def priority(level: int, levels: int) -> str:
    """Return the colour of a priority level, from 1, of a model with ``levels``: few levels differ more in lightness.

    Levels beyond the number of colours have the last colour.
    """
    last = min(max(levels, 2), len(PRIORITIES)) - 1
    at = min(max(level, 1) - 1, last)
    return PRIORITIES[round(at * (len(PRIORITIES) - 1) / last)]


def tint(colour: str, share: float = 0.5) -> str:
    """Return a colour that covers only a share of what is behind it, so that text on it is legible.

    Examples
    --------
    >>> tint("#0072B2", 0.5)
    '#0072B280'
    """
    return f"{colour}{round(255 * share):02X}"


def themes() -> dict[str, dict[str, str | list[str]]]:
    """Return the colours for scripts, by theme: each meaning, and the lists ``priorities`` and ``series``."""
    return {"light": _theme({}), "dark": _theme(DARK)}


def _theme(on_background: Mapping[str, str]) -> dict[str, str | list[str]]:
    def shown(colour: str) -> str:
        return on_background.get(colour, colour)

    lists = {"priorities": PRIORITIES, "series": SERIES}
    return {
        **{name: shown(colour) for name, colour in MEANINGS.items()},
        **{name: [shown(colour) for colour in colours] for name, colours in lists.items()},
    }


def style_sheet(selector: str, dark_pages: Sequence[str] = ()) -> str:
    """Return a style sheet that defines ``--tnb-<meaning>`` for what the selector matches.

    A script that has found out what is painted behind a widget sets ``data-tnb-theme`` of the widget or around it to
    ``light`` or ``dark``, and ``data-tnb-paper`` to ``own`` where the colours of the host's texts cannot be read there.

    Parameters
    ----------
    selector : str
    dark_pages : sequence of str, optional
        What matches the body of a dark page, for HTML without scripts: `DARK_PAGES`.

    Examples
    --------
    >>> print(style_sheet(".tnb").splitlines()[0][:60])
    .tnb { --tnb-queue: #2A1C84; --tnb-input: #31939E; --tnb-com
    """
    light, dark = (
        " ".join(f"--tnb-{name}: {shown.get(colour, colour)};" for name, colour in {**MEANINGS, "panel": PANEL}.items())
        for shown in ({}, DARK)
    )

    def where(*attributes: str) -> str:
        marks = "".join(f"[data-tnb-{attribute}]" for attribute in attributes)
        return f"{marks} {selector}, {selector}{marks}"

    rules = {
        selector: light,
        ", ".join([where("theme='dark'"), *(f"{page} {selector}" for page in dark_pages)]): dark,
        where("paper='own'"): _PAPERS["light"],
        where("paper='own'", "theme='dark'"): _PAPERS["dark"],
    }
    return "".join(f"{matched} {{ {colours} }}\n" for matched, colours in rules.items())


#: Text and paper in hosts that have none of JupyterLab's variables, or whose variables do not fit to the background.
_PAPERS = {
    "light": "--jp-ui-font-color1: #212121; --jp-ui-font-color2: #595959; --jp-layout-color1: #ffffff; "
    "--jp-layout-color2: #f4f4f4; --jp-border-color1: #9e9e9e; --jp-brand-color1: #1565c0; "
    "--jp-error-color1: #b3261e; --jp-success-color1: #1b5e20;",
    "dark": "--jp-ui-font-color1: #eeeeee; --jp-ui-font-color2: #bdbdbd; --jp-layout-color1: #111111; "
    "--jp-layout-color2: #212121; --jp-border-color1: #757575; --jp-brand-color1: #7ab8ff; "
    "--jp-error-color1: #ff8a80; --jp-success-color1: #81c784;",
}
#: What matches the body of a dark page, where no script finds it out: JupyterLab, Visual Studio Code, Colab, the
#: documentation.
DARK_PAGES = (
    "body[data-jp-theme-light='false']", "body.vscode-dark", "[theme='dark'] body", "body[theme='dark']",
    "body[data-theme='dark']",
)  # fmt: skip
