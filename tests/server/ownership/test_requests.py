"""Ownership of arrays: a request owns its inputs and a response its outputs, on every path."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.http as httpclient
from tritonclient.utils import shared_memory

import tritonnb as tnb
from tests.server.ownership.conftest import reverse, serve
from tests.server.ownership.ways import WAYS, Way
from tritonnb.core.errors import InternalError
from tritonnb.server.server import Server


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["reverse_py", "reverse_py_isolated", "reverse_function"])
def test_model_may_write_to_its_inputs(server: Server, way: Way, name: str) -> None:
    serve(server, "reverse_function", "FP32", "no batches", reverse)
    x = np.array([1, 2, 3], np.float32)
    for _ in range(2):
        assert way(server, name, x).tolist() == [3, 2, 1]
    assert x.tolist() == [1, 2, 3]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["reverse_py_strings", "reverse_py_strings_isolated", "reverse_strings"])
def test_model_may_write_to_its_strings(server: Server, way: Way, name: str) -> None:
    serve(server, "reverse_strings", "BYTES", "no batches", reverse)
    x = np.array([b"a", b"b"], object)
    assert way(server, name, x).tolist() == [b"b", b"a"]
    assert x.tolist() == [b"a", b"b"]


@pytest.mark.parametrize("name", ["reverse_py", "reverse_py_isolated", "reverse_shared"])
def test_model_that_writes_to_its_inputs_does_not_change_shared_memory(server: Server, name: str) -> None:
    serve(server, "reverse_shared", "FP32", "no batches", reverse)
    x = np.array([1, 2, 3], np.float32)
    key = f"/tritonnb_ownership_{os.getpid()}"
    region = shared_memory.create_shared_memory_region("given", key, x.nbytes)
    try:
        shared_memory.set_shared_memory_region(region, [x])
        with httpclient.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            client.register_system_shared_memory("given", key, x.nbytes)
            tensor = httpclient.InferInput("X", [3], "FP32")
            tensor.set_shared_memory("given", x.nbytes)
            assert client.infer(name, [tensor]).as_numpy("Y").tolist() == [3, 2, 1]
            client.unregister_system_shared_memory("given")
        assert shared_memory.get_contents_as_numpy(region, np.float32, [3]).tolist() == [1, 2, 3]
    finally:
        shared_memory.destroy_shared_memory_region(region)


class Lent:
    """An array that gives NumPy its own memory, as tensors of other libraries do."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.array


class Subclass(np.ndarray):
    """An array of another class, such as a masked one or a matrix."""


def as_subclass(x: Any) -> Any:
    return x.view(Subclass)


def reversed_twice(x: Any) -> Any:
    return np.array(x[:, ::-1])[:, ::-1]


@pytest.mark.parametrize("kind", [Lent, memoryview, as_subclass, reversed_twice, np.asfortranarray])
def test_every_kind_of_input_becomes_a_separate_array(server: Server, kind: Callable[[Any], Any]) -> None:
    received = []

    def compute(x: Any) -> Any:
        received.append(x)
        x += 1
        return x

    model = serve(server, "receiving", "FP32", "default scheduler", compute)
    x = np.array([[1, 2], [3, 4]], np.float32)
    assert model(X=kind(x))["Y"].tolist() == [[2, 3], [4, 5]]
    assert x.tolist() == [[1, 2], [3, 4]]
    assert type(received[0]) is np.ndarray
    assert received[0].flags.c_contiguous


# --- copy=False -----------------------------------------------------------------------------------


def test_copy_false_passes_a_read_only_view_to_models(server: Server) -> None:
    received = []

    def compute(x: Any) -> Any:
        received.append(x)
        return x

    model = serve(server, "lent", "FP32", "no batches", compute)
    x = np.array([1, 2], np.float32)
    answer = model.infer(X=x, copy=False)["Y"]
    assert np.shares_memory(received[0], x)
    assert not received[0].flags.writeable
    assert not np.shares_memory(answer, x)
    assert x.flags.writeable


@pytest.mark.parametrize("name", ["reverse_py", "reverse_lent"])
def test_writing_to_an_array_passed_with_copy_false_fails(server: Server, name: str) -> None:
    """Not isolated: such a model writes to a copy in its own process."""
    serve(server, "reverse_lent", "FP32", "no batches", reverse)
    x = np.array([1, 2], np.float32)
    with pytest.raises(InternalError, match="read-only"):
        server[name].infer_all(X=x, copy=False)
    assert x.tolist() == [1, 2]


def test_copy_must_be_a_boolean(server: Server) -> None:
    with pytest.raises(tnb.TritonError, match="copy: expected True or False, got 'no'"):
        server["reverse_py"](X=[1.0], copy="no")  # type: ignore[arg-type]


# --- requests in an event loop --------------------------------------------------------------------


def test_error_of_a_request_is_raised_when_awaited(server: Server) -> None:
    requests = server["reverse_py"].infer_async(Z=[1.0]), server["reverse_py"].infer_async(X=[1.0])

    async def ask() -> list[Any]:
        return await asyncio.gather(*requests, return_exceptions=True)

    error, answer = asyncio.run(ask())
    assert "unexpected inference input 'Z'" in str(error)
    assert answer["Y"].tolist() == [1]
