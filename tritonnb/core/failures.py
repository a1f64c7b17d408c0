"""How failures are reported: exceptions of user code as causes, tracebacks without the package's own frames, once."""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable
from itertools import dropwhile
from types import TracebackType
from typing import ParamSpec, TypeVar

from tritonnb.core.errors import TritonError

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


def to_keep(error: E) -> E:
    """An exception of user code, to be kept as the cause of a `TritonError`.

    Its traceback begins with the first frame of user code. The local variables of all frames are forgotten: they hold
    tensors, which only the garbage collector would free.
    """
    current: BaseException | None = error
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        traceback.clear_frames(current.__traceback__)
        current.__traceback__ = next(dropwhile(_is_not_user_code, _entries(current.__traceback__)), None)
        current = current.__cause__ or current.__context__
    return error


def where(error: BaseException) -> str:
    """The innermost place of user code in a traceback as the end of an error's text; empty where there is none."""
    entries = [each for each in _entries(error.__traceback__) if not _is_not_user_code(each)]
    if not entries:
        return ""
    code = entries[-1].tb_frame.f_code
    return f" (line {entries[-1].tb_lineno} of {code.co_filename}, in {code.co_name})"


def _entries(trace: TracebackType | None) -> list[TracebackType]:
    entries = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    return entries


def _is_not_user_code(entry: TracebackType) -> bool:
    module = str(entry.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    return module in ("tritonnb", "asyncio", "importlib") or entry.tb_frame.f_code.co_filename.startswith("<frozen ")


def log_raised(logger: logging.Logger, message: str, *args: object) -> None:
    """Log an error that is raised, too: only where logging is set up, as in ``tritonnb serve``.

    Elsewhere, as in a notebook, Python would write it to stderr, beside the exception.
    """
    if logger.hasHandlers():
        logger.error(message, *args)


def shorten_traceback(error: TritonError) -> None:
    """Drop the frames of this package: followed by a bare ``raise``, a traceback ends where the package was called.

    The cause is what user code raised, if that is why.
    """
    error.__traceback__ = None
    error.__cause__ = error.cause  # which suppresses the context, too


def with_short_traceback(function: Callable[P, T]) -> Callable[P, T]:
    """A public function whose errors have no frames of this package, neither in Python nor in IPython."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TritonError as error:
            shorten_traceback(error)
            raise

    return call
