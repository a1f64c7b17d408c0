"""Conversion of values to arrays of a datatype: only rounding changes values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonnb.core.conversion import convert
from tritonnb.core.datatypes import BY_NAME, bf16_to_float32

NUMBERS = [name for name in BY_NAME if name not in ("BYTES", "BF16")]


@pytest.mark.parametrize(
    ("values", "datatype", "result"),
    [
        ([1, 2], "INT64", [1, 2]),
        ([1, 2], "INT8", [1, 2]),
        ([True, False], "INT32", [1, 0]),
        ([True], "FP16", [1.0]),
        ([1, 2], "FP32", [1.0, 2.0]),
        ([0.1], "FP32", [np.float32(0.1)]),
        (np.array([0.1]), "FP32", [np.float32(0.1)]),
        ([float("inf")], "FP16", [float("inf")]),
        (1.5, "FP64", 1.5),
        ([], "INT64", []),
        ([2**63], "UINT64", [2**63]),
        (np.array([1, 2], ">i4"), "INT32", [1, 2]),
        (["a", b"b", 3], "BYTES", [b"a", b"b", b"3"]),
        ([b"a\0", "b\0"], "BYTES", [b"a\0", b"b\0"]),
        ([[b"a", b"\0"]], "BYTES", [[b"a", b"\0"]]),
        (b"a\0", "BYTES", b"a\0"),
    ],
)
def test_equal_values_are_accepted(values: Any, datatype: str, result: Any) -> None:
    array = convert(values, BY_NAME[datatype])
    assert array.dtype == BY_NAME[datatype].numpy
    assert array.tolist() == (result if isinstance(result, bytes) else np.asarray(result, array.dtype).tolist())


@pytest.mark.parametrize(
    ("values", "datatype", "words"),
    [
        (
            [1.5],
            "INT64",
            "expected INT64 values, got float64 such as 1.5; convert them with .astype('int64')",
        ),
        (
            [1.0],
            "INT64",
            "expected INT64 values, got float64 such as 1.0; convert them with .astype('int64')",
        ),
        ([1], "BOOL", "expected BOOL values, got int64 such as 1; convert them with .astype('bool')"),
        ([1, 300], "INT8", "expected INT8 values from -128 to 127, got 300"),
        ([-1], "UINT8", "expected UINT8 values from 0 to 255, got -1"),
        (np.array([2**63], np.uint64), "INT64", f"expected INT64 values from {-(2**63)} to {2**63 - 1}, got {2**63}"),
        ([2**64], "UINT64", f"expected UINT64 values, got {2**64}"),
        ([1e300], "FP32", "expected FP32 values up to 3.4028234663852886e+38, got 1e+300"),
        ([1e39], "BF16", "expected BF16 values up to 3.4028234663852886e+38, got 1e+39"),
        ([100_000], "FP16", "expected FP16 values up to 65504.0, got 100000"),
        ([1.0, None], "FP32", "expected FP32 values, got None"),
        (["a", None], "BYTES", "expected BYTES values, got None"),
        (["1"], "FP32", "expected FP32 values, got '1'"),
        ([1j], "FP32", "expected FP32 values, got 1j"),
    ],
)
def test_lossy_conversions_are_refused(values: Any, datatype: str, words: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        convert(values, BY_NAME[datatype])
    assert str(caught.value) == words


@pytest.mark.parametrize("values", [[[1], [2, 3]], [[b"a"], [b"b", b"c"]]])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_lists_of_different_lengths_are_refused(values: Any, datatype: str) -> None:
    with pytest.raises(ValueError, match="expected lists of equal length, got different lengths"):
        convert(values, BY_NAME[datatype])


def test_array_of_the_datatype_is_not_copied() -> None:
    array = np.ones(3, np.float32)
    assert convert(array, BY_NAME["FP32"]) is array


def test_bf16_has_the_bit_patterns_of_floating_point_numbers() -> None:
    assert bf16_to_float32(convert([1.5, -2], BY_NAME["BF16"])).tolist() == [1.5, -2.0]


@given(
    values=st.lists(st.one_of(st.booleans(), st.integers(-(2**70), 2**70), st.floats())), name=st.sampled_from(NUMBERS)
)
def test_integers_are_converted_exactly_or_refused(values: list[Any], name: str) -> None:
    try:
        array = convert(values, BY_NAME[name])
    except ValueError:
        return
    if array.dtype.kind in "biu":
        assert array.tolist() == values
    else:
        finite = [np.isfinite(number) for number in values]
        assert np.isfinite(array).tolist() == finite
