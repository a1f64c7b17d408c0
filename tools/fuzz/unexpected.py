"""Exceptions that the code under test catches: it logs them, or its event loop reports them."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Any


class UnexpectedError(Exception):
    """The code under test did something that is not documented."""


class UnexpectedErrors(logging.Handler):
    """A context manager that collects logged exceptions and those of an event loop."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._errors: list[str | BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the exception of a record (the interface of `logging.Handler`)."""
        if record.exc_info and record.exc_info[1] is not None:
            self._errors.append(record.exc_info[1])

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Collect the exceptions that an event loop reports."""
        loop.set_exception_handler(lambda _, context: self._report(context))

    def _report(self, context: dict[str, Any]) -> None:
        self._errors.append(context.get("exception") or str(context["message"]))

    def check(self) -> None:
        """Raise the first error since the last call, if there is one.

        Raises
        ------
        UnexpectedError
            If there was one.
        """
        errors, self._errors = self._errors, []
        if errors:
            cause = errors[0] if isinstance(errors[0], BaseException) else None
            raise UnexpectedError(repr(errors[0])) from cause

    def __enter__(self) -> UnexpectedErrors:
        root = logging.getLogger()
        self._before = root.handlers[:]
        root.handlers[:] = [self]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger().handlers[:] = self._before


def require(holds: bool, what: str) -> None:
    """Raise an error unless a property of the code under test holds.

    Raises
    ------
    UnexpectedError
        If it does not.
    """
    if not holds:
        raise UnexpectedError(what)
