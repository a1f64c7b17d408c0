"""Bounded caches: one client cannot empty them for the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tritonnb.endpoints.caches import BoundedCache

LIMIT = 4


def offer(cache: BoundedCache[int, str], key: int) -> str | None:
    """The cached value of a key; what is not cached is stored if the cache admits it."""
    value = cache.get(key)
    if value is None and cache.admits(key):
        cache.store(key, str(key))
    return value


def test_value_is_cached_at_the_second_occurrence_of_its_key() -> None:
    cache = BoundedCache[int, str](LIMIT)
    assert [offer(cache, 7) for _ in range(4)] == [None, None, "7", "7"]


def test_keys_that_never_repeat_evict_no_entry() -> None:
    cache = BoundedCache[int, str](LIMIT)
    for key in range(LIMIT):
        offer(cache, key), offer(cache, key)
    for key in range(100, 10_000):
        offer(cache, key)
    assert [offer(cache, key) for key in range(LIMIT)] == [str(key) for key in range(LIMIT)]


def test_repeated_key_is_cached_between_keys_that_never_repeat() -> None:
    cache = BoundedCache[int, str](LIMIT)
    answers = []
    for key in range(100, 120):
        offer(cache, key)
        answers.append(offer(cache, 7))
    assert answers[3:] == ["7"] * 17


def test_oldest_value_is_dropped_first() -> None:
    cache = BoundedCache[int, str](2)
    for key in (1, 1, 2, 2, 3, 3):
        offer(cache, key)
    assert [cache.get(key) for key in (1, 2, 3)] == [None, "2", "3"]


@given(st.lists(st.integers(0, 12), max_size=100), st.integers(0, LIMIT))
def test_cache_returns_correct_values_and_is_bounded(keys: list[int], limit: int) -> None:
    cache = BoundedCache[int, str](limit)
    for key in keys:
        assert offer(cache, key) in (None, str(key))
        assert sum(cache.get(other) is not None for other in range(13)) <= limit
        assert len(cache._seen) <= limit


def test_cache_with_limit_zero_stores_nothing() -> None:
    cache = BoundedCache[int, str](0)
    assert [offer(cache, 7) for _ in range(3)] == [None] * 3
