"""A child process and the calls of its model: commands are run in it one after another."""

from __future__ import annotations

import time
from collections.abc import Callable

from tritonnb.backends.contract import ServerCalls
from tritonnb.backends.isolation.channel import Header, Message
from tritonnb.backends.isolation.codec import decode_error
from tritonnb.backends.isolation.model_calls import ModelCalls
from tritonnb.backends.isolation.packer import Packer, SharedOutput
from tritonnb.backends.isolation.process import ChildProcess
from tritonnb.backends.isolation.settings import TIMEOUT
from tritonnb.core.errors import TritonError


class ProcessEndedError(Exception):
    """The process ended, or was ended, before a command had returned.

    Attributes
    ----------
    reason : str
        Why it was ended; empty if it ended by itself.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Connection:
    """A running child.

    Parameters
    ----------
    name : str
        Name of the instance, or of the model before there is one.
    server : ServerCalls or None

    Attributes
    ----------
    model_calls : ModelCalls
    ended : callable or None
        Called when the process has ended, on the thread that reads its calls.
    has_ended : bool
        Whether that was noticed.
    """

    def __init__(self, name: str, server: ServerCalls | None) -> None:
        self.ended: Callable[[], None] | None = None
        self._process = ChildProcess()
        self.model_calls = ModelCalls(name, server, self._process.calls)
        self.has_ended = False
        self._process.start_reading(name, self.model_calls.handle, self._ended)

    def _ended(self) -> None:
        self.has_ended = True
        if self.ended is not None:
            self.ended()

    @property
    def pid(self) -> int:
        """The ID of the process."""
        return self._process.pid

    def run(
        self,
        header: Header,
        payload: Packer | bytes = b"",
        shared: SharedOutput | None = None,
        timeout_s: float | None = None,
    ) -> Message:
        """Run a command in the child, and do what its model asks for meanwhile.

        Parameters
        ----------
        header : list
        payload : Packer or bytes, optional
        shared : SharedOutput, optional
            For large tensors of the packer.
        timeout_s : float, optional
            After this time the process is ended.

        Returns
        -------
        Message
            ``["returned", ...]``.

        Raises
        ------
        TritonError
            If the command raised it.
        ProcessEndedError
            If the process has ended.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        work = self._process.work
        try:
            if isinstance(payload, Packer):
                payload.send(work, header, shared)
            else:
                work.send(header, payload)
            while (message := self._process.receive(deadline)) is not None:
                if message.header[0] == "returned":
                    return message
                if message.header[0] == "raised":
                    raise decode_error(message.header[1])
                self.model_calls.handle(message)
        except TimeoutError:
            self._process.kill()
            raise ProcessEndedError(f"The execution took longer than {TIMEOUT}, {timeout_s:g} s.") from None
        except ConnectionError:
            pass
        raise ProcessEndedError

    def close(self, error: TritonError, timeout_s: float = 0.0) -> None:
        """End the process.

        Parameters
        ----------
        error : TritonError
            For the requests whose response senders the model has.
        timeout_s : float
            How long the process may take to end by itself.
        """
        self._process.close(timeout_s)
        self.model_calls.close(error)

    def describe_end(self) -> str:
        """How the process ended; waits until it has."""
        return self._process.describe_end()
