"""The messages of a C++ compiler about a cell, with the lines of the cell."""

from __future__ import annotations

import re

#: The file name of a cell in messages of the compiler.
CELL = "cell"

_MESSAGE = re.compile(
    rf"^{CELL}:(?P<line>\d+):(?P<column>\d+): (?P<kind>fatal error|error|warning): (?P<text>.*)$", re.MULTILINE
)


def compiler_messages(output: str, cell: str) -> str:
    """The errors and warnings in the output of a compiler, each with its line of the cell.

    Parameters
    ----------
    output : str
        What the compiler wrote.
    cell : str
        The text of the cell, which begins at line 1.

    Returns
    -------
    str
        The whole output if no message is about the cell, as for an error of the linker.

    Examples
    --------
    >>> print(compiler_messages("cell:1:9: error: 'y' was not declared in this scope", "int x = y;"))
    line 1: error: 'y' was not declared in this scope
      int x = y;
              ^
    """
    lines = cell.split("\n")
    excerpts = []
    for message in _MESSAGE.finditer(output):
        line, column = int(message["line"]), int(message["column"])
        code = lines[line - 1] if line <= len(lines) else ""
        caret = "".join("\t" if character == "\t" else " " for character in code[: column - 1]) + "^"
        excerpts.append(f"line {line}: {message['kind']}: {message['text']}\n  {code}\n  {caret}")
    return "\n".join(excerpts) or output
