"""``pb_utils.Logger``."""

from __future__ import annotations

import enum
import logging


class Logger:
    """Writes to the server's log."""

    class LogLevel(enum.Enum):
        """Levels of a line; the value is Python's."""

        INFO = logging.INFO
        WARNING = logging.WARNING
        ERROR = logging.ERROR
        VERBOSE = logging.DEBUG

    INFO, WARNING, ERROR, VERBOSE = LogLevel

    _log = logging.getLogger("tritonnb.model")

    @classmethod
    def log(cls, message: str, level: LogLevel = INFO) -> None:
        """Write a line of a level."""
        if not isinstance(message, str) or not isinstance(level, cls.LogLevel):
            raise TypeError("a line of the log is a string, and its level one of Logger.INFO, WARNING, ERROR, VERBOSE")
        cls._log.log(level.value, "%s", message, stacklevel=2)

    @classmethod
    def log_info(cls, message: str) -> None:
        """Write a line of information."""
        cls.log(message, cls.INFO)

    @classmethod
    def log_warn(cls, message: str) -> None:
        """Write a warning."""
        cls.log(message, cls.WARNING)

    @classmethod
    def log_error(cls, message: str) -> None:
        """Write an error."""
        cls.log(message, cls.ERROR)

    @classmethod
    def log_verbose(cls, message: str) -> None:
        """Write a line that is shown with ``--log-verbose``."""
        cls.log(message, cls.VERBOSE)
