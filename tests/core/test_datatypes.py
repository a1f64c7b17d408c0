"""The table of datatypes, and the encodings of BYTES and BF16, for which NumPy has no dtypes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import deserialize_bytes_tensor, np_to_triton_dtype, serialize_byte_tensor

from tritonnb.core.datatypes import (
    BF16,
    BYTES,
    DATATYPES,
    DataType,
    as_bytes_array,
    bf16_to_float32,
    datatype_of,
    decode_bytes,
    encode_bytes,
    float32_to_bf16,
)
from tritonnb.core.errors import InvalidArgumentError


def test_datatype_table_contains_every_number_of_the_protobuf_schema() -> None:
    schema = {name: number for name, number in model_config_pb2.DataType.items() if number}
    assert {datatype.config_name: datatype.number for datatype in DATATYPES} == schema


@pytest.mark.parametrize("datatype", [datatype for datatype in DATATYPES if datatype is not BF16])
def test_numpy_dtypes_equal_the_official_clients(datatype: DataType) -> None:
    assert np_to_triton_dtype(datatype.numpy) == datatype.name


@pytest.mark.parametrize("datatype", [datatype for datatype in DATATYPES if datatype is not BF16])
def test_datatype_of_an_array_is_found(datatype: DataType) -> None:
    assert datatype_of(datatype.numpy) is datatype
    assert datatype_of(datatype.numpy.newbyteorder(">")) is datatype


def test_strings_of_any_width_are_bytes() -> None:
    assert datatype_of("U7") is datatype_of("S3") is BYTES


def test_error_for_dtype_without_datatype_names_it() -> None:
    with pytest.raises(InvalidArgumentError, match="complex64"):
        datatype_of(np.complex64)


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_bytes_elements_have_the_wire_format_of_the_official_client(elements: list[bytes]) -> None:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    encoded = encode_bytes(array)
    if elements:
        assert encoded == serialize_byte_tensor(array).item()
        assert list(deserialize_bytes_tensor(encoded)) == elements
    assert list(decode_bytes(encoded)) == elements


@pytest.mark.parametrize(
    ("raw", "complaint"), [(b"\x01\x00", "indicator"), (b"\x04\x00\x00\x00abc", "expected 4 bytes, 3 left")]
)
def test_malformed_bytes_data_is_refused(raw: bytes, complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        decode_bytes(raw)


def test_strings_and_numbers_become_bytes_in_the_same_shape() -> None:
    array = as_bytes_array(np.array([["é", b"\x00\x01"], [7, "x"]], object))
    assert array.tolist() == [["é".encode(), b"\x00\x01"], [b"7", b"x"]]


@given(st.floats(width=32, allow_nan=False))
def test_bf16_keeps_the_upper_half_of_a_float(value: float) -> None:
    original = np.array([value], np.float32)
    back = bf16_to_float32(float32_to_bf16(original))
    assert back.view(np.uint32)[0] == original.view(np.uint32)[0] & 0xFFFF0000
