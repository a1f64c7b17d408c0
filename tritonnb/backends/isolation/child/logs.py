"""Log records of a child become records of the server's process."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tritonnb.backends.isolation.child.outbox import Outbox


class ForwardingHandler(logging.Handler):
    """Sends every record to the server.

    Parameters
    ----------
    outbox : Outbox
    """

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record; its traceback becomes part of the message."""
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
        self._outbox.send(["log", record.name, record.levelno, text, record.pathname, record.lineno, record.created])


def forward_logs(outbox: Outbox, levels: Mapping[str, int]) -> None:
    """Send all records to the server.

    Parameters
    ----------
    outbox : Outbox
    levels : mapping of str to int
        The levels of loggers in the server's process, by name; ``""`` is the root.
    """
    logging.getLogger().addHandler(ForwardingHandler(outbox))
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)
