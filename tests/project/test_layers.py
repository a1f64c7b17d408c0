"""A layer imports the layers below it, never one above or beside it: docs/design.md, *Rooms*."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "tritonnb"

#: From the bottom to the top. Modules that are in none of these rooms are what people hold: they may know all.
FLOORS = [
    {"core"},
    {"model_config"},
    {"scheduling", "telemetry"},
    {"backends"},
    {"runtime", "simulation"},
    {"endpoints", "inference", "array_requests", "recording"},
    {"profile"},
    {"notebook"},
]
#: Recordings fetch their views when they are asked for; magics are what people hold.
EXCEPT = {("recording/recording.py", "notebook"), ("recording/comparison.py", "notebook"),
          ("notebook/magics.py", "server"), ("notebook/magics.py", "serving")}  # fmt: skip

FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
TOP = len(FLOORS)


def imported(path: Path) -> Iterator[str]:
    """The rooms that a module imports when it runs, anywhere in it."""
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.module == "tritonnb":
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tritonnb."):
            yield str(node.module).split(".")[1]


def upwards() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE)
        room = module.parts[0].removesuffix(".py")
        for other in imported(path):
            if room in FLOOR_OF and other != room and FLOOR_OF.get(other, TOP) >= FLOOR_OF[room]:
                yield module.as_posix(), other


def test_a_layer_imports_the_layers_below_it_only():
    assert set(upwards()) == EXCEPT
