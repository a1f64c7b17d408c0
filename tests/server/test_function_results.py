"""Arguments and results of function models: values, shapes and rows as declared; ``async def``; annotations."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tritonnb as tnb
from tritonnb.core.datatypes import float32_to_bf16
from tritonnb.core.errors import InternalError, InvalidArgumentError
from tritonnb.server.server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(port=0) as server:
        yield server


def serve(server: Server, function: Callable[..., Any], result: Any, **fields: Any) -> None:
    """Serve a model ``m`` that returns what ``function`` returns."""

    def m(x: Any) -> Any:
        return function(x)

    m.__annotations__ = {"x": tnb.FP32[1], "return": result}
    server.model(m, **fields)


@pytest.mark.parametrize(
    ("result", "function", "expected"),
    [
        (tnb.INT64[2], lambda x: [1, 2], [1, 2]),
        (tnb.FP32[2], lambda x: [0.5, 1], [0.5, 1.0]),
        (tnb.FP32[2], lambda x: np.array([0.5, 1]), [0.5, 1.0]),
        (tnb.FP32[2], lambda x: (0.5, 1.0), [0.5, 1.0]),
        (tnb.FP32[-1], lambda x: [0.5, 1.0, 2.0], [0.5, 1.0, 2.0]),
        (tnb.INT64[-1], lambda x: [], []),
        (tnb.BYTES[1], lambda x: ["a"], [b"a"]),
        (tnb.BF16[2], lambda x: [0.5, 1.0], [0.5, 1.0]),
        ({"y": tnb.INT8[1]}, lambda x: {"y": [1]}, [1]),
        ({"y": tnb.INT8[1]}, lambda x: [1], [1]),
    ],
)
def test_accepted_arguments_are_returned(
    server: Server, result: Any, function: Callable[..., Any], expected: list[Any]
) -> None:
    serve(server, function, result)
    (array,) = server["m"](x=[1.0]).values()
    assert array.tolist() == expected


TWO = {"a": tnb.FP32[3], "b": tnb.FP32[3]}


@pytest.mark.parametrize(
    ("result", "function", "words"),
    [
        (tnb.INT64[1], lambda x: [1.5],
         "output 'OUTPUT' expected INT64 values, got float64 such as 1.5; convert them with .astype('int64')"),
        (tnb.INT8[1], lambda x: [300], "output 'OUTPUT' expected INT8 values from -128 to 127, got 300"),
        (tnb.FP32[2], lambda x: [1.0, None], "output 'OUTPUT' expected FP32 values, got None"),
        (tnb.FP32[2], lambda x: None,
         "output 'OUTPUT' expected FP32 values, got None: does the function return them?"),
        (tnb.FP32[1], lambda x: ["one"], "output 'OUTPUT' expected FP32 values, got 'one'"),
        (tnb.FP32[3], lambda x: np.ones(2, np.float32), "output 'OUTPUT' expected shape [3], got [2]"),
        (tnb.FP32[3, -1], lambda x: np.ones((2, 2)), "output 'OUTPUT' expected shape [3, -1], got [2, 2]"),
        (tnb.FP32[1], lambda x: 1.0, "output 'OUTPUT' expected shape [1], got []"),
        (TWO, lambda x: ([1.0] * 3, [2.0] * 3), "expected a dict of the outputs 'a', 'b', got tuple"),
        (TWO, lambda x: {"a": [1.0] * 3}, "expected the outputs 'a', 'b', got 'a'"),
        (TWO, lambda x: {"a": [1.0] * 3, "b": [1.0] * 3, "c": 1},
         "expected the outputs 'a', 'b', got 'a', 'b', 'c'"),
        (TWO, lambda x: {}, "expected the outputs 'a', 'b', got none"),
    ],
)  # fmt: skip
def test_inconsistent_arguments_are_an_error(
    server: Server, result: Any, function: Callable[..., Any], words: str
) -> None:
    serve(server, function, result)
    with pytest.raises(InternalError) as caught:
        server["m"](x=[1.0])
    assert str(caught.value) in (f"model 'm': {words}", f"model 'm' {words}")


ROWS = "model 'm': output 'OUTPUT' expected shape [2, 3], one row for each of the 2 in the batch"


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((2, 3), None),
        ((2, 2), "model 'm': output 'OUTPUT' expected shape [2, 3], got [2, 2]"),
        (
            (3, 3),
            f"{ROWS}, got [3, 3]",
        ),
        (
            (1, 3),
            f"{ROWS}, got [1, 3]",
        ),
        ((3,), f"{ROWS}, got [3]"),
    ],
)
def test_output_batch_must_have_as_many_rows_as_the_input(
    server: Server, shape: tuple[int, ...], words: str | None
) -> None:
    serve(server, lambda x: np.ones(shape, np.float32), tnb.FP32[3], max_batch_size=4)
    if words is None:
        assert server["m"](x=[[1.0], [2.0]])["OUTPUT"].shape == shape
        return
    with pytest.raises(InternalError) as caught:
        server["m"](x=[[1.0], [2.0]])
    assert str(caught.value) == words


def test_bf16_is_float32_in_a_function_and_for_its_caller(server: Server) -> None:
    seen: list[np.dtype[Any]] = []

    @server.model
    def half(x: tnb.BF16[2]) -> tnb.BF16[2]:
        seen.append(x.dtype)  # type: ignore[attr-defined]
        return x / 2

    assert server["half"](x=[1.0, 3.0])["OUTPUT"].tolist() == [0.5, 1.5]
    assert seen == [np.dtype(np.float32)]
    tensor = {"name": "x", "datatype": "BF16", "shape": [2], "parameters": {"binary_data_size": 4}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    request = urllib.request.Request(
        f"{server.url}/v2/models/half/infer", head + float32_to_bf16(np.array([1, 3], np.float32)).tobytes()
    )
    request.add_header("Inference-Header-Content-Length", str(len(head)))
    with urllib.request.urlopen(request) as response:
        assert response.read().endswith(float32_to_bf16(np.array([0.5, 1.5], np.float32)).tobytes())


def test_asynchronous_function_is_awaited(server: Server) -> None:
    @server.model(max_batch_size=2)
    async def slow_double(x: tnb.FP32[1]) -> tnb.FP32[1]:
        await asyncio.sleep(0)
        return x * 2

    @server.model(max_batch_size=2)
    async def twice(x: tnb.FP32[1]) -> tnb.FP32[1]:
        answers = await asyncio.gather(*(server["slow_double"].infer_async(x=x) for _ in range(2)))
        return sum(answer["OUTPUT"] for answer in answers)

    for value in (1.0, 2.0):
        assert server["twice"](x=[[value]])["OUTPUT"].tolist() == [[value * 4]]


def values_one_by_one(x: tnb.FP32[1]) -> tnb.FP32[1]:
    yield x


async def values_later(x: tnb.FP32[1]) -> tnb.FP32[1]:
    yield x


def all_of_them(*x: tnb.FP32[1]) -> tnb.FP32[1]:
    return x


def unknown_name(x: Tensor) -> tnb.FP32[1]:  # type: ignore[name-defined]  # noqa: F821
    return x


def named_dim(x: Any) -> Any:
    return x


named_dim.__annotations__ = {"x": "tnb.FP32['n']", "return": tnb.FP32[1]}


def no_dims(x: tnb.FP32) -> tnb.FP32[1]:
    return x


def other_annotation(x: float) -> tnb.FP32[1]:
    return x


def no_result(x: tnb.FP32[1]):  # type: ignore[no-untyped-def]
    return x


EXPECTED = "expected a tensor type with dims, such as FP32[1], or FP32[-1] for a variable dim"
YIELDS = (
    "expected a function that returns its outputs, got a generator; for several responses to a request write a "
    "model.py with a decoupled transaction policy"
)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (values_one_by_one, YIELDS),
        (values_later, YIELDS),
        (all_of_them, "expected parameters that can be passed by name, as inputs are, got 'x'"),
        (unknown_name, "the annotations cannot be evaluated: name 'Tensor' is not defined"),
        (named_dim, "FP32[...]: expected dims that are integers >= 1, or -1 for a variable dim, got 'n'"),
        (no_dims, f"the parameter 'x' is annotated with FP32, without dims: {EXPECTED}"),
        (other_annotation, f"the parameter 'x' is annotated with <class 'float'>: {EXPECTED}"),
        (no_result, f"the return value has no annotation: {EXPECTED}"),
        (lambda x: x, f"the parameter 'x' has no annotation: {EXPECTED}"),
    ],
)
def test_function_with_an_invalid_signature_is_refused(
    server: Server, function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        server.model(function, name="m")
    assert str(caught.value) == f"model 'm': {words}"


@pytest.mark.parametrize("dim", [0, -2, 1.5, "n", None])
def test_invalid_dim_is_refused(dim: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"FP32\[\.\.\.\]: expected dims that are integers >= 1, or -1"):
        tnb.FP32[3, dim]
