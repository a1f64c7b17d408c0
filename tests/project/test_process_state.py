"""The kernel is the user's: a server changes nothing of its process that the how-to does not list, and undoes it."""

from __future__ import annotations

import ast
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tritonnb as tnb
from tritonnb.model_zoo.digits import load_network

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


def test_running_server_changes_only_the_state_that_python_models_need(states: list[dict[str, Any]]) -> None:
    before, during, _ = states
    assert {name for name in before if during[name] != before[name]} == ONLY_WHILE_IT_RUNS
    added = {str(REPOSITORY / name) for model in ("add_sub", "identity_fp32") for name in (f"{model}/1", model)}
    assert set(during["path"]) - set(before["path"]) == added
    assert during["path hooks"] == before["path hooks"] + 1
    assert during["modules of models"] == ["triton_python_backend_utils", "tritonnb_model_"]
    assert [name for name in during["threads"] if name not in before["threads"]] == ["tritonnb"]


def test_stopped_server_restores_the_state_of_the_process(states: list[dict[str, Any]]) -> None:
    before, _, after = states
    assert after == before


def test_reading_example_weights_does_not_use_the_global_random_state() -> None:
    before = torch.get_rng_state()
    load_network()
    assert torch.equal(torch.get_rng_state(), before)


def simulate() -> tnb.Recording:
    return tnb.simulate("max_batch_size: 4", tnb.constant(200, 1.0), tnb.fixed(2))


def call_a_server() -> None:
    with tnb.Server(port=0) as server:

        @server.model(max_batch_size=4, dynamic_batching={})
        def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X * 2

        model = server["double"]
        with server.record() as recording:
            tnb.load(model, clients=2, requests=20).wait()
        recording.for_model("double").twin().predict(rate=50)
        tnb.sweep(model, count=[1, 2], rate=100, requests=20, service=tnb.fixed(2)).wait()
        editor = model.edit()
        editor.set_field("dynamic_batching.max_queue_delay_microseconds", 5000)
        editor.settle()
        editor.close()
        model.watch().close()


#: Entry points that compute, draw or serve.
ENTRIES: dict[str, Callable[[], object]] = {
    "simulation": simulate,
    "what-if": lambda: simulate().what_if(count=2),
    "blame": lambda: simulate().blame(3),
    "debugger": lambda: simulate().debug(),
    "figure": lambda: simulate().plot.timeline(),
    "view": lambda: simulate().view().close(),
    "server": call_a_server,
}


@pytest.mark.parametrize("on_thread", [False, True])
@pytest.mark.parametrize("name", ENTRIES)
def test_garbage_collector_and_switch_interval_are_the_users(
    monkeypatch: pytest.MonkeyPatch, name: str, on_thread: bool
) -> None:
    calls: list[str] = []
    changes = [(gc, name) for name in ("enable", "disable", "freeze", "unfreeze", "collect", "set_threshold")]
    for module, function in [*changes, (sys, "setswitchinterval")]:
        monkeypatch.setattr(module, function, lambda *args, name=function: calls.append(name))
    if on_thread:
        thread = threading.Thread(target=ENTRIES[name])
        thread.start()
        thread.join()
    else:
        ENTRIES[name]()
    assert calls == []


#: What changes a whole process if it is called or assigned to.
PROCESS_WIDE = {
    "gc.collect", "gc.freeze", "gc.enable", "gc.disable", "gc.set_threshold", "gc.set_debug", "gc.callbacks.append",
    "sys.setswitchinterval", "sys.setrecursionlimit", "sys.settrace", "sys.setprofile", "sys.path", "sys.path.append",
    "sys.path.insert", "sys.meta_path.insert", "sys.path_hooks", "sys.path_hooks.insert", "sys.dont_write_bytecode",
    "sys.excepthook", "sys.unraisablehook", "sys.displayhook", "sys.stdin", "sys.stdout", "sys.stderr",
    "threading.excepthook", "threading.stack_size", "threading.settrace", "threading.setprofile", "signal.signal",
    "signal.set_wakeup_fd",
    "signal.setitimer", "signal.alarm", "faulthandler.enable", "resource.setrlimit", "locale.setlocale", "os.chdir",
    "os.umask", "os.nice", "os.putenv", "os.environ", "os.environ.pop", "os.environ.setdefault", "os.environ.update",
    "os.register_at_fork", "atexit.register", "warnings.catch_warnings", "warnings.filterwarnings",
    "warnings.resetwarnings", "warnings.simplefilter", "logging.basicConfig", "logging.captureWarnings",
    "logging.disable", "logging.setLoggerClass", "asyncio.set_event_loop_policy", "uvloop.install",
    "multiprocessing.set_start_method", "socket.setdefaulttimeout", "random.seed", "np.random.seed", "np.seterr",
    "np.set_printoptions", "torch.manual_seed", "torch.set_default_dtype", "torch.set_grad_enabled",
    "torch.set_num_interop_threads", "torch.set_num_threads", "matplotlib.use", "rcParams", "rcParams.update",
}  # fmt: skip
#: The modules that own their process: the command line, and processes of models.
OWN_PROCESS = {
    "cli/serve.py",
    "backends/isolation/child/main.py",
}
#: What others may change; the how-to lists it.
LISTED = {
    "core/forks.py": {"gc.freeze", "os.register_at_fork"},  # the collector of forked children
    "backends/pt2.py": {"os.environ.setdefault"},
    "backends/python/module_import.py": {"sys.path", "sys.path_hooks"},
    "backends/tensorflow_model.py": {"os.environ.setdefault"},
    "lab/figures/picture.py": {"rcParams"},
    "model_zoo/digits.py": {"torch.manual_seed"},  # python -m tritonnb.model_zoo.digits
    "model_zoo/tiny_gpt.py": {"torch.set_num_threads"},
    "notebook/worker.py": {"atexit.register"},
    "notebook/side_process.py": {"atexit.register", "os.nice"},  # the priority is that of the process it starts
    "lab/load/running_sweep.py": {"atexit.register"},
}


def changed(path: Path) -> Iterator[str]:
    """The dotted names of what a module calls, and of what it assigns to, or to items of."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            yield ast.unparse(node)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            yield ast.unparse(node.value)


def test_only_these_modules_change_the_whole_process() -> None:
    by_module = {str(path.relative_to(PACKAGE)): PROCESS_WIDE & set(changed(path)) for path in PACKAGE.rglob("*.py")}
    assert {name: found for name, found in by_module.items() if found and name not in OWN_PROCESS} == LISTED
