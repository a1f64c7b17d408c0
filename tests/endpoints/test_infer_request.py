"""A body becomes a request: limits, views instead of copies, and requests that were read before."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.endpoints.served import Echo, spec_of
from tritonnb.core.datatypes import FP32
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.endpoints.http.infer_request import read_request
from tritonnb.endpoints.http.infer_response import write_response
from tritonnb.endpoints.http.request_reader import RequestReader, header_length
from tritonnb.endpoints.tensors import ResponseFormat
from tritonnb.engine.models.validation import RequestValidator
from tritonnb.engine.shared_memory import SharedMemory, SystemPart

TWO_CONFIG = """
name: "two" max_batch_size: 8
input { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }
input { name: "B" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
"""
TWO = spec_of(TWO_CONFIG)
MODEL: Any = SimpleNamespace(name="two", version=1, spec=TWO)
RAW = spec_of("""
name: "raw" max_batch_size: 8
input { name: "A" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
""")


def discard_response(request: InferRequest, response: InferResponse) -> None:
    """Responses do not matter here."""


def body(document: Any, tail: bytes = b"") -> tuple[bytes, int]:
    head = json.dumps(document).encode()
    return head + tail, len(head)


def binary(name: str, datatype: str, shape: list[int], size: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


def read(document: Any, tail: bytes = b"", limit: int = 1 << 20) -> InferRequest:
    request, _ = read_request(TWO, 1, *body(document, tail), limit, SharedMemory())
    return request


def test_binary_tensors_are_views_into_the_body() -> None:
    a, b = np.arange(8, dtype="<f4"), np.arange(6, dtype="<i4")
    document = {"inputs": [binary("A", "FP32", [2, 4], 32), binary("B", "INT32", [2, 3], 24)]}
    data, length = body(document, a.tobytes() + b.tobytes())
    request, _ = read_request(TWO, 1, data, length, 1 << 20, SharedMemory())
    whole = np.frombuffer(data, np.uint8)
    for name, expected in (("A", a.reshape(2, 4)), ("B", b.reshape(2, 3))):
        array = request.inputs[name].array
        assert np.array_equal(array, expected)
        assert np.shares_memory(array, whole)


def test_request_may_mix_json_and_binary_tensors() -> None:
    tensor = {"name": "B", "datatype": "INT32", "shape": [1, 2], "data": [[7, 8]]}
    request = read({"inputs": [tensor, binary("A", "FP32", [1, 4], 16)]}, np.ones(4, "<f4").tobytes())
    assert request.inputs["A"].array.tolist() == [[1, 1, 1, 1]]
    assert request.inputs["B"].array.tolist() == [[7, 8]]


@pytest.mark.parametrize(
    ("value", "length"), [(None, 9), ("4", 4), ("0", 0), ("4.5", 4), ("4abc", 4), ("+4", 4), (" 9", 9)]
)
def test_length_header_is_read_up_to_the_first_non_digit(value: str | None, length: int) -> None:
    assert header_length(value, b"123456789") == length


@pytest.mark.parametrize("value", ["", "abc", "-", ".5"])
def test_length_header_without_a_number_is_refused(value: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        header_length(value, b"123456789")
    assert raised.value.message == f"Unable to parse Inference-Header-Content-Length, got: {value}"


@pytest.mark.parametrize("value", ["2147483648", "-2147483649", "9" * 5000])
def test_length_beyond_32_bits_is_refused(value: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        header_length(value, b"123456789")
    assert raised.value.message == (
        "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: "
        f"{value}"
    )


@pytest.mark.parametrize("value", ["-1", "10", "2147483647", "-2147483648"])
def test_length_beyond_the_body_is_refused(value: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"^inference header size .* \(0, 9\), got: {value}$"):
        header_length(value, b"123456789")


def test_only_the_json_part_of_a_body_is_limited() -> None:
    document = {"inputs": [binary("B", "INT32", [1, 1000], 4000)]}
    read(document, bytes(4000), limit=200)
    with pytest.raises(InvalidArgumentError, match=r"^request JSON size of \d+ bytes exceeds .* size of 50 bytes\."):
        read(document, bytes(4000), limit=50)


def test_size_of_json_tensor_is_limited_before_its_elements_are_read() -> None:
    huge = {"name": "B", "datatype": "INT32", "shape": [1, 1 << 40], "data": [1]}
    with pytest.raises(InvalidArgumentError, match=r"^JSON input 'B' has a byte_size \(4398046511104 bytes\)"):
        read({"inputs": [huge]})


def test_limit_of_strings_includes_their_lengths() -> None:
    strings = spec_of("""
    name: "strings"
    input { name: "S" data_type: TYPE_STRING dims: [ -1 ] }
    output { name: "OUT" data_type: TYPE_STRING dims: [ -1 ] }
    """)
    empty = {"name": "S", "datatype": "BYTES", "shape": [1000], "data": [""] * 1000}
    data = json.dumps({"inputs": [empty]}, separators=(",", ":")).encode()
    assert len(data) < 3999 < 1000 * 4

    def read_within(limit: int) -> InferRequest:
        return read_request(strings, 1, data, len(data), limit, SharedMemory())[0]

    assert read_within(4000).inputs["S"].shape == (1000,)
    with pytest.raises(InvalidArgumentError, match=r"^JSON input 'S' has a byte_size \(4000 bytes\) that exceeds"):
        read_within(3999)


def test_output_requested_twice_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        read({"id": "7", "inputs": [], "outputs": [{"name": "OUT"}, {"name": "OUT"}]})
    assert raised.value.message == "[request id: 7] output 'OUT' already exists in request"


@pytest.mark.parametrize("shape", [[2, 4611686018427387904], [1 << 62, 1 << 62], [0, 1 << 62], [2**63 - 1] * 200])
def test_impossible_shapes_are_refused(shape: list[int]) -> None:
    tensor = {"name": "A", "datatype": "FP32", "shape": shape, "data": [1]}
    with pytest.raises(InvalidArgumentError, match=r"causes total element count to exceed maximum size"):
        read({"inputs": [tensor]})
    tensor["shape"] = [1, 4611686018427387904]
    with pytest.raises(InvalidArgumentError, match=r"^byte size overflow for input 'A': element count"):
        read({"inputs": [tensor]})


def test_shape_with_more_dimensions_than_an_array_is_refused() -> None:
    tensor = {"name": "A", "datatype": "FP32", "shape": [1] * 100}
    contents: list[dict[str, Any]] = [{"data": [1]}, {"parameters": {"binary_data_size": 4}}]
    for content in contents:
        data = body({"inputs": [tensor | content]}, bytes(4) if "parameters" in content else b"")
        request, _ = read_request(RAW, 1, *data, 1 << 20, SharedMemory())
        with pytest.raises(InvalidArgumentError, match=r"unexpected shape for input 'A' for model 'raw'"):
            RequestValidator(RAW).check(request)


def test_size_of_raw_request_is_limited() -> None:
    assert read_request(RAW, 1, bytes(12), 0, 15, SharedMemory())[0].inputs["A"].shape == (1, 3)
    with pytest.raises(InvalidArgumentError, match=r"^Raw input has a byte_size \(16 bytes\)"):
        read_request(RAW, 1, bytes(16), 0, 15, SharedMemory())


# --- requests that were read before ------------------------------------------------------------------


def make_reader(document: Any, tail: bytes) -> tuple[RequestReader, bytes, int]:
    data, length = body(document, tail)
    shared_memory: Any = SimpleNamespace(part=lambda name, offset, size: SystemPart(memoryview(bytes(size))))
    request, response_format = read_request(TWO, 1, data, length, 1 << 20, shared_memory)
    reader = RequestReader(shared_memory, 1 << 20)
    for _ in range(2):
        reader.store(MODEL, data, data[:length], request, response_format)
    return reader, data, length


def test_cached_head_produces_the_same_request() -> None:
    document = {
        "parameters": {"priority": 3, "timeout": 5, "sequence_id": 9, "sequence_start": True, "custom": "x"},
        "inputs": [binary("B", "INT32", [2, 3], 24), binary("A", "FP32", [2, 4], 32)],
        "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}],
    }
    reader, data, length = make_reader(document, bytes(56))
    changed = data[:length] + np.arange(14, dtype="<i4").tobytes()
    cached = reader.find(MODEL, changed, changed[:length])
    assert cached is not None
    request, response_format = cached
    expected, expected_response_format = read_request(TWO, 1, changed, length, 1 << 20, SharedMemory())
    assert request.inputs.keys() == expected.inputs.keys()
    for name, tensor in expected.inputs.items():
        assert np.array_equal(request.inputs[name].array, tensor.array, equal_nan=True)
    for attribute in ("priority", "timeout_us", "correlation_id", "flags", "parameters", "requested_outputs", "id"):
        assert getattr(request, attribute) == getattr(expected, attribute), attribute
    assert response_format == expected_response_format


@pytest.mark.parametrize(
    ("document", "tail"),
    [
        ({"id": "7", "inputs": [binary("A", "FP32", [1, 4], 16)]}, bytes(16)),
        ({"inputs": [{"name": "A", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}, b""),
        (
            {
                "inputs": [
                    {"name": "A", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]},
                    binary("B", "INT32", [1, 1], 4),
                ]
            },
            bytes(4),
        ),
        (
            {
                "inputs": [
                    {
                        "name": "A",
                        "datatype": "FP32",
                        "shape": [0, 4],
                        "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 0},
                    },
                    binary("B", "INT32", [1, 1], 4),
                ]
            },
            bytes(4),
        ),
    ],
    ids=["an id", "all JSON", "partly JSON", "empty in shared memory"],
)
def test_heads_with_further_headers_are_not_cached(document: Any, tail: bytes) -> None:
    reader, data, length = make_reader(document, tail)
    assert reader.find(MODEL, data, data[:length]) is None


def test_known_json_header_with_other_bytes_is_parsed_again() -> None:
    reader, data, length = make_reader({"inputs": [binary("A", "FP32", [1, 4], 16)]}, bytes(16))
    assert reader.find(MODEL, data + b"x", data[:length]) is None
    assert reader.find(MODEL, data[:-1], data[:length]) is None


@pytest.mark.parametrize(
    "other",
    [{"name": "three"}, {"version": 2}, {"spec": spec_of(TWO_CONFIG)}],
    ids=["model", "version", "loaded again"],
)
def test_known_json_header_is_read_again_for_another_model(other: dict[str, Any]) -> None:
    reader, data, length = make_reader({"inputs": [binary("A", "FP32", [1, 4], 16)]}, bytes(16))
    assert reader.find(MODEL, data, data[:length]) is not None
    model: Any = SimpleNamespace(**{**vars(MODEL), **other})
    assert reader.find(model, data, data[:length]) is None


def test_response_format_is_read_from_parts() -> None:
    array = np.arange(100_000, dtype="<f4").reshape(2, -1)
    request = InferRequest("echo", {}, discard_response, id="é")
    served: Any = Echo()
    parts, length = write_response(
        served, request, InferResponse([Tensor("Y", FP32, array)]), ResponseFormat(binary=True)
    )
    whole = b"".join(parts)
    assert json.loads(whole[:length]) == {
        "id": "é",
        "model_name": "echo",
        "model_version": "1",
        "outputs": [
            {"name": "Y", "datatype": "FP32", "shape": [2, 50_000], "parameters": {"binary_data_size": 400_000}}
        ],
    }
    assert whole[length:] == array.tobytes()
