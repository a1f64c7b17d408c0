"""The kernel is the user's: a server changes nothing of its process that the how-to does not list, and undoes it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[2] / "tritonnb"
REPOSITORY = PACKAGE.parent / "model_repository"
#: What models that are written in Python need while they are loaded.
ONLY_WHILE_IT_RUNS = {"path", "path hooks", "modules of models", "threads"}


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The state of a process before, while and after a server runs."""
    directory = tmp_path_factory.mktemp("process")
    command = [sys.executable, str(Path(__file__).with_name("process_state.py")), str(REPOSITORY)]
    subprocess.run(command, check=True, cwd=directory, timeout=100)
    states: list[dict[str, Any]] = json.loads((directory / "states.json").read_text())
    return states


def test_running_server_changes_what_models_in_python_need_and_nothing_else(states: list[dict[str, Any]]) -> None:
    before, during, _ = states
    assert {name for name in before if during[name] != before[name]} == ONLY_WHILE_IT_RUNS
    added = {str(REPOSITORY / name) for model in ("add_sub", "identity_fp32") for name in (f"{model}/1", model)}
    assert set(during["path"]) - set(before["path"]) == added
    assert during["path hooks"] == before["path hooks"] + 1
    assert during["modules of models"] == ["triton_python_backend_utils", "tritonnb_model_"]
    assert [name for name in during["threads"] if name not in before["threads"]] == ["tritonnb"]


def test_stopped_server_leaves_the_process_as_it_was(states: list[dict[str, Any]]) -> None:
    before, _, after = states
    assert after == before


#: What changes a whole process, and the modules that may call it: the command line, processes of models, and a
#: simulation, which switches the garbage collector off until it returns.
PROCESS_WIDE = {
    "gc.collect", "gc.freeze", "gc.enable", "gc.disable", "gc.set_threshold", "gc.set_debug",
    "sys.setswitchinterval", "sys.setrecursionlimit", "sys.settrace", "sys.setprofile", "threading.stack_size",
    "signal.signal", "signal.set_wakeup_fd", "faulthandler.enable", "resource.setrlimit", "locale.setlocale",
    "os.chdir", "os.umask", "warnings.filterwarnings", "warnings.simplefilter", "logging.basicConfig",
    "asyncio.set_event_loop_policy", "uvloop.install", "np.seterr", "np.set_printoptions", "matplotlib.use",
}  # fmt: skip
MAY_CALL = {
    "cli/main.py",
    "cli/signals.py",
    "simulation/run.py",
    "backends/isolation/child/main.py",
    "backends/isolation/child/lifetime.py",
}


def calls(path: Path) -> Iterator[str]:
    """The dotted names of what a module calls."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield ast.unparse(node.func)


def test_only_these_modules_call_what_changes_the_whole_process() -> None:
    callers = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if PROCESS_WIDE & set(calls(path))}
    assert callers == MAY_CALL
