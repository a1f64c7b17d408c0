"""Sessions that run through an I/O binding, on the CPU as their device: the path of KIND_GPU, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper, save_model

from tests.backends.models import Loaded, config_of, request
from tritonnb.backends.execution import Execution
from tritonnb.core.datatypes import BOOL, FP32
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.messages import InferRequest, Tensor

TENSORS = """
    input { name: "X" data_type: TYPE_FP32 dims: 2 }
    output { name: "Y" data_type: TYPE_FP32 dims: 2 }
    output { name: "BEFORE" data_type: TYPE_FP32 dims: 1 }
"""
STATES = """
    sequence_batching {
        state { input_name: "TOTAL" output_name: "NEXT_TOTAL" data_type: TYPE_FP32 dims: 2 }
        state { input_name: "SEEN" output_name: "NEXT_SEEN" data_type: TYPE_BOOL dims: 1 }
    }
"""
FLOAT, TRUTH = TensorProto.FLOAT, TensorProto.BOOL
INPUTS = {"X": FLOAT, "TOTAL": FLOAT, "SEEN": TRUTH}
OUTPUTS = {"Y": FLOAT, "NEXT_TOTAL": FLOAT, "NEXT_SEEN": TRUTH, "BEFORE": FLOAT}


class Sequence:
    """The states of one sequence, as the runtime hands them over."""

    def __init__(self) -> None:
        self.inputs = {
            "TOTAL": Tensor("TOTAL", FP32, np.zeros((1, 2), np.float32)),
            "SEEN": Tensor("SEEN", BOOL, np.zeros((1, 1), bool)),
        }

    def update(self, output: str, array: npt.NDArray[Any]) -> None:
        name = output.removeprefix("NEXT_")
        self.inputs[name] = Tensor(name, self.inputs[name].datatype, array)

    def step(self, x: float) -> InferRequest:
        created = request(X=np.full((1, 2), x, np.float32))
        created.states = self
        return created


@pytest.fixture
def bound(tmp_path: Path) -> Loaded:
    """A bound model: TOTAL adds X up, SEEN says whether there was any."""
    dims = {"X": 2, "TOTAL": 2, "Y": 2, "NEXT_TOTAL": 2}
    ends = {
        name: helper.make_tensor_value_info(name, kind, ["b", dims.get(name, 1)])
        for name, kind in (INPUTS | OUTPUTS).items()
    }
    nodes = [
        helper.make_node("Add", ["TOTAL", "X"], ["NEXT_TOTAL"]),
        helper.make_node("Identity", ["NEXT_TOTAL"], ["Y"]),
        helper.make_node("Not", ["SEEN"], ["unseen"]),
        helper.make_node("Or", ["SEEN", "unseen"], ["NEXT_SEEN"]),
        helper.make_node("Cast", ["SEEN"], ["BEFORE"], to=FLOAT),
    ]
    graph = helper.make_graph(nodes, "g", [ends[name] for name in INPUTS], [ends[name] for name in OUTPUTS])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "1").mkdir()
    save_model(model, tmp_path / "1" / "model.onnx")
    loaded = Loaded(config_of("onnxruntime", TENSORS, STATES), tmp_path)
    loaded.instance.bind("cpu", 0)
    return loaded


def run(bound: Loaded, *steps: InferRequest) -> dict[str, list[list[float]]]:
    """The outputs of one batch, with a row for each step."""
    outputs = [answer.outputs for answer in bound.run(*steps) if answer is not None]
    return {rows[0].name: [row.array[0].tolist() for row in rows] for rows in zip(*outputs, strict=True)}


def test_states_stay_on_the_device_from_step_to_step(bound: Loaded) -> None:
    one, two = Sequence(), Sequence()
    assert run(bound, one.step(1))["Y"] == [[1, 1]]
    both = run(bound, two.step(5), one.step(2))
    assert both == {"Y": [[5, 5], [3, 3]], "BEFORE": [[0], [1]]}
    assert run(bound, two.step(0), one.step(0))["Y"] == [[5, 5], [3, 3]]
    assert {type(tensor.array).__module__ for tensor in one.inputs.values()} == {"torch"}
    assert one.inputs["TOTAL"].array.tolist() == [[3, 3]]


def test_request_with_an_error_response_keeps_its_state(bound: Loaded) -> None:
    one, two = Sequence(), Sequence()
    execution = Execution([one.step(1), two.step(1)], 2, lambda *_: None, 1)
    execution.fail(0, InvalidArgumentError("no"))
    bound.instance.execute(execution)
    assert one.inputs["TOTAL"].array.tolist() == [[0, 0]]
    assert two.inputs["TOTAL"].array.tolist() == [[1, 1]]
