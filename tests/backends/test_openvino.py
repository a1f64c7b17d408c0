"""The OpenVINO backend: formats, auto-completion, parameters, batching, checks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from tests.backends.framework_checks import BAD_FILES, STATE, WRONG_TENSORS, Breakage, check_refusal, parameters
from tests.backends.models import TENSORS, Loaded, config_of, request, rows, write_identity
from tests.backends.serving import check_batches, one_batch, write_config
from tritonnb.backends.contract import InstanceSpec, ModelContext
from tritonnb.backends.openvino import OpenVinoBackend
from tritonnb.core.errors import InternalError, InvalidArgumentError, TritonError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_zoo import dense


def write_ir(
    directory: Path,
    shape: Sequence[int] = (-1, -1),
    element: type = np.float32,
    layout: str = "",
    names: tuple[str, str] = ("IN0", "OUT0"),
) -> Path:
    """Write the IR of ``OUT0 = IN0 + IN0``."""
    parameter = ops.parameter(list(shape), element, name="x")
    result = ops.add(parameter, parameter)
    for output, name in zip((parameter.output(0), result.output(0)), names, strict=True):
        output.set_names({name} if name else set())
    model = ov.Model([result], [parameter], "double")
    if layout:
        for port in (*model.inputs, *model.outputs):
            ov.layout_helpers.set_layout(port, ov.Layout(layout))
    (directory / "1").mkdir(parents=True, exist_ok=True)
    ov.save_model(model, directory / "1" / "model.xml", compress_to_fp16=False)
    return directory


def completed(
    directory: Path, settings: dict[str, str] | None = None, max_batch_size: int = 0, **config: Any
) -> pb.ModelConfig:
    return Loaded(
        config_of("openvino", tensors="", max_batch_size=max_batch_size, **config), directory, settings
    ).config


def test_requests_over_http_and_grpc_share_batches_with_the_results_of_openvino(tmp_path: Path) -> None:
    (tmp_path / "dense" / "1").mkdir(parents=True)
    path = tmp_path / "dense" / "1" / "model.onnx"
    dense.write(path)
    tensors = """
        input { name: "INPUT" data_type: TYPE_FP32 dims: 2048 }
        output { name: "OUTPUT" data_type: TYPE_FP32 dims: 2048 }
    """
    write_config(
        tmp_path, "dense", f'backend: "openvino" default_model_filename: "model.onnx" {tensors} {one_batch(7)}'
    )
    compiled = ov.Core().compile_model(path, "CPU")
    random = np.random.default_rng(1)
    requests = [{"INPUT": random.random((size, 2048), np.float32)} for size in (1, 2, 4)]
    check_batches(tmp_path, "dense", requests, lambda inputs: {"OUTPUT": compiled(inputs)["OUTPUT"]}, rtol=1e-4)


# What Triton completes: README of triton-inference-server/openvino_backend, "Auto-Complete Model Configuration".


def test_layout_with_a_batch_dimension_completes_batching(tmp_path: Path) -> None:
    config = completed(write_ir(tmp_path, [-1, 3], layout="NC"))
    assert config.max_batch_size == 4
    assert config.HasField("dynamic_batching")
    assert [list(tensor.dims) for tensor in (*config.input, *config.output)] == [[3], [3]]
    assert [tensor.name for tensor in (*config.input, *config.output)] == ["IN0", "OUT0"]


def test_default_batch_size_setting_is_at_least_1(tmp_path: Path) -> None:
    write_ir(tmp_path, [1, 3], layout="NC")
    config = completed(tmp_path, {"default-max-batch-size": "9"})
    assert (config.max_batch_size, list(config.input[0].dims)) == (9, [3])
    config = completed(tmp_path, {"default-max-batch-size": "0"})
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (1, False)


def test_model_without_layout_is_completed_without_batching(tmp_path: Path) -> None:
    config = completed(write_ir(tmp_path, [-1, 3]))
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [-1, 3])
    config = completed(write_ir(tmp_path, [2, 3]))
    assert list(config.input[0].dims) == [2, 3]


def test_configured_batch_size_is_kept_without_a_layout(tmp_path: Path) -> None:
    config = completed(write_ir(tmp_path, [2, 3]), max_batch_size=5)
    assert (config.max_batch_size, list(config.input[0].dims)) == (5, [3])
    assert not config.HasField("dynamic_batching")


def test_onnx_file_is_named_by_the_configuration(tmp_path: Path) -> None:
    write_identity("onnxruntime", tmp_path)
    loaded = Loaded(config_of("openvino", extra='default_model_filename: "model.onnx"'), tmp_path)
    (response,) = loaded.run(request(IN0=rows(1, 2)))
    assert response.outputs[0].array.tolist() == [[1], [2]]


def test_batches_smaller_than_the_limit_run_at_their_size(tmp_path: Path) -> None:
    loaded = Loaded(config_of("openvino", TENSORS.replace("-1", "1")), write_ir(tmp_path, [1, 1]))
    responses = loaded.run(request(IN0=rows(1)), request(IN0=rows(2, 3)))
    assert [response.outputs[0].array.tolist() for response in responses] == [[[2]], [[4], [6]]]


def test_fixed_batch_size_refuses_other_batches_unless_they_are_padded(tmp_path: Path) -> None:
    write_ir(tmp_path, [-1, 1])
    fixed = parameters(SKIP_OV_DYNAMIC_BATCHSIZE="YES")
    loaded = Loaded(config_of("openvino", TENSORS.replace("-1", "1"), fixed, max_batch_size=4), tmp_path)
    with pytest.raises(InternalError, match=r"expected requests with batch size '4', got '3'.*ENABLE_BATCH_PADDING"):
        loaded.run(request(IN0=rows(1, 2, 3)))
    assert loaded.run(request(IN0=rows(1, 2)), request(IN0=rows(3, 4)))[1].outputs[0].array.tolist() == [[6], [8]]
    padded = Loaded(
        config_of(
            "openvino", TENSORS.replace("-1", "1"), fixed + parameters(ENABLE_BATCH_PADDING="yes"), max_batch_size=4
        ),
        tmp_path,
    )
    assert padded.model.compiled.input(0).partial_shape[0].get_length() == 4
    assert padded.run(request(IN0=rows(7)))[0].outputs[0].array.tolist() == [[14]]
    assert len(padded.run(request(IN0=rows(1, 2)), request(IN0=rows(3, 4)))) == 2


def test_model_with_operations_of_fixed_batch_size_runs_that_size(tmp_path: Path) -> None:
    parameter = ops.parameter([4, 1], np.float32, name="x")
    result = ops.reshape(parameter, np.array([4, 1]), special_zero=False)
    parameter.output(0).set_names({"IN0"})
    result.output(0).set_names({"OUT0"})
    (tmp_path / "1").mkdir()
    ov.save_model(ov.Model([result], [parameter], "same"), tmp_path / "1" / "model.xml", compress_to_fp16=False)
    loaded = Loaded(config_of("openvino", TENSORS.replace("-1", "1"), max_batch_size=4), tmp_path)
    assert loaded.run(request(IN0=rows(1, 2, 3, 4)))[0].outputs[0].array.tolist() == [[1], [2], [3], [4]]
    with pytest.raises(InternalError, match=r"expected requests with batch size '4', got '3'.*ENABLE_BATCH_PADDING"):
        loaded.run(request(IN0=rows(1, 2, 3)))


def test_dims_of_the_configuration_replace_those_of_the_model(tmp_path: Path) -> None:
    write_ir(tmp_path, [1, 3])
    tensors = TENSORS.replace("dims: -1", "dims: 5")
    with pytest.raises(InvalidArgumentError, match="tensor 'IN0': the model expects 2 dimensions"):
        Loaded(config_of("openvino", tensors), tmp_path)
    loaded = Loaded(config_of("openvino", tensors, parameters(RESHAPE_IO_LAYERS="YES")), tmp_path)
    assert loaded.run(request(IN0=np.ones((2, 5), np.float32)))[0].outputs[0].array.tolist() == [[2] * 5] * 2


def test_input_is_converted_from_the_configured_datatype(tmp_path: Path) -> None:
    tensors = TENSORS.replace("TYPE_FP32", "TYPE_INT32", 1)
    loaded = Loaded(config_of("openvino", tensors), write_ir(tmp_path))
    (response,) = loaded.run(request(IN0=np.array([[1, 2]], np.int32)))
    assert (response.outputs[0].array.tolist(), response.outputs[0].array.dtype) == ([[2, 4]], np.float32)


def test_parameters_become_properties_of_the_compiled_model(tmp_path: Path) -> None:
    extra = parameters(
        NUM_STREAMS="2",
        INFERENCE_NUM_THREADS="2",
        PERFORMANCE_HINT="throughput",
        TARGET_DEVICE="cpu",
    )
    compiled = Loaded(config_of("openvino", extra=extra), write_ir(tmp_path)).model.compiled
    assert compiled.get_property("NUM_STREAMS") == 2
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 2
    assert compiled.get_property("PERFORMANCE_HINT") == "THROUGHPUT"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("NUM_STREAMS", "many", "expected the parameter 'NUM_STREAMS' to be either AUTO/NUMA/<int_value>, got many"),
        ("INFERENCE_NUM_THREADS", "-1", "'INFERENCE_NUM_THREADS' to be a non-negative number, got -1"),
        ("COMPILATION_NUM_THREADS", "x", "'COMPILATION_NUM_THREADS' to be a non-negative number, got x"),
        ("HINT_BF16", "NO", "expected the parameter 'HINT_BF16' to be YES, got no"),
        ("PERFORMANCE_HINT", "FAST", "'PERFORMANCE_HINT' to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got fast"),
        ("TARGET_DEVICE", "XPU", 'openvino error in loading model.*"XPU"'),
        pytest.param(
            "COMPILATION_NUM_THREADS",
            "1",
            "model 'm': parameter 'COMPILATION_NUM_THREADS' expected a property of device CPU",
            marks=pytest.mark.skipif(
                "COMPILATION_NUM_THREADS" in ov.Core().get_property("CPU", "SUPPORTED_PROPERTIES"),
                reason="this version of OpenVINO has the property",
            ),
        ),
        ("CPU_EXTENSION_PATH", "/nowhere.so", "loading custom CPU extensions.*nowhere"),
    ],
)
def test_error_for_invalid_parameter_names_it(tmp_path: Path, name: str, value: str, message: str) -> None:
    with pytest.raises(TritonError, match=message):
        Loaded(config_of("openvino", extra=parameters(**{name: value})), write_ir(tmp_path))


def test_values_of_parameters_are_checked_before_the_file(tmp_path: Path) -> None:
    config = config_of("openvino", extra=parameters(NUM_STREAMS="many"))
    model = OpenVinoBackend().create_model(ModelContext("m", 1, config, tmp_path))
    with pytest.raises(InvalidArgumentError, match="expected the parameter 'NUM_STREAMS'"):
        model.initialize()


CONTROL = (
    'sequence_batching { control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] '
    "} } }"
)


@pytest.mark.parametrize(
    ("ir", "config", "breakage", "message"),
    [
        pytest.param({}, {}, lambda path: path.unlink(), "unable to find '.*model.xml' for model 'm'", id="no file"),
        *(
            pytest.param({}, {}, breakage, "openvino error in reading model '.*model.xml'", id=name)
            for name, breakage in BAD_FILES.items()
        ),
        *(
            pytest.param({}, {"tensors": tensors}, None, message, id=name)
            for name, (tensors, message) in WRONG_TENSORS.items()
        ),
        pytest.param(
            {},
            {"tensors": TENSORS.replace("FP32", "STRING", 1)},
            None,
            "unsupported datatype TYPE_STRING for input 'IN0' for model 'm'",
            id="datatype",
        ),
        pytest.param(
            {},
            {"tensors": TENSORS.replace("FP32", "FP64")},
            None,
            "unsupported datatype TYPE_FP64 for input 'IN0' for model 'm'",
            id="FP64",
        ),
        pytest.param(
            {},
            {"tensors": TENSORS.replace("dims: -1", "dims: [ 2, 2 ]")},
            None,
            "tensor 'IN0': the model expects 2 dimensions .* specifies 3 dimensions",
            id="rank",
        ),
        pytest.param(
            {"shape": [-1, 4]},
            {"tensors": TENSORS.replace("dims: -1", "dims: 4", 1).replace("dims: -1", "dims: 5")},
            None,
            "tensor 'OUT0': the model expects 2 dimensions .*[-1,4].* complete shape .8,5.",
            id="dims of an output",
        ),
        pytest.param(
            {"names": ("IN0", "")},
            {},
            None,
            "unexpected inference output 'OUT0', allowed outputs are: Result_",
            id="output without a name",
        ),
        pytest.param(
            {"element": np.float64},
            {"tensors": ""},
            None,
            "tensor 'IN0': expected one of the types .*, got f64",
            id="a type that the backend does not have",
        ),
        pytest.param({}, {"extra": STATE}, None, "expected sequence_batching without state, got 'S'", id="state"),
        pytest.param(
            {}, {"extra": CONTROL}, None, "expected sequence_batching without control_input, got 'START'", id="control"
        ),
    ],
)
def test_model_that_cannot_run_is_refused(
    tmp_path: Path, ir: dict[str, Any], config: dict[str, Any], breakage: Breakage, message: str
) -> None:
    path = write_ir(tmp_path, **ir) / "1" / "model.xml"
    check_refusal(path, breakage, lambda: Loaded(config_of("openvino", **config), tmp_path), message)


def test_output_without_a_batch_dimension_cannot_batch(tmp_path: Path) -> None:
    parameter = ops.parameter([-1, 2], np.float32, name="x")
    result = ops.reduce_sum(parameter, np.array([0]), keep_dims=True)
    parameter.output(0).set_names({"IN0"})
    result.output(0).set_names({"OUT0"})
    (tmp_path / "1").mkdir()
    ov.save_model(ov.Model([result], [parameter], "sum"), tmp_path / "1" / "model.xml")
    with pytest.raises(InvalidArgumentError, match=r"tensor 'OUT0': the model expects 2 dimensions \(shape \[1,2\]\)"):
        Loaded(config_of("openvino", TENSORS.replace("-1", "2")), tmp_path)


def test_gpu_instances_are_refused(tmp_path: Path) -> None:
    loaded = Loaded(config_of("openvino"), write_ir(tmp_path))
    with pytest.raises(InvalidArgumentError, match="Triton OpenVINO backend supports only Kind CPU and AUTO"):
        loaded.model.create_instance(InstanceSpec("m_0_0", 0, "KIND_GPU"))


def test_incompatible_input_fails_the_batch(tmp_path: Path) -> None:
    tensors = TENSORS.replace("dims: -1 }", "dims: 3 }").replace("dims: 3", "dims: -1", 1)
    loaded = Loaded(config_of("openvino", tensors), write_ir(tmp_path, [-1, 3]))
    with pytest.raises(InternalError, match="openvino error in running inference"):
        loaded.run(request(IN0=np.ones((2, 4), np.float32)))


def test_memory_of_a_model_is_reported_once(tmp_path: Path) -> None:
    loaded = Loaded(config_of("openvino"), write_ir(tmp_path))
    second = loaded.model.create_instance(InstanceSpec("m_0_1", 1, "KIND_CPU"))
    second.initialize()
    assert loaded.instance.memory_usage()["CPU", 0] >= 0
    assert second.memory_usage() == {("CPU", 0): 0}
    second.finalize()
    loaded.instance.finalize()
    loaded.model.finalize()
