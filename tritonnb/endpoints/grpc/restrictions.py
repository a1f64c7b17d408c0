"""``--grpc-restricted-protocol``: RPCs whose calls must have certain metadata.

Implements Triton's *Limit Endpoint Access*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tritonnb.core.errors import Status, TritonError
from tritonnb.endpoints.grpc.rpcs import PROTOCOLS

_PREFIX = "triton-grpc-protocol-"


class Restrictions:
    """The metadata that restricted RPCs require.

    Parameters
    ----------
    restricted : iterable of (protocol, key, value)
    """

    def __init__(self, restricted: Iterable[tuple[str, str, str]]) -> None:
        self._required = {
            rpc: (f"{_PREFIX}{key}".lower(), value)
            for protocol, key, value in restricted
            for rpc in PROTOCOLS[protocol]
        }

    def apply_to(self, rpc: str) -> bool:
        """Whether an RPC is restricted."""
        return rpc in self._required

    def check(self, rpc: str, metadata: Mapping[str, str]) -> None:
        """Check a call.

        Raises
        ------
        TritonError
            If it is refused; with Triton's text.
        """
        required = self._required.get(rpc)
        if required is not None and metadata.get(required[0]) != required[1]:
            raise TritonError(f"This protocol is restricted, expecting header '{required[0]}'", Status.UNAVAILABLE)
