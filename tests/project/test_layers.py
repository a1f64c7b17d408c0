"""Imports, lazy imports and those for type checking included: docs/design.md, *Packages*."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "tritonnb"

#: All packages and modules of the package, from the bottom to the top.
LAYERS = [
    {"compiled"},
    {"core"},
    {"model_config"},
    {"errors", "scheduling", "telemetry"},
    {"backends", "recording"},
    {"backend", "engine"},
    {"client", "endpoints"},
    {"server"},
    {"lab"},
    {"model_zoo", "scale"},
    {"notebook"},
    {"cli"},
    {"accessors"},
    {"__init__", "__main__"},
]
LAYER_OF = {package: number for number, packages in enumerate(LAYERS) for package in packages}


def imported(path: Path) -> Iterator[str]:
    """The packages and modules of this package that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "tritonnb":
            yield from (name.name if name.name in LAYER_OF else "__init__" for name in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tritonnb."):
            yield str(node.module).split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (
                (name.name + ".__init__").split(".")[1] for name in node.names if name.name.startswith("tritonnb")
            )
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            package, _, module = ast.unparse(node.args[0]).strip("'").partition(".")
            yield from [module.partition(".")[0]] if package == "tritonnb" else []


def test_package_imports_those_of_the_layers_below_it_only() -> None:
    upwards = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        package = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        upwards |= {
            (path.relative_to(PACKAGE).as_posix(), other)
            for other in imported(path)
            if other != package and LAYER_OF[other] >= LAYER_OF[package]
        }
    assert upwards == set()


def test_server_does_not_import_the_lab() -> None:
    """A reader of the server may ignore the lab: only what stands on it imports it."""
    importing = {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py") if "lab" in set(imported(path))}
    assert importing <= {"lab", "notebook", "scale", "model_zoo", "cli"}


def imported_modules(path: Path) -> Iterator[str]:
    """The modules of this package that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tritonnb."):
            yield from (f"{node.module}.{name.name}" for name in node.names)
            yield str(node.module)


def test_no_circle_of_imports() -> None:
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    graph = {name: modules.keys() & set(imported_modules(path)) for name, path in modules.items()}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"expected no circle of imports, got {' -> '.join(error.args[1])}")
