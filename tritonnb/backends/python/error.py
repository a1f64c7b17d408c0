"""``pb_utils.TritonError`` and ``pb_utils.TritonModelException``."""

from __future__ import annotations

import enum

from tritonnb.core.errors import Status
from tritonnb.core.errors import TritonError as ServerError


class TritonModelException(Exception):
    """What the utilities raise."""


class ErrorCode(enum.IntEnum):
    """The codes of `TritonError`, also its attributes."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)


class TritonError:
    """An error that a model answers a request with.

    Parameters
    ----------
    message : str
    code : ErrorCode, optional
        One of the class's codes; INTERNAL by default.
    """

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = ErrorCode

    __slots__ = ("_code", "_message")

    def __init__(self, message: str | bytes, code: ErrorCode = INTERNAL) -> None:
        if not isinstance(code, ErrorCode):
            raise TypeError(f"{code!r} is no code of TritonError, such as TritonError.INTERNAL")
        if not isinstance(message, str | bytes):
            raise TypeError(f"TritonError takes a text, got {type(message).__name__}")
        self._message = message.decode() if isinstance(message, bytes) else message
        self._code = code

    def message(self) -> str:
        """The text."""
        return self._message

    def code(self) -> ErrorCode:
        """The code."""
        return self._code


_STATUSES = (
    Status.UNKNOWN,
    Status.INTERNAL,
    Status.NOT_FOUND,
    Status.INVALID_ARG,
    Status.UNAVAILABLE,
    Status.UNSUPPORTED,
    Status.ALREADY_EXISTS,
    Status.CANCELLED,
)


def to_core_error(error: TritonError) -> ServerError:
    """A model's error as the server's."""
    return ServerError(error.message(), _STATUSES[error.code()])


def from_core_error(error: ServerError, message: str | None = None) -> TritonError:
    """The server's error as a model sees it, with another text if one is given."""
    return TritonError(error.message if message is None else message, ErrorCode(_STATUSES.index(error.status)))
