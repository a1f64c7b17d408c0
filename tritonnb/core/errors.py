"""One exception family for everything that can go wrong with a request or a model.

Every exception carries one of Triton's status codes (``TRITONSERVER_Error_Code``); the HTTP and
gRPC statuses follow from it, so an error raised anywhere reaches a client as Triton words it.
"""

from __future__ import annotations

import enum
from typing import ClassVar, TypeVar

E = TypeVar("E", bound=BaseException)


class Status(enum.Enum):
    """Triton's error codes, with the HTTP status each is answered with.

    ``Status.INVALID_ARG.label`` is the code as Triton prints it inside longer messages
    (``TRITONSERVER_ErrorCodeString``).
    """

    UNKNOWN = (400, "Unknown")
    INTERNAL = (500, "Internal")
    NOT_FOUND = (404, "Not found")
    INVALID_ARG = (400, "Invalid argument")
    UNAVAILABLE = (503, "Unavailable")
    UNSUPPORTED = (501, "Unsupported")
    ALREADY_EXISTS = (400, "Already exists")
    CANCELLED = (400, "Cancelled")

    def __init__(self, http: int, label: str) -> None:
        self.http = http
        self.label = label

    # Several codes share an HTTP status; without this the second would become an alias of the first.
    def __new__(cls, http: int, label: str) -> Status:
        """A member whose value is its label."""
        member = object.__new__(cls)
        member._value_ = label
        return member


class TritonError(Exception):
    """Base of all errors of this package.

    Parameters
    ----------
    message : str
        The text a client sees, in Triton's words where Triton has words for it.
    status : Status, optional
        Defaults to the status of the class (``INTERNAL`` for this one).
    """

    default_status: ClassVar[Status] = Status.INTERNAL

    def __init__(self, message: str, status: Status | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status or self.default_status

    def again(self) -> TritonError:
        """A new error of this text and status, to be raised where this one is kept (see `without_frames`)."""
        return TritonError(self.message, self.status)


class UnknownError(TritonError):
    """An error without a better code."""

    default_status = Status.UNKNOWN


class InternalError(TritonError):
    """The server or a backend failed."""

    default_status = Status.INTERNAL


class NotFoundError(TritonError):
    """No such model, version, or region."""

    default_status = Status.NOT_FOUND


class InvalidArgumentError(TritonError):
    """The request or the configuration is wrong."""

    default_status = Status.INVALID_ARG


class UnavailableError(TritonError):
    """Not now: the queue is full, the request expired, or the server is stopping."""

    default_status = Status.UNAVAILABLE


class UnsupportedError(TritonError):
    """Triton, or this server, does not do that."""

    default_status = Status.UNSUPPORTED


class AlreadyExistsError(TritonError):
    """The name is taken."""

    default_status = Status.ALREADY_EXISTS


class CancelledError(TritonError):
    """The request was cancelled before it ran."""

    default_status = Status.CANCELLED


def without_frames(error: E) -> E:
    """The same error, to be kept.

    The frames that an exception was raised through, and those of its causes, hold what was worked on there. Where it
    is kept among that, such as in the response to a request, only the garbage collector would free the tensors.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error
