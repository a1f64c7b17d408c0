"""Failures in process: short tracebacks, their cause, one report for each."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritonnb as tnb
from tests.server.conftest import python_model
from tritonnb.server.server import Server

Write = Callable[..., Path]

FAILS_TO_LOAD = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("weights missing")
"""

FAILS_TO_RUN = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("no such word")
"""


@pytest.fixture
def server(write_model: Write, request: pytest.FixtureRequest) -> Iterator[Server]:
    isolate = getattr(request, "param", False)
    write_model("fails_to_load", FAILS_TO_LOAD)
    write_model("fails_to_run", FAILS_TO_RUN)
    with Server(write_model("good", python_model("x")), port=0, isolate=isolate) as server:
        yield server


def fails(x: tnb.FP32[1]) -> tnb.FP32[1]:
    raise ValueError("no such thing")


def raised(mistake: Callable[[], Any]) -> tnb.TritonError:
    with pytest.raises(tnb.TritonError) as caught:
        mistake()
    return caught.value


def apply_unknown_backend(server: Server) -> None:
    config = server["good"].config
    config.backend = "pyton"
    config.apply()


MISTAKES: dict[str, Callable[[Server], Any]] = {
    "a function that raises": lambda server: server["fails"](x=[1.0]),
    "a model.py that raises": lambda server: server["fails_to_run"](X=[[1.0]]),
    "in an event loop": lambda server: asyncio.run(server["fails"].infer_async(x=[1.0])),
    "an input of the wrong shape": lambda server: server["good"](X=[[1.0, 2.0]]),
    "an unknown input": lambda server: server["good"].infer_all(Z=[[1.0]]),
    "an unknown model": lambda server: server["godo"],
    "a load that fails": lambda server: server.load("fails_to_load"),
    "a configuration that is refused": apply_unknown_backend,
    "a port that is taken": lambda server: Server(port=server.port),
    "a port that is taken, by serve": lambda server: tnb.serve(port=server.port),
    "a function that is none": lambda server: server.model("fails"),  # type: ignore[call-overload]
    "a gRPC server that does not respond": lambda server: tnb.connect(f"grpc://127.0.0.1:{server.port}"),
    "an HTTP server that does not respond": lambda server: tnb.connect("http://127.0.0.1:1"),
    "an unknown model over HTTP": lambda server: tnb.load(server.url, "godo", clients=1, requests=1),
    "an input of another server": lambda server: tnb.connect(server.url)["good"](Z=[[1.0]]),
    "a request that did not run": lambda server: server.recent().blame(10**6),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_traceback_has_no_frame_of_the_package(server: Server, mistake: Callable[[Server], Any]) -> None:
    server.model(fails)
    error = raised(lambda: mistake(server))
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    assert [path for path in files if str(Path(tnb.__file__).parent) in path] == []
    assert __file__ in files
    assert error.__cause__ is error.model_error


@pytest.mark.parametrize(
    ("mistake", "text", "line"),
    [
        (MISTAKES["a function that raises"], "no such thing", 'raise ValueError("no such thing")'),
        (MISTAKES["a model.py that raises"], "no such word", 'raise ValueError("no such word")'),
        (MISTAKES["a load that fails"], "weights missing", 'raise ValueError("weights missing")'),
    ],
)
@pytest.mark.parametrize("server", [False, True], ids=["in_process", "isolated"], indirect=True)
def test_cause_is_the_exception_of_the_model_with_its_line(
    server: Server, mistake: Callable[[Server], Any], text: str, line: str
) -> None:
    server.model(fails)
    cause = raised(lambda: mistake(server)).__cause__
    assert repr(cause) == f"ValueError('{text}')"
    (place,) = cause.__notes__
    assert place.splitlines()[-1].strip() == line


def test_failing_function_is_named_with_its_line(server: Server) -> None:
    server.model(fails)
    line = fails.__code__.co_firstlineno + 1
    text = str(raised(lambda: server["fails"](x=[1.0])))
    assert text == f"model 'fails': ValueError: no such thing (line {line} of {__file__}, in fails)"


def test_objects_of_a_failed_function_are_freed_without_the_garbage_collector(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        logging.getLogger("tritonnb.engine.execution.instance"), "disabled", True
    )  # pytest keeps records
    arrays: list[weakref.ref[Any]] = []

    @server.model
    def fails(x: tnb.FP32[1]) -> tnb.FP32[1]:
        work = np.ones(3)
        arrays.append(weakref.ref(work))
        raise ValueError(str(work.sum()))

    gc.disable()
    try:
        error = raised(lambda: server["fails"](x=[1.0]))
        assert error.__cause__ is not None
        assert arrays[0]() is None
    finally:
        gc.enable()


def test_each_request_of_a_batch_gets_its_own_error(server: Server) -> None:
    server.model(fails, name="batched", max_batch_size=2, dynamic_batching={"max_queue_delay_microseconds": 10**7})

    async def ask() -> list[Any]:
        both = [server["batched"].infer_async(x=[[1.0]]) for _ in range(2)]
        return await asyncio.gather(*both, return_exceptions=True)

    first, second = asyncio.run(ask())
    assert str(first) == str(second)
    assert first is not second


END = "--- end of a cell ---\n"
REPORTS = """
import sys
from IPython.core.interactiveshell import InteractiveShell
_, repository, end, *cells = sys.argv
shell = InteractiveShell.instance(colors="NoColor")
shell.run_cell(f"import tritonnb as tnb; server = tnb.serve({repository!r}, port=0)")
for cell in cells:
    print(end, end="")
    shell.run_cell(cell)
shell.run_cell("server.stop()")
"""


def reports(repository: Path, *cells: str) -> list[str]:
    """The output of a cell that serves a repository, and of each cell after it."""
    run = subprocess.run(
        [sys.executable, "-u", "-c", REPORTS, str(repository), END, *cells],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=True,
    )
    return run.stdout.split(END)


@pytest.mark.slow
def test_model_that_fails_to_load_is_reported_once(write_model: Write) -> None:
    repository = write_model("fails_to_load", FAILS_TO_LOAD)
    text, again = reports(repository, "server.load('fails_to_load')")
    assert text.count("weights missing") == 1
    assert text.startswith("model 'fails_to_load' is not served: load failed for model 'fails_to_load'")
    assert again.count("load failed for model") == 1
    assert again.count("Traceback (most recent call last)") == 2  # IPython writes it above the cause, too


@pytest.mark.slow
def test_error_in_a_notebook_has_few_lines(write_model: Write) -> None:
    most = {
        "server['good'](X=[[1.0, 2.0]])": 8,
        "tnb.serve(port=server.port)": 8,
        "c = server['good'].config\nc.backend = 'pyton'\nc.apply()": 12,
        '%%config good\nbackend: "pyton"': 4,
    }
    _, loaded, *outputs = reports(write_model("good", python_model("x")), "%load_ext tritonnb", *most)
    assert loaded == ""
    for cell, output in zip(most, outputs, strict=True):
        assert 0 < len(output.splitlines()) <= most[cell], f"{cell}\n{output}"
