"""``pb_utils.TritonError`` and ``pb_utils.TritonModelException``."""

from __future__ import annotations

import enum

from tritonnb.core.errors import Status
from tritonnb.core.errors import TritonError as ServerError
from tritonnb.core.texts import printable


class TritonModelException(Exception):
    """The exception that the utilities raise."""


class ErrorCode(enum.IntEnum):
    """The error codes, which are also attributes of `TritonError`."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)


class TritonError:
    """An error as the response to a request.

    Parameters
    ----------
    message : str
        Lone surrogates, such as ``os.fsdecode`` returns, are escaped; Triton refuses them.
    code : ErrorCode, optional
        Such as ``TritonError.NOT_FOUND``; ``TritonError.INTERNAL`` by default.
    """

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = ErrorCode

    __slots__ = ("_code", "_message")

    def __init__(self, message: str | bytes, code: ErrorCode = INTERNAL) -> None:
        if not isinstance(code, ErrorCode):
            raise TypeError(f"TritonError: expected an error code such as TritonError.INTERNAL, got {code!r}")
        if not isinstance(message, str | bytes):
            raise TypeError(f"TritonError: expected a message of type str or bytes, got {type(message).__name__}")
        # At the door: an endpoint could not write it, and has no model to tell.
        self._message = printable(message)
        self._code = code

    def message(self) -> str:
        """Return the error message."""
        return self._message

    def code(self) -> ErrorCode:
        """Return the error code."""
        return self._code


def to_core_error(error: TritonError) -> ServerError:
    """Convert a model's error to the server's."""
    return ServerError(error.message(), Status[error.code().name])


def from_core_error(error: ServerError, message: str | None = None) -> TritonError:
    """Convert the server's error to the error that a model receives, with another message if one is given."""
    return TritonError(error.message if message is None else message, ErrorCode[error.status.name])
