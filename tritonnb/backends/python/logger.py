"""``pb_utils.Logger``."""

from __future__ import annotations

import enum
import logging


class Logger:
    """Writes to the server's log."""

    class LogLevel(enum.Enum):
        """Log levels; their values are those of `logging`."""

        INFO = logging.INFO
        WARNING = logging.WARNING
        ERROR = logging.ERROR
        VERBOSE = logging.DEBUG

    INFO, WARNING, ERROR, VERBOSE = LogLevel

    _log = logging.getLogger("tritonnb.model")

    @classmethod
    def log(cls, message: str, level: LogLevel = INFO) -> None:
        """Write a message with a log level."""
        if not isinstance(message, str) or not isinstance(level, cls.LogLevel):
            raise TypeError(
                "Logger.log: expected a str and one of Logger.INFO, WARNING, ERROR, VERBOSE, got "
                f"{type(message).__name__} and {level!r}"
            )
        cls._log.log(level.value, "%s", message, stacklevel=2)

    @classmethod
    def log_info(cls, message: str) -> None:
        """Write an information message."""
        cls.log(message, cls.INFO)

    @classmethod
    def log_warn(cls, message: str) -> None:
        """Write a warning."""
        cls.log(message, cls.WARNING)

    @classmethod
    def log_error(cls, message: str) -> None:
        """Write an error message."""
        cls.log(message, cls.ERROR)

    @classmethod
    def log_verbose(cls, message: str) -> None:
        """Write a message that is shown with ``--log-verbose``."""
        cls.log(message, cls.VERBOSE)
