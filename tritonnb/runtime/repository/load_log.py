"""What the log says of a model that cannot be loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_raised_here: ContextVar[bool] = ContextVar("_is_raised_here", default=False)


@contextmanager
def raised_here() -> Iterator[None]:
    """Within this context a failure to load is raised to code of this process, which shows it."""
    token = _is_raised_here.set(True)
    try:
        yield
    finally:
        _is_raised_here.reset(token)


def log_load_error(logger: logging.Logger, text: str, *arguments: object) -> None:
    """Log why a model cannot be loaded.

    Where that is also raised to code of this process, it is logged only if the program has set up logging. Python
    would otherwise print it beside the exception.
    """
    if logger.hasHandlers() or not _is_raised_here.get():
        logger.error(text, *arguments)
