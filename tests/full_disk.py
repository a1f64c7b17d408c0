"""A disk without space, in tests: files cannot grow beyond a size."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Make writes beyond a size fail with OSError, as those to a full disk, after the part that fits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
