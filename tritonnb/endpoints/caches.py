"""A bounded cache for repeated parts of requests: heads, header blocks, and JSON."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

#: The longest head of a request that is stored, in bytes, and the number of heads that an endpoint stores.
LONGEST_HEAD = 4096
MAX_HEADS = 1024


class BoundedCache(Generic[K, V]):
    """At most ``limit`` values by key; the oldest value is dropped first.

    A key is admitted when it is seen for the second time. A client whose keys never repeat, such as heads with a trace
    ID, thus drops nothing that other clients repeat.

    Parameters
    ----------
    limit : int
        0 to store nothing.

    Attributes
    ----------
    values : dict
        What is stored, by key, for those who read it often.

    Examples
    --------
    >>> cache = BoundedCache[str, int](limit=2)
    >>> for key in ("a", "b", "b"):
    ...     if cache.admits(key):
    ...         cache.store(key, 1)
    >>> cache.get("a"), cache.get("b")
    (None, 1)
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.values: dict[K, V] = {}
        self._seen: set[int] = set()  # hashes of keys

    def get(self, key: K) -> V | None:
        """Return the value of a key; None if it is not stored."""
        return self.values.get(key)

    def admits(self, key: K) -> bool:
        """Return whether the value of a key is to be stored; False when the key is seen for the first time."""
        if not self._limit:
            return False
        seen, number = self._seen, hash(key)
        if number in seen:
            return True
        # Forgetting everything at once is crude, but cheap: a client that repeats its requests is admitted again with
        # its next two.
        if len(seen) >= self._limit:
            seen.clear()
        # Only the hash is kept. If two keys share one, the second is admitted a request too early, which is harmless.
        seen.add(number)
        return False

    def store(self, key: K, value: V) -> None:
        """Store the value of a key that is admitted."""
        values = self.values
        # A key that is stored again becomes the newest: dicts keep the order of insertion, which is all that the rule
        # "oldest first" needs.
        values.pop(key, None)
        if len(values) >= self._limit:
            del values[next(iter(values))]
        values[key] = value

    def clear(self) -> None:
        """Remove all values."""
        self.values.clear()
