"""Typing errors of users: an error of one line that names the correct word, without chained exceptions."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritonnb as tnb
from tests.mistakes import text_of
from tests.server.conftest import EXAMPLES
from tritonnb.cli.main import main
from tritonnb.server.server import Server

X = [[1.0, 2.0, 3.0, 4.0]]


class Foreign:
    """An array of another library, or one that cannot be had as NumPy's."""

    def __init__(self, content: np.ndarray[Any, Any] | Exception) -> None:
        self.content = content

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if isinstance(self.content, Exception):
            raise self.content
        return self.content if dtype is None else self.content.astype(dtype)


NO_PARAMETERS = "parameters: expected a dict of str, int, float or bool by name"
INT64 = "an int from -2**63 to 2**63 - 1"
NO_UTF8 = "expected text that UTF-8 can express"


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (
            np.zeros((1, 4), np.float32),
            "model 'add_sub': expected a dict of inputs or the keywords INPUT0=, INPUT1=, got ndarray",
        ),
        ({"INPUT0": "one"}, "model 'add_sub': input 'INPUT0' expected FP32 values, got 'one'"),
        ({"INPUT0": [1.0, None]}, "model 'add_sub': input 'INPUT0' expected FP32 values, got None"),
        (
            {"INPUT0": [[1.0], []]},
            "model 'add_sub': input 'INPUT0' expected lists of equal length, got different lengths",
        ),
        ({"INPUT": X}, "unexpected inference input 'INPUT' for model 'add_sub': it has 'INPUT0', 'INPUT1'"),
        (
            {"INPUT0": Foreign(np.ones((1, 4)))},
            "input 'INPUT0' of model 'add_sub' is FP32 (NumPy float32), got float64 in a Foreign: "
            "convert it to float32",
        ),
        (
            {"INPUT0": Foreign(RuntimeError("tensor on another device"))},
            "input 'INPUT0' of model 'add_sub' is FP32, and tensor on another device",
        ),
        ({"INPUT0": X, "INPUT1": None}, "input 'INPUT1' of model 'add_sub' is FP32, got None"),
        (
            {"INPUT0": X[0], "INPUT1": X},
            "[request id: <id_unknown>] input 'INPUT0' batch size does not match other inputs for 'add_sub'; the first "
            "dimension is the batch, the same for all inputs: 'INPUT0' expected [-1,4], got [4], 'INPUT1' expected "
            "[-1,4], got [1,4]",
        ),
        (
            {"INPUT0": np.float32(1), "INPUT1": np.float32(1)},
            "[request id: <id_unknown>] input 'INPUT1' has no shape but model requires batch dimension for 'add_sub'",
        ),
    ],
)  # fmt: skip
def test_invalid_input_is_refused(server: Server, inputs: Any, words: str) -> None:
    assert text_of(lambda: server["add_sub"](inputs)) == words


@pytest.mark.parametrize("method", ["__call__", "infer", "infer_async", "infer_all"])
def test_positional_inputs_are_refused_with_the_names_of_the_inputs(server: Server, method: str) -> None:
    async def call() -> None:
        result = getattr(server["add_sub"], method)(X, X)
        await result  # only of `infer_async`; the others raise the error before

    assert text_of(lambda: asyncio.run(call())) == (
        "model 'add_sub': expected a dict of inputs or the keywords INPUT0=, INPUT1=, got 2 positional arguments"
    )


SEQUENCE_ID = "sequence_id: expected an int from 0 to 2**64 - 1, or a str of at most 128 bytes"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"outputs": "OUTPUT0"}, "outputs: expected a list of output names, got 'OUTPUT0'"),
        ({"outputs": 3}, "outputs: expected a list of output names, got 3"),
        ({"priority": -1}, "priority: expected an int from 0 to 2**64 - 1, got -1"),
        ({"priority": "high"}, "priority: expected an int from 0 to 2**64 - 1, got 'high'"),
        ({"timeout_us": 0.5}, "timeout_us: expected an int from 0 to 2**64 - 1, got 0.5"),
        ({"sequence_id": -1}, f"{SEQUENCE_ID}, got -1"),
        ({"sequence_id": 1.5}, f"{SEQUENCE_ID}, got 1.5"),
        ({"sequence_id": 2**64}, f"{SEQUENCE_ID}, got {2**64}"),
        ({"sequence_id": "x" * 129}, f"{SEQUENCE_ID}, got '{'x' * 129}'"),
        ({"sequence_id": "\ud800"}, f"{SEQUENCE_ID}, got '\\ud800'"),
        ({"timeout_us": 2**64}, f"timeout_us: expected an int from 0 to 2**64 - 1, got {2**64}"),
        ({"id": 5}, "id: expected a str, got 5"),
        ({"parameters": ["a"]}, "parameters: expected a dict of str, int, float or bool by name, got ['a']"),
        ({"parameters": {"a": [1]}}, f"{NO_PARAMETERS}: parameter 'a': expected a str, int, float or bool, got [1]"),
        ({"parameters": {"a": 2**64}}, f"{NO_PARAMETERS}: parameter 'a': expected {INT64}, got {2**64}"),
        ({"parameters": {"a": -(2**63) - 1}}, f"{NO_PARAMETERS}: parameter 'a': expected {INT64}, got {-(2**63) - 1}"),
        ({"parameters": {"a": None}}, f"{NO_PARAMETERS}: parameter 'a': expected a str, int, float or bool, got None"),
        ({"parameters": {"a": b"x"}}, f"{NO_PARAMETERS}: parameter 'a': expected a str, int, float or bool, got b'x'"),
        ({"parameters": {"a": np.uint64(2**63)}}, f"{NO_PARAMETERS}: parameter 'a': expected {INT64}, got {2**63}"),
        (
            {"parameters": {"a": "\ud83d"}},
            f"{NO_PARAMETERS}: parameter 'a': expected text that UTF-8 can express, got '\\ud83d'",
        ),
        ({"parameters": {float("nan"): 1}}, f"{NO_PARAMETERS}: name of a parameter: expected a str, got nan (float)"),
    ],
)
def test_invalid_request_option_is_refused(server: Server, option: dict[str, Any], words: str) -> None:
    assert text_of(lambda: server["add_sub"](INPUT0=X, INPUT1=X, **option)) == f"model 'add_sub': {words}"


def test_numpy_integers_are_accepted(server: Server) -> None:
    options: dict[str, Any] = {"timeout_us": np.int64(5), "priority": np.uint8(0), "sequence_id": np.int32(7)}
    assert server["add_sub"](INPUT0=X, INPUT1=X, **options)["OUTPUT0"].tolist() == [[2.0, 4.0, 6.0, 8.0]]


def test_mistyped_model_name_is_corrected(server: Server) -> None:
    unknown = "Request for unknown model: 'addsub' is not found; did you mean 'add_sub'?"
    assert text_of(lambda: server["addsub"]) == unknown
    assert text_of(lambda: server.unload("addsub")) == unknown
    assert (
        text_of(lambda: server.stats("addsub")) == "requested model 'addsub' is not available; did you mean 'add_sub'?"
    )


@pytest.mark.parametrize("name", [0, None, b"add_sub"])
def test_non_string_name_changes_nothing(server: Server, name: Any) -> None:
    words = f"model name: expected str, got {type(name).__name__} {name!r}"
    for ask in (server.__getitem__, server.load, server.unload, lambda name: server.labels(name, "OUTPUT0")):
        assert text_of(lambda ask=ask: ask(name)) == words  # type: ignore[misc]
    assert sorted(server) == ["add_sub", "identity_fp32", "string_upper"]


def test_unknown_output_is_refused(server: Server) -> None:
    assert text_of(lambda: server.labels("add_sub", "OUT")) == (
        "unexpected inference output 'OUT' for model 'add_sub': it has 'OUTPUT0', 'OUTPUT1'"
    )


def test_call_of_a_stopped_server_is_one_sentence() -> None:
    server = Server(EXAMPLES, port=0, model_control_mode="explicit", load_models=["add_sub"])
    model = server["add_sub"]
    server.stop()
    mistakes = (model.stats, server.stats, server.index, lambda: model(INPUT0=X, INPUT1=X), lambda: server["add_sub"],
                lambda: server.load("add_sub"), lambda: list(server), lambda: server.record().__enter__())  # fmt: skip
    for mistake in mistakes:
        with pytest.raises(tnb.TritonError, match=r"^the server has been stopped$"):
            mistake()
    assert repr(model) == "model 'add_sub' (the server has been stopped)"


def test_call_of_a_replaced_server_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "model_repository").mkdir()
    first = tnb.serve(tmp_path / "model_repository", port=0)

    @first.model
    def m(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X

    model = first["m"]
    with tnb.serve(tmp_path / "model_repository", port=first.port):
        words = (
            "the server has been stopped: a later one replaced it (tnb.serve, or Server(replaces=...)); use that one "
            "instead"
        )
        mistakes = (model.stats, first.stats, lambda: model(X=[1.0]), lambda: first["m"])
        assert [text_of(mistake) for mistake in mistakes] == [words] * 4
        assert repr(model) == f"model 'm' ({words})"


@pytest.mark.parametrize("option", ["port", "grpc_port", "metrics_port"])
def test_port_in_use_names_the_process_that_has_it(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = text_of(lambda: Server(**{"port": 0, option: port}))
    service = {"port": "HTTP", "grpc_port": "GRPC", "metrics_port": "Metrics"}[option]
    assert text == (
        f"the {service} service cannot listen on 127.0.0.1:{port}: the port is already in use; pass another "
        f"{option}=, or {option}=0 for any free port"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prot": 1}, "Server has no option 'prot'; did you mean 'port'?"),
        ({"load_model": ["m"]}, "Server has no option 'load_model'; did you mean 'load_models'?"),
        ({"model_control_mode": "manual"},
         "model_control_mode: expected one of 'none', 'explicit', 'poll', got 'manual'"),
        ({"rate_limit": "on"}, "rate_limit: expected one of 'off', 'execution_count', got 'on'"),
        ({"port": 99_999}, "cannot listen on 127.0.0.1:99999: expected a port from 0 to 65535, got 99999"),
        ({"port": -1}, "cannot listen on 127.0.0.1:-1: expected a port from 0 to 65535, got -1"),
        ({"port": "8000"}, "port: expected an integer or None, got '8000'"),
        ({"grpc_port": 80.5}, "grpc_port: expected an integer or None, got 80.5"),
        ({"model_repository": 5}, "model_repository: expected a path or a sequence of paths, got 5"),
        ({"model_repository": None}, "model_repository: expected a path or a sequence of paths, got None"),
        ({"load_models": "add_sub"}, "load_models: expected a list of strings, got 'add_sub'"),
        ({"load_models": ["add_sub"]}, "load_models: expected model_control_mode='explicit', got 'none'"),
        ({"exit_timeout": -1}, "exit_timeout: expected a number >= 0, got -1"),
        ({"repository_poll_secs": "x"}, "repository_poll_secs: expected a number, got 'x'"),
        ({"backend_config": "onnx"}, "backend_config: expected a dict of dicts, got 'onnx'"),
        ({"http": {"max_input_size": 1}}, "http: expected HttpOptions(...), got {'max_input_size': 1}"),
        ({"grpc_port": 0, "grpc": tnb.GrpcOptions(transport="c++")},
         "GrpcOptions.transport: expected 'auto', 'fast' or 'grpcio', got 'c++'"),
        ({"grpc_port": 0, "grpc": tnb.GrpcOptions(transport="fast", use_ssl=True, max_connection_age=5)},
         "GrpcOptions.transport: expected 'auto' or 'grpcio' with use_ssl and max_connection_age, got 'fast'"),
        ({"trace": "file"}, "trace: expected TraceOptions(...), got 'file'"),
    ],
)  # fmt: skip
def test_unknown_option_is_refused(options: dict[str, Any], words: str) -> None:
    assert text_of(lambda: Server(**{"port": 0, **options})) == words


def test_load_and_dashboard_of_an_unknown_model_are_errors(server: Server) -> None:
    assert text_of(lambda: tnb.load(5, clients=1, requests=1)) == (  # type: ignore[arg-type]
        "model expected server['NAME'] or http://HOST:PORT/v2/models/NAME, got int"
    )
    assert text_of(lambda: server.dashboard("addsub")).startswith("Request for unknown model: 'addsub' is not found")


NO_TRACE = (
    "trace file '{path}': a timeline expected a list of objects with an 'id', which a server writes in the trace mode "
    "triton, got other content; OTLP messages are read with --explain and --html"
)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "trace file '{path}' expected a file, or a series trace.json.0, …; got neither"),
        ("{", NO_TRACE),
        ("[1]", "trace file '{path}': expected a list of objects with an 'id'"),
        ('{"id": 1}', NO_TRACE),
    ],
)
def test_file_that_is_not_a_trace_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, words: str
) -> None:
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_text(content)
    assert main(["trace", str(path), "-o", str(tmp_path / "out.json")]) == 1
    assert capsys.readouterr().err == words.replace("{path}", str(path)) + "\n"
    assert not (tmp_path / "out.json").exists()


def test_unwritable_directory_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["models", str(tmp_path / "file")]) == 1
    assert "Not a directory" in capsys.readouterr().err


def test_model_directory_instead_of_a_repository_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tnb.serve(EXAMPLES / "add_sub", port=0).stop()
    words = f"'{EXAMPLES / 'add_sub'}': expected a model repository, got a model; serve its parent, '{EXAMPLES}'"
    assert words in capsys.readouterr().out
