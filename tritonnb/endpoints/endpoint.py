"""The base class of endpoints: an engine served on a port, over a transport."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol


class Transport(Protocol):
    """Transports an endpoint's protocol over sockets."""

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; the system chooses one if it is 0."""

    async def stop(self, drain: float) -> None:
        """Accept no more requests, and wait up to ``drain`` seconds for those in progress."""


class Endpoint(ABC):
    """Serves an engine, on the running event loop.

    Parameters
    ----------
    host : str

    Attributes
    ----------
    port : int
        Set by `start`.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self.port = 0
        self._transport: Transport

    @abstractmethod
    def make_transport(self) -> Transport:
        """Make the server that listens."""

    async def start(self, port: int = 0) -> None:
        """Listen on a port; on any free one if it is 0.

        Raises
        ------
        OSError
            If the port is taken.
        InvalidArgumentError
            If an option is invalid.
        """
        self._transport = self.make_transport()
        self.port = await self._transport.start(self.host, port)

    async def stop(self, drain: float) -> None:
        """Accept no more requests, and wait up to ``drain`` seconds for those in progress."""
        await self._transport.stop(drain)
