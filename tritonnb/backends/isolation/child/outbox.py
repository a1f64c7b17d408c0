"""What the child sends to the server: on the channel ``work`` while its command runs, otherwise on ``calls``."""

from __future__ import annotations

import itertools
import os
import threading
from concurrent.futures import Future
from typing import Any

from tritonnb.backends.isolation.channel import Channel, Header
from tritonnb.backends.isolation.codec import decode_error
from tritonnb.backends.isolation.packer import Packer


class Outbox:
    """Sends messages of the model's code, and waits for replies.

    Messages of the thread that runs a command are sent on ``work``: they arrive in order with its results, and the
    server attributes them to the instance.

    Parameters
    ----------
    work, calls : Channel

    Attributes
    ----------
    runs_command : bool
        Whether the main thread runs a command.
    """

    def __init__(self, work: Channel, calls: Channel) -> None:
        self.work = work
        self.calls = calls
        self.runs_command = False
        self._main = threading.get_ident()
        self._numbers = itertools.count(1)
        self._replies: dict[int, Future[Any]] = {}

    def send(self, header: Header, packer: Packer | None = None) -> None:
        """Send a message; the process ends if the server's does not exist any more."""
        channel = self.work if self.runs_command and threading.get_ident() == self._main else self.calls
        try:
            if packer is None:
                channel.send(header)
            else:
                packer.send(channel, header)
        except OSError:
            os._exit(1)

    def ask(self, kind: str, *arguments: object) -> Any:
        """Send a question and wait for the reply.

        Raises
        ------
        TritonError
            If the server replies with an error.
        """
        number = next(self._numbers)
        reply = self._replies[number] = Future()
        self.send([kind, number, *arguments])
        return reply.result()

    def settle(self, number: int, value: Any, error: list[Any] | None) -> None:
        """Pass a reply to the thread that waits for it."""
        reply = self._replies.pop(number)
        if error is None:
            reply.set_result(value)
        else:
            reply.set_exception(decode_error(error))
