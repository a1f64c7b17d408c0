"""`tritonnb.backend` and `tritonnb.errors` have what backend authors and callers need."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import tritonnb.backend
import tritonnb.errors
import tritonnb.model_zoo.minimal_backend
from docs.sitegen.public_names import public_objects, returned_classes


@pytest.mark.parametrize("module", [tritonnb.backend, tritonnb.errors])
def test_every_name_of_a_public_module_exists_and_is_listed_in_order(module: ModuleType) -> None:
    assert module.__all__ == sorted(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def promised_exceptions(item: object) -> Iterator[str]:
    """The names below *Raises* in the docstrings of a function, or of a class and its public members."""
    members = (
        [member for name, member in vars(item).items() if not name.startswith("_")] if inspect.isclass(item) else []
    )
    for documented in (item, *members):
        _, _, raises = (inspect.getdoc(documented) or "").partition("Raises\n------\n")
        for line in raises.split("\n\n")[0].splitlines():
            if line and not line.startswith(" "):
                yield from re.split(r",\s*", line)


def test_exceptions_that_public_docstrings_promise_are_public() -> None:
    items = [*public_objects().values(), *returned_classes()]
    items += [getattr(tritonnb.backend, name) for name in tritonnb.backend.__all__]
    promised = {name for item in items for name in promised_exceptions(item)}
    assert "InvalidArgumentError" in promised
    assert {name for name in promised if not hasattr(builtins, name)} <= set(tritonnb.errors.__all__)


def test_tutorial_backend_imports_only_public_modules() -> None:
    tree = ast.parse(Path(tritonnb.model_zoo.minimal_backend.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules == {"__future__", "tritonnb.backend", "tritonnb.errors"}
