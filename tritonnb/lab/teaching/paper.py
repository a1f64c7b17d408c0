"""Worksheets on paper: a web page to print, with a sheet on each page and the solutions behind them."""

from __future__ import annotations

import html
from collections.abc import Mapping

from tritonnb.core.html_table import html_table
from tritonnb.lab.teaching.worksheet import Worksheet

_STYLE = """
body { font: 11pt/1.4 sans-serif; max-width: 18cm; margin: 0 auto; color: #000; background: #fff }
section { break-after: page } pre { background: #f2f2f2; padding: .6em } h1 { font-size: 16pt }
table { border-collapse: collapse; margin: 1em 0 } td, th { border: 1px solid #999; padding: .25em .7em }
.answer td { height: 1.6em } .answer td:last-child { width: 10cm }
"""


def paper(sheets: Mapping[str, Worksheet], title: str) -> str:
    """Return a page with all sheets and, at its end, their solutions with the reason of every batch.

    Parameters
    ----------
    sheets : mapping of str to Worksheet
        By the heading of each sheet.
    title : str
        Title of the page.

    Examples
    --------
    >>> from tritonnb.lab.teaching.exercises import worksheet
    >>> paper({"Sheet 1": worksheet(seed=1)}, "Batching").count("<h1>Sheet 1</h1>")
    2
    """
    questions = "".join(_section(heading, _question(sheet)) for heading, sheet in sheets.items())
    solutions = "".join(f"<h1>{html.escape(heading)}</h1>{_solution(sheet)}" for heading, sheet in sheets.items())
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(title)}</title>"
        f"<style>{_STYLE}</style>{questions}<section><p><b>Solutions</b></p>{solutions}</section></html>"
    )


def _section(heading: str, content: str) -> str:
    return f"<section><h1>{html.escape(heading)}</h1><p>Name: ______________________________</p>{content}</section>"


def _question(sheet: Worksheet) -> str:
    # As many lines as requests: the number of batches is part of the answer.
    lines = [(number, "", "") for number in range(1, len(sheet.arrivals) + 1)]
    answer = html_table(("batch", "sent at (ms)", "requests"), lines)
    return f"{sheet._repr_html_()}<div class='answer'>{answer}</div>"


def _solution(sheet: Worksheet) -> str:
    rows = [
        (number + 1, f"{batch.sent_ns / 1e6:g}", ", ".join(sorted(sheet.members[number])), sheet.why(number))
        for number, batch in enumerate(sheet.batches)
    ]
    return html_table(("batch", "sent at (ms)", "requests", "why"), rows)
