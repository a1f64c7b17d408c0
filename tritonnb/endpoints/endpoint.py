"""What every endpoint is: an engine served on a port, by a transport of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol


class Transport(Protocol):
    """Carries an endpoint's protocol over sockets."""

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which the system chooses if it was 0."""

    async def stop(self, drain: float) -> None:
        """Accept no more requests; those in progress have ``drain`` seconds."""


class Endpoint(ABC):
    """Serves an engine, on the running event loop.

    Parameters
    ----------
    host : str
    port : int
        0 for any free one; `port` says which.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._transport: Transport

    @abstractmethod
    def make_transport(self) -> Transport:
        """What listens."""

    async def start(self) -> None:
        """Listen.

        Raises
        ------
        OSError
            If the port is taken.
        InvalidArgumentError
            If the options cannot be met.
        """
        self._transport = self.make_transport()
        self.port = await self._transport.start(self.host, self.port)

    async def stop(self, drain: float) -> None:
        """Accept no more requests; those in progress have ``drain`` seconds."""
        await self._transport.stop(drain)
