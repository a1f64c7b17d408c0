"""The settings of the logging extension, the log that they describe, and tables in it.

All modules of this package log to children of the logger ``tritonnb``. The settings determine what `write_log`
writes, and in which format; the handlers of a program are not changed. Verbose messages have the level DEBUG.
Messages are JSON strings, so a message cannot imitate a line of the log, unless
``TRITON_SERVER_ESCAPE_LOG_MESSAGES=0`` is set.

Implements the logging extension and Triton's two formats.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TextIO

from tritonnb.core.texts import encodable

FORMATS = ("default", "ISO8601")

_ESCAPE = "TRITON_SERVER_ESCAPE_LOG_MESSAGES"
Row = Sequence[str]


@dataclass(slots=True)
class LogSettings:
    """The destinations, levels and format of the log.

    Attributes
    ----------
    log_file : str
        Path of the log file; empty for the console.
    log_info, log_warning, log_error : bool
    log_verbose_level : int
        0 for no verbose messages.
    log_format : str
        ``default`` or ``ISO8601``.

    Examples
    --------
    >>> LogSettings(log_verbose_level=1, log_format="ISO8601").log_info
    True
    >>> import logging
    >>> settings = LogSettings(log_info=False)
    >>> settings.set_verbose_level(2)
    >>> settings.to_dict()["log_verbose_level"]
    2
    >>> settings.wants(logging.makeLogRecord({"levelno": logging.INFO}))
    False
    """

    log_file: str = ""
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = "default"

    def to_dict(self) -> dict[str, object]:
        """Return the settings as the extension returns them."""
        return asdict(self)

    def set_verbose_level(self, level: int) -> None:
        """Set a level that a client sent: an unsigned number, which Triton reads as a signed 32-bit integer.

        Parameters
        ----------
        level : int
        """
        self.log_verbose_level = max(0, (level + 2**31) % 2**32 - 2**31)

    def wants(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be written.

        Parameters
        ----------
        record : logging.LogRecord
        """
        if record.levelno >= logging.ERROR:
            return self.log_error
        if record.levelno >= logging.WARNING:
            return self.log_warning
        return self.log_info if record.levelno >= logging.INFO else self.log_verbose_level > 0


def log_handler(settings: LogSettings) -> logging.Handler:
    """Return a handler that writes records as the settings require."""
    file = settings.log_file
    handler = logging.FileHandler(file, delay=True, encoding="utf-8") if file else _ConsoleHandler()
    handler.addFilter(settings.wants)
    handler.setFormatter(_Formatter(settings))
    return handler


def write_log(settings: LogSettings) -> None:
    """Write the log of this package in this process as the settings require, from now on."""
    logger = logging.getLogger("tritonnb")
    logger.addHandler(log_handler(settings))
    logger.setLevel(logging.DEBUG)


class _ConsoleHandler(logging.StreamHandler[TextIO]):
    """Writes warnings and errors to stderr, and other messages to stdout, as Triton does since 25.06."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr if record.levelno >= logging.WARNING else sys.stdout
        super().emit(record)


class _Formatter(logging.Formatter):
    """Triton's lines: ``I1121 08:01:09.980988 30626 server.py:12] "message"``."""

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self._settings = settings
        self._escapes = os.environ.get(_ESCAPE) != "0"

    def format(self, record: logging.LogRecord) -> str:
        letter = "I" if record.levelno < logging.WARNING else "W" if record.levelno < logging.ERROR else "E"
        when = time.gmtime(record.created)
        if self._settings.log_format == "ISO8601":
            head = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', when)} {letter}"
        else:
            head = f"{letter}{time.strftime('%m%d %H:%M:%S', when)}.{int(record.created % 1 * 1e6):06d}"
        message = record.getMessage()
        if isinstance(record.msg, LogTable):
            message = f"\n{message}"
        elif self._escapes:
            message = json.dumps(message, ensure_ascii=False)
        line = f"{head} {os.getpid()} {record.filename}:{record.lineno}] {message}"
        # A log file is UTF-8, and the exceptions of models may have any text.
        return encodable(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


class LogTable:
    """A message that is a table; it starts below the prefix of its line, and is not quoted.

    Parameters
    ----------
    columns : sequence of str
        The headings.
    rows : sequence of rows
        A cell may have several lines.
    """

    def __init__(self, columns: Row, rows: Sequence[Row]) -> None:
        self._columns = columns
        self._rows = rows

    def __str__(self) -> str:
        lines = [self._columns, *(line for row in self._rows for line in _lines(row))]
        widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
        rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
        drawn = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
        return "\n".join([rule, drawn[0], rule, *drawn[1:], rule]) + "\n"


def _lines(row: Row) -> list[Row]:
    """Return the lines of a row, as many as its highest cell has."""
    cells = [cell.splitlines() or [""] for cell in row]
    height = max(map(len, cells))
    return [[cell[at] if at < len(cell) else "" for cell in cells] for at in range(height)]
