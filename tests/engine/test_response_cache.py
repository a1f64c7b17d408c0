"""The response cache: keys, sizes of responses, and eviction."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from tritonnb.core.datatypes import BYTES, FP32, INT32
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.engine.models.response_cache import ResponseCache, key_of


def answer(number: float = 1) -> InferResponse:
    """It takes 4 + 28 + 1 + 4 + 8 + 4 = 49 bytes."""
    return InferResponse([Tensor("y", FP32, np.array([number], np.float32))])


def number_in(response: InferResponse | None) -> float | None:
    return None if response is None else float(response.outputs[0].array[0])


def key(*tensors: Tensor, model: int = 1, **options: Any) -> bytes:
    return key_of(
        model, InferRequest("m", {tensor.name: tensor for tensor in tensors}, lambda *answer: None, **options)
    )


X = Tensor("x", INT32, np.array([[1, 2]], np.int32))
Z = Tensor("z", INT32, np.array([[1, 2]], np.int32))


def test_order_of_inputs_outputs_and_parameters_does_not_change_the_key() -> None:
    assert key(X, Z) == key(Z, X)
    assert key(X, requested_outputs=("a", "b")) == key(X, requested_outputs=("b", "a"))
    assert key(X, parameters={"a": 1, "b": 2}) == key(X, parameters={"b": 2, "a": 1})
    assert key(X, id="1") == key(X, id="2")


def test_cache_key_depends_on_all_inputs_of_a_response() -> None:
    texts = [Tensor("x", BYTES, np.array(strings, object)) for strings in ([b"ab", b"c"], [b"a", b"bc"])]
    questions = [
        key(X),
        key(X, model=2),
        key(X, Z),
        key(Z),
        key(Tensor("x", INT32, np.array([[1, 3]], np.int32))),
        key(Tensor("x", INT32, np.array([[1], [2]], np.int32))),
        key(Tensor("x", FP32, np.array([[1, 2]], np.int32).view(np.float32))),
        key(X, requested_outputs=()),
        key(X, requested_outputs=("a",)),
        key(X, parameters={"a": 1}),
        *map(key, texts),
    ]
    assert len(set(questions)) == len(questions)


def test_least_recently_used_response_is_evicted_when_the_cache_is_full() -> None:
    began = time.monotonic_ns()
    cache = ResponseCache(2 * 49)
    for name in (b"a", b"b"):
        assert cache.insert(name, answer())
    assert (len(cache), cache.used, cache.evictions) == (2, 98, 0)
    assert cache.look_up(b"a") is not None
    assert cache.insert(b"c", answer())
    assert [cache.look_up(name) is not None for name in (b"a", b"b", b"c")] == [True, False, True]
    assert (len(cache), cache.used) == (2, 98)
    assert (cache.hits, cache.misses, cache.evictions) == (3, 1, 1)
    assert cache.lookup_ns > 0
    assert cache.insertion_ns > 0
    assert cache.lookup_ns + cache.insertion_ns <= time.monotonic_ns() - began


def test_cached_response_is_not_replaced() -> None:
    cache = ResponseCache(1000)
    cache.insert(b"a", answer(1))
    assert not cache.insert(b"a", answer(2))
    assert (number_in(cache.look_up(b"a")), cache.used) == (1, 49)


def test_changes_of_a_response_do_not_change_the_cache() -> None:
    cache, original = ResponseCache(1000), answer(1)
    cache.insert(b"a", original)
    original.outputs[0].array[:] = 7
    stored = cache.look_up(b"a")
    assert stored is not None
    assert number_in(stored) == 1
    stored.outputs[0].array[:] = 8
    assert number_in(cache.look_up(b"a")) == 1


@pytest.mark.parametrize(
    ("outputs", "size"),
    [
        ([], 4),
        ([Tensor("y", FP32, np.zeros((2, 3), np.float32))], 4 + 28 + 1 + 4 + 16 + 24),
        ([Tensor("text", BYTES, np.array([b"ab", b""], object))], 4 + 28 + 4 + 5 + 8 + (2 + 4) + 4),
        ([X, Z], 4 + 2 * (28 + 1 + 5 + 16 + 8)),
    ],
)
def test_cached_response_size_equals_tritons(
    outputs: list[Tensor], size: int, caplog: pytest.LogCaptureFixture
) -> None:
    cache = ResponseCache(size)
    cache.insert(b"a", InferResponse(outputs))
    assert cache.used == size
    small = ResponseCache(size - 1)
    assert small.insert(b"a", InferResponse(outputs)), "that it is too large is for the log, not for the client"
    assert (len(small), small.used) == (0, 0)
    assert caplog.messages == [
        f"Failed to insert key [61] into response cache: its {size} bytes exceed the size of the cache"
    ]
