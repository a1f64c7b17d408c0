"""The Python backend: ``triton_python_backend_utils``, errors, and the isolation of models."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tests.backends.models import PYTHON, TENSORS, Loaded, config_of, request, rows
from tritonnb.backends.contract import ModelContext
from tritonnb.backends.execution import ResponseSender
from tritonnb.backends.python import pb_utils as typed_utilities
from tritonnb.backends.python.backend import PythonBackend
from tritonnb.backends.python.response import InferenceResponseSender
from tritonnb.backends.python.tensor import to_core_tensor
from tritonnb.core import datatypes
from tritonnb.core.errors import InternalError, InvalidArgumentError, Status, UnsupportedError
from tritonnb.core.messages import InferRequest, discard_response

#: Untyped, as models use it: they may pass anything.
pb_utils: Any = typed_utilities

HEAD = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\nclass TritonPythonModel:\n"


class Load(Protocol):
    """Loads a model from the text of its *model.py*."""

    def __call__(self, directory: Path, body: str, tensors: str = TENSORS, **config: Any) -> Loaded: ...


def load_in_process(
    directory: Path, body: str, tensors: str = TENSORS, isolated: bool = False, **config: Any
) -> Loaded:
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "1" / "model.py").write_text(body)
    return Loaded(config_of("python", tensors, **config), directory, isolated=isolated)


@pytest.fixture(params=[False, True], ids=["in_process", "isolated"])
def load(request: pytest.FixtureRequest) -> Iterator[Load]:
    """Load models in this process, and in processes of their own."""
    with contextlib.ExitStack() as processes:

        def load(directory: Path, body: str, tensors: str = TENSORS, **config: Any) -> Loaded:
            loaded = load_in_process(directory, body, tensors, isolated=request.param, **config)
            if request.param:
                processes.callback(loaded.instance.finalize)
            return loaded

        yield load


# --- loading --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("x = 1", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'"),
        ("def", "SyntaxError: invalid syntax (model.py, line 1)"),
        ("1 / 0", "ZeroDivisionError: division by zero\n\nAt:\n  {path}(1): <module>\n"),
        (
            HEAD + "    def initialize(self, args):\n        raise RuntimeError('not today')\n",
            "RuntimeError: not today\n\nAt:\n  {path}(6): initialize\n",
        ),
        (
            HEAD + "    def initialize(self, args):\n        pb_utils.Tensor('', np.zeros(1))\n",
            "TritonModelException: Tensor name cannot be an empty string.\n\nAt:\n  {path}(6): initialize\n",
        ),
        (
            HEAD + "    def initialize(self):\n        pass\n",
            "TypeError: TritonPythonModel.initialize() takes 1 positional argument but 2 were given",
        ),
    ],
)
def test_a_model_that_cannot_be_loaded_is_reported_as_triton_does(
    load: Load, tmp_path: Path, body: str, text: str
) -> None:
    with pytest.raises(InternalError) as caught:
        load(tmp_path, body)
    assert str(caught.value) == text.format(path=tmp_path / "1" / "model.py")


def test_the_arguments_of_initialize_are_strings(tmp_path: Path) -> None:
    loaded = load_in_process(tmp_path, PYTHON + "    def initialize(self, args):\n        self.args = args\n")
    args = loaded.instance._model.args
    assert {key: args[key] for key in args if key != "model_config"} == {
        "model_instance_kind": "CPU",
        "model_instance_name": "m_0_0",
        "model_instance_device_id": "0",
        "model_repository": str(tmp_path),
        "model_version": "1",
        "model_name": "m",
    }
    assert '"max_batch_size":8' in args["model_config"]


def test_helpers_of_two_models_with_the_same_name_are_separate(load: Load, tmp_path: Path) -> None:
    body = "import helper\n" + PYTHON.replace(
        "request.inputs()[0].as_numpy()", "helper.change(request.inputs()[0].as_numpy())"
    )
    loaded = []
    for name, expression in (("a", "x + 1"), ("b", "x + 2")):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "helper.py").write_text(
            f"def change(x):\n    return x + np.float32({expression[-1]})\nimport numpy as np\n"
        )
        loaded.append(load(tmp_path / name, body))
    assert [model.run(request(IN0=rows(0)))[0].outputs[0].array.item() for model in loaded] == [1, 2]


def test_a_model_imports_modules_of_its_version_relatively_and_of_its_directory_by_name(
    load: Load, tmp_path: Path
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "near.py").write_text("STEP = 1")
    (tmp_path / "1" / "later.py").write_text("STEP = 10")
    (tmp_path / "above.py").write_text("STEP = 100")
    body = "import above\nfrom . import near\n" + PYTHON.replace(
        "request.inputs()[0].as_numpy()", "request.inputs()[0].as_numpy() + near.STEP + self.more() + above.STEP"
    )
    body += "    def more(self):\n        from .later import STEP\n        return STEP\n"
    loaded = load(tmp_path, body)
    assert loaded.run(request(IN0=rows(0)))[0].outputs[0].array.item() == 111


def test_an_unloaded_model_leaves_no_module(tmp_path: Path) -> None:
    before = set(sys.modules)
    loaded = load_in_process(tmp_path, PYTHON)
    assert set(sys.modules) != before
    loaded.instance.finalize()
    with pytest.raises(InternalError):
        load_in_process(tmp_path, "1 / 0")
    assert set(sys.modules) == before


def test_an_execution_environment_is_refused_since_there_is_one_process(load: Load, tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{tmp_path / "env"}" }} }}'
    with pytest.raises(UnsupportedError, match="model 'm': EXECUTION_ENV_PATH is not supported"):
        load(tmp_path, PYTHON, extra=parameter)


# --- auto-completion ------------------------------------------------------------------------------


def completed(tmp_path: Path, body: str, config: str = "") -> Any:
    """What a model's ``auto_complete_config`` makes of a configuration."""
    (tmp_path / "1").mkdir(exist_ok=True)
    text = "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n"
    (tmp_path / "1" / "model.py").write_text(f"{text}        {body}\n        return config\n")
    parsed = text_format.Parse(f'name: "m" backend: "python" {config}', pb.ModelConfig())
    return PythonBackend().auto_complete(ModelContext("m", 1, parsed, tmp_path))


@pytest.mark.parametrize(
    "body",
    [
        "config.set_max_batch_size(4.5)",
        "config.add_input(dict(name='X', data_type='FP32', dims=[1]))",
        "config.add_input(dict(name=5, data_type='TYPE_FP32', dims=[1]))",
        "config.set_model_transaction_policy(dict(decoupled='x'))",
        "config.as_dict()['unknown'] = 1",
        "config.as_dict().pop('sequence_batching')",
    ],
)
def test_an_invalid_completed_configuration_is_ignored(tmp_path: Path, body: str) -> None:
    assert completed(tmp_path, body, "sequence_batching { }") is None


def test_a_completion_is_read_like_any_configuration(tmp_path: Path) -> None:
    body = (
        "config.as_dict().update(max_batch_size='8', dynamic_batching=dict(max_queue_delay_microseconds=7), name='z')"
    )
    config = completed(tmp_path, body)
    assert (config.name, config.max_batch_size) == ("m", 8)
    assert config.dynamic_batching.max_queue_delay_microseconds == 7


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("config.add_input('x')", "TypeError: string indices must be integers"),
        ("config.add_output(dict(name=5, foo=1))", 'TypeError: can only concatenate str \\(not "int"\\) to str'),
        ("config.set_model_transaction_policy(None)", "AttributeError: 'NoneType' object has no attribute 'keys'"),
        ("raise ValueError()", "ValueError: <EMPTY MESSAGE>"),
        ("config.as_dict()['x'] = object()", "TypeError: Object of type object is not JSON serializable"),
    ],
)
def test_errors_in_auto_complete_config_have_the_text_of_python(tmp_path: Path, body: str, complaint: str) -> None:
    with pytest.raises(InternalError, match=complaint):
        completed(tmp_path, body)


def test_auto_complete_config_fills_in_tensors_batching_and_policy(load: Load, tmp_path: Path) -> None:
    body = (
        PYTHON
        + """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN0", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "OUT0", "data_type": "TYPE_FP32", "dims": [4]})
        config.set_max_batch_size(16)
        config.set_dynamic_batching()
        config.set_model_transaction_policy({"decoupled": False})
        return config
"""
    )
    config = load(tmp_path, body, tensors="").config
    assert (config.max_batch_size, list(config.input[0].dims), config.output[0].name) == (16, [4], "OUT0")
    assert config.HasField("dynamic_batching")


# --- executing ------------------------------------------------------------------------------------


def test_an_exception_fails_the_batch_with_tritons_text(load: Load, tmp_path: Path) -> None:
    loaded = load(tmp_path, HEAD + "    def execute(self, requests):\n        raise ValueError('the model raised')\n")
    with pytest.raises(InternalError) as caught:
        loaded.run(request(IN0=rows(1)))
    assert str(caught.value) == (
        "Failed to process the request(s) for model 'm_0_0', message: ValueError: the model raised\n\nAt:\n  "
        f"{tmp_path}/1/model.py(6): execute\n"
    )


def test_an_exception_without_a_message_is_described_by_its_type(load: Load, tmp_path: Path) -> None:
    body = HEAD.replace(
        "class Triton",
        """class Mute(Exception):
    def __str__(self):
        raise ValueError


class Triton""",
    )
    with pytest.raises(InternalError, match="message: Mute: <MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"):
        load(tmp_path, body + "    def execute(self, requests):\n        raise Mute\n").run(request(IN0=rows(1)))


def test_a_string_that_cannot_be_encoded_fails_the_batch_with_the_models_name(load: Load, tmp_path: Path) -> None:
    tensors = 'input { name: "IN0" data_type: TYPE_FP32 dims: 1 } output { name: "S" data_type: TYPE_STRING dims: 1 }'
    body = (
        HEAD
        + """    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("S", np.array([["\\ud800"]], object))])]
"""
    )
    with pytest.raises(InternalError, match="model 'm_0_0', message: UnicodeEncodeError: 'utf-8' codec can't"):
        load(tmp_path, body, tensors=tensors).run(request(IN0=rows(1)))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_a_response_parameter_of_more_than_64_bits_is_an_error(load: Load, tmp_path: Path, value: int) -> None:
    body = (
        HEAD
        + f"""    def execute(self, requests):
        return [pb_utils.InferenceResponse([], parameters={{"a": {value}}})]
"""
    )
    (answer,) = load(tmp_path, body).run(request(IN0=rows(1)))
    assert answer.error.message == "Unsupported value type on parameters"


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("None", "Expected a list in the execute return, found type '<class 'NoneType'>'."),
        ("[]", "Number of InferenceResponse objects do not match"),
        ("[7]", "Expected an 'InferenceResponse' object in the execute function return list"),
    ],
)
def test_a_result_that_is_not_a_list_of_responses_is_refused(
    load: Load, tmp_path: Path, returned: str, text: str
) -> None:
    loaded = load(tmp_path, HEAD + f"    def execute(self, requests):\n        return {returned}\n")
    with pytest.raises(InternalError, match=text.split("'")[0]) as caught:
        loaded.run(request(IN0=rows(1)))
    assert text in str(caught.value)


def test_a_missing_execute_is_reported_at_the_first_request(load: Load, tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="does not implement `execute` method"):
        load(tmp_path, HEAD + "    pass\n").run(request(IN0=rows(1)))


def test_an_error_response_does_not_affect_the_other_requests(load: Load, tmp_path: Path) -> None:
    body = (
        HEAD
        + """    def execute(self, requests):
        error = pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND)
        good = pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", requests[1].inputs()[0].as_numpy())])
        return [pb_utils.InferenceResponse(error=error), good]
"""
    )
    bad, good = load(tmp_path, body).run(request(IN0=rows(1)), request(IN0=rows(2)))
    assert (bad.error.status, str(bad.error)) == (Status.NOT_FOUND, "no")
    assert good.outputs[0].array.tolist() == [[2]]


def test_a_tensor_that_is_not_configured_is_dropped(load: Load, tmp_path: Path) -> None:
    body = PYTHON.replace(
        'Tensor("OUT0", request.inputs()[0].as_numpy())]',
        'Tensor("OUT0", request.inputs()[0].as_numpy()), pb_utils.Tensor("MORE", np.zeros(1))]',
    ).replace("import triton", "import numpy as np\nimport triton")
    (answer,) = load(tmp_path, body).run(request(IN0=rows(1)))
    assert [output.name for output in answer.outputs] == ["OUT0"]


def test_a_model_may_write_to_its_inputs(load: Load, tmp_path: Path) -> None:
    body = (
        HEAD
        + """    def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        x += 1
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", x)])]
"""
    )
    frozen = np.frombuffer(rows(1).tobytes(), np.float32).reshape(1, 1)
    (answer,) = load(tmp_path, body).run(request(IN0=frozen))
    assert answer.outputs[0].array.item() == 2
    assert frozen.item() == 1


def test_a_decoupled_model_sends_any_number_of_responses(tmp_path: Path) -> None:
    body = (
        HEAD
        + """    def execute(self, requests):
        sender = requests[0].get_response_sender()
        for value in (1, 2):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", np.array([[value]], np.float32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        try:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        except pb_utils.TritonModelException as error:
            self.error = str(error)
"""
    )
    loaded = load_in_process(tmp_path, body, extra="model_transaction_policy { decoupled: true }")
    assert loaded.run(request(IN0=rows(0))) == [None]
    answers = [answer for _, answer in loaded.streamed]
    assert [answer.outputs[0].array.item() for answer in answers[:2]] == [1, 2]
    assert [(answer.final, answer.empty) for answer in answers] == [(False, False), (False, False), (True, True)]
    assert loaded.instance._model.error == "Unable to send response. Response sender has been closed."


def test_dlpack_goes_both_ways_without_a_copy() -> None:
    import torch

    tensor = torch.arange(4, dtype=torch.float32)
    wrapped = pb_utils.Tensor.from_dlpack("X", tensor)
    assert wrapped.as_numpy().tolist() == [0, 1, 2, 3]
    back = torch.utils.dlpack.from_dlpack(wrapped)
    assert back.tolist() == tensor.tolist()
    assert torch.utils.dlpack.from_dlpack(wrapped.to_dlpack()).tolist() == tensor.tolist()


def test_ids_that_are_not_utf8_cannot_be_read_by_a_model() -> None:
    from tritonnb.backends.python.request import InferenceRequest

    core_request = request(IN0=rows(0))
    core_request.id = core_request.correlation_id = "\udcff"
    core_request.parameters = {"name": "\udcff"}
    received = InferenceRequest.received(core_request, (), lambda: ResponseSender(core_request, discard_response))
    for ask in (received.request_id, received.correlation_id, received.parameters):
        with pytest.raises(UnicodeDecodeError, match="can't decode byte 0xff"):
            ask()


def test_a_dlpack_capsule_keeps_its_tensor() -> None:
    tensor = pb_utils.Tensor("X", np.arange(4, dtype=np.int64))
    before = sys.getrefcount(tensor)
    capsule = tensor.to_dlpack()
    assert sys.getrefcount(tensor) == before + 1
    del capsule
    assert sys.getrefcount(tensor) == before


def test_bf16_goes_through_dlpack_and_never_through_numpy() -> None:
    import torch

    values = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    created = pb_utils.Tensor.from_dlpack("X", values)
    assert created.triton_dtype() == datatypes.BF16.number
    assert to_core_tensor(created).datatype is datatypes.BF16
    received = pb_utils.Tensor.received(to_core_tensor(created))
    for tensor in (created, received, pb_utils.Tensor.from_dlpack("X", created)):
        back = torch.utils.dlpack.from_dlpack(tensor.to_dlpack())
        assert back.dtype is torch.bfloat16
        assert back.tolist() == [1.5, -2.0]
        with pytest.raises(
            pb_utils.TritonModelException, match="Tensor dtype is BF16 and cannot be converted to NumPy"
        ):
            tensor.as_numpy()


def test_dlpack_refuses_strings_and_what_is_not_in_c_order() -> None:
    import torch

    with pytest.raises(pb_utils.TritonModelException, match="does not have support for string tensors"):
        pb_utils.Tensor("X", np.array([b"a"])).to_dlpack()
    with pytest.raises(pb_utils.TritonModelException, match="DLPack tensor is not contiguous"):
        pb_utils.Tensor.from_dlpack("X", torch.zeros(2, 3).t())


def test_types_of_the_utilities_are_tritons() -> None:
    assert pb_utils.triton_string_to_numpy("TYPE_FP16") is np.float16
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    assert pb_utils.Tensor("S", np.array(["ä", b"b"], object)).triton_dtype() == 13
    assert pb_utils.triton_string_to_numpy("TYPE_BOOL") is bool
    assert [pb_utils.numpy_to_triton_type(dtype) for dtype in (np.int8, np.dtype("f2"), np.bytes_, "U2")] == [
        6, 10, 13, None,
    ]  # fmt: skip
    assert [pb_utils.triton_to_numpy_type(number) for number in (1, 13, 14)] == [np.bool_, np.object_, None]
    with pytest.raises(pb_utils.TritonModelException, match="Correlation ID must be integer or string"):
        pb_utils.InferenceRequest(model_name="m", inputs=[], requested_output_names=[], correlation_id=1.5)


def test_strings_are_serialized_as_bytes() -> None:
    encoded = pb_utils.serialize_byte_tensor(np.array([b"a", "ä", b""], object))
    assert encoded == b"\x01\0\0\0a\x02\0\0\0\xc3\xa4\0\0\0\0"
    assert pb_utils.deserialize_bytes_tensor(encoded).tolist() == [b"a", "ä".encode(), b""]
    assert pb_utils.serialize_byte_tensor(np.array([], object)) == ()
    assert pb_utils.serialize_byte_tensor(np.array(["text"])) is None


def test_importing_a_model_does_not_change_sys_path_while_another_thread_iterates_over_it(tmp_path: Path) -> None:
    walked = sys.path
    before = list(walked)
    load_in_process(tmp_path, PYTHON)
    assert walked == before
    assert sys.path[-2:] == [str(tmp_path / "1"), str(tmp_path)]


def test_a_model_that_exits_fails_the_batch_and_not_the_server(load: Load, tmp_path: Path) -> None:
    body = HEAD + "    def execute(self, requests):\n        raise SystemExit(3)\n"
    with pytest.raises(InternalError, match="message: SystemExit: 3"):
        load(tmp_path, body).run(request(IN0=rows(1)))


def test_a_decoupled_model_that_returns_something_is_refused(load: Load, tmp_path: Path) -> None:
    body = HEAD + "    def execute(self, requests):\n        return []\n"
    loaded = load(tmp_path, body, extra="model_transaction_policy { decoupled: true }")
    with pytest.raises(InternalError) as caught:
        loaded.run(request(IN0=rows(1)))
    assert str(caught.value) == (
        "Failed to process the request(s) for model 'm_0_0', message: Python model 'm_0_0' is using the decoupled mode "
        "and the execute function must return None."
    )


@pytest.mark.parametrize("dtype", [">f4", "complex64", "longdouble", "U1"])
def test_a_dtype_without_a_datatype_is_refused_when_the_tensor_is_created(
    load: Load, tmp_path: Path, dtype: str
) -> None:
    body = HEAD + f"    def execute(self, requests):\n        pb_utils.Tensor('OUT0', np.zeros(1, '{dtype}'))\n"
    with pytest.raises(InternalError, match="message: TritonModelException: NumPy dtype is not supported"):
        load(tmp_path, body).run(request(IN0=rows(1)))


def test_a_reshape_of_an_output_is_undone(load: Load, tmp_path: Path) -> None:
    tensors = """
        input { name: "IN0" data_type: TYPE_FP32 dims: 1 }
        output { name: "OUT0" data_type: TYPE_FP32 dims: 1 reshape { shape: [] } }
    """
    body = PYTHON.replace("as_numpy()", "as_numpy().ravel()")
    (answer,) = load(tmp_path, body, tensors=tensors).run(request(IN0=rows(1, 2)))
    assert answer.outputs[0].array.tolist() == [[1], [2]]


def test_an_error_has_one_of_tritons_codes() -> None:
    with pytest.raises(TypeError, match=r"expected an error code such as TritonError\.INTERNAL, got 3"):
        pb_utils.TritonError("no", 3)


# --- the arguments of the utilities ----------------------------------------------------------------


def test_arguments_of_the_wrong_type_are_refused() -> None:
    array = np.zeros(1, np.int32)
    tensor = pb_utils.Tensor("X", array)
    arguments = {"inputs": [tensor], "requested_output_names": ["Y"], "model_name": "m"}
    for name, array_like in ((None, array), ("X", None)):
        with pytest.raises(TypeError):
            pb_utils.Tensor(name, array_like)
    with pytest.raises(pb_utils.TritonModelException, match="Tensor name cannot be an empty string"):
        pb_utils.Tensor("", array)
    with pytest.raises(pb_utils.TritonModelException, match="must be a DLPack capsule"):
        pb_utils.Tensor.from_dlpack("X", None)
    with pytest.raises(pb_utils.TritonModelException, match="should not be empty"):
        pb_utils.InferenceRequest(**{**arguments, "inputs": [None]})
    for field in ("model_name", "request_id", "correlation_id", "model_version", "flags", "timeout"):
        with pytest.raises(TypeError):
            pb_utils.InferenceRequest(**{**arguments, field: None})
    with pytest.raises(TypeError):
        pb_utils.InferenceResponse(error="text")
    with pytest.raises(TypeError):
        pb_utils.TritonError(ValueError("text"))
    sender: Any = InferenceResponseSender(
        ResponseSender(request(IN0=rows(0)), discard_response), request(IN0=rows(0)), ()
    )
    with pytest.raises(TypeError):
        sender.send([])
    with pytest.raises(RuntimeError, match="-1 is not an unsigned 64-bit integer"):
        pb_utils.InferenceRequest(**{**arguments, "correlation_id": -1})
    for field, value in (
        ("flags", -1), ("timeout", -1), ("timeout", 1.5), ("requested_output_names", "Y"), ("preferred_memory", 1),
        ("trace", 1),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            pb_utils.InferenceRequest(**{**arguments, field: value})
    with pytest.raises(pb_utils.TritonModelException, match=r"Requested output name .* should not be empty"):
        pb_utils.InferenceRequest(**{**arguments, "requested_output_names": [""]})
    with pytest.raises(pb_utils.TritonModelException, match="Expect dict, got <class 'list'>"):
        pb_utils.InferenceRequest(**{**arguments, "parameters": [1]})
    with pytest.raises(pb_utils.TritonModelException, match="Expect parameters keys to have type str"):
        pb_utils.InferenceRequest(**{**arguments, "parameters": {1: 2}})
    for parameters, text in (({"a": None}, "values to have type bool/int/str"), ([1], "Expect dict")):
        with pytest.raises(pb_utils.TritonModelException, match=text):
            pb_utils.InferenceResponse([tensor], parameters=parameters)
    with pytest.raises(TypeError):
        pb_utils.InferenceResponse({})
    with pytest.raises(pb_utils.TritonModelException, match="Output tensor for inference response should not be"):
        pb_utils.InferenceResponse([None])
    for values in ((None,), ("text", None), ("text", 1)):
        with pytest.raises(TypeError):
            pb_utils.Logger.log(*values)


def test_integers_of_a_request_may_be_numpy_scalars() -> None:
    created = pb_utils.InferenceRequest(
        inputs=[], requested_output_names=[], model_name="m",
        model_version=np.int64(2), flags=np.uint8(1), timeout=np.int32(3),
    )  # fmt: skip
    assert (created.flags(), created.timeout()) == (1, 3)
    assert type(created._request.model_version) is int
    created.set_flags(np.int64(2))
    assert created.flags() == 2


def test_a_model_that_batches_needs_an_input_in_each_request(load: Load, tmp_path: Path) -> None:
    empty = InferRequest("m", {}, discard_response)
    body = (
        PYTHON + "    def execute(self, requests):\n        return [pb_utils.InferenceResponse([]) for _ in requests]\n"
    )
    loaded = load(tmp_path, body)
    with pytest.raises(InvalidArgumentError, match=r"out of bounds index 0: request has 0 inputs$"):
        loaded.run(request(IN0=rows(0)), empty)
    loaded = load(tmp_path, body, max_batch_size=0)
    assert [response.error for response in loaded.run(empty)] == [None]


# --- response senders of models that are not decoupled ---------------------------------------------

SENDING = """
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def execute(self, requests):
        self.senders = [request.get_response_sender() for request in requests]
        self.answers = [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", request.inputs()[0].as_numpy())])
            for request in requests
        ]
        {body}
"""


def test_a_model_sends_its_response_before_or_after_execute_returns(tmp_path: Path) -> None:
    loaded = load_in_process(
        tmp_path, SENDING.format(body="self.senders[0].send(self.answers[0], FINAL); return [None, None]")
    )
    assert loaded.run(request(IN0=rows(1)), request(IN0=rows(2))) == [None, None]
    model = loaded.instance._model
    model.senders[1].send(model.answers[1])
    with pytest.raises(pb_utils.TritonModelException, match="cannot send more than one response"):
        model.senders[1].send(model.answers[1])
    model.senders[1].send(flags=1)
    with pytest.raises(pb_utils.TritonModelException, match="Response sender has been closed"):
        model.senders[1].send(flags=1)
    assert [(answer.outputs[0].array.item(), answer.final) for _, answer in loaded.streamed] == [(1, True), (2, True)]


def test_a_sender_that_a_model_drops_without_a_response_sends_an_error(tmp_path: Path) -> None:
    loaded = load_in_process(tmp_path, SENDING.format(body="return [None]"))
    assert loaded.run(request(IN0=rows(1))) == [None]
    assert loaded.streamed == []
    loaded.instance._model.senders.clear()
    ((_, answer),) = loaded.streamed
    assert answer.final
    assert answer.error.message == "the model dropped the response sender without a response"


def test_a_model_may_return_the_response_or_send_it_but_not_both(tmp_path: Path) -> None:
    loaded = load_in_process(tmp_path, SENDING.format(body="return self.answers"))
    assert loaded.run(request(IN0=rows(1)))[0].outputs[0].array.item() == 1
    with pytest.raises(pb_utils.TritonModelException, match="cannot send more than one response"):
        loaded.instance._model.senders[0].send(loaded.instance._model.answers[0])
    loaded = load_in_process(
        tmp_path, SENDING.format(body="self.senders[0].send(self.answers[0]); return self.answers")
    )
    with pytest.raises(InternalError, match="Non-decoupled model cannot send more than one response"):
        loaded.run(request(IN0=rows(1)))
    assert len(loaded.streamed) == 1


def test_a_final_flag_needs_a_response_and_a_flag_must_be_known(load: Load, tmp_path: Path) -> None:
    loaded = load(tmp_path, SENDING.format(body="self.senders[0].send(flags=FINAL)"))
    with pytest.raises(InternalError, match="cannot send complete final before sending a response"):
        loaded.run(request(IN0=rows(1)))
    loaded = load(tmp_path, SENDING.format(body="self.senders[0].send(self.answers[0], 2)"))
    with pytest.raises(InternalError, match="Unsupported flag provided"):
        loaded.run(request(IN0=rows(1)))


LATER = """
import asyncio
import threading
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    done = threading.Event()

    async def execute(self, requests):
        self.task = asyncio.create_task(self.later(requests[0].get_response_sender(), requests[0].inputs()[0]))
        return None

    async def later(self, sender, x):
        await asyncio.sleep(0)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", x.as_numpy())]), 1)
        self.done.set()
"""


def test_tasks_that_a_coroutine_has_not_awaited_continue(tmp_path: Path) -> None:
    loaded = load_in_process(tmp_path, LATER)
    for value in (1, 2):
        loaded.run(request(IN0=rows(value)))
        assert loaded.instance._model.done.wait(30)
        loaded.instance._model.done.clear()
    loaded.instance.finalize()
    assert [answer.outputs[0].array.item() for _, answer in loaded.streamed] == [1, 2]


NEWER = (
    HEAD
    + """    def execute(self, requests):
        (request,) = requests
        summary = f"{request.model_name()} {request.priority()} {request.inputs()[0].triton_dtype()}"
        tensor = pb_utils.Tensor("OUT0", request.inputs()[0].as_numpy())
        return [pb_utils.InferenceResponse([tensor], parameters={"summary": summary})]
"""
)


def test_requests_and_responses_have_the_attributes_of_newer_servers(load: Load, tmp_path: Path) -> None:
    (answer,) = load(tmp_path, NEWER).run(request(IN0=rows(1)))
    assert answer.parameters == {"summary": "m 0 11"}
