"""Time and memory in proportion to what was sent: inputs of which one part is repeated, at every door."""

from __future__ import annotations

import random
import time

import pytest

from tools.fuzz.corpus import inputs_of
from tools.fuzz.cost import SECONDS, CostError, Growing, check_cost, check_growth, crafted_numbers, growing_inputs
from tools.fuzz.targets import TARGETS, open_target

_SHAPE = b'{"inputs":[{"name":"A","datatype":"FP32","shape":['
_DATA = b'1],"data":[1]}]}'
_MAX_INT64 = b"9223372036854775807,"
_DEEP = b"[" * 300

#: By target: inputs that once took a time that grew with the square of their size, and their neighbours.
GROWING = {
    "header": (
        Growing(_DEEP + b'"', b'\\"'),
        Growing(_DEEP + b'"', b'a"'),
        Growing(_DEEP, b'"\\'),
        Growing(b'{"a":' * 300, b'"\\\\'),
        Growing(_DEEP, b'"",', b"x"),
        Growing(_DEEP, b"[],", b"x"),
        Growing(b"", b"["),
        Growing(b"[", b"[],", b"x"),
        Growing(b"[", b"1" * 308 + b",", b"x"),
        Growing(b"", b"\\ud800"),
        Growing(_SHAPE, _MAX_INT64, _DATA),
        Growing(_SHAPE + b"0,", _MAX_INT64, _DATA),
        Growing(_SHAPE, b"1,", _DATA),
        Growing(_SHAPE + b'1,1],"data":[', b"9", b"]}]}"),
        Growing(b'{"inputs":[', b'{"name":"A","datatype":"FP32","shape":[1],"data":[1]},', b"{}]}"),
        Growing(b'{"inputs":[],"outputs":[', b'{"name":"C"},', b"{}]}"),
        Growing(b'{"parameters":{', b'"a":1,', b'"b":1},"inputs":[]}'),
    ),
    "infer": (
        Growing(b"\0\0\0" + _DEEP + b'"', b'\\"'),
        Growing(b"\0\0\0" + _SHAPE.replace(b'"A"', b'"X"'), _MAX_INT64, _DATA),
    ),
    "routes": (
        Growing(b'\0{"X":[', b"1,", b"1]}"),
        Growing(b'\0{"X":[1],', b'"p":1,', b'"q":1}'),
        Growing(b'\x03{"model":"chat","prompt":"', b"a ", b'","n":9}'),
        Growing(b'\x03{"model":"chat","prompt":"aab","stop":["', b"a", b'b"]}'),
        Growing(b'\x03{"model":"chat","n":128,"prompt":["a"', b',"a"', b"]}"),
        Growing(b'\x04{"model":"chat","messages":[', b'{"role":"user","content":""},', b'{"role":"user"}]}'),
        Growing(b'\x05{"model":"vectors","input":["a"', b',"a"', b"]}"),
        Growing(b'\x06{"trace_level":[', b'"TENSORS",', b'"TENSORS"]}'),
        Growing(b'\x08{"log_format":"', b"a", b'"}'),
    ),
    "config": (
        Growing(b'{"sequence_batching":{"direct":{"minimum_slot_utilization":"', b"1", b'x"}}}'),
        Growing(b'{"sequence_batching":{"direct":{"minimum_slot_utilization":"0x', b"1", b'.x"}}}'),
        Growing(b'{"max_batch_size":"', b"0", b'x"}'),
        Growing(b'{"input":[{"data_type":"', b"A", b'"}]}'),
    ),
    "trace": (
        Growing(b'[{"id":1,"model_name":', b'"m"},{"id":1,"timestamps":[{', b'"name":"REQUEST_START"}]}]'),
        Growing(b"[", b'{"id":'),
        Growing(b"[", b'{"id":"'),
        Growing(b"[", b'{"id":1,"a":"\\"'),
        Growing(b"[", b'{"id":1},', b'{"id":'),
    ),
    "recording": (Growing(b'{"format": "tritonnb recording", "models": {"', b"[", b'": ""}}'),),
    "repository": (
        Growing(b"m\n", b"a/"),
        Growing(b"m\n", b"../"),
        Growing(b'm\n{"parameters":{', b'"file:1/a":"",', b'"file:1/b":""}}'),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("target", GROWING)
def test_cost_grows_with_the_size(target: str) -> None:
    with open_target(target) as run:
        for growing in GROWING[target]:
            check_growth(run, growing, largest=1 << 17)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_cost_of_the_corpus_is_in_proportion(target: str) -> None:
    inputs, choice = list(inputs_of(target).values()), random.Random(target)
    crafted = [data for known in inputs for data in crafted_numbers(known)]
    growing = growing_inputs(inputs, choice)
    with open_target(target) as run:
        for data in choice.sample(crafted, min(len(crafted), 10)):
            check_cost(run, data)
        for _ in range(5):
            check_growth(run, next(growing), largest=1 << 14)


def test_quadratic_time_is_found() -> None:
    def run(data: bytes) -> None:
        for _ in range(len(data) ** 2 // 32):  # no copies: their time falls with the caches of the machine
            pass

    with pytest.raises(CostError, match="repetitions take"):
        check_growth(run, Growing(b"", b"a"))


def test_memory_beyond_the_limit_is_found() -> None:
    def run(data: bytes) -> None:
        bytearray(1000 * len(data))

    with pytest.raises(CostError, match="MiB"):
        check_growth(run, Growing(b"", b"a"))


def test_expensive_number_is_found() -> None:
    def run(data: bytes) -> None:
        if data == b"n: 9223372036854775807":
            begin = time.process_time()  # as long on any machine
            while time.process_time() < begin + 2 * SECONDS:
                pass

    for data in crafted_numbers(b"n: 1"):
        if data != b"n: 9223372036854775807":
            check_cost(run, data)
    with pytest.raises(CostError, match="9223372036854775807"):
        check_cost(run, b"n: 9223372036854775807")
