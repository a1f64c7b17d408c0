"""The magics, in their own shell."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as httpclient
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

import tritonnb as tnb
from tritonnb.backends.native.build import find_compiler

EXAMPLES = Path(__file__).parents[2] / "model_repository"

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [1]})
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        x = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array + 1)]) for array in x]
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[InteractiveShell]:
    shutil.copytree(EXAMPLES / "add_sub", tmp_path / "add_sub")
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "tritonnb")
    shell.run_line_magic("tritonnb", f"start {tmp_path} --port 0")
    yield shell
    shell.user_ns["server"].stop()


@pytest.fixture
def config(tmp_path: Path) -> str:
    return (tmp_path / "add_sub" / "config.pbtxt").read_text()


def test_magic_starts_reports_and_stops_the_server(shell: InteractiveShell, capsys: Any) -> None:
    assert shell.user_ns["server"]["add_sub"].ready
    shell.run_line_magic("tritonnb", "status")
    assert "add_sub" in capsys.readouterr().out
    shell.run_line_magic("tritonnb", "stop")
    assert not shell.user_ns["server"].alive
    with pytest.raises(UsageError, match="no server is running"):
        shell.run_line_magic("tritonnb", "status")


def test_port_of_the_running_server_is_a_usage_error(shell: InteractiveShell, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "other").mkdir()
    shell.run_line_magic("tritonnb", f"start {tmp_path / 'first'} --port 0")
    server = shell.user_ns["server"]
    with pytest.raises(UsageError, match=r"already in use; .*; %tritonnb stop ends the server that runs there"):
        shell.run_line_magic("tritonnb", f"start {tmp_path / 'other'} --port {server.port}")
    with pytest.raises(UsageError, match="is not a directory"):
        shell.run_line_magic("tritonnb", "start nowhere --port 0")
    assert server.ready()
    server.stop()


def test_cell_is_applied_as_the_configuration(shell: InteractiveShell, config: str, capsys: Any) -> None:
    cell = config.replace("dynamic_batching { }", "dynamic_batching { max_queue_delay_microseconds: 500 }")
    shell.run_cell_magic("config", "add_sub", cell)
    assert "applied in place" in capsys.readouterr().out
    shell.run_cell_magic("config", "add_sub", cell.replace("max_batch_size: 8", "max_batch_size: 4"))
    assert "the model was reloaded" in capsys.readouterr().out
    running = shell.user_ns["server"]["add_sub"].config
    assert (running.max_batch_size, running.dynamic_batching.max_queue_delay_microseconds) == (4, 500)


def test_config_cell_is_saved_with_the_option(shell: InteractiveShell, config: str, tmp_path: Path) -> None:
    file = tmp_path / "add_sub" / "config.pbtxt"
    cell = config.replace("max_batch_size: 8", "max_batch_size: 4")
    shell.run_cell_magic("config", "add_sub", cell)
    assert file.read_text() == config
    shell.run_cell_magic("config", "add_sub --save", cell)
    assert file.read_text() == cell


def test_saving_keeps_the_previous_text_of_the_file(
    shell: InteractiveShell, config: str, tmp_path: Path, capsys: Any
) -> None:
    backup = tmp_path / "add_sub" / "config.pbtxt.bak"
    cell = config.replace("max_batch_size: 8", "max_batch_size: 4")
    for _ in range(2):  # the second run changes nothing, and the first text remains
        shell.run_cell_magic("config", "add_sub --save", cell)
        assert backup.read_text() == config
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("config.pbtxt; the previous text is in config.pbtxt.bak")
    assert second.endswith("config.pbtxt")


@pytest.mark.parametrize(
    ("model", "lost"),
    [
        ("add_sub", "input 'INPUT0', input 'INPUT1', output 'OUTPUT0', output 'OUTPUT1'"),
        ("double", "input 'X', output 'OUTPUT'"),
    ],
)
@pytest.mark.parametrize("option", ["", " --save"])
def test_partial_configuration_cell_is_rejected(
    shell: InteractiveShell, config: str, tmp_path: Path, model: str, lost: str, option: str
) -> None:
    server = shell.user_ns["server"]

    @server.model(max_batch_size=8)  # type: ignore[untyped-decorator]
    def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X * 2

    if model == "double":
        option = ""  # it has no file
    with pytest.raises(UsageError) as caught:
        shell.run_cell_magic("config", model + option, "max_batch_size: 4")
    assert str(caught.value) == (
        f"model '{model}': expected a whole configuration, since it replaces the present one, got one without {lost}\n"
        f'to change single fields: config = server["{model}"].config; config.max_batch_size = 8; config.apply()'
    )
    assert server[model].config.max_batch_size == 8
    assert (tmp_path / "add_sub" / "config.pbtxt").read_text() == config


def test_cell_can_omit_fields_that_the_model_completes(shell: InteractiveShell, tmp_path: Path) -> None:
    shell.run_cell_magic("model_py", "plus_one", MODEL)
    whole = shell.user_ns["server"]["plus_one"].config.text
    for cell in (whole, "max_batch_size: 4"):
        shell.run_cell_magic("config", "plus_one --save", cell)
    assert (tmp_path / "plus_one" / "config.pbtxt.bak").read_text() == whole
    assert shell.user_ns["server"]["plus_one"](X=[[1.0]])["Y"].tolist() == [[2.0]]


def test_partial_configuration_does_not_replace_an_invalid_file(
    shell: InteractiveShell, config: str, tmp_path: Path
) -> None:
    file = tmp_path / "add_sub" / "config.pbtxt"
    invalid = config.replace("max_batch_size: 8", "max_batch_size: -8")
    file.write_text(invalid)
    server = shell.user_ns["server"]
    server.unload("add_sub")
    with pytest.raises(tnb.TritonError):
        server.load("add_sub")
    with pytest.raises(UsageError, match="expected a whole configuration"):
        shell.run_cell_magic("config", "add_sub --save", "max_batch_size: 8")
    assert file.read_text() == invalid


def test_unsavable_config_cell_is_not_applied(shell: InteractiveShell) -> None:
    server = shell.user_ns["server"]

    @server.model(max_batch_size=8)  # type: ignore[untyped-decorator]
    def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X * 2

    cell = server["double"].config.text.replace("max_batch_size: 8", "max_batch_size: 4")
    with pytest.raises(UsageError, match="expected a model from a model repository"):
        shell.run_cell_magic("config", "double --save", cell)
    assert server["double"].config.max_batch_size == 8


def test_error_is_shown_with_its_line(shell: InteractiveShell, config: str) -> None:
    with pytest.raises(UsageError) as error:
        shell.run_cell_magic("config", "add_sub", config.replace("max_batch_size", "max_batchsize"))
    assert str(error.value).splitlines()[1:] == [
        "  max_batchsize: 8",
        "  ^",
        "fix: max_batchsize → max_batch_size",
    ]


def test_python_model_is_written_and_loaded(shell: InteractiveShell, tmp_path: Path) -> None:
    shell.run_cell_magic("model_py", "plus_one", MODEL)
    assert (tmp_path / "plus_one" / "1" / "model.py").read_text() == MODEL
    server = shell.user_ns["server"]
    assert server["plus_one"](X=[[1.0]])["Y"].tolist() == [[2.0]]
    shell.run_cell_magic("model_py", "plus_one", MODEL.replace("array + 1", "array + 2"))
    assert server["plus_one"](X=[[1.0]])["Y"].tolist() == [[3.0]]
    assert (tmp_path / "plus_one" / "1" / "model.py.bak").read_text() == MODEL


def test_python_model_that_fails_to_load_shows_the_reason(shell: InteractiveShell) -> None:
    with pytest.raises(UsageError, match="SyntaxError"):
        shell.run_cell_magic("model_py", "broken", "def execute(:")


@pytest.mark.parametrize("name", [".", "..", "a/b", "''"])
def test_python_model_stays_inside_of_its_repository(shell: InteractiveShell, name: str) -> None:
    with pytest.raises(UsageError, match="expected the name of a directory"):
        shell.run_cell_magic("model_py", name, MODEL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "required"),
        ("begin", "invalid choice"),
        ("start --port x", "invalid int value"),
        ("start 'half", "No closing quotation"),
    ],
)
def test_invalid_line_shows_the_usage(shell: InteractiveShell, line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        shell.run_line_magic("tritonnb", line)


def test_unknown_model_is_a_one_line_error(shell: InteractiveShell) -> None:
    with pytest.raises(UsageError, match="unknown model: 'nothing' is not found"):
        shell.run_cell_magic("config", "nothing", "max_batch_size: 8")


def test_load_error_is_shown_with_its_line_and_fix(shell: InteractiveShell, config: str) -> None:
    with pytest.raises(UsageError) as error:
        shell.run_cell_magic("config", "add_sub", config.replace('"python"', '"pyton"'))
    line = next(line for line in config.splitlines() if line.startswith("backend")).replace("python", "pyton")
    assert str(error.value).splitlines()[1:] == [f"  {line}", "  ^", "fix: pyton → python"]
    assert error.value.__suppress_context__


@pytest.fixture
def backend() -> str:
    """The smallest C++ backend: it answers every request without outputs."""
    if find_compiler() is None:
        pytest.skip("no C++ compiler: install g++ to test C++ backends")
    return """#include "triton/core/tritonbackend.h"

extern "C" TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Response* response;
    TRITONBACKEND_ResponseNew(&response, requests[index]);
    TRITONBACKEND_ResponseSetIntParameter(response, "generation", 1);
    TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, nullptr);
    TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL);
  }
  return nullptr;
}
"""


CONFIG = """
    backend: "cpp"
    input { name: "X" data_type: TYPE_FP32 dims: 1 }
    output { name: "Y" data_type: TYPE_FP32 dims: 1 }
"""


def generation(shell: InteractiveShell) -> int:
    with httpclient.InferenceServerClient(shell.user_ns["server"].url.removeprefix("http://")) as client:
        tensor = httpclient.InferInput("X", [1], "FP32")
        tensor.set_data_from_numpy(np.zeros(1, np.float32))
        return client.infer("cpp", [tensor]).get_response()["parameters"]["generation"]


def test_cell_is_compiled_as_a_backend_and_replaces_the_one_before(
    shell: InteractiveShell, backend: str, tmp_path: Path
) -> None:
    (tmp_path / "cpp").mkdir()
    (tmp_path / "cpp" / "config.pbtxt").write_text(CONFIG)
    shell.run_cell_magic("cpp_backend", "cpp", backend)
    assert generation(shell) == 1
    shell.run_cell_magic("cpp_backend", "cpp", backend.replace('"generation", 1', '"generation", 2'))
    assert generation(shell) == 2


def test_errors_of_the_compiler_are_shown_at_their_lines_of_the_cell(shell: InteractiveShell, backend: str) -> None:
    with pytest.raises(UsageError) as caught:
        shell.run_cell_magic("cpp_backend", "cpp", backend.replace("requests[index]", "nothing", 1))
    message, code, caret, *_ = str(caught.value).splitlines()
    assert message.startswith("line 7: error: ")
    assert code[caret.index("^") :].startswith("nothing")
    with pytest.raises(UsageError, match="unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute'"):
        shell.run_cell_magic("cpp_backend", "cpp", "int nothing;")
