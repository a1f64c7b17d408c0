"""The ONNX Runtime backend: auto-completion, checks, options, strings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, save_model

from tests.backends.framework_checks import WRONG_TENSORS, OneState
from tests.backends.models import TENSORS, Loaded, config_of, request, rows, write_identity
from tritonnb.backends.contract import InstanceSpec, ModelContext
from tritonnb.backends.onnxruntime import providers
from tritonnb.core.datatypes import BF16
from tritonnb.core.errors import InvalidArgumentError, UnsupportedError
from tritonnb.core.protobuf import model_config_pb2 as pb

#: Shapes by the names of the tensors.
Shapes = dict[str, list[Any]]


def write(directory: Path, node: str, inputs: Shapes, outputs: Shapes, kind: int = TensorProto.FLOAT) -> None:
    consumed = [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()]
    produced = [helper.make_tensor_value_info(name, kind, shape) for name, shape in outputs.items()]
    graph = helper.make_graph([helper.make_node(node, list(inputs), list(outputs))], "g", consumed, produced)
    (directory / "1").mkdir(parents=True)
    opset = [helper.make_opsetid("", 17)]
    save_model(helper.make_model(graph, opset_imports=opset, ir_version=8), directory / "1" / "model.onnx")


def completed(directory: Path, settings: dict[str, str] | None = None, **config: Any) -> pb.ModelConfig:
    return Loaded(
        config_of("onnxruntime", tensors="", max_batch_size=config.pop("max_batch_size", 0), **config),
        directory,
        settings,
    ).config


def test_model_with_variable_first_dimensions_is_completed_with_batching(tmp_path: Path) -> None:
    write_identity("onnxruntime", tmp_path)
    config = completed(tmp_path)
    assert (config.max_batch_size, list(config.input[0].dims), list(config.output[0].dims)) == (4, [-1], [-1])
    assert config.HasField("dynamic_batching")


def test_default_batch_size_setting_of_zero_disables_batching(tmp_path: Path) -> None:
    write_identity("onnxruntime", tmp_path)
    assert completed(tmp_path, {"default-max-batch-size": "9"}).max_batch_size == 9
    config = completed(tmp_path, {"default-max-batch-size": "0"})
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [-1, -1])
    assert not config.HasField("dynamic_batching")


def test_model_with_a_fixed_first_dimension_cannot_batch(tmp_path: Path) -> None:
    write(tmp_path, "Identity", {"A": [2, 3]}, {"B": [2, 3]})
    assert list(completed(tmp_path).input[0].dims) == [2, 3]
    with pytest.raises(InvalidArgumentError, match="autofill failed for model 'm': model does not support batching"):
        completed(tmp_path, max_batch_size=4)


def test_scalar_is_completed_as_one_element_with_an_empty_reshape(tmp_path: Path) -> None:
    write(tmp_path, "Identity", {"A": ["b"]}, {"B": ["b"]})
    config = completed(tmp_path)
    assert list(config.input[0].dims) == [1]
    assert config.input[0].HasField("reshape")


def test_complete_configuration_is_not_changed_by_completion(tmp_path: Path) -> None:
    write_identity("onnxruntime", tmp_path)
    assert Loaded(config_of("onnxruntime", max_batch_size=1), tmp_path).config.max_batch_size == 1


@pytest.mark.parametrize(
    ("tensors", "complaint"),
    [
        *WRONG_TENSORS.values(),
        (
            TENSORS.replace("FP32", "INT64"),
            "configuration expects datatype TYPE_INT64 for input 'IN0', model provides TYPE_FP32",
        ),
        (
            TENSORS.replace("dims: -1", "dims: [ 2, 2 ]"),
            "'IN0': the model expects 2 dimensions .* specifies 3 dimensions",
        ),
    ],
)
def test_tensors_must_match_the_model(tmp_path: Path, tensors: str, complaint: str) -> None:
    write_identity("onnxruntime", tmp_path)
    with pytest.raises(InvalidArgumentError, match=complaint):
        Loaded(config_of("onnxruntime", tensors), tmp_path)


def test_string_inputs_and_outputs_are_bytes(tmp_path: Path) -> None:
    write(tmp_path, "Identity", {"A": ["b", 1]}, {"B": ["b", 1]}, TensorProto.STRING)
    loaded = Loaded(config_of("onnxruntime", tensors=""), tmp_path)
    (answer,) = loaded.run(request(A=np.array([["grün".encode()], [b""]], object)))
    assert answer.outputs[0].array.tolist() == [["grün".encode()], [b""]]


def test_numbers_that_numpy_does_not_have_go_in_and_out(tmp_path: Path) -> None:
    write(tmp_path, "Identity", {"A": ["b", 2]}, {"B": ["b", 2]}, TensorProto.BFLOAT16)
    loaded = Loaded(config_of("onnxruntime", tensors=""), tmp_path)
    values = BF16.from_values(np.array([[1.5, -2.0]], np.float32))
    (answer,) = loaded.run(request(A=values))
    assert (answer.outputs[0].datatype, answer.outputs[0].array.tolist()) == (BF16, values.tolist())


def test_non_utf8_string_fails_only_its_request(tmp_path: Path) -> None:
    write(tmp_path, "Identity", {"A": ["b", 1]}, {"B": ["b", 1]}, TensorProto.STRING)
    loaded = Loaded(config_of("onnxruntime", tensors=""), tmp_path)
    refused, answer = loaded.run(request(A=np.array([[b"\xfa"]], object)), request(A=np.array([[b"a"]], object)))
    assert isinstance(refused.error, InvalidArgumentError)
    assert refused.error.message == "[request id: <id_unknown>] input 'A' has a string that is not UTF-8"
    assert answer.outputs[0].array.tolist() == [[b"a"]]


def test_session_options_come_from_parameters_and_optimization(tmp_path: Path) -> None:
    write_identity("onnxruntime", tmp_path)
    extra = """
        parameters { key: "intra_op_thread_count" value { string_value: "1" } }
        parameters { key: "execution_mode" value { string_value: "1" } }
        parameters { key: "enable_mem_pattern" value { string_value: "0" } }
        parameters { key: "session.set_denormal_as_zero" value { string_value: "1" } }
        optimization { graph { level: 2 } }
    """
    options = Loaded(config_of("onnxruntime", extra=extra), tmp_path).model.options
    assert options.intra_op_num_threads == 1
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert not options.enable_mem_pattern
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"


def test_error_for_parameter_without_a_number_names_it(tmp_path: Path) -> None:
    write_identity("onnxruntime", tmp_path)
    extra = 'parameters { key: "intra_op_thread_count" value { string_value: "many" } }'
    with pytest.raises(
        InvalidArgumentError, match="model 'm': parameter 'intra_op_thread_count' expected an integer, got 'many'"
    ):
        Loaded(config_of("onnxruntime", extra=extra), tmp_path)


@pytest.mark.skipif("OpenVINOExecutionProvider" in ort.get_available_providers(), reason="it is there")
def test_missing_accelerator_is_refused(tmp_path: Path) -> None:
    write_identity("onnxruntime", tmp_path)
    accelerator = 'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }'
    with pytest.raises(UnsupportedError, match="OpenVINOExecutionProvider"):
        Loaded(config_of("onnxruntime", extra=accelerator), tmp_path)


def test_runtime_error_is_the_response_to_the_batch(tmp_path: Path) -> None:
    write(tmp_path, "Add", {"A": ["b", 2], "B": ["b", 2]}, {"C": ["b", 2]})
    loaded = Loaded(config_of("onnxruntime", tensors=""), tmp_path)
    with pytest.raises(Exception, match="onnx runtime error"):
        loaded.run(request(A=rows(1), B=rows(1, 2, 3)))


def test_state_of_strings_is_returned_unchanged(tmp_path: Path) -> None:
    ends = {
        name: helper.make_tensor_value_info(name, TensorProto.STRING, ["b", 1]) for name in ("X", "IN", "OUT", "BEFORE")
    }
    nodes = [helper.make_node("Identity", ["X"], ["OUT"]), helper.make_node("Identity", ["IN"], ["BEFORE"])]
    graph = helper.make_graph(nodes, "g", [ends["X"], ends["IN"]], [ends["OUT"], ends["BEFORE"]])
    (tmp_path / "1").mkdir()
    opset = [helper.make_opsetid("", 17)]
    save_model(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "1" / "model.onnx")
    tensors = (
        'input { name: "X" data_type: TYPE_STRING dims: 1 } output { name: "BEFORE" data_type: TYPE_STRING dims: 1 }'
    )
    state = 'sequence_batching { state { input_name: "IN" output_name: "OUT" data_type: TYPE_STRING dims: 1 } }'
    loaded = Loaded(config_of("onnxruntime", tensors, state), tmp_path)
    states = OneState("IN", np.array([[b""]], object))
    seen = []
    for text in (b"a", b"b"):
        step = request(X=np.array([[text]], object))
        step.states = states
        (answer,) = loaded.run(step)
        seen += [(output.name, output.array.tolist()) for output in answer.outputs]
    assert seen == [("BEFORE", [[b""]]), ("BEFORE", [[b"a"]])]


def test_arena_memory_can_be_released_after_a_run(tmp_path: Path) -> None:
    write_identity("onnxruntime", tmp_path)
    extra = 'parameters { key: "memory.enable_memory_arena_shrinkage" value { string_value: "cpu:0" } }'
    loaded = Loaded(config_of("onnxruntime", extra=extra), tmp_path)
    assert loaded.model.run_options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"
    assert loaded.run(request(IN0=rows(3)))[0].outputs[0].array.tolist() == [[3]]


def test_scalar_output_per_row_is_returned_with_the_configured_dims(tmp_path: Path) -> None:
    write(tmp_path, "Identity", {"A": ["b"]}, {"B": ["b"]})
    loaded = Loaded(config_of("onnxruntime", tensors="", max_batch_size=0), tmp_path)
    (answer,) = loaded.run(request(A=np.array([1, 2], np.float32)))
    assert answer.outputs[0].array.tolist() == [[1], [2]]


def chosen_providers(monkeypatch: pytest.MonkeyPatch, kind: str, extra: str) -> list[Any]:
    everything = ["CUDAExecutionProvider", "TensorrtExecutionProvider", "OpenVINOExecutionProvider"]
    monkeypatch.setattr(ort, "get_available_providers", lambda: everything)
    context = ModelContext("m", 1, config_of("onnxruntime", extra=extra), Path())
    return providers(context, InstanceSpec("m_0", 0, kind, 1))


def accelerator(name: str, device: str = "gpu", **parameters: str) -> str:
    settings = "".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
    kind = f"{device}_execution_accelerator"
    return f'optimization {{ execution_accelerators {{ {kind} {{ name: "{name}" {settings} }} }} }}'


def parameters(**settings: str) -> str:
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in settings.items()
    )


def test_parameters_of_a_model_reach_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = parameters(gpu_mem_limit="1000", arena_extend_strategy="1", cudnn_conv_algo_search="1", other="x")
    assert chosen_providers(monkeypatch, "KIND_GPU", settings) == [
        (
            "CUDAExecutionProvider",
            {
                "gpu_mem_limit": "1000",
                "arena_extend_strategy": "kSameAsRequested",
                "cudnn_conv_algo_search": "HEURISTIC",
                "device_id": "1",
            },
        ),
        "CPUExecutionProvider",
    ]
    assert chosen_providers(monkeypatch, "KIND_CPU", settings) == ["CPUExecutionProvider"]


def test_accelerators_precede_cuda_and_their_parameters_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = accelerator("tensorrt", precision_mode="FP16", max_workspace_size_bytes="5", trt_engine_cache_enable="1")
    (tensorrt, _), (cuda, _), _ = chosen = chosen_providers(monkeypatch, "KIND_GPU", extra)
    assert (tensorrt, cuda) == ("TensorrtExecutionProvider", "CUDAExecutionProvider")
    assert chosen[0][1] == {
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "5",
        "trt_engine_cache_enable": "1",
        "device_id": "1",
    }
    assert chosen_providers(monkeypatch, "KIND_CPU", accelerator("openvino", "cpu", num_of_threads="2"))[0] == (
        "OpenVINOExecutionProvider",
        {"num_of_threads": "2"},
    )


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (accelerator("nosuch"), "unknown Execution Accelerator 'nosuch' is requested"),
        (accelerator("openvino"), "unknown Execution Accelerator 'openvino' is requested"),
        (accelerator("tensorrt", precision_mode="FP8"), "unsupported precision mode 'FP8' is requested"),
        (accelerator("tensorrt", typo="1"), "unknown parameter 'typo' is provided for TensorRT"),
    ],
)
def test_unknown_parameters_of_an_accelerator_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, extra: str, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        chosen_providers(monkeypatch, "KIND_GPU", extra)


def test_process_wide_thread_pool_is_refused(tmp_path: Path) -> None:
    write_identity("onnxruntime", tmp_path)
    with pytest.raises(
        UnsupportedError,
        match="enable-global-threadpool is not supported",
    ):
        completed(tmp_path, {"enable-global-threadpool": "1"})
