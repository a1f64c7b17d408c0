"""A server's paths are those of its start, wherever the working directory is later."""

from __future__ import annotations

import json
import os
import shutil
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import tritonnb as tnb
from tests.server.forks import LIMIT_S

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array * {factor})]) for array in inputs]
"""
#: Multiplies by the number in a file of the working directory.
READING = MODEL.replace("array * {factor}", "array * float(open('factor.txt').read())")
CONFIG = """
backend: "python" max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [1] }
output { name: "Y" data_type: TYPE_FP32 dims: [1] }
"""
ISOLATED = 'parameters { key: "EXECUTION_PROCESS" value { string_value: "isolated" } }'


def write(repository: Path, factor: int, name: str = "m", model: str = MODEL, config: str = CONFIG) -> None:
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    (repository / name / "1" / "model.py").write_text(model.replace("{factor}", str(factor)))
    (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose models multiply by 100; the working directory is one whose models multiply by 2."""
    write(tmp_path / "here" / "models", 2)
    write(tmp_path / "there" / "models", 100)
    write(tmp_path / "here" / "more", 3, "more")
    for directory, factor in ("here", 2), ("there", 100):
        (tmp_path / directory / "factor.txt").write_text(str(factor))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "there"


def call(server: tnb.Server, name: str = "m") -> float:
    return float(server[name](X=[[1.0]])["Y"].item())


def index_over_http(server: tnb.Server) -> list[str]:
    request = urllib.request.Request(f"{server.url}/v2/repository/index", b"{}", method="POST")
    with urllib.request.urlopen(request) as response:
        return [row["name"] for row in json.load(response)]


GIVEN: dict[str, Callable[[], Any]] = {
    "text": lambda: "models",
    "path": lambda: Path("models"),
    "path-like": lambda: Entry("models"),
    "several": lambda: ["more", "models"],
    "with dots": lambda: "../here/./models",
}


class Entry:
    def __init__(self, path: str) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return self.path


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("start", [tnb.Server, tnb.serve])
def test_repository_is_that_of_the_start(there: Path, start: Callable[..., tnb.Server], given: str) -> None:
    with start(GIVEN[given](), port=0) as server:
        os.chdir(there)
        server["m"].reload()
        assert call(server) == 2
        assert server.load("m", force=True).ready
        assert "m" in index_over_http(server)
        config = server["m"].config
        config.max_batch_size = 8
        assert config.apply() == "reloaded"
        assert call(server) == 2
        if given == "several":
            assert call(server, "more") == 3


def test_home_directory_is_that_of_the_start(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", os.getcwd())
    with tnb.Server("~/models", port=0) as server:
        monkeypatch.setenv("HOME", str(there))
        server["m"].reload()
        assert call(server) == 2


def test_repository_is_found_after_the_working_directory_was_deleted(there: Path, tmp_path: Path) -> None:
    with tnb.Server("models", port=0) as server:
        (there / "deleted").mkdir()
        os.chdir(there / "deleted")
        (there / "deleted").rmdir()
        try:
            server["m"].reload()
            assert call(server) == 2

            @server.model(max_batch_size=4)
            def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
                return X * 2

            with pytest.raises(tnb.TritonError, match="the working directory does not exist any more"):
                tnb.Server("models", port=0)
        finally:
            os.chdir(tmp_path)


def test_repository_that_is_deleted_and_made_again_is_served_again(there: Path) -> None:
    here = Path.cwd()
    with tnb.Server("models", port=0) as server:
        os.chdir(there)
        shutil.move(here / "models", here / "away")
        with pytest.raises(tnb.TritonError, match="models"):
            server["m"].reload()
        with pytest.raises(tnb.TritonError):
            server.index()
        config = server["m"].config
        config.max_batch_size = 8
        with pytest.raises(tnb.TritonError):
            config.apply()
        assert call(server) == 2
        write(here / "models", 3)
        server["m"].reload()
        assert call(server) == 3


def test_polled_repository_is_that_of_the_start(there: Path) -> None:
    with tnb.Server("models", port=0, model_control_mode="poll", repository_poll_secs=0) as server:
        os.chdir(there)
        server.run(server.engine.poll())
        assert call(server) == 2
        assert [row["state"] for row in server.index()] == ["READY"]


@pytest.mark.parametrize("model", [MODEL, READING])
def test_process_of_a_model_starts_again_as_at_the_start(there: Path, model: str) -> None:
    write(Path("models"), 2, model=model, config=CONFIG + ISOLATED)
    with tnb.Server("models", port=0) as server:
        assert call(server) == 2
        os.chdir(there)
        (served,) = server["m"].served.instances
        instance: Any = served.backend_instance
        ended = threading.Event()
        lost = instance._child.ended

        def end() -> None:
            lost()
            ended.set()

        instance._child.ended = end
        os.kill(instance._child.pid, 9)
        assert ended.wait(LIMIT_S)
        assert call(server) == 2
        server["m"].reload()
        assert call(server) == 2


def test_backend_directory_is_that_of_the_start(there: Path) -> None:
    for directory, factor in (Path.cwd(), 2), (there, 100):
        (directory / "backends" / "times").mkdir(parents=True)
        (directory / "backends" / "times" / "model.py").write_text(MODEL.replace("{factor}", str(factor)))
    write(Path("models"), 0, config=CONFIG.replace('"python"', '"times"'))
    options: Any = {"backend_directory": "backends", "model_control_mode": "explicit"}
    with tnb.Server("models", port=0, **options) as server:
        os.chdir(there)
        server.load("m")
        assert call(server) == 2


@pytest.mark.parametrize("log_frequency", [0, 1])
def test_trace_file_is_that_of_the_start(there: Path, log_frequency: int) -> None:
    here = Path.cwd()
    trace = tnb.TraceOptions("trace.json", frozenset({"TIMESTAMPS"}), rate=1, log_frequency=log_frequency)
    with tnb.Server("models", port=0, trace=trace) as server:
        os.chdir(there)
        tnb.connect(server.url)["m"](X=[[1.0]])
    assert list(here.glob("trace.json*"))
    assert not list(there.glob("trace.json*"))


def test_recordings_read_the_trace_file_in_the_directory_where_the_client_was_made(there: Path) -> None:
    trace = tnb.TraceOptions("trace.json", frozenset({"TIMESTAMPS"}), rate=1)
    with tnb.Server("models", port=0, trace=trace) as server, tnb.connect(server.url) as remote:
        for _ in range(2):
            with remote.record("m") as recording:
                remote["m"](X=[[1.0]])
                os.chdir(there)
            assert len(recording.batches) == 1


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "tritonnb")
    yield shell
    server = shell.user_ns.get("server")
    if server is not None:
        server.stop()
    InteractiveShell.clear_instance()


def test_cells_write_to_the_repository_of_the_start(there: Path, shell: InteractiveShell) -> None:
    here = Path.cwd()
    shell.run_line_magic("tritonnb", "start models --port 0")
    shell.run_line_magic("cd", str(there))
    shell.run_cell_magic("model_py", "m", MODEL.replace("{factor}", "7"))
    assert call(shell.user_ns["server"]) == 7
    shell.run_cell_magic("config", "m --save", CONFIG.replace("4", "2", 1))
    assert "max_batch_size: 2" in (here / "models" / "m" / "config.pbtxt").read_text()
    assert (there / "models" / "m" / "1" / "model.py").read_text() == MODEL.replace("{factor}", "100")


def test_relative_repository_that_is_served_again_from_elsewhere_is_another_one(there: Path) -> None:
    with tnb.serve("models", port=0) as here:
        os.chdir(there)
        with tnb.serve("models", port=0) as other:
            assert (call(here), call(other)) == (2, 100)
