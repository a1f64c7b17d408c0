"""Requests with large bodies, which are read into one buffer: the requests around them are not affected."""

from __future__ import annotations

import asyncio
import gzip
import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.endpoints.served import running
from tests.endpoints.test_transports import chunked
from tests.laws import law
from tritonnb.endpoints.http.transport.exchange import LARGE_BODY, Body

RUN = {"asyncio": asyncio.run, "uvloop": uvloop.run}
#: Bytes of a tensor: below and above the size from which on bodies are read into one buffer.
SIZES = st.sampled_from([4, LARGE_BODY - 400, LARGE_BODY, 4 * LARGE_BODY, 20 * LARGE_BODY])


def binary_request(size: int, first: int, headers: str = "", *, compressed: bool = False) -> bytes:
    """A request with an INT32 tensor of some bytes that counts from a number."""
    values = np.arange(first, first + size // 4, dtype=np.int32)
    tensor = {"name": "X", "shape": [1, size // 4], "datatype": "INT32", "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    body = head + values.tobytes()
    if compressed:
        body, headers = gzip.compress(body, 1), headers + "Content-Encoding: gzip\r\n"
    lines = (
        f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\n{headers}"
        f"Inference-Header-Content-Length: {len(head)}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return lines.encode() + body


def tensor_of(answer: tuple[int, dict[str, str], bytes]) -> Any:
    """The tensor of a response."""
    status, headers, body = answer
    assert status == 200, body
    return np.frombuffer(body[int(headers["inference-header-content-length"]) :], np.int32)


@pytest.mark.parametrize("loop", RUN)
@law(30)
@given(
    requests=st.lists(st.tuples(SIZES, st.sampled_from(["length", "chunks", "gzip"])), min_size=1, max_size=4),
    cuts=st.lists(st.floats(0, 1), max_size=6),
)
def test_pipelined_bodies_of_all_sizes_arrive_whole_however_the_bytes_are_split(
    loop: str, requests: list[tuple[int, str]], cuts: list[float]
) -> None:
    stream = b""
    for number, (size, form) in enumerate(requests):
        request = binary_request(size, number, compressed=form == "gzip")
        stream += chunked(request, 10_000) if form == "chunks" else request
    positions = sorted({0, *(int(cut * len(stream)) for cut in cuts), len(stream)})
    pieces = [stream[start:end] for start, end in pairwise(positions)]

    async def scenario() -> None:
        async with running() as server:
            client = await server.connect()
            received = asyncio.create_task(receive(client))
            for piece in pieces:
                client.send(piece)
                await asyncio.sleep(0)
            for number, (size, _) in enumerate(requests):
                expected = np.arange(number, number + size // 4, dtype=np.int32)
                np.testing.assert_array_equal((await received)[number], expected)

    async def receive(client: Any) -> list[Any]:
        return [tensor_of(await client.answer()) for _ in requests]

    RUN[loop](scenario())


@pytest.mark.parametrize("loop", RUN)
def test_client_disconnecting_within_a_large_body_does_not_affect_others(loop: str) -> None:
    async def scenario() -> None:
        async with running() as server:
            client, other = await server.connect(), await server.connect()
            client.send(binary_request(10 * LARGE_BODY, 0)[: 5 * LARGE_BODY])
            other.send(binary_request(LARGE_BODY, 7))
            assert tensor_of(await other.answer())[0] == 7
            client.writer.close()
            other.send(binary_request(4, 8))
            assert tensor_of(await other.answer())[0] == 8

    RUN[loop](scenario())


@pytest.mark.parametrize("loop", RUN)
def test_large_body_of_the_last_request_of_a_connection_is_read(loop: str) -> None:
    async def scenario() -> None:
        async with running() as server:
            client = await server.connect()
            client.send(binary_request(10 * LARGE_BODY, 3, headers="Connection: close\r\n"))
            assert tensor_of(await client.answer())[0] == 3

    RUN[loop](scenario())


@settings(deadline=None)
@given(st.integers(1, 3_000), st.integers(1, 64), st.lists(st.integers(1, 900), min_size=1))
def test_body_equals_the_received_bytes_for_any_reserved_memory(length: int, reserved: int, sizes: list[int]) -> None:
    content = bytes(number % 251 for number in range(length))
    body = Body(length, reserved)
    position = 0
    for size in [*sizes, length]:
        chunk = content[position : position + size]
        body.add(chunk)
        position += len(chunk)
    assert body.contents() == content
