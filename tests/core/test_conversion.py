"""Conversion of values to arrays of a datatype: only rounding changes values."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
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
        ([np.bytes_(b"a"), np.str_("b")], "BYTES", [b"a", b"b"]),
        (np.array([1.5, 2]), "BYTES", [b"1.5", b"2.0"]),
        (np.array([[1], [2]], np.int8), "BYTES", [[b"1"], [b"2"]]),
        ([np.float32(0.5), np.True_], "BYTES", [b"0.5", b"True"]),
        (np.array(["2020-01-01"], "datetime64[D]"), "BYTES", [b"2020-01-01"]),
    ],
)
def test_equal_values_are_accepted(values: Any, datatype: str, result: Any) -> None:
    array = convert(values, BY_NAME[datatype])
    assert array.dtype == BY_NAME[datatype].numpy
    assert datatype != "BYTES" or set(map(type, array.ravel().tolist())) == {bytes}
    assert array.tolist() == (result if isinstance(result, bytes) else np.asarray(result, array.dtype).tolist())


@pytest.mark.parametrize(
    ("values", "datatype", "words"),
    [
        (
            np.array(["NaT", 5], "timedelta64[s]"),
            "FP32",
            "expected FP32 values, got timedelta64[s] such as NaT; convert them with .astype('float32')",
        ),
        (
            np.array(["2020-01-01"], "datetime64[D]"),
            "INT64",
            "expected INT64 values, got datetime64[D] such as 2020-01-01; convert them with .astype('int64')",
        ),
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
        ([2**64], "UINT64", f"expected UINT64 values from 0 to {2**64 - 1}, got {2**64}"),
        ([1e300], "FP32", "expected FP32 values up to 3.4028234663852886e+38, got 1e+300"),
        ([1e39], "BF16", "expected BF16 values up to 3.4028234663852886e+38, got 1e+39"),
        ([100_000], "FP16", "expected FP16 values up to 65504.0, got 100000"),
        ([1.0, None], "FP32", "expected FP32 values, got None"),
        (["a", None], "BYTES", "expected BYTES values, got a missing value (None) at index [1]"),
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


#: Values with a missing one at index 1, and how it is shown; as texts and as numbers.
MISSING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "none": (lambda pd: ["a", None], "None"),
    "nan": (lambda pd: ["a", float("nan")], "nan"),
    "numpy nan": (lambda pd: ["a", np.float32("nan")], "np.float32(nan)"),
    "objects": (lambda pd: np.array(["a", np.nan], object), "nan"),
    "nat": (lambda pd: ["a", np.datetime64("NaT", "ns")], "np.datetime64('NaT','ns')"),
    "pandas nat": (lambda pd: ["a", pd.NaT], "NaT"),
    "pandas na": (lambda pd: ["a", pd.NA], "<NA>"),
    "decimal": (lambda pd: ["a", Decimal("nan")], "Decimal('NaN')"),
    "signalling": (lambda pd: ["a", Decimal("snan")], "Decimal('sNaN')"),
    "series": (lambda pd: pd.Series(["a", None]), "nan"),
    "object series": (lambda pd: pd.Series(["a", None], dtype=object), "None"),
    "string series": (lambda pd: pd.Series(["a", None], dtype="string"), "<NA>"),
    "categories": (lambda pd: pd.Series(["a", None], dtype="category"), "nan"),
    "index": (lambda pd: pd.Index(["a", None]), "nan"),
    "strings": (lambda pd: np.array(["a", np.nan], np.dtypes.StringDType(na_object=np.nan)), "nan"),
    "strings with none": (lambda pd: np.array(["a", None], np.dtypes.StringDType(na_object=None)), "None"),
    "strings with a text": (lambda pd: np.array(["a", "?"], np.dtypes.StringDType(na_object="?")), "'?'"),
    "masked": (lambda pd: np.ma.array(["a", "b"], mask=[False, True]), "masked"),
    "masked objects": (lambda pd: np.ma.array(np.array(["a", "b"], object), mask=[False, True]), "masked"),
    "a masked element": (lambda pd: ["a", np.ma.masked], "masked"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSING)
def test_missing_texts_are_refused(name: str) -> None:
    import pandas

    make, shown = MISSING[name]
    words = re.escape(f"expected BYTES values, got a missing value ({shown}) at index [1]")
    with pytest.raises(ValueError, match=words):
        convert(make(pandas), BY_NAME["BYTES"])


@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BF16"])
def test_masked_numbers_are_refused(datatype: str) -> None:
    masked: Any = np.ma.array([[1, 2], [3, 4]], mask=[[False, False], [True, False]])
    for values, index in ((masked, "1,0"), ([masked], "0,1,0"), ([[np.int64(1)], [masked[1, 0]]], "1,0")):
        with pytest.raises(ValueError, match=re.escape(f"got a missing value (masked) at index [{index}]")):
            convert(values, BY_NAME[datatype])
    hides_nothing: Any = np.ma.array([1.5], mask=[False])
    assert type(convert(hides_nothing, BY_NAME["FP32"])) is np.ndarray


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([{"k": 1}], "expected BYTES values, got {'k': 1} at index [0]: convert it to str or bytes"),
        ([[b"", bytearray(b"")]], "expected BYTES values, got bytearray(b'') at index [0,1]: convert it with bytes()"),
        (bytearray(b"b"), "expected BYTES values, got bytearray(b'b'): convert it with bytes()"),
        ((x for x in "ab"), "expected an array or lists of BYTES values, got a generator: pass list(...)"),
        ({"a", "b"}, "expected an array or lists of BYTES values, got a set: pass list(...)"),
        ([len], "expected BYTES values, got <built-in function len> at index [0]: convert it to str or bytes"),
    ],
)  # fmt: skip
def test_values_that_are_no_texts_are_refused(values: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        convert(values, BY_NAME["BYTES"])


def test_bf16_arrays_of_ml_dtypes_are_exact() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.array([1.5, -2, np.inf, 1e-40], ml_dtypes.bfloat16)
    for nested in (values, list(values), [values, values]):
        assert convert(nested, BY_NAME["BF16"]).tolist() == np.asarray(nested).view(np.uint16).tolist()
    assert convert(values[:2], BY_NAME["FP32"]).tolist() == [1.5, -2]
