"""The validation of requests: Triton's messages in Triton's order, and the properties of valid requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.core.datatypes import BYTES, FP32, INT32, INVALID, DataType, encode_bytes
from tritonnb.core.errors import IncompleteStringError, InvalidArgumentError
from tritonnb.core.messages import InferRequest, Tensor, UndecodedTensor
from tritonnb.engine.models.validation import RequestValidator
from tritonnb.model_config.schema import ModelSpec

TWO = """
name: "two" max_batch_size: 4
input { name: "A" data_type: TYPE_FP32 dims: [ 2 ] }
input { name: "B" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] }
"""
PLAIN = TWO.replace("max_batch_size: 4", "").replace("two", "plain")
TEXT = """
name: "text" max_batch_size: 4
input { name: "S" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_STRING dims: [ -1 ] }
"""


def validator(config: str) -> RequestValidator:
    return RequestValidator(ModelSpec.from_config(text_format.Parse(config, pb.ModelConfig())))


def tensor(name: str, *shape: int, datatype: DataType = FP32) -> Tensor:
    return Tensor(name, datatype, np.zeros(shape, datatype.numpy))


def raw(name: str, shape: tuple[int, ...], content: bytes, datatype: DataType = FP32) -> UndecodedTensor:
    return UndecodedTensor(name, datatype, shape, content)


def request(*inputs: Tensor | UndecodedTensor, **options: Any) -> InferRequest:
    created = InferRequest("m", {}, lambda request, response: None, **options)
    created.unchecked_inputs.update({tensor.name: tensor for tensor in inputs})
    return created


def strings(*elements: bytes) -> bytes:
    return encode_bytes(np.array(elements, object))


def complaint(config: str, request: InferRequest) -> str:
    with pytest.raises(InvalidArgumentError) as raised:
        validator(config).check(request)
    return raised.value.message


NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to "
    "each input shape. If you want to specify the full shape including the batch dim in your input dims config, "
    "try setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
GOT = "inputs for model 'two'. Got input(s) "
MISSING = "Please provide all required input(s)."


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([], f"expected 2 inputs but got 0 {GOT}[], but missing required input(s) ['A','B']. {MISSING}"),
        (
            [tensor("A", 1, 2), tensor("B", 1, 2), tensor("C", 1, 2)],
            f"expected 2 inputs but got 3 {GOT}['C','B','A'], but missing required input(s) ]. {MISSING}",
        ),
        ([tensor("A", 1, 2), tensor("B")], "input 'B' has no shape but model requires batch dimension for 'two'"),
        ([tensor("A", 2, 2), tensor("B", 1, 2)], "input 'A' batch size does not match other inputs for 'two'"),
        ([tensor("A", 5, 2), tensor("B", 5, 2)], "inference request batch-size must be <= 4 for 'two'"),
        (
            [tensor("A", 1, 2), tensor("B", 1, 3, datatype=INT32)],
            "inference input 'B' data-type is 'INT32', but model 'two' expects 'FP32'",
        ),
        (
            [tensor("A", 1, 2), raw("B", (1, 2), b"", INVALID)],
            "inference input 'B' data-type is '<invalid>', but model 'two' expects 'FP32'",
        ),
        (
            [tensor("A", 1, 2), tensor("B", 1, 3)],
            f"unexpected shape for input 'B' for model 'two'. Expected [-1,2], got [1,3]. {NOTE}",
        ),
        (
            [tensor("A", 1, 2), raw("B", (1, 2), b"1234567")],
            "input byte size mismatch for input 'B' for model 'two'. Expected 8, got 7",
        ),
        (
            [tensor("A", 0, 2), tensor("B", 0, 2)],
            "input byte size mismatch for input 'B' for model 'two'. Expected 8, got 0",
        ),
    ],
)  # fmt: skip
def test_errors_of_inputs_contain_the_request_id(inputs: list[Tensor | UndecodedTensor], text: str) -> None:
    assert complaint(TWO, request(*inputs)) == f"[request id: <id_unknown>] {text}"
    assert complaint(TWO, request(*inputs, id="7")) == f"[request id: 7] {text}"


VARIABLE = """
name: "any" max_batch_size: 4
input { name: "A" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""


@pytest.mark.parametrize(
    ("shape", "content", "text"),
    [
        ((-1, 2), bytes(8), "input byte size mismatch for input 'A' for model 'any'. Expected 34359738360, got 8"),
        ((-1, -2), bytes(8), "input byte size mismatch for input 'A' for model 'any'. Expected -34359738360, got 8"),
        ((-1,), bytes(8), f"unexpected shape for input 'A' for model 'any'. Expected [-1,-1], got [-1]. {NOTE}"),
        ((-1, -1), bytes(8), "All input dimensions should be specified for input 'A' for model 'any', got [-1,-1]"),
        ((-1, 0), b"", "inference request batch-size must be <= 4 for 'any'"),
    ],
)
def test_negative_batch_dimension_counts_as_unsigned(shape: tuple[int, ...], content: bytes, text: str) -> None:
    assert complaint(VARIABLE, request(raw("A", shape, content))) == f"[request id: <id_unknown>] {text}"


@pytest.mark.parametrize(
    ("shape", "size"), [((1, -2, -3), 24), ((1, -1, 2), 8), ((1, 2, -1), 8), ((1, 0, -2), 0), ((1, -2, 0), 0)]
)
def test_negative_non_batch_dimensions_are_refused_even_if_the_size_matches(shape: tuple[int, ...], size: int) -> None:
    config = VARIABLE.replace("dims: [ -1 ]", "dims: [ -1, -1 ]", 1)
    assert complaint(config, request(raw("A", shape, bytes(size)))) == (
        "[request id: <id_unknown>] All input dimensions should be specified for input 'A' for model 'any', "
        f"got [{','.join(map(str, shape))}]"
    )


def test_negative_dimensions_of_strings_are_refused() -> None:
    assert "All input dimensions" in complaint(TEXT, request(raw("S", (1, -2), strings(b"a", b"b"), BYTES)))


def test_batch_dimension_of_0_counts_as_1() -> None:
    given_ = request(raw("A", (0, 2), bytes(8)))
    validator(VARIABLE).check(given_)
    assert given_.inputs["A"].array.shape == (1, 2)


def test_names_are_refused_without_the_id() -> None:
    good = (tensor("A", 1, 2), tensor("B", 1, 2))
    assert complaint(TWO, request(tensor("A", 1, 2), tensor("X", 1, 2), id="7")) == (
        "unexpected inference input 'X' for model 'two'"
    )
    assert complaint(TWO, request(*good, id="7", requested_outputs=("Z", "OUT", "X"))) == (
        "unexpected inference output 'X' for model 'two'"
    )


def test_output_names_are_checked_first_then_counts_names_and_batch() -> None:
    bad = request(tensor("X", 9, 9), requested_outputs=("NO",))
    assert "inference output" in complaint(TWO, bad)
    assert "expected 2 inputs" in complaint(TWO, request(tensor("X", 9, 9)))
    assert "inference input 'X'" in complaint(TWO, request(tensor("X", 9, 9), tensor("A", 1, 9)))
    assert "batch size" in complaint(TWO, request(tensor("B", 9, 9), tensor("A", 1, 9, datatype=INT32)))
    assert "batch-size" in complaint(TWO, request(tensor("B", 9, 9), tensor("A", 9, 9, datatype=INT32)))


def test_whole_shape_is_checked_without_batching() -> None:
    assert complaint(PLAIN, request(tensor("A", 2), tensor("B", 1, 2))) == (
        "[request id: <id_unknown>] unexpected shape for input 'B' for model 'plain'. Expected [2], got [1,2]. "
    )
    good = request(tensor("A", 2), tensor("B", 2))
    validator(PLAIN).check(good)
    assert good.batch_size == 1


@pytest.mark.parametrize(
    ("shape", "content", "text"),
    [
        ((1, 2), strings(b"a"), "expected 2 string elements for inference input 'S' for model 'text', got 1"),
        (
            (1, 1),
            strings(b"a", b"b"),
            "unexpected number of string elements 2 for inference input 'S' for model 'text', expecting 1",
        ),
        (
            (1, 1),
            strings(b"a", b""),
            "unexpected number of string elements 2 for inference input 'S' for model 'text', expecting 1",
        ),
        (
            (1, 1),
            strings(b"a") + b"x",
            "incomplete string length indicator for inference input 'S' for model 'text', expecting 4 bytes but only 1 "
            "bytes available. Please make sure the string length indicator is in one buffer.",
        ),
        (
            (1, 1),
            strings(b"a") + b"xx",
            "incomplete string length indicator for inference input 'S' for model 'text', expecting 4 bytes but only 2 "
            "bytes available. Please make sure the string length indicator is in one buffer.",
        ),
        (
            (1, 3),
            strings(b"a") + b"\xff\0\0\0abc",
            "expected 3 string elements for inference input 'S' for model 'text', got 2",
        ),
    ],
)
def test_number_of_strings_must_match_the_shape(shape: tuple[int, ...], content: bytes, text: str) -> None:
    assert complaint(TEXT, request(raw("S", shape, content, BYTES))) == f"[request id: <id_unknown>] {text}"


def test_incomplete_string_is_reported_last() -> None:
    with pytest.raises(IncompleteStringError) as raised:
        validator(TEXT).check(request(raw("S", (1, 2), strings(b"a") + b"\x64\0\0\0abc", BYTES), id="7"))
    assert raised.value.message == (
        "incomplete string data for inference input 'S', expecting string of length 100 but only 3 bytes available"
    )


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5))
def test_strings_are_decoded(elements: list[bytes]) -> None:
    given_ = request(raw("S", (1, len(elements)), strings(*elements), BYTES))
    validator(TEXT).check(given_)
    assert given_.inputs["S"].array.tolist() == [elements]


def test_bytes_of_the_expected_size_become_an_array() -> None:
    given_ = request(tensor("A", 3, 2), raw("B", (3, 2), np.arange(6, dtype="<f4").tobytes()))
    validator(TWO).check(given_)
    assert given_.inputs["B"].array.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert given_.batch_size == 3


def test_batch_of_one_has_a_batch_dimension() -> None:
    config = TWO.replace("max_batch_size: 4", "max_batch_size: 1")
    validator(config).check(request(tensor("A", 1, 2), tensor("B", 1, 2)))
    assert "batch-size must be <= 1" in complaint(config, request(tensor("A", 2, 2), tensor("B", 2, 2)))
    assert "batch size" in complaint(config, request(tensor("A", 2), tensor("B", 1, 2)))


OPTIONAL = TWO.replace('name: "B"', 'name: "B" optional: true').replace("two", "some")


def test_only_the_number_of_optional_inputs_is_compared() -> None:
    validator(OPTIONAL).check(request(tensor("A", 1, 2)))
    validator(OPTIONAL).check(request(tensor("B", 1, 2)))  # Triton's model is left to notice
    assert complaint(OPTIONAL, request()) == (
        "[request id: <id_unknown>] expected number of inputs between 1 and 2 but got 0 inputs for model 'some'. Got "
        f"input(s) [], but missing required input(s) ['A']. {MISSING}"
    )


def key(config: str, *inputs: Tensor) -> object:
    given_ = request(*inputs)
    validator(config).check(given_)
    return given_.batch_key


def test_fixed_shapes_always_share_a_batch() -> None:
    assert key(TWO, tensor("A", 1, 2), tensor("B", 1, 2)) is None


def test_variable_shapes_share_a_batch_when_they_are_equal() -> None:
    config = TWO.replace("dims: [ 2 ]", "dims: [ -1 ]")
    key_of_3 = key(config, tensor("A", 1, 3), tensor("B", 1, 3))
    assert key_of_3 == key(config, tensor("B", 2, 3), tensor("A", 2, 3))
    assert key_of_3 != key(config, tensor("A", 1, 3), tensor("B", 1, 4))


def test_ragged_inputs_always_share_a_batch() -> None:
    config = TWO.replace("dims: [ 2 ]", "dims: [ -1 ] allow_ragged_batch: true", 2)
    assert key(config, tensor("A", 1, 3), tensor("B", 1, 4)) == key(config, tensor("A", 1, 1), tensor("B", 1, 1))


def test_requests_with_the_same_optional_inputs_share_a_batch() -> None:
    both, one = (tensor("A", 1, 2), tensor("B", 1, 2)), (tensor("A", 1, 2),)
    assert key(OPTIONAL, *both) == key(OPTIONAL, *reversed(both))
    assert key(OPTIONAL, *both) != key(OPTIONAL, *one)


def test_requests_with_equal_shape_tensors_share_a_batch() -> None:
    config = TWO.replace('name: "B" data_type: TYPE_FP32', 'name: "B" data_type: TYPE_INT32 is_shape_tensor: true')

    def holding(value: int) -> object:
        return key(config, tensor("A", 1, 2), Tensor("B", INT32, np.full((1, 2), value, np.int32)))

    assert holding(1) == holding(1)
    assert holding(1) != holding(2)


def test_model_gets_reshaped_inputs() -> None:
    config = TWO.replace(
        'name: "B" data_type: TYPE_FP32 dims: [ 2 ]',
        'name: "B" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] }',
    )
    given_ = request(tensor("A", 3, 2), tensor("B", 3, 4))
    validator(config).check(given_)
    assert given_.inputs["B"].shape == (3, 2, 2)


def test_reshape_keeps_the_sizes_of_variable_dimensions() -> None:
    config = TWO.replace(
        'name: "B" data_type: TYPE_FP32 dims: [ 2 ]',
        'name: "B" data_type: TYPE_FP32 dims: [ -1, 2, 2 ] reshape { shape: [ -1, 4 ] }',
    )
    given_ = request(tensor("A", 1, 2), tensor("B", 1, 5, 2, 2))
    validator(config).check(given_)
    assert given_.inputs["B"].shape == (1, 5, 4)


@pytest.mark.parametrize(
    ("control_type", "correlation_id", "text"),
    [
        ("TYPE_UINT64", "seven", "'BYTES', but model 'two' expects 'UINT64'"),
        ("TYPE_INT32", "", "'BYTES', but model 'two' expects 'INT32'"),
        ("TYPE_STRING", 7, "'UINT64', but model 'two' expects 'BYTES'"),
        ("TYPE_STRING", 0, "'UINT64', but model 'two' expects 'BYTES'"),
        ("TYPE_UINT64", 7, None),
        ("TYPE_INT64", 7, None),
        ("TYPE_UINT32", 7, None),
        ("TYPE_INT32", 7, None),
        ("TYPE_STRING", "seven", None),
    ],
)
def test_correlation_id_has_the_type_of_its_control(
    control_type: str, correlation_id: int | str, text: str | None
) -> None:
    control = f"""sequence_batching {{ control_input {{
        name: "CORRID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {control_type} }}
    }} }}"""
    inputs = tensor("A", 1, 2), tensor("B", 1, 2)
    if text is None:
        validator(TWO + control).check(request(*inputs, correlation_id=correlation_id))
    else:
        refused = complaint(TWO + control, request(*inputs, correlation_id=correlation_id, id="9"))
        assert refused == f"[request id: 9] sequence batching control 'CORRID' data-type is {text}"


def test_correlation_id_can_have_any_type_without_a_control() -> None:
    for correlation_id in (7, "seven"):
        inputs = tensor("A", 1, 2), tensor("B", 1, 2)
        validator(TWO + "sequence_batching {}").check(request(*inputs, correlation_id=correlation_id))
