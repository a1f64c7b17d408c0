"""Laws for any array, datatype and scheduler."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.laws import law
from tests.server.ownership.conftest import DATATYPES, SCHEDULING, Gate, reverse, serve
from tritonnb.core.datatypes import BY_NAME
from tritonnb.server.server import Server

ELEMENTS: dict[str, st.SearchStrategy[Any]] = {
    "FP32": st.floats(width=32, allow_nan=False),
    "FP16": st.floats(width=16, allow_nan=False),
    "INT64": st.integers(-(2**63), 2**63 - 1),
    "BOOL": st.booleans(),
    "BYTES": st.binary(max_size=5),
}


Case = tuple[str, str, list[Any]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A datatype, a way of scheduling, and the contents of some requests of one shape."""
    datatype = draw(st.sampled_from(sorted(DATATYPES)))
    scheduling = draw(st.sampled_from(sorted(SCHEDULING)))
    columns = draw(st.integers(1, 4))
    shape = (columns,) if scheduling == "no batches" else (draw(st.integers(1, 3)), columns)
    count = int(np.prod(shape))
    rows = draw(st.lists(st.lists(ELEMENTS[datatype], min_size=count, max_size=count), min_size=2, max_size=5))
    return datatype, scheduling, [np.array(row, BY_NAME[datatype].numpy).reshape(shape) for row in rows]


@law(60)
@given(case=cases())
def test_request_contains_the_array_contents_at_its_creation(server: Server, case: Case) -> None:
    datatype, scheduling, contents = case
    gate = Gate()
    model = serve(server, "gated", datatype, scheduling, gate.through(lambda x: x))

    async def ask() -> list[Any]:
        buffer = np.empty_like(contents[0])
        requests = []
        for content in contents:
            buffer[...] = content
            requests.append(asyncio.ensure_future(model.infer_async(X=buffer)))
        await asyncio.get_running_loop().run_in_executor(None, gate.entered.acquire)
        buffer[...] = np.zeros_like(buffer)
        gate.open.set()
        return await asyncio.gather(*requests)

    for content, answer in zip(contents, asyncio.run(ask()), strict=True):
        np.testing.assert_array_equal(answer["Y"], content)


@law(60)
@given(case=cases())
def test_writing_to_an_input_changes_no_caller_and_no_other_response(server: Server, case: Case) -> None:
    datatype, scheduling, contents = case
    model = serve(server, "reversing", datatype, scheduling, reverse)
    arrays = [content.copy() for content in contents]

    async def ask() -> list[Any]:
        return await asyncio.gather(*(model.infer_async(X=array) for array in arrays))

    answers = [answer["Y"] for answer in asyncio.run(ask())]
    for content, array, answer in zip(contents, arrays, answers, strict=True):
        np.testing.assert_array_equal(array, content)
        np.testing.assert_array_equal(answer, content[..., ::-1])


@law(60)
@given(case=cases(), computed=st.sampled_from(["the input", "a view of the input", "one buffer", "one row for all"]))
def test_responses_share_no_memory(server: Server, case: Case, computed: str) -> None:
    datatype, scheduling, contents = case
    kept = np.zeros((64, 64), BY_NAME[datatype].numpy)

    def compute(x: Any) -> Any:
        if computed == "the input":
            return x
        if computed == "a view of the input":
            return x[..., ::-1]
        if computed == "one row for all":
            return np.broadcast_to(x[..., :1], x.shape)
        buffer = kept[tuple(slice(size) for size in x.shape)] if x.ndim == 2 else kept[0, : len(x)]
        buffer[...] = x
        return buffer

    model = serve(server, "aliasing", datatype, scheduling, compute)

    async def ask() -> list[Any]:
        return await asyncio.gather(*(model.infer_async(X=content) for content in contents))

    answers = [answer["Y"] for answer in asyncio.run(ask())]
    expected = [np.array(compute(content)) for content in contents]
    for index, answer in enumerate(answers):
        np.testing.assert_array_equal(answer, expected[index])
        answer[...] = np.zeros_like(answer)
        for later in range(index + 1, len(answers)):
            np.testing.assert_array_equal(answers[later], expected[later])
        assert not np.shares_memory(answer, contents[index])
        assert not np.shares_memory(answer, kept)
