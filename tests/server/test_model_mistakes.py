"""What the log and the exception say about mistakes in *model.py* that Triton passes over in silence."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import tritonnb as tnb
from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.server.server import Server

HEAD = """
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
"""
CONFIG = """
    backend: "python" max_batch_size: 4
    input { name: "X" data_type: TYPE_FP32 dims: 2 }
    input { name: "option" data_type: TYPE_FP32 dims: 2 optional: true }
    output { name: "Y" data_type: TYPE_FP32 dims: 2 }
"""
X = np.ones((1, 2), np.float32)


def serve(tmp_path: Path, body: str, isolate: bool = False) -> Server:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "m" / "1" / "model.py").write_text(HEAD + f"        {body}\n")
    return Server(tmp_path, port=0, isolate=isolate)


@pytest.mark.parametrize("isolate", [False, True], ids=["in-process", "isolated"])
def test_wrong_name_of_an_input_is_named(tmp_path: Path, isolate: bool, caplog: pytest.LogCaptureFixture) -> None:
    body = "return pb.InferenceResponse([pb.Tensor('Y', pb.get_input_tensor_by_name(request, 'x').as_numpy())])"
    words = "get_input_tensor_by_name expected an input ('X', 'option'), got 'x'; did you mean 'X'?"
    with serve(tmp_path, body, isolate) as server:
        for _ in range(2):
            with pytest.raises(TritonError, match="'NoneType' object has no attribute 'as_numpy'") as caught:
                server["m"](X=X)
            assert str(caught.value).endswith(f"; {words}")
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1, 1]}
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{server.url}/v2/models/m/infer", json.dumps({"inputs": [tensor]}).encode())
        assert "expected an input" not in refused.value.read().decode()  # the client gets Triton's text
    assert [record.getMessage() for record in caplog.records if "get_input" in record.getMessage()] == [
        f"model 'm': {words}"
    ]


def test_optional_input_that_is_not_there_is_no_mistake(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    body = "assert pb.get_input_tensor_by_name(request, 'option') is None; raise TypeError('another')"
    with serve(tmp_path, body) as server, pytest.raises(TritonError) as caught:
        server["m"](X=X)
    assert not caught.value.hint
    assert "get_input" not in caplog.text


def test_optional_input_that_the_model_uses_without_a_check_is_named(tmp_path: Path) -> None:
    body = "pb.get_input_tensor_by_name(request, 'option').as_numpy()"
    with serve(tmp_path, body) as server, pytest.raises(TritonError, match="'NoneType' object") as caught:
        server["m"](X=X)
    assert caught.value.hint == "get_input_tensor_by_name returned None: the request lacks optional input 'option'"


@pytest.mark.parametrize(("kind", "name", "known"), [("input", "x", "'X', 'option'"), ("output", "y", "'Y'")])
def test_wrong_name_of_a_tensor_in_the_configuration_is_logged(
    tmp_path: Path, kind: str, name: str, known: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(tmp_path, "return None") as server:
        initialize = f"""
    def initialize(self, args):
        pb.get_{kind}_config_by_name(__import__("json").loads(args["model_config"]), "{name}")["dims"]
"""
        (tmp_path / "m" / "1" / "model.py").write_text(f"{HEAD}        return None\n{initialize}")
        with pytest.raises(TritonError, match="'NoneType' object is not subscriptable"):
            server.load("m")
    words = f"get_{kind}_config_by_name expected an {kind} of the configuration ({known}), got '{name}'; did you mean"
    assert caplog.text.count(words) == 1


@pytest.mark.parametrize(
    ("array", "words"),
    [
        ("np.zeros((1, 2))", "expected FP32, got FP64"),
        ("np.zeros((1, 3), np.float32)", "expected shape [-1,2], got [1,3]"),
        ("np.zeros(2, np.float32)", "expected shape [-1,2], got [2]: the batch dimension is missing"),
        ("np.zeros((1, 2), np.float32)", ""),
    ],
)
def test_output_that_differs_from_its_declaration_is_logged_once(
    tmp_path: Path, array: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(tmp_path, f"return pb.InferenceResponse([pb.Tensor('Y', {array})])") as server:
        for _ in range(2):
            server["m"](X=X)
    logged = [record.getMessage() for record in caplog.records if "differs" in record.getMessage()]
    assert logged == ([f"model 'm': returned output 'Y' differs: {words}"] if words else [])


def test_wrong_name_of_an_output_of_a_response_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    body = "assert pb.get_output_tensor_by_name(pb.InferenceResponse([pb.Tensor('Out', np.zeros(1))]), 'out') is None"
    with serve(tmp_path, body) as server, pytest.raises(TritonError):
        server["m"](X=X)
    assert (
        "model instance 'm_0': get_output_tensor_by_name expected an output of the response ('Out'), got 'out'; did "
        "you mean 'Out'?" in caplog.text
    )


def test_hints_of_requests_stay_in_this_process(tmp_path: Path) -> None:
    with serve(tmp_path, "return None") as server:
        with pytest.raises(InvalidArgumentError) as caught:
            server["m"](X=np.ones((5, 2), np.float32))
        assert caught.value.message.endswith("inference request batch-size must be <= 4 for 'm'")
        assert "it has 5 rows" in caught.value.hint

        @server.model
        def texts(X: tnb.BYTES[-1]) -> tnb.BYTES[-1]:
            return X

        @server.model
        def nothing() -> tnb.FP32[1]:
            return [1]

        with pytest.raises(InvalidArgumentError, match=r"got .*it is a single value: put it into lists"):
            server["texts"](X="a")
        with pytest.raises(InvalidArgumentError, match="for model 'nothing': it has no inputs"):
            server["nothing"](X=[1.0])


def test_exception_in_a_library_names_the_line_of_the_function() -> None:
    with Server(port=0) as server:

        @server.model
        def m(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return json.loads("{")

        with pytest.raises(TritonError, match=rf"in raw_decode, called in line \d+ of {__file__}, in m\)$"):
            server["m"](X=[1.0])


def test_tuple_as_the_annotation_of_several_outputs_mentions_the_dict() -> None:
    def m(X: tnb.FP32[1]):  # type: ignore[no-untyped-def]
        return X, X

    with Server(port=0) as server:
        for result in ((tnb.FP32[1], tnb.FP32[1]), [tnb.FP32[1]]):
            m.__annotations__["return"] = result
            with pytest.raises(InvalidArgumentError, match="for several outputs, a dict such as"):
                server.model(m)
