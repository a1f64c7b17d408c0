"""A configuration that is refused: Python code reads Triton's text and the fix, a client Triton's text alone."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tritonnb as tnb
from tests.server.conftest import EXAMPLES
from tritonnb.server.server import Server

TEXT = (EXAMPLES / "add_sub" / "config.pbtxt").read_text().replace('name: "add_sub"\n', "")
POLL = "failed to load 'm', failed to poll from model repository"
VERSION = "load failed for model 'm': version 1 is at UNAVAILABLE state: "


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    shutil.copytree(EXAMPLES / "add_sub", tmp_path / "m")
    (tmp_path / "m" / "config.pbtxt").write_text(TEXT)
    with Server(tmp_path, port=0, model_control_mode="explicit") as server:
        yield server


def text_for_a_client(server: Server, name: str) -> str:
    request = urllib.request.Request(f"{server.url}/v2/repository/models/{name}/load", data=b"{}")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    text: str = json.loads(caught.value.read())["error"]
    return text


#: What is written for what, Triton's text of the load API, the hint, the label of the fix.
MISTAKES = {
    "field": ("max_batch_size:", "max_batchsize:", POLL, "did you mean 'max_batch_size'?",
              "max_batchsize → max_batch_size"),
    "constant": ("TYPE_FP32", "FP32", POLL, "did you mean 'TYPE_FP32'?", "FP32 → TYPE_FP32"),
    "twice": ("dynamic_batching", "max_batch_size: 8\ndynamic_batching", POLL, "remove the second max_batch_size",
              "remove the second max_batch_size"),
    "bool": ("dynamic_batching { }", "dynamic_batching: true", POLL, "did you mean '{ }'?", "true → { }"),
    "comma": ("dims: [ 4 ]", "dims: [ 4, ]", POLL, "remove the comma before ]", "remove the comma before ]"),
    "platform": ('backend: "python"', 'platform: "torch"', POLL, "did you mean 'pytorch'?", "torch → pytorch"),
    "rule": ("dynamic_batching { }", "dynamic_batching { preferred_batch_size: [ 4, 16 ] }", POLL,
             "keep preferred sizes from 1 to 8", "keep preferred sizes from 1 to 8"),
    "backend": (
        '"python"', '"pyton"',
        f"{VERSION}Invalid argument: unable to find backend library for backend 'pyton', try specifying runtime on the "
        "model configuration.;\n", "did you mean 'python'?", "pyton → python"),
    "torch": (
        '"python"', '"torch"',
        f"{VERSION}Invalid argument: unable to find backend library for backend 'torch', try specifying runtime on the "
        "model configuration.;\n", "did you mean 'pytorch'?", "torch → pytorch"),
    "onnx": (
        '"python"', '"onnx"',
        f"{VERSION}Invalid argument: unable to find backend library for backend 'onnx', try specifying runtime on the "
        "model configuration.;\n", "did you mean 'onnxruntime'?", "onnx → onnxruntime"),
    "zero": (
        "dims: [ 4 ]", "dims: [ 0 ]",
        f"{VERSION}Invalid argument: model input 'INPUT0' dimension must be integer >= 1, or -1 to indicate a "
        "variable-size dimension for m;\n", "set dims: [-1]", "set dims: [-1]"),
    "no dims": (
        "dims: [ 4 ]", "", f"{VERSION}Invalid argument: model input 'INPUT0' must specify 'dims' for m;\n",
        "set dims, without the batch dimension, such as dims: [ -1 ] for one of any size",
        "set dims, without the batch dimension, such as dims: [ -1 ] for one of any size"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("right", "wrong", "for_clients", "hint", "label"), [pytest.param(*row, id=name) for name, row in MISTAKES.items()]
)
def test_load_error_ends_with_the_fix_and_has_it(
    server: Server, tmp_path: Path, right: str, wrong: str, for_clients: str, hint: str, label: str
) -> None:
    text = TEXT.replace(right, wrong, 1)
    (tmp_path / "m" / "config.pbtxt").write_text(text)
    with pytest.raises(tnb.TritonError) as caught:
        server.load("m")
    error = caught.value
    assert str(error).endswith(f"; {hint}")
    assert "\n" not in str(error)
    (problem,) = error.problems
    assert problem.fix is not None
    assert problem.fix.label == label
    assert problem.line > 0
    assert text_for_a_client(server, "m") == for_clients
    (tmp_path / "m" / "config.pbtxt").write_text(problem.fix.text)
    if label not in ("torch → pytorch", "onnx → onnxruntime"):  # other backends, which need other files
        assert server.load("m").ready


@pytest.mark.parametrize("name", ["constant", "backend", "zero", "rule"])
def test_error_of_apply_ends_with_the_fix_and_has_its_line(server: Server, name: str) -> None:
    right, wrong, _, hint, label = MISTAKES[name]
    config = server.load("m").config

    def apply() -> None:
        config.text = TEXT.replace(right, wrong, 1)
        config.apply()

    with pytest.raises(tnb.TritonError) as caught:
        apply()
    assert str(caught.value).endswith(f"; {hint}")
    (problem,) = caught.value.problems
    assert problem.fix is not None
    assert (problem.fix.label, problem.line > 0) == (label, True)
    assert server["m"].ready


def test_gpu_instance_without_a_gpu_is_refused(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritonnb.engine.repository.loader.cuda_devices", list)
    (tmp_path / "m" / "config.pbtxt").write_text(TEXT.replace("KIND_CPU", "KIND_GPU"))
    with pytest.raises(tnb.TritonError) as caught:
        server.load("m")
    assert str(caught.value).endswith("; set kind: KIND_CPU, or KIND_AUTO to use GPUs where there are some")
    (problem,) = caught.value.problems
    assert problem.fix is not None
    assert "KIND_CPU" in problem.fix.text


def test_missing_version_folder_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "m" / "1").rename(tmp_path / "m" / "v1")
    with pytest.raises(tnb.TritonError) as caught:
        server.load("m")
    assert str(caught.value) == (
        "load failed for model 'm': at least one version must be available under the version policy of model 'm'; "
        f"expected the directory '{tmp_path}/m/1' with the file 'model.py', got the directories ['v1']"
    )
    assert text_for_a_client(server, "m") == (
        "load failed for model 'm': at least one version must be available under the version policy of model 'm'\n"
    )


def test_loading_a_model_outside_every_repository_fails(server: Server, tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    with pytest.raises(tnb.TritonError, match=r"model not found in any model repository; did you mean 'digits'\?$"):
        server.load("digit")
    with pytest.raises(tnb.TritonError, match=rf"; expected the folder 'x99' in {tmp_path}$"):
        server.load("x99")
    assert text_for_a_client(server, "digit") == "failed to load 'digit', failed to poll from model repository"


def test_torchscript_model_without_a_configuration_is_refused(server: Server, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "net" / "1").mkdir(parents=True)
    torch.jit.script(torch.nn.Linear(1, 1)).save(tmp_path / "net" / "1" / "model.pt")
    with pytest.raises(tnb.TritonError) as caught:
        server.load("net")
    assert str(caught.value).endswith(
        f"model configuration is not provided for model 'net'; write {tmp_path}/net/config.pbtxt with the inputs and "
        "outputs, which backend 'pytorch' cannot determine from the model's file"
    )
    assert repr(server["net"]) == (
        "model 'net' (not ready: version 1 is at UNAVAILABLE state: Not found: model configuration is not provided for "
        "model 'net')"
    )


def test_handle_explains_why_its_model_is_not_ready(server: Server) -> None:
    model = server.load("m")
    model.unload()
    server.run(server.engine.table.wait_until_closed())
    assert repr(model) == "model 'm' (not ready: unloaded)"


@pytest.mark.parametrize("kind", [dict, json.dumps, lambda config: {"config": config}])
def test_configuration_of_any_form_is_loaded(server: Server, kind: type) -> None:
    wanted = server.load("m").config.to_dict() | {"max_batch_size": 3, "dynamic_batching": {}}
    assert server.load("m", kind(wanted)).config.max_batch_size == 3
    assert server.load("m", TEXT.replace("max_batch_size: 8", "max_batch_size: 5")).config.max_batch_size == 5


def test_log_has_the_hint_on_a_separate_line(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "m" / "config.pbtxt").write_text(TEXT.replace("TYPE_FP32", "FP32", 1))
    caplog.set_level(logging.INFO, "tritonnb")
    text_for_a_client(server, "m")
    assert [record.getMessage() for record in caplog.records] == [
        "Error parsing text-format inference.ModelConfig: "
        '5:36: Unknown enumeration value of "FP32" for field "data_type".',
        f"Poll failed for model directory 'm': failed to read text proto from {tmp_path}/m/config.pbtxt",
        "model 'm': did you mean 'TYPE_FP32'?",
    ]


@pytest.mark.parametrize(("right", "wrong"), [("TYPE_FP32", "FP32"), ('"python"', '"pyton"')])
def test_raised_error_is_not_printed_unless_logging_is_configured(tmp_path: Path, right: str, wrong: str) -> None:
    shutil.copytree(EXAMPLES / "add_sub" / "1", tmp_path / "m" / "1")
    (tmp_path / "m" / "config.pbtxt").write_text(TEXT.replace(right, wrong, 1))
    script = f"""
import sys, logging
import tritonnb as tnb

with tnb.Server({str(tmp_path)!r}, port=0, model_control_mode="explicit") as server:
    for step in range(2):
        try:
            server.load("m")
        except tnb.TritonError:
            print(step, file=sys.stderr)
        logging.basicConfig(format="log: %(message)s", level=logging.ERROR)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = run.stderr.splitlines()
    assert lines[0] == "0"
    assert lines[-1] == "1"
    assert len(lines) > 2
    assert all(line.startswith("log: ") for line in lines[1:-1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda text: text + 'input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }',
            "input 'INPUT0' is declared 2",
        ),
        (lambda text: text[: text.index("output [")] + "dynamic_batching { }", "the configuration has no output, so"),
        (lambda text: text, ""),
    ],
    ids=["an input twice", "no output", "valid"],
)
def test_surprising_valid_configuration_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[str], str], words: str
) -> None:
    shutil.copytree(EXAMPLES / "add_sub", tmp_path / "m")
    (tmp_path / "m" / "config.pbtxt").write_text(change(TEXT))
    with Server(tmp_path, port=0) as server:
        assert server["m"].ready
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert all(text.startswith(f"model 'm': {words}") for text in logged)
    assert bool(logged) is bool(words)
