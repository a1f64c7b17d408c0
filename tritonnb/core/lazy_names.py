"""Public names that are imported when they are first used, from the imports that type checkers read.

`import tritonnb` imports almost nothing: each module behind a public name may need packages that are not installed,
as in a browser. The names are written once, as ordinary imports under ``if TYPE_CHECKING:``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` of a package.

    Parameters
    ----------
    package : str
        Name of the package.
    file : str
        Its source, in which the first ``if TYPE_CHECKING:`` contains imports and a list ``__all__``. The list may
        contain names of another module, as ``*module.__all__``.
    """
    block = next(node for node in ast.parse(Path(file).read_text("utf-8")).body if isinstance(node, ast.If)).body
    sources = {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in block
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (listed,) = (node.value for node in block if isinstance(node, ast.Assign))
    assert isinstance(listed, ast.List)

    def public_names() -> list[str]:
        names: list[str] = []
        for item in listed.elts:
            if isinstance(item, ast.Starred):
                names += get(ast.unparse(item.value).partition(".")[0]).__all__
            else:
                names.append(ast.literal_eval(item))
        return names

    def get(name: str) -> Any:
        if name == "__all__":
            value: Any = public_names()
        elif name in sources:
            module, original = sources[name]
            is_submodule = module == package
            value = import_module(f"{package}.{name}") if is_submodule else _imported(module, original)
        elif name.isupper() and "*" in sources and name in _imported(sources["*"][0], "__all__"):
            value = _imported(sources["*"][0], name)
        else:
            raise AttributeError(f"module '{package}' has no attribute '{name}'", name=name, obj=sys.modules[package])
        setattr(sys.modules[package], name, value)
        return value

    return get, public_names


def _imported(module: str, name: str) -> Any:
    """What ``from module import name`` binds."""
    return getattr(__import__(module, fromlist=[name]), name)
