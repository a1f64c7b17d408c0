"""The exceptions that requests and models can fail with.

Every exception carries one of Triton's status codes (``TRITONSERVER_Error_Code``); the HTTP and
gRPC statuses follow from it, so an error raised anywhere reaches a client with Triton's text and status.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from tritonnb.core.texts import printable


@dataclass(frozen=True, slots=True)
class Fix:
    """A change of the configuration that fixes a problem.

    Attributes
    ----------
    label : str
        The change in a few words, such as ``FP32 → TYPE_FP32``.
    text : str
        The complete *config.pbtxt* after the change.
    hint : str
        The change as the end of an error message, such as ``did you mean 'TYPE_FP32'?``.

    Examples
    --------
    >>> Fix("FP32 → TYPE_FP32", "data_type: TYPE_FP32", "did you mean 'TYPE_FP32'?").hint
    "did you mean 'TYPE_FP32'?"
    """

    label: str
    text: str
    hint: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a configuration.

    Attributes
    ----------
    message : str
        Triton's text.
    line, column : int
        From 1; 0 if the problem has no position in the text.
    fix : Fix or None
        A change of the text that fixes it.
    hint : str
        How to fix it, as the end of an error message; the hint of ``fix`` if there is a fix. May be empty.

    Examples
    --------
    >>> Problem("Expected identifier.", line=3, column=7).fix is None
    True
    """

    message: str
    line: int = 0
    column: int = 0
    fix: Fix | None = None
    hint: str = ""


E = TypeVar("E", bound=BaseException)

#: Characters stripped from the end of a message before a hint is appended.
_END = ".; \n"


class Status(enum.Enum):
    """Triton's error codes in the order of ``TRITONSERVER_errorcode_enum``, each with the statuses of HTTP and gRPC.

    ``Status.INVALID_ARG.label`` is the code as Triton prints it inside longer messages
    (``TRITONSERVER_ErrorCodeString``).

    Examples
    --------
    >>> Status.UNAVAILABLE.http, Status.UNAVAILABLE.grpc, Status.UNAVAILABLE.label
    (503, 14, 'Unavailable')
    """

    UNKNOWN = (400, 2, "Unknown")
    INTERNAL = (500, 13, "Internal")
    NOT_FOUND = (404, 5, "Not found")
    INVALID_ARG = (400, 3, "Invalid argument")
    UNAVAILABLE = (503, 14, "Unavailable")
    UNSUPPORTED = (501, 12, "Unsupported")
    ALREADY_EXISTS = (400, 6, "Already exists")
    CANCELLED = (400, 1, "Cancelled")

    def __init__(self, http: int, grpc: int, label: str) -> None:
        self.http = http
        self.grpc = grpc
        self.label = label

    # Several codes share an HTTP status and would otherwise become aliases of the first code.
    def __new__(cls, http: int, grpc: int, label: str) -> Status:
        """Create a member whose value is its label."""
        member = object.__new__(cls)
        member._value_ = label
        return member


class TritonError(Exception):
    """Base of all errors of this package.

    Parameters
    ----------
    message : str
        The text that clients get; Triton's text where Triton has one.
    status : Status, optional
        Defaults to the status of the class (``INTERNAL`` for this one).
    hint : str, optional
        How to fix it. Appended to ``str(error)``, not sent to clients.
    problems : iterable of Problem, optional
        What is wrong with a configuration, where, and the fix. Without ``hint``, the first hint among them is used.
    model_error : BaseException, optional
        What user code raised, prepared by `tritonnb.core.failures.frames_to_notes`. The ``__cause__`` in process.

    Examples
    --------
    >>> error = InvalidArgumentError("Expected identifier.", hint="did you mean 'KIND_CPU'?")
    >>> print(error.message)
    Expected identifier.
    >>> print(error)
    Expected identifier; did you mean 'KIND_CPU'?
    >>> error.add_problems([Problem("Expected identifier.", line=3, column=7)])
    >>> error.fresh().problems[0].line
    3
    """

    default_status: ClassVar[Status] = Status.INTERNAL

    def __init__(
        self,
        message: str,
        status: Status | None = None,
        *,
        hint: str = "",
        problems: Iterable[Problem] = (),
        model_error: BaseException | None = None,
    ) -> None:
        if type(message) is not str:  # functions also raise it, with anything; compiled modules read a str
            message = printable(message)
        super().__init__(message)
        self.message = message
        self.status = status or self.default_status
        self.hint = hint
        self.problems: tuple[Problem, ...] = ()
        self.model_error = model_error
        self.add_problems(problems)

    def add_problems(self, problems: Iterable[Problem]) -> None:
        """Attach problems of a configuration, unless the error already has problems with a position.

        Parameters
        ----------
        problems : iterable of Problem
        """
        if not any(problem.line for problem in self.problems):
            self.problems = tuple(problems) or self.problems
        self.hint = self.hint or next((problem.hint for problem in self.problems if problem.hint), "")

    def __str__(self) -> str:
        return f"{self.message.rstrip(_END)}; {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _error, (type(self), self.args, self.__dict__)  # subclasses have other arguments

    def fresh(self) -> Self:
        """Copy this error, to raise the copy while this error is kept (see `strip_traceback`)."""
        return _error(type(self), self.args, self.__dict__)


def _error(kind: type[E], args: tuple[Any, ...], attributes: dict[str, Any]) -> E:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class UnknownError(TritonError):
    """An error of unknown kind.

    Examples
    --------
    >>> UnknownError("failed").status.label
    'Unknown'
    """

    default_status = Status.UNKNOWN


class InternalError(TritonError):
    """The server or a backend failed.

    Examples
    --------
    >>> InternalError("failed").status.http
    500
    """

    default_status = Status.INTERNAL


class NotFoundError(TritonError):
    """The model, version, or shared-memory region does not exist.

    Examples
    --------
    >>> NotFoundError("model 'm' is not found").status.http
    404
    """

    default_status = Status.NOT_FOUND


class InvalidArgumentError(TritonError):
    """The request or the configuration is invalid.

    Examples
    --------
    >>> InvalidArgumentError("unexpected shape").status.http
    400
    """

    default_status = Status.INVALID_ARG


# Not in a compiled module: its instances would have no `__dict__`, which `TritonError.fresh` copies.
class IncompleteStringError(InvalidArgumentError):
    """The length of a string exceeds the data; Triton detects this after all other errors.

    Examples
    --------
    >>> IncompleteStringError("incomplete string data").fresh().status.http
    400
    """


class UnavailableError(TritonError):
    """Temporarily unavailable: the queue is full, the request expired, or the server is stopping.

    Examples
    --------
    >>> UnavailableError("the queue is full").status.http
    503
    """

    default_status = Status.UNAVAILABLE


class UnsupportedError(TritonError):
    """Triton, or this server, does not support it.

    Examples
    --------
    >>> UnsupportedError("not supported").status.http
    501
    """

    default_status = Status.UNSUPPORTED


class AlreadyExistsError(TritonError):
    """The name is already in use.

    Examples
    --------
    >>> AlreadyExistsError("the region exists").status.label
    'Already exists'
    """

    default_status = Status.ALREADY_EXISTS


class CancelledError(TritonError):
    """The request was cancelled before it ran.

    Examples
    --------
    >>> CancelledError("cancelled").status.label
    'Cancelled'
    """

    default_status = Status.CANCELLED


def error_message(error: BaseException) -> str:
    """Return the text of an error for Triton's log and for clients, without the hint."""
    return error.message if isinstance(error, TritonError) else str(error)


def strip_traceback(error: E) -> E:
    """Remove traceback, cause and context of an error that is going to be stored; return the error.

    The frames of a traceback refer to requests and tensors. Stored in a response, which these frames refer to, they
    would form a reference cycle, and only the garbage collector would free the tensors.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error
