"""Tables, and reports with a table, as HTML that notebooks, GitHub and screen readers show."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"[+-]?[\d.,]+%?|[–✓✗]?")


class Html(str):
    """Text that already is HTML."""


def html_table(titles: Iterable[object], rows: Iterable[Sequence[object]], *, caption: str = "") -> str:
    """Return a table as HTML, in which columns of numbers are aligned to the right; empty without rows.

    Parameters
    ----------
    titles : iterable of object
        Of the columns; empty for a table without a head.
    rows : iterable of sequence of object
        Cells are escaped unless they are `Html`.
    caption : str, optional

    Examples
    --------
    >>> html_table((), [("rows", 5)])
    "<table style='margin-left:0'><tbody><tr><td style='text-align:left;padding:2px 8px'>rows</td>\
<td style='text-align:right;padding:2px 8px'>5</td></tr></tbody></table>"
    """
    lines = [list(row) for row in rows]
    if not lines:
        return ""
    sides = ["right" if all(_is_number(cell) for cell in column) else "left" for column in zip(*lines, strict=True)]
    heads = list(titles)
    head = f"<thead>{_row('th', heads, sides)}</thead>" if heads else ""
    above = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    body = "".join(_row("td", line, sides) for line in lines)
    return f"<table style='margin-left:0'>{above}{head}<tbody>{body}</tbody></table>"


def html_report(
    title: str, titles: Iterable[object], rows: Iterable[Sequence[object]], remarks: Iterable[object] = ()
) -> str:
    """Return a sentence, a table and a list of remarks as HTML."""
    items = "".join(f"<li>{html.escape(str(remark))}</li>" for remark in remarks)
    return f"<p><b>{html.escape(title)}</b></p>{html_table(titles, rows)}{f'<ul>{items}</ul>' if items else ''}"


def _row(tag: str, cells: Iterable[object], sides: Iterable[str]) -> str:
    texts = (cell if isinstance(cell, Html) else html.escape(str(cell)) for cell in cells)
    # Not all hosts have a style for tables: marimo has cells without padding.
    styles = (f"text-align:{side};padding:2px 8px" for side in sides)
    pieces = (f"<{tag} style='{style}'>{text}</{tag}>" for style, text in zip(styles, texts, strict=True))
    return f"<tr>{''.join(pieces)}</tr>"


def _is_number(cell: object) -> bool:
    return not isinstance(cell, Html) and _NUMBER.fullmatch(str(cell)) is not None
