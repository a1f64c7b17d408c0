"""A layer imports the layers below it, never one above or beside it: docs/design.md, *Packages*."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "tritonnb"

#: From the bottom to the top. What is in no layer (the public names, `cli`) may import all of them.
LAYERS = [
    {"core"},
    {"model_config"},
    {"scheduling", "telemetry"},
    {"backends"},
    {"runtime", "simulation"},
    {"endpoints", "inprocess", "recording"},
    {"server"},
    {"profile", "teaching"},
    {"remote"},
    {"figures"},
    {"notebook"},
    {"playground"},
]
#: Figures and views of a connection are imported when they are asked for.
#: The tutorial backend imports the public modules, as a backend of another package does.
EXCEPT = {
    ("backends/minimal.py", "backend"),
    ("backends/minimal.py", "errors"),
    ("remote/connection.py", "notebook"),
    ("remote/model.py", "figures"),
    ("remote/model.py", "notebook"),
}

LAYER_OF = {package: number for number, packages in enumerate(LAYERS) for package in packages}
TOP = len(LAYERS)


def imported(path: Path) -> Iterator[str]:
    """The packages that a module imports when it runs, anywhere in it."""
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.module == "tritonnb":
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tritonnb."):
            yield str(node.module).split(".")[1]


def upwards() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE)
        package = module.parts[0].removesuffix(".py")
        for other in imported(path):
            if package in LAYER_OF and other != package and LAYER_OF.get(other, TOP) >= LAYER_OF[package]:
                yield module.as_posix(), other


def test_a_layer_imports_the_layers_below_it_only() -> None:
    assert set(upwards()) == EXCEPT
