"""Docstrings: their examples run and give what they say, and what is raised says when."""

from __future__ import annotations

import ast
import doctest
import importlib
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "tritonnb").rglob("*.py"))
    if ">>>" in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module_run(name: str) -> None:
    module = importlib.import_module(name.removesuffix(".__init__"))
    assert doctest.testmod(module).failed == 0


def raised(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the exceptions that docstrings of a file name, each with the line after it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            _, separator, section = (ast.get_docstring(node) or "").partition("Raises\n------\n")
            lines = section.split("\n\n")[0].splitlines() if separator else []
            yield from ((line, after) for line, after in zip_longest(lines, lines[1:], fillvalue="") if line[0] != " ")


@pytest.mark.parametrize("path", sorted((ROOT / "tritonnb").rglob("*.py")), ids=lambda path: path.stem)
def test_raises_sections_explain_the_condition(path: Path) -> None:
    assert [error for error, when in raised(path) if not when.startswith(" ")] == []
