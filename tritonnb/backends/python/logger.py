"""``pb_utils.Logger``."""

from __future__ import annotations

import logging


class Logger:
    """Writes to the server's log."""

    INFO, WARNING, ERROR, VERBOSE = range(4)

    _log = logging.getLogger("tritonnb.model")
    _levels = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)

    @classmethod
    def log(cls, message: str, level: int = INFO) -> None:
        """Write a line of a level."""
        cls._log.log(cls._levels[level], "%s", message, stacklevel=2)

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
