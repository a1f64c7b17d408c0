"""Ragged batches: requests of different shapes, and the inputs that describe the batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from google.protobuf import text_format
from onnx import TensorProto, ValueInfoProto, helper, save_model
from tritonclient.grpc import model_config_pb2 as pb

from tests.backends.models import Loaded, config_of, request, save_scripted
from tritonnb.backends.configured_tensors import BatchTensors
from tritonnb.backends.execution import Execution
from tritonnb.core.errors import InvalidArgumentError

#: IN is ragged; ENDS says where each request ends; TWICE is divided like IN; TOTAL has one row each.
RAGGED = """
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
output { name: "TWICE" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "TOTAL" data_type: TYPE_FP32 dims: [ 1 ] }
batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ENDS" data_type: TYPE_INT32 source_input: "IN" }
batch_output { target_name: "TWICE" source_input: "IN" }
"""


class Sums(torch.nn.Module):
    """Twice the values, and the total of each request."""

    def forward(self, IN: torch.Tensor, ENDS: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ends = ENDS.long()
        totals = torch.cumsum(IN, 0)[ends - 1]
        before = torch.cat([torch.zeros(1), totals[:-1]])
        return IN * 2, (totals - before).unsqueeze(1)


def write_onnx(directory: Path, shape: list[str | int]) -> None:
    def tensor(name: str, kind: int, dims: Sequence[str | int]) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, dims)

    constants = [
        helper.make_tensor("zero", TensorProto.INT64, [], [0]),
        helper.make_tensor("first", TensorProto.INT32, [1], [0]),
        helper.make_tensor("one", TensorProto.INT32, [1], [1]),
        helper.make_tensor("nothing", TensorProto.FLOAT, [1], [0]),
        helper.make_tensor("two", TensorProto.FLOAT, [1], [2]),
        helper.make_tensor("last", TensorProto.INT64, [1], [-1]),
        helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
        helper.make_tensor("begin", TensorProto.INT64, [1], [0]),
    ]
    nodes = [
        helper.make_node("Mul", ["IN", "two"], ["TWICE"]),
        helper.make_node("CumSum", ["IN", "zero"], ["running"]),
        helper.make_node("Sub", ["ENDS", "one"], ["at"]),
        helper.make_node("Gather", ["running", "at"], ["totals"]),
        helper.make_node("Slice", ["totals", "begin", "last"], ["but_last"]),
        helper.make_node("Concat", ["nothing", "but_last"], ["before"], axis=0),
        helper.make_node("Sub", ["totals", "before"], ["of_request"]),
        helper.make_node("Unsqueeze", ["of_request", "axis"], ["TOTAL"]),
    ]
    inputs = [tensor("IN", TensorProto.FLOAT, shape), tensor("ENDS", TensorProto.INT32, ["b"])]
    outputs = [tensor("TWICE", TensorProto.FLOAT, ["n"]), tensor("TOTAL", TensorProto.FLOAT, ["b", 1])]
    graph = helper.make_graph(nodes, "sums", inputs, outputs, constants)
    (directory / "1").mkdir(parents=True)
    opset = [helper.make_opsetid("", 17)]
    save_model(helper.make_model(graph, opset_imports=opset, ir_version=8), directory / "1" / "model.onnx")


def write(backend: str, directory: Path) -> None:
    if backend == "onnxruntime":
        write_onnx(directory, ["n"])
    else:
        save_scripted(Sums(), directory)


@pytest.mark.parametrize("backend", ["onnxruntime", "pytorch"])
def test_requests_of_any_lengths_run_as_one_batch_and_get_their_parts(backend: str, tmp_path: Path) -> None:
    write(backend, tmp_path)
    loaded = Loaded(config_of(backend, tensors=RAGGED), tmp_path)
    values = [[1, 2, 3], [4], [5, 6]]
    answers = loaded.run(*(request(IN=np.array([row], np.float32)) for row in values))
    outputs = [{output.name: output.array for output in answer.outputs} for answer in answers]
    assert [arrays["TWICE"].tolist() for arrays in outputs] == [[[2, 4, 6]], [[8]], [[10, 12]]]
    assert [arrays["TOTAL"].tolist() for arrays in outputs] == [[[6]], [[4]], [[11]]]


def test_model_without_vector_input_for_ragged_input_fails_to_load(tmp_path: Path) -> None:
    write_onnx(tmp_path, [4])
    with pytest.raises(InvalidArgumentError, match=r"with shape \[-1\] for ragged input 'IN', model provides \[4\]"):
        Loaded(config_of("onnxruntime", tensors=RAGGED), tmp_path)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [6, 4]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [6, 10]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 6, 10]),
        ("BATCH_ITEM_SHAPE", [[3, 1], [3, 1], [2, 2]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [3, 1, 3, 1, 2, 2]),
    ],
)
@pytest.mark.parametrize("dtype", ["INT32", "FP32"])
def test_batch_inputs_describe_the_requests(kind: str, expected: list[int], dtype: str) -> None:
    """A request of two rows of shape [3, 1] and one of one row of shape [2, 2], as in Triton's document."""
    outputs = batch_input(kind, dtype, (2, 3, 1), (1, 2, 2))
    assert outputs.tolist() == expected
    assert outputs.dtype == {"INT32": np.int32, "FP32": np.float32}[dtype]


def test_batch_input_shape_is_the_largest_element_count() -> None:
    assert batch_input("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", "INT32", (1, 2), (1, 5), (1, 3)).shape == (5,)


def batch_input(kind: str, dtype: str, *shapes: tuple[int, ...]) -> np.ndarray:
    text = f'kind: {kind} target_name: "T" data_type: TYPE_{dtype} source_input: "IN"'
    config = text_format.Parse(f"max_batch_size: 8 batch_input {{ {text} }}", pb.ModelConfig())
    requests = [request(IN=np.zeros(shape, np.float32)) for shape in shapes]
    return BatchTensors(config).inputs(Execution(requests, len(requests), lambda *_: None))["T"]


def test_model_without_batching_has_no_ragged_inputs() -> None:
    config = config_of("onnxruntime", tensors=RAGGED, max_batch_size=0)
    assert not BatchTensors(config).ragged
