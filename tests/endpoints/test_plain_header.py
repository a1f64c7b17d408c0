"""Plain requests have a quick reader, which must make the same of them as the strict reader."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws import law
from tools.fuzz.plain_requests import compare, random_header


@pytest.mark.slow
@given(st.integers(0, 2**63))
@law(1000)
def test_both_readers_read_a_request_identically(seed: int) -> None:
    compare(random_header(Random(seed)))


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
