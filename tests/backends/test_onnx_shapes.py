"""ONNX Runtime: the dims and types of a configuration against those of a model, and initializers as inputs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, save_model

from tests.backends.models import Loaded, config_of, request
from tests.laws import law
from tritonnb.core.errors import InvalidArgumentError, UnsupportedError
from tritonnb.core.shapes import fits

FLOAT = TensorProto.FLOAT
Dims = list[Any]


def save(directory: Path, nodes: list[Any], inputs: dict[str, Dims], outputs: list[Any], **graph: Any) -> None:
    values = [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", values, outputs, **graph), opset_imports=opsets, ir_version=8
    )
    (directory / "1").mkdir(parents=True, exist_ok=True)
    save_model(model, directory / "1" / "model.onnx")


def tensor(kind: str, name: str, dims: Dims, extra: str = "", data_type: str = "FP32") -> str:
    return f'{kind} {{ name: "{name}" data_type: TYPE_{data_type} dims: {list(dims)} {extra} }} '


def load_identity(directory: Path, shape: Dims, inputs: Dims, outputs: Dims, batch: int, extra: str = "") -> Loaded:
    """A model from x to y of one shape."""
    names = [f"d{index}" if dim == -1 else dim for index, dim in enumerate(shape)]
    y = helper.make_tensor_value_info("y", FLOAT, names)
    save(directory, [helper.make_node("Identity", ["x"], ["y"])], {"x": names}, [y])
    tensors = tensor("input", "x", inputs, extra) + tensor("output", "y", outputs, extra)
    return Loaded(config_of("onnxruntime", tensors, max_batch_size=batch), directory)


BATCH = (
    "for the model to support batching the shape should have at least 1 dimension and the first dimension must be -1; "
    "but shape expected by the model is "
)
SCALAR = (
    "should only provide 1 in the model configuration when the model doesn't support batching. Model configuration "
    "provided: "
)
REFUSALS = [
    # shape of the model, dims of the input and output in the configuration, max_batch_size, message
    ([-1, -1], [-1, -1], [3, 4], 0, "model 'm', tensor 'y': the model expects 2 dimensions (shape [-1,-1]) but the "
     "model configuration specifies 2 dimensions (shape [3,4])"),
    ([-1, -1], [3], [3], 4, "model 'm', tensor 'y': the model expects 2 dimensions (shape [-1,-1]) but the model "
     "configuration specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the "
     "explicit tensor shape, making complete shape [-1,3])"),
    ([2, 3], [2, 3], [2, -1], 0, "model 'm', tensor 'y': the model expects 2 dimensions (shape [2,3]) but the model "
     "configuration specifies 2 dimensions (shape [2,-1])"),
    ([2, 3], [2, -1], [2, 3], 0, "model 'm', tensor 'x': the model expects 2 dimensions (shape [2,3]) but the model "
     "configuration specifies 2 dimensions (shape [2,-1])"),
    ([-1, 3], [-1, 3], [3], 0, "model 'm', tensor 'y': the model expects 2 dimensions (shape [-1,3]) but the model "
     "configuration specifies 1 dimensions (shape [3])"),
    ([1, 26, 37], [26, 37], [26, 37], 4, f"model 'm', tensor 'x': {BATCH}[1,26,37]"),
    ([4], [1], [1], 4, f"model 'm', tensor 'x': {BATCH}[4]"),
    ([], [1], [1], 4, f"model 'm', tensor 'x': {BATCH}[]"),
    ([], [2], [1], 0, f"unable to load model 'm', scalar tensor 'x', {SCALAR}[2]."),
    ([], [1], [-1, 1], 0, f"unable to load model 'm', scalar tensor 'y', {SCALAR}[-1,1]."),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "inputs", "outputs", "batch", "message"), REFUSALS)
def test_dims_are_refused_with_the_messages_of_triton(
    tmp_path: Path, shape: Dims, inputs: Dims, outputs: Dims, batch: int, message: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        load_identity(tmp_path, shape, inputs, outputs, batch)
    assert str(caught.value) == message


@given(st.integers(0, 2**32 - 1))
@law(60)
def test_outputs_have_the_configured_dims_whenever_a_model_loads(tmp_path_factory: Any, seed: int) -> None:
    rng = random.Random(seed)
    batch = rng.choice([0, 4])
    shape = [-1] * bool(batch) + [rng.choice([-1, 1, 2]) for _ in range(rng.randint(bool(batch), 3))]
    dims = shape[bool(batch) :] or [1]

    def varied() -> Dims:
        return [rng.choice([dim, dim, dim, -1, 1, 2]) for dim in dims] + [1] * (rng.random() < 0.1)

    inputs, outputs = varied(), varied()
    try:
        loaded = load_identity(tmp_path_factory.mktemp("m"), shape, inputs, outputs, batch)
    except InvalidArgumentError:
        assert (
            outputs != dims
            or len(inputs) != len(dims)
            or any(d not in (-1, i) for d, i in zip(dims, inputs, strict=False))
        )
        return
    sent = [rng.choice([1, 2, 3]) if dim == -1 else dim for dim in inputs]
    x = np.arange(max(1, batch) * np.prod(sent), dtype=np.float32).reshape([batch] * bool(batch) + sent)
    (answer,) = loaded.run(request(x=x))
    y = answer.outputs[0].array
    assert fits(y.shape[bool(batch) :], outputs)
    assert y.ravel().tolist() == x.ravel().tolist()


def test_scalars_have_the_configured_dims(tmp_path: Path) -> None:
    one = np.ones(1, np.float32)
    loaded = load_identity(tmp_path / "a", [], [1], [1, 1], 0)
    (answer,) = loaded.run(request(x=one))
    assert answer.outputs[0].array.tolist() == [[1]]
    loaded = load_identity(tmp_path / "b", [], [1], [1], 0, extra="reshape { shape: [ ] }")
    (answer,) = loaded.run(request(x=one))
    assert answer.outputs[0].array.tolist() == [1]


# --- initializers that are inputs -----------------------------------------------------------------


def load_initializer(directory: Path, tensors: str, batch: int = 0, ir_version: int = 8) -> Loaded:
    """OUTPUT = INPUT + INITIALIZER, which is 1 unless a request overrides it."""
    first = [5] if not batch else ["b"]
    values = numpy_helper.from_array(np.ones((5, 5) if not batch else (1, 5), np.float32), "INITIALIZER")
    output = helper.make_tensor_value_info("OUTPUT", FLOAT, [*first, 5])
    save(
        directory,
        [helper.make_node("Add", ["INPUT", "INITIALIZER"], ["OUTPUT"])],
        {"INPUT": [*first, 5], "INITIALIZER": [*first, 5]},
        [output],
        initializer=[values],
    )
    return Loaded(config_of("onnxruntime", tensors, max_batch_size=batch), directory)


IO = tensor("input", "INPUT", [5, 5]) + tensor("output", "OUTPUT", [5, 5])


def test_optional_initializer_is_overridden_by_requests_that_have_it(tmp_path: Path) -> None:
    loaded = load_initializer(tmp_path, IO + tensor("input", "INITIALIZER", [5, 5], "optional: true"))
    zeros = np.zeros((5, 5), np.float32)
    for override, expected in ((None, 1), (zeros + 7, 7), (None, 1)):
        inputs: dict[str, Any] = {"INPUT": zeros} | ({} if override is None else {"INITIALIZER": override})
        (answer,) = loaded.run(request(**inputs))
        assert (answer.outputs[0].array == expected).all()


def test_initializer_may_be_absent_from_the_configuration(tmp_path: Path) -> None:
    for number, tensors in enumerate((IO, "")):
        loaded = load_initializer(tmp_path / str(number), tensors)
        assert [tensor.name for tensor in loaded.config.input] == ["INPUT"]
        (answer,) = loaded.run(request(INPUT=np.zeros((5, 5), np.float32)))
        assert (answer.outputs[0].array == 1).all()


@pytest.mark.parametrize(
    ("tensors", "batch", "message"),
    [
        (IO + tensor("input", "INITIALIZER", [5, 5]), 0, "configuration expects 2 inputs, model provides 1"),
        (IO + tensor("input", "OTHER", [5, 5], "optional: true"), 0, "unexpected inference input 'OTHER', allowed"),
        (
            IO.replace("dims: [5, 5]  }", "dims: [5, 5] optional: true }", 1),
            0,
            "configuration expects 0 inputs, model provides 1",
        ),
        (
            IO + tensor("input", "INITIALIZER", [5, 5], "optional: true", "INT32"),
            0,
            "configuration expects datatype TYPE_INT32 for input 'INITIALIZER', model provides TYPE_FP32",
        ),
        (
            IO + tensor("input", "INITIALIZER", [5, 4], "optional: true"),
            0,
            r"tensor 'INITIALIZER': the model expects 2 dimensions \(shape \[5,5\]\)",
        ),
        (
            (IO + tensor("input", "INITIALIZER", [5, 5], "optional: true")).replace("[5, 5]", "[5]"),
            4,
            "unable to load model 'm', optional input 'INITIALIZER' is not supported for models that support batching",
        ),
    ],
)
def test_wrong_initializer_is_refused(tmp_path: Path, tensors: str, batch: int, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        load_initializer(tmp_path, tensors, batch)


# --- types other than tensors ---------------------------------------------------------------------


def save_classifier(directory: Path, zipmap: bool = True) -> None:
    """A classifier as scikit-learn's converter writes it: a label, and a ZipMap of the probabilities."""
    nodes = [helper.make_node("ArgMax", ["X"], ["label"], axis=1, keepdims=0)]
    outputs = [helper.make_tensor_value_info("label", TensorProto.INT64, ["b"])]
    if zipmap:
        nodes.append(helper.make_node("ZipMap", ["X"], ["probability"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]))
        map_type = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(FLOAT, []))
        outputs.append(helper.make_value_info("probability", helper.make_sequence_type_proto(map_type)))
    else:
        nodes.append(helper.make_node("SequenceConstruct", ["X", "X"], ["probability"]))
        kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, ["b", 2]))
        outputs.append(helper.make_value_info("probability", kind))
    save(directory, nodes, {"X": ["b", 2]}, outputs)


@pytest.mark.parametrize(
    "tensors", ["", tensor("input", "X", [2]) + tensor("output", "label", [1], "reshape { }", "INT64")]
)
def test_zip_map_is_refused_with_the_option_that_avoids_it(tmp_path: Path, tensors: str) -> None:
    """As on Triton, even if the configuration does not have that output."""
    save_classifier(tmp_path)
    with pytest.raises(UnsupportedError) as caught:
        Loaded(config_of("onnxruntime", tensors, max_batch_size=4), tmp_path)
    assert str(caught.value) == (
        "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'probability', expected 'ONNX_TYPE_TENSOR'. Its type is "
        "seq(map(int64,tensor(float))); convert the scikit-learn model with the option {'zipmap': False}"
    )


def test_sequence_of_tensors_is_refused(tmp_path: Path) -> None:
    save_classifier(tmp_path, zipmap=False)
    with pytest.raises(UnsupportedError, match=r"'ONNX_TYPE_SEQUENCE' for I/O 'probability'.*return tensors"):
        Loaded(config_of("onnxruntime", "", max_batch_size=4), tmp_path)
