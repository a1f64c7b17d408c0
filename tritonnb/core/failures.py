"""Reports of failures and warnings: with the lines of user code, and without the lines of this package."""

from __future__ import annotations

import functools
import inspect
import traceback
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType, FunctionType
from typing import Any, ParamSpec, TypeVar

from tritonnb.core.errors import TritonError

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
C = TypeVar("C", bound=type)

#: Methods of a class that are called by syntax.
_PUBLIC_METHODS = {"__call__", "__getitem__", "__getattr__", "__setattr__", "__enter__", "__exit__"}


def frames_to_notes(error: E) -> E:
    """Replace the traceback of an exception of user code by a note, so that it can be stored; return the exception.

    The frames of a traceback keep tensors alive until the garbage collector runs. It becomes the ``model_error`` of a
    `TritonError`.
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
    """Return the innermost line of user code in the traceback, as the end of a message; empty if there is none.

    In a library, whose code the user may not know, the line of the user's file that called it is named as well.
    """
    frames = _user_frames(error)
    if not frames:
        return ""
    *_, own = (frame for frame in frames if frame.filename == frames[0].filename)
    called = "" if own is frames[-1] else f", called in line {own.lineno} of {own.filename}, in {own.name}"
    return f" (line {frames[-1].lineno} of {frames[-1].filename}, in {frames[-1].name}{called})"


def _user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of the traceback, starting with the first frame of user code."""
    trace = error.__traceback__
    while trace is not None and not _is_user_code(trace.tb_frame):
        trace = trace.tb_next
    return traceback.extract_tb(trace)


def _is_user_code(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    frozen = frame.f_code.co_filename.startswith("<frozen ")
    return module not in ("tritonnb", "asyncio", "contextlib", "importlib") and not frozen


def warn(text: str) -> None:
    """Issue a `UserWarning` at the line of user code that called this package."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_back is not None and not _is_user_code(frame):
        frame = frame.f_back
    assert frame is not None
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    place = frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__")
    warnings.warn_explicit(text, UserWarning, *place, registry)


def shorten_traceback(error: TritonError) -> None:
    """Drop this package's frames: after a bare ``raise`` the traceback ends where the package was called.

    The cause becomes the exception of user code, if there is one.
    """
    error.__traceback__ = None
    error.__cause__ = error.model_error  # also suppresses the context


def with_short_tracebacks(cls: C) -> C:
    """Decorate a public class: `with_short_traceback` for its public members, calls, items, attributes and blocks."""
    for name, value in list(vars(cls).items()):
        if name.startswith("_") and name not in _PUBLIC_METHODS:
            continue
        if isinstance(value, classmethod):
            setattr(cls, name, classmethod(with_short_traceback(value.__func__)))
        elif isinstance(value, property):
            getter, setter = (part and with_short_traceback(part) for part in (value.fget, value.fset))
            setattr(cls, name, property(getter, setter, doc=value.__doc__))
        elif isinstance(value, FunctionType):
            setattr(cls, name, with_short_traceback(value))
    return cls


def with_short_traceback(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function so that tracebacks of its errors do not show this package's frames."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TritonError as error:
            shorten_traceback(error)
            raise

    return call


@with_short_tracebacks
class ShortTracebacks(AbstractContextManager[T]):
    """A context manager whose own errors have tracebacks without this package's frames; those of the block stay.

    Parameters
    ----------
    inner : context manager
    """

    def __init__(self, inner: AbstractContextManager[T]) -> None:
        self._inner = inner

    def __enter__(self) -> T:
        return self._inner.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool | None:
        return self._inner.__exit__(kind, error, trace)
