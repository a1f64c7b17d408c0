"""Plain requests have a quick reader, which must make the same of them as the strict reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws import law
from tools.fuzz.plain_requests import compare

INTEGERS = st.sampled_from([0, 1, 2, 16, -1, 2**31, 2**63 - 1, 2**63, 2**64, 10**400])
VALUES = st.one_of(
    INTEGERS, st.booleans(), st.none(), st.floats(), st.sampled_from(["", "A", "FP32", "é", 'a"b', "\\"]),
    st.lists(st.integers(0, 4), max_size=3), st.just({"a": 1}),
)  # fmt: skip
NAMES = st.sampled_from(
    ["binary_data_size", "shared_memory_region", "classification", "binary_data", "binary_data_output", "sequence_id",
     "sequence_start", "priority", "timeout", "temperature", "triton_x"]
)  # fmt: skip
PARAMETERS = st.dictionaries(NAMES, VALUES, max_size=3)


class Numeral(str):
    """The text of a number."""


#: Around the limits of a double: by the digits before and after the point, and by the exponent.
_DIGITS = st.builds(str.__mul__, st.sampled_from("0179"), st.sampled_from([1, 2, 17, 20, 209, 308, 309, 310, 400]))
_EXPONENTS = st.builds(
    "{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "+", "-"]),
    st.integers(290, 330) | st.sampled_from([0, 9, 99, 1000, 10**20]),
)  # fmt: skip
NUMERALS = st.builds(
    "{}{}{}{}".format, st.sampled_from(["", "-"]), _DIGITS.map(lambda digits: digits.lstrip("0") or "0"),
    st.just("") | _DIGITS.map(".{}".format), st.just("") | _EXPONENTS,
).map(Numeral)  # fmt: skip
DATA = st.lists(
    st.floats(0, 8) | st.integers(0, 9) | st.sampled_from(["a", "b"]) | st.lists(st.integers(0, 9)), max_size=4
) | st.lists(NUMERALS, max_size=2)


def members(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[str, Any]]]:
    """Members of an object in any order: usually each once, with its own kind of value."""
    usual = [st.tuples(st.just(name), value) for name, value in values.items()]
    odd = st.lists(st.tuples(st.sampled_from([*values, "other"]), VALUES), max_size=1)
    return st.tuples(st.tuples(*usual), odd).flatmap(lambda parts: st.permutations([*parts[0], *parts[1]]))


INPUT = st.one_of(
    members(name=st.sampled_from("AB"), shape=st.just([1, 4]), datatype=st.just("FP32"),
            parameters=st.just({"binary_data_size": 16}) | PARAMETERS),
    members(name=st.sampled_from("AB"), shape=st.lists(st.integers(0, 2), max_size=2),
            datatype=st.sampled_from(["FP32", "BYTES", "INT64"]), data=DATA),
)  # fmt: skip
OUTPUT = members(name=st.just("C")) | members(name=st.just("C"), parameters=PARAMETERS)
HEADER = st.one_of(
    members(inputs=st.lists(INPUT, max_size=2)),
    members(id=st.just("7"), inputs=st.lists(INPUT, min_size=1, max_size=2), parameters=PARAMETERS),
    members(inputs=st.lists(INPUT, max_size=1), outputs=st.lists(OUTPUT, max_size=2)),
)


def text(value: Any) -> str:
    """A document in which lists of pairs are objects, with a name for each pair."""
    if isinstance(value, list) and value and all(isinstance(pair, tuple) for pair in value):
        return "{" + ",".join(f"{json.dumps(name)}:{text(member)}" for name, member in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text, value)) + "]"
    if isinstance(value, Numeral):
        return value
    return json.dumps(value, ensure_ascii=False)


@pytest.mark.slow
@given(HEADER)
@law(1000)
def test_both_readers_read_a_request_identically(header: list[tuple[str, Any]]) -> None:
    compare(text(header).encode())


@pytest.mark.parametrize(
    "header",
    [
        '{"inputs":[{"name":"A","shape":[1,4],"datatype":"FP32","parameters":{"binary_data_size":16},"data":[1]}]}',
        '{"id":"a","inputs":[],"id":"b"}',
        '{"inputs":[{"name":"A","shape":[1],"datatype":"FP32","data":[' + "9" * 309 + "]}]}",
        '{"inputs":[{"name":"A","shape":[0],"datatype":"FP32","data":' + "[" * 300 + "]" * 300 + "}]}",
        '{"inputs":[],"parameters":{"a":0e309}}',
        '{"inputs":[{"name":"A","shape":[1],"datatype":"FP32","data":[0e309]}]}',
        '{"inputs":[{"name":"A","shape":[2],"datatype":"FP32","data":[1.5,-0.0e999]}]}',
        '{"inputs":[{"name":"A","shape":[1],"datatype":"FP32","data":[' + "1" * 310 + ".5e-300]}]}",
        '{"inputs":[{"name":"A","shape":[1],"datatype":"FP32","data":[' + "1" * 310 + "E-305]}]}",
        '{"inputs":[],"parameters":{"a":' + "9" * 210 + "e99}}",
        '{"inputs":[],"parameters":{"a":' + "9" * 300 + ".5E+12}}",
    ],
)
def test_almost_plain_requests_are_read_by_the_strict_reader(header: str) -> None:
    compare(header.encode())
