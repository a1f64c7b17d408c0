"""A table in the log, in the format of Triton: the models and their states."""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[str]


class LogTable:
    """A message that is a table; it starts below the prefix of its line, and is not quoted.

    Parameters
    ----------
    columns : sequence of str
        The headings.
    rows : sequence of rows
        A cell may have several lines.
    """

    def __init__(self, columns: Row, rows: Sequence[Row]) -> None:
        self._columns = columns
        self._rows = rows

    def __str__(self) -> str:
        lines = [self._columns, *(line for row in self._rows for line in _lines(row))]
        widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
        rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
        drawn = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
        return "\n".join([rule, drawn[0], rule, *drawn[1:], rule]) + "\n"


def _lines(row: Row) -> list[Row]:
    """The lines of a row, as many as its highest cell has."""
    cells = [cell.splitlines() or [""] for cell in row]
    height = max(map(len, cells))
    return [[cell[at] if at < len(cell) else "" for cell in cells] for at in range(height)]
