"""Errors of loading a model: exceptions of its code as `TritonError`, and when they are logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tritonnb.core.errors import InternalError, TritonError
from tritonnb.core.failures import frames_to_notes
from tritonnb.core.texts import printable

_is_raised_here: ContextVar[bool] = ContextVar("_is_raised_here", default=False)


@contextmanager
def raised_here() -> Iterator[None]:
    """Context manager in which load errors are also raised to code of this process, which shows them."""
    token = _is_raised_here.set(True)
    try:
        yield
    finally:
        _is_raised_here.reset(token)


def log_load_error(logger: logging.Logger, text: str, *arguments: object) -> None:
    """Log an error of loading a model.

    An error that is also raised to code of this process is logged only if the program has configured logging:
    otherwise Python would print it in addition to the exception.
    """
    if logger.hasHandlers() or not _is_raised_here.get():
        logger.error(text, *arguments)


@contextmanager
def triton_errors() -> Iterator[None]:
    """Context manager that converts exceptions of a model's code to a `TritonError`, whose text can be encoded."""
    try:
        yield
    except TritonError as error:
        error.message = printable(error.message)  # of a library, or of a backend outside this project
        raise
    except Exception as error:
        text = printable(f"{type(error).__name__}: {printable(error)}")
        raise InternalError(text, model_error=frames_to_notes(error)) from None
