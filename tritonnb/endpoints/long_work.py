"""Reading and writing of long documents, outside of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

#: Bytes of a document, or elements of its tensors, from which on it takes tens of milliseconds to read or write.
LONG: Final = 1 << 17


class LongWork:
    """Work of an endpoint on a worker thread, one piece of work after the other.

    Python's threads share one lock: two that compute would make the event loop wait twice as long, and be no faster.

    Examples
    --------
    >>> asyncio.run(LongWork().run(lambda: "read"))
    'read'
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function on a worker thread; a caller that is cancelled no longer waits for it."""
        async with self._lock:
            return await asyncio.get_running_loop().run_in_executor(None, function)
