"""Docstrings: their examples run and give what they say, and what is raised says when."""

from __future__ import annotations

import ast
import doctest
import importlib
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest

import tritonnb as tnb

ROOT = Path(__file__).parents[2]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "tritonnb").rglob("*.py"))
    if ">>>" in path.read_text()
]
#: The functions and classes of `import tritonnb`.
PUBLIC = [
    f"{value.__module__}:{value.__qualname__}"
    for value in (getattr(tnb, name) for name in dir(tnb) if not name.startswith("_"))
    if callable(value) and not (isinstance(value, type) and issubclass(value, Exception))
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # some examples serve its model repository
    module = importlib.import_module(name.removesuffix(".__init__"))
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", sorted(set(PUBLIC)))
def test_public_function_or_class_has_an_example(name: str) -> None:
    module, _, function = name.partition(":")
    path = ROOT / module.replace(".", "/")
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    *_, definition = (node for node in tree.body if getattr(node, "name", "") == function)
    assert isinstance(definition, (ast.FunctionDef, ast.ClassDef))
    assert ">>>" in (ast.get_docstring(definition) or "")


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
