"""Numbers and strings of tensors, to and from JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonnb.core.datatypes import BF16, BOOL, BY_NAME, BYTES, FP16, FP32, FP64, INT32, INT64, UINT8, UINT64, DataType
from tritonnb.core.errors import InternalError, InvalidArgumentError
from tritonnb.endpoints.http.tensor_data import read_data, read_strings, write_data, write_float, write_string


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (0.1, "0.1"),
        (1e15, "1000000000000000.0"),
        (1e16, "10000000000000000.0"),
        (123456789012345680000.0, "123456789012345680000.0"),
        (1e21, "1e21"),
        (-1.5e300, "-1.5e300"),
        (1e-4, "0.0001"),
        (1e-6, "0.000001"),
        (-1.25e-5, "-0.0000125"),
        (1e-7, "1e-7"),
        (1.5e-10, "1.5e-10"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e308"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_float_has_rapidjsons_format(value: float, text: str) -> None:
    assert write_float(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_written_float_round_trips_in_the_expected_format(value: float) -> None:
    text = write_float(value)
    assert float(text) == value
    fixed = value == 0 or 1e-6 <= abs(value) < 1e21
    assert re.fullmatch(r"-?\d+\.\d+" if fixed else r"-?\d(\.\d+)?e-?[1-9]\d*", text)


@given(st.lists(st.floats(width=32)))
def test_all_floats_of_an_output_have_the_same_format(values: list[float]) -> None:
    array = np.array(values, np.float32)
    assert write_data(array, FP32) == ",".join(write_float(value) for value in array.astype(float).tolist()).encode()


@pytest.mark.parametrize(
    ("datatype", "array", "text"),
    [
        (BOOL, np.array([0, 1, 2], np.uint8).view(bool), b"false,true,true"),
        (UINT64, np.array([2**64 - 1], np.uint64), b"18446744073709551615"),
        (INT64, np.array([[-(2**63)], [5]]), b"-9223372036854775808,5"),
        (FP32, np.array([0.1, 123456789], np.float32), b"0.10000000149011612,123456792.0"),
        (FP64, np.array([]), b""),
        (
            BYTES,
            np.array([b'a"\\/\x00\x1f\x7f\xff', "é\n".encode()], object),
            b'"a\\"\\\\/\\u0000\\u001F\x7f\xff","\xc3\xa9\\n"',
        ),
    ],
)
def test_output_is_written_as_a_flat_list(datatype: DataType, array: npt.NDArray[Any], text: bytes) -> None:
    assert write_data(array, datatype) == text


@pytest.mark.parametrize("datatype", [FP16, BF16])
def test_half_precision_cannot_be_written_as_json(datatype: DataType) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"^sending {datatype.name} data via JSON is not supported\."):
        write_data(np.zeros(1, datatype.numpy), datatype)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_written_string_round_trips(value: str) -> None:
    assert json.loads(write_string(value.encode())) == value


@pytest.mark.parametrize(
    ("datatype", "data", "array"),
    [
        (INT32, [1, [2, [3]], 4], [1, 2, 3, 4]),
        (INT32, [[[1, 2]], [[3, 4]]], [1, 2, 3, 4]),
        (INT32, [2**31, -(2**31) - 1, 2**32, 7], [-(2**31), 2**31 - 1, 0, 7]),
        (UINT8, [255, 256, 257, 2**64 - 1], [255, 0, 1, 255]),
        (FP32, [1, 0.5, 1e39, -1e39], [1, 0.5, np.inf, -np.inf]),
        (FP64, [2**70, -1, 0.1, 10**308], [float(2**70), -1.0, 0.1, 1e308]),
        (BOOL, [True, False, [True], True], [True, False, True, True]),
    ],
)
def test_nested_data_is_accepted_and_integers_wrap_around(
    datatype: DataType, data: list[Any], array: list[Any]
) -> None:
    read = read_data(data, datatype, 4)
    assert read.dtype == datatype.numpy
    assert read.tolist() == np.array(array, datatype.numpy).tolist()


@pytest.mark.parametrize(
    ("datatype", "data", "complaint"),
    [
        ("INT32", [1.0], "attempt to access JSON non-signed-integer as signed-integer"),
        ("INT8", [True], "attempt to access JSON non-signed-integer as signed-integer"),
        ("INT64", [2**63], "attempt to access JSON non-signed-integer as signed-integer"),
        ("UINT32", [-1], "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ("UINT64", [2**64], "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ("BOOL", [1], "attempt to access JSON non-boolean as boolean"),
        ("FP32", ["1"], "attempt to access JSON non-number as double"),
        ("FP64", [None], "attempt to access JSON non-number as double"),
        ("INT32", [1, 2], "Shape does not match true shape of 'data' field"),
    ],
)
def test_elements_of_wrong_type_or_number_are_refused(datatype: str, data: list[Any], complaint: str) -> None:
    with pytest.raises(InternalError) as raised:
        read_data(data, BY_NAME[datatype], 1)
    assert raised.value.message == f"Unable to parse 'data': {complaint}"


def test_too_few_elements_are_refused() -> None:
    with pytest.raises(InternalError) as raised:
        read_data([1, [2]], INT32, 3)
    assert raised.value.message == "Failed to parse 'data' field: shape does not match true shape"


def test_strings_keep_their_bytes() -> None:
    assert read_strings(["é", ["\udcff"]]) == b"\x02\0\0\0\xc3\xa9\x01\0\0\0\xff"
    with pytest.raises(InternalError, match=r"^Unable to parse JSON bytes array: attempt to access JSON non-string"):
        read_strings(["a", 1])


def nested(element: Any, depth: int) -> Any:
    """An element inside so many arrays."""
    for _ in range(depth):
        element = [element]
    return element


def test_elements_nested_in_100_arrays_are_refused() -> None:
    assert read_data(nested(1, 99), INT32, 1).tolist() == [1]
    assert read_data([nested(1, 98), 2], INT32, 2).tolist() == [1, 2]
    assert read_data([nested([], 98), 2], INT32, 1).tolist() == [2]
    for data in (nested(1, 100), [nested(1, 99), 2], [nested([], 99), 2]):
        with pytest.raises(InvalidArgumentError) as raised:
            read_data(data, INT32, 1)
        assert raised.value.message == (
            "Unable to parse 'data': JSON nesting depth exceeds maximum allowed limit (100)"
        )
    with pytest.raises(InvalidArgumentError, match=r"^JSON nesting depth exceeds maximum allowed limit \(100\)$"):
        read_strings(nested("a", 100))
