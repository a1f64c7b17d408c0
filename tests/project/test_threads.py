"""One event loop, on one thread, owns all mutable state: no locks in the core, and no other code runs an event loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "tritonnb"
CORE = ["core", "model_config", "scheduling", "engine", "endpoints", "server"]
#: Its lock orders the end of the event loop and calls from other threads.
BOUNDARY = "engine/execution/loop.py"
LOCKS = {
    f"{module}.{name}"
    for module in ("threading", "_thread")
    for name in ("Lock", "RLock", "Condition", "allocate_lock")
}
#: What runs an event loop, or makes a thread count as one that does.
RUNNING = {"run_forever", "run_until_complete", "new_event_loop", "_set_running_loop", "set_event_loop", "Runner"}


def names(path: Path) -> Iterator[str]:
    """The attributes that a module uses, alone and with what they belong to, and the names that it imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            yield from (node.attr, ast.unparse(node))
        elif isinstance(node, ast.ImportFrom):
            yield from (name for alias in node.names for name in (alias.name, f"{node.module}.{alias.name}"))


@pytest.mark.parametrize("forbidden", [LOCKS, RUNNING], ids=["lock", "event loop"])
def test_only_the_module_of_the_event_loop_has_a_lock_and_runs_the_event_loop(forbidden: set[str]) -> None:
    modules = [path for package in CORE for path in (PACKAGE / package).rglob("*.py")]
    users = {str(path.relative_to(PACKAGE)) for path in modules if forbidden & set(names(path))}
    assert users == {BOUNDARY}
