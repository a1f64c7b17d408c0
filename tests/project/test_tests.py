"""The tests themselves: none is lost without a failure."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.outcomes import never_run

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: path.stem)
def test_file_contains_a_test(path: Path) -> None:
    """A file that lost its tests would pass for ever."""
    tree = ast.parse(path.read_text())
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    machines = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert any(name.startswith("test_") for name in functions) or any(name.startswith("Test") for name in machines)


def test_skips_that_no_run_makes_up_for_are_found(tmp_path: Path) -> None:
    runs = [
        (["a.py::one", "b.py::three[x]"], {"a.py::two": "Skipped: needs the package ray", "c.py": "Skipped: no ray"}),
        (["a.py::two"], {"a.py::one": "Skipped: no", "b.py": "Skipped: no", "d.py::gpu": "Skipped: set TRITON_PREFIX"}),
    ]
    for number, run in enumerate(runs):
        (tmp_path / f"{number}.json").write_text(json.dumps(run))
    assert never_run(tmp_path.glob("*.json")) == {"c.py": "Skipped: no ray"}
