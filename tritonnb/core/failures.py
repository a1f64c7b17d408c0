"""How failures are reported: exceptions of user code as causes, tracebacks without the package's own frames."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from tritonnb.core.errors import TritonError

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


def frames_to_notes(error: E) -> E:
    """An exception of user code, to be kept as the cause of a `TritonError`.

    Where it was raised becomes a note, instead of the traceback: frames hold tensors, which only the garbage collector
    would free.
    """
    current: BaseException | None = error
    while current is not None and current.__traceback__ is not None:
        note = "".join(traceback.format_list(_user_frames(current))).rstrip()
        if note and note not in getattr(current, "__notes__", ()):
            current.add_note(note)
        current.__traceback__ = None
        current = current.__cause__ or current.__context__
    return error


def location_suffix(error: BaseException) -> str:
    """The innermost place of user code in a traceback as the end of an error's text; empty where there is none."""
    frames = _user_frames(error)
    return f" (line {frames[-1].lineno} of {frames[-1].filename}, in {frames[-1].name})" if frames else ""


def _user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of a traceback from the first one of user code on."""
    trace = error.__traceback__
    while trace is not None and not _is_user_code(trace):
        trace = trace.tb_next
    return traceback.extract_tb(trace)


def _is_user_code(entry: TracebackType) -> bool:
    module = str(entry.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    frozen = entry.tb_frame.f_code.co_filename.startswith("<frozen ")
    return module not in ("tritonnb", "asyncio", "importlib") and not frozen


def shorten_traceback(error: TritonError) -> None:
    """Drop the frames of this package: followed by a bare ``raise``, a traceback ends where the package was called.

    The cause is what user code raised, if that is why.
    """
    error.__traceback__ = None
    error.__cause__ = error.model_error  # which suppresses the context, too


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
