"""Control tensors, null requests, and implicit state of a sequence batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.core.datatypes import FP32, encode_bytes
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.messages import InferRequest, Tensor
from tritonnb.core.schedulable import SEQUENCE_END, SEQUENCE_START
from tritonnb.engine.models.sequence_inputs import SequenceInputs
from tritonnb.scheduling.decisions import Execute, Reason

CONTROLS = """
    control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
    control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ -1, 2 ] } }
    control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
"""
STATE = """state { input_name: "IN" output_name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] %s }"""


def inputs_of(sequence: str, directory: Path = Path(), max_batch_size: int = 4) -> SequenceInputs:
    config = text_format.Parse(
        f'name: "m" max_batch_size: {max_batch_size} sequence_batching {{ {sequence} }}', pb.ModelConfig()
    )
    return SequenceInputs(config, directory)


def request(correlation_id: int | str = 7, flags: int = 0) -> InferRequest:
    x = Tensor("X", FP32, np.ones((1, 3), np.float32))
    return InferRequest("m", {"X": x}, lambda *_: None, correlation_id=correlation_id, flags=flags)


def execute(*requests: InferRequest | None, slots: tuple[int, ...] | None = None) -> Execute:
    return Execute(0, list(requests), len(requests), Reason("x", {}), slots or tuple(range(len(requests))))


def test_flags_become_control_tensors_of_the_configured_types_and_values() -> None:
    (prepared,) = inputs_of(CONTROLS).prepare(execute(request(flags=SEQUENCE_START)))
    controls = {name: tensor.array for name, tensor in prepared.inputs.items() if name != "X"}
    assert {name: array.tolist() for name, array in controls.items()} == {
        "START": [[1]], "END": [[-1.0]], "READY": [[True]],
    }  # fmt: skip
    assert [array.dtype for array in controls.values()] == [np.int32, np.float32, np.bool_]


def test_controls_have_no_batch_dimension_without_batching() -> None:
    (prepared,) = inputs_of(CONTROLS, max_batch_size=0).prepare(execute(request(flags=SEQUENCE_END)))
    assert prepared.inputs["END"].array.tolist() == [2.0]


@pytest.mark.parametrize(
    ("datatype", "correlation_id", "seen"),
    [
        ("TYPE_UINT64", 2**63 + 1, 2**63 + 1),
        ("TYPE_INT64", 5, 5),
        ("TYPE_UINT32", 2**32 + 5, 5),
        ("TYPE_INT32", 7, 7),
        ("TYPE_STRING", "a stream", b"a stream"),
        ("TYPE_STRING", "\udcff\udcfe", b"\xff\xfe"),
        ("TYPE_UINT64", "a stream", 0),
    ],
)
def test_correlation_id_is_converted_to_the_configured_type(
    datatype: str, correlation_id: int | str, seen: object
) -> None:
    control = f'control_input {{ name: "ID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {datatype} }} }}'
    (prepared,) = inputs_of(control).prepare(execute(request(correlation_id)))
    assert prepared.inputs["ID"].array.tolist() == [[seen]]


def test_empty_slot_gets_a_not_ready_null_request() -> None:
    null, real = inputs_of(CONTROLS).prepare(execute(None, request(flags=SEQUENCE_START)))
    assert null.is_null
    assert not real.is_null
    assert null.inputs["X"].array.tolist() == [[0, 0, 0]]
    assert [null.inputs[name].array.item() for name in ("START", "END", "READY")] == [0, -1, False]
    assert (null.id, null.correlation_id, null.requested_outputs) == ("", 0, ())


def test_state_begins_with_zeros_and_keeps_the_last_update() -> None:
    inputs = inputs_of(STATE % "")
    (first,) = inputs.prepare(execute(request(flags=SEQUENCE_START)))
    assert first.states.inputs["IN"].array.tolist() == [[0, 0]]
    first.states.update("OUT", np.array([[1, 2]], np.float32))
    (second,) = inputs.prepare(execute(request()))
    assert second.states.inputs["IN"].array.tolist() == [[1, 2]]


def test_state_without_an_update_is_unchanged() -> None:
    inputs = inputs_of(STATE % "")
    (first,) = inputs.prepare(execute(request(flags=SEQUENCE_START)))
    (second,) = inputs.prepare(execute(request()))
    assert second.states.inputs["IN"].array.tolist() == first.states.inputs["IN"].array.tolist()


def test_start_resets_the_state_of_its_slot_only() -> None:
    inputs = inputs_of(STATE % "")
    for value, prepared in enumerate(inputs.prepare(execute(request(1, SEQUENCE_START), request(2, SEQUENCE_START)))):
        prepared.states.update("OUT", np.full((1, 2), value + 1, np.float32))
    zero, one = inputs.prepare(execute(request(1, SEQUENCE_START), request(2)))
    assert zero.states.inputs["IN"].array.tolist() == [[0, 0]]
    assert one.states.inputs["IN"].array.tolist() == [[2, 2]]


def test_null_request_does_not_change_any_state() -> None:
    inputs = inputs_of(STATE % "")
    null, _ = inputs.prepare(execute(None, request(flags=SEQUENCE_START)))
    null.states.update("OUT", np.full((1, 2), 9, np.float32))
    (real,) = inputs.prepare(execute(request(), slots=(0,)))
    assert real.states.inputs["IN"].array.tolist() == [[0, 0]]


def test_state_shape_may_grow_between_requests() -> None:
    inputs = inputs_of('state { input_name: "IN" output_name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }')
    (first,) = inputs.prepare(execute(request(flags=SEQUENCE_START)))
    assert first.states.inputs["IN"].shape == (1, 1)
    first.states.update("OUT", np.zeros((1, 5), np.float32))
    (second,) = inputs.prepare(execute(request()))
    assert second.states.inputs["IN"].shape == (1, 5)


def test_state_with_a_common_buffer_keeps_the_shape_of_its_input() -> None:
    inputs = inputs_of(STATE % "use_same_buffer_for_input_output: true")
    (first,) = inputs.prepare(execute(request(flags=SEQUENCE_START)))
    first.states.update("OUT", np.array([1, 2], np.float32))
    (second,) = inputs.prepare(execute(request()))
    assert second.states.inputs["IN"].array.tolist() == [[1, 2]]


def test_null_request_has_zeros_of_the_shape_of_the_first_request_in_place_of_its_state() -> None:
    inputs = inputs_of('state { input_name: "IN" output_name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }')
    for length, prepared in enumerate(inputs.prepare(execute(*(request(k, SEQUENCE_START) for k in (1, 2, 3))))):
        prepared.states.update("OUT", np.ones((1, 4 + length), np.float32))
    null, first, other = inputs.prepare(execute(None, request(2), None))
    assert first.states.inputs["IN"].shape == (1, 5)
    for prepared in (null, other):
        assert prepared.states.inputs["IN"].array.tolist() == [[0, 0, 0, 0, 0]]
    null, first = inputs.prepare(execute(None, request(5, SEQUENCE_START)))
    assert null.states.inputs["IN"].shape == first.states.inputs["IN"].shape == (1, 1)


def test_initial_state_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "s.bin").write_bytes(np.array([3, 4], "<f4").tobytes())
    initial = 'initial_state { name: "s" data_type: TYPE_FP32 dims: [ 2 ] data_file: "s.bin" }'
    (first,) = inputs_of(STATE % initial, tmp_path).prepare(execute(request(flags=SEQUENCE_START)))
    assert first.states.inputs["IN"].array.tolist() == [[3, 4]]


def test_initial_state_without_a_type_ignores_its_file(tmp_path: Path) -> None:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "s.bin").write_bytes(b"1234")
    initial = 'initial_state { name: "s" dims: [ 2 ] data_file: "s.bin" }'
    inputs_of(f'state {{ input_name: "IN" output_name: "OUT" dims: [ 2 ] {initial} }}', tmp_path)


def test_incomplete_initial_state_of_strings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "s.bin").write_bytes(encode_bytes(np.array([b"one"], object)))
    initial = 'initial_state { name: "s" data_type: TYPE_STRING dims: [ 2 ] data_file: "s.bin" }'
    with pytest.raises(InvalidArgumentError, match="expected 2 elements, got 1"):
        inputs_of((STATE % initial).replace("FP32", "STRING"), tmp_path)


def test_unknown_state_is_refused() -> None:
    (first,) = inputs_of(STATE % "").prepare(execute(request(flags=SEQUENCE_START)))
    with pytest.raises(InvalidArgumentError, match="state 'NOPE' is not a valid state name"):
        first.states.update("NOPE", np.zeros(1))
