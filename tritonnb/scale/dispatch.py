"""Sending requests to replicas: which one, what happens when it is lost, and what is sent to all.

The replicas of a group are behind a `Pool`; Ray Serve's is `tritonnb.scale.ray.pool.RayPool`, and tests use an
in-process one.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

from tritonnb.core.errors import UnavailableError
from tritonnb.scale.coordinator import DeploymentChange
from tritonnb.scale.replica import RpcReply
from tritonnb.scale.sequences import SequenceKey, SequenceRequest

logger = logging.getLogger(__name__)
#: Points of each member on the ring; with 64, the largest of ten members owns about 1.3 times its share.
_POINTS = 64
#: Triton's error for a request without START of a sequence that the model does not know contains this.
_UNKNOWN_SEQUENCE = "must specify the START flag on the first request of the sequence"
#: How often a request is placed again because its replica was gone before it received it.
_PLACEMENTS = 5
#: Sequences that an ingress remembers; more are looked up again.
_REMEMBERED = 100_000
#: The response to an HTTP request, or an `RpcReply`.
R = TypeVar("R")
#: Calls a method of the `Coordinator` by name.
Ask = Callable[..., Awaitable[Any]]


class HashRing:
    """An assignment of keys to members that is the same in every process.

    A member that is added only takes keys from others, and the keys of a member that is removed are distributed over
    the others: no other key moves.

    Parameters
    ----------
    members : iterable of str

    Examples
    --------
    >>> ring = HashRing(["a", "b", "c"])
    >>> owner = ring.owner("42")
    >>> other = next(member for member in "abc" if member != owner)
    >>> HashRing({"a", "b", "c"} - {other}).owner("42") == owner
    True
    """

    def __init__(self, members: Iterable[str]) -> None:
        self.members = frozenset(members)
        placed = sorted((_position(f"{member}#{point}"), member) for member in self.members for point in range(_POINTS))
        self._positions = [position for position, _ in placed]
        self._owners = [member for _, member in placed]

    def owner(self, key: str) -> str:
        """Return the member that owns a key.

        Raises
        ------
        LookupError
            If the ring has no members.
        """
        if not self._owners:
            raise LookupError(f"expected a ring with members for the key {key!r}, got an empty ring")
        return self._owners[bisect(self._positions, _position(key)) % len(self._owners)]


def _position(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")


class ReplicaGoneError(Exception):
    """The replica no longer exists, or never received the request: it was not executed."""


class ReplicaDiedError(Exception):
    """The replica was lost while it had the request, which may have been executed."""


@dataclass(frozen=True, slots=True)
class Members:
    """The replicas of a pool.

    Attributes
    ----------
    running : frozenset of str
        They get new sequences and requests without a sequence.
    draining : frozenset of str
        They are to go, and still serve their sequences.
    """

    running: frozenset[str] = frozenset()
    draining: frozenset[str] = frozenset()

    @property
    def all(self) -> frozenset[str]:
        """The replicas that accept requests."""
        return self.running | self.draining


class Pool(Protocol):
    """The replicas of one group; each method of `Replica` can be called on one of them."""

    group: str

    def members(self) -> Members:
        """Return the known replicas."""

    async def wait_for(self, replica: str = "") -> bool:
        """Wait for a replica, by default any, to be available for some seconds; return whether it is."""

    async def call(self, method: str, *arguments: Any, replica: str = "") -> Any:
        """Call a method on a replica, by default on the least loaded one.

        Raises
        ------
        ReplicaGoneError
            If the replica is gone, and has not executed the call.
        ReplicaDiedError
            If it was lost while it had the call.
        """

    def stream(self, method: str, *arguments: Any, replica: str = "") -> AsyncIterator[Any]:
        """Call a method that yields results; fails as `call`."""


class Dispatcher:
    """A dispatcher of requests to the replicas of one pool.

    Parameters
    ----------
    pool : Pool
    ask : callable
        ``await ask("find", key)`` calls the coordinator.
    retries : int
        How often a request without a sequence is sent again after its replica was lost.

    Attributes
    ----------
    pool, ask
        The parameters.
    """

    def __init__(self, pool: Pool, ask: Ask, retries: int = 1) -> None:
        self.pool = pool
        self.ask = ask
        self._retries = retries
        self._ring = HashRing(())
        self._known: dict[SequenceKey, str] = {}

    # --- one replica --------------------------------------------------------------------------

    async def call(self, sequence: SequenceRequest | None, method: str, *arguments: Any) -> Any:
        """Send a request to the replica of its sequence, or to the least loaded one; return the response.

        Raises
        ------
        UnavailableError
            If no replica is running, or the replica was lost while it had the request.
        """
        if sequence is None:
            return await self._call_any(method, *arguments)
        for _ in range(_PLACEMENTS):
            replica = await self._place(sequence)
            try:
                reply = await self.pool.call(method, *arguments, replica=replica)
            except ReplicaGoneError:
                await self._lose(replica)
                continue
            except ReplicaDiedError:
                await self._lose(replica)
                raise _lost(self.pool.group, sequence) from None
            if await self._is_elsewhere(sequence, replica, reply):
                continue
            if sequence.end and _succeeded(reply):
                await self._end(sequence.key, replica)
            return reply
        raise _no_replica(self.pool.group)

    async def stream(self, sequence: SequenceRequest | None, method: str, *arguments: Any) -> AsyncIterator[Any]:
        """Send a request as `call`, and yield its responses.

        Raises
        ------
        UnavailableError
            As `call`.
        """
        for _ in range(_PLACEMENTS):
            replica = "" if sequence is None else await self._place(sequence)
            first = True
            try:
                async for reply in self.pool.stream(method, *arguments, replica=replica):
                    if first and sequence is not None and await self._is_elsewhere(sequence, replica, reply):
                        break
                    first = False
                    yield reply
                else:
                    if sequence is not None and sequence.end:
                        await self._end(sequence.key, replica)
                    return
            except ReplicaGoneError:
                if not first:
                    raise _lost(self.pool.group, sequence) from None
                await self._lose(replica)
            except ReplicaDiedError:
                await self._lose(replica)
                raise _lost(self.pool.group, sequence) from None
        raise _no_replica(self.pool.group)

    async def _call_any(self, method: str, *arguments: Any) -> Any:
        for attempt in range(self._retries + 1):
            try:
                return await self.pool.call(method, *arguments)
            except (ReplicaGoneError, ReplicaDiedError):
                if attempt == self._retries:
                    raise _lost(self.pool.group, None) from None

    # --- the replica of a sequence ------------------------------------------------------------

    async def _place(self, sequence: SequenceRequest) -> str:
        """Return the replica of a sequence: where it is live, else where the ring places it."""
        key = sequence.key
        for _ in range(_PLACEMENTS):
            replica = await self._look_up(sequence)
            if replica in self.pool.members().all or (replica and await self.pool.wait_for(replica)):
                return replica
            await self._lose(replica)
        raise _no_replica(f"{self.pool.group}, sequence {key.id}")

    async def _look_up(self, sequence: SequenceRequest) -> str:
        key = sequence.key
        if not sequence.start:
            replica = self._known.get(key) or await self.ask("find", key)
            if replica is None:  # its answer is Triton's error
                return await self._owner(key)
        else:
            replica = await self.ask("start", key, await self._owner(key))
        self._remember(key, replica)
        return str(replica)

    async def _owner(self, key: SequenceKey) -> str:
        running = self.pool.members().running
        if not running:
            if not await self.pool.wait_for():
                raise _no_replica(self.pool.group)
            running = self.pool.members().running
        if running != self._ring.members:
            self._ring = HashRing(running)
        return self._ring.owner(key.text)

    def _remember(self, key: SequenceKey, replica: str) -> None:
        if len(self._known) >= _REMEMBERED and key not in self._known:
            self._known.pop(next(iter(self._known)))
        self._known[key] = replica

    async def _is_elsewhere(self, sequence: SequenceRequest, replica: str, reply: Any) -> bool:
        """Return whether a request was refused because its sequence has ended there and started on another replica."""
        if sequence.start or not is_unknown_sequence(reply):
            return False
        self._known.pop(sequence.key, None)
        other = await self.ask("find", sequence.key)
        return other is not None and other != replica

    async def _end(self, key: SequenceKey, replica: str) -> None:
        self._known.pop(key, None)
        await self.ask("end_sequence", key, replica)

    async def _lose(self, replica: str) -> None:
        """Remove a lost replica; its sequences have ended."""
        self._known = {key: other for key, other in self._known.items() if other != replica}
        if replica:
            ended = await self.ask("forget", replica)
            logger.warning("replica '%s' of '%s' is gone; sequences that ended: %d", replica, self.pool.group, ended)

    # --- all replicas -------------------------------------------------------------------------

    async def call_all(self, method: str, *arguments: Any) -> dict[str, Any]:
        """Call a method on every replica; return the results by replica, sorted, without replicas lost meanwhile.

        Raises
        ------
        UnavailableError
            If no replica is running.
        """
        if not self.pool.members().running and not await self.pool.wait_for():
            raise _no_replica(self.pool.group)
        names = sorted(self.pool.members().all)
        results = await asyncio.gather(
            *(self.pool.call(method, *arguments, replica=name) for name in names), return_exceptions=True
        )
        answered: dict[str, Any] = {}
        for name, result in zip(names, results, strict=True):
            if isinstance(result, (ReplicaGoneError, ReplicaDiedError)):
                continue
            if isinstance(result, BaseException):
                raise result
            answered[name] = result
        if not answered:
            raise _no_replica(self.pool.group)
        return answered

    async def change(self, change: DeploymentChange) -> Any:
        """Apply a change on every replica, and on those that are added later.

        Returns
        -------
        object
            The first response that refuses it, else the first.
        """
        number = await self.ask("begin_change", self.pool.group, change)
        accepted = False
        try:
            replies = await self.call_all("apply", number, change)
            accepted = any(map(_succeeded, replies.values()))
        finally:
            await self.ask("end_change", self.pool.group, number, accepted)
        return first_refusal(replies.values()) or next(iter(replies.values()))


def is_unknown_sequence(reply: object) -> bool:
    """Return whether a response is Triton's error for a sequence that the model does not know."""
    if isinstance(reply, RpcReply):
        return _UNKNOWN_SEQUENCE in reply.error or _UNKNOWN_SEQUENCE.encode() in reply.message[:4096]
    return isinstance(reply, bytes) and reply.startswith(b"HTTP/1.1 400") and _UNKNOWN_SEQUENCE.encode() in reply


def _succeeded(reply: object) -> bool:
    if isinstance(reply, RpcReply):
        return not reply.status
    return isinstance(reply, bytes) and reply.startswith(b"HTTP/1.1 200")


def _lost(group: str, sequence: SequenceRequest | None) -> UnavailableError:
    if sequence is None:
        return UnavailableError(
            f"the replica of '{group}' that had the request was lost; the request may have been executed"
        )
    key = sequence.key
    return UnavailableError(
        f"sequence {key.id} of model '{key.model}' has ended: its replica was lost while it had a request of the "
        "sequence; start the sequence again"
    )


def _no_replica(group: str) -> UnavailableError:
    return UnavailableError(f"no replica of '{group}' is running")


def first_refusal(replies: Iterable[R]) -> R | None:
    """Return the first response that is not a success; None if all are."""
    return next((reply for reply in replies if not _succeeded(reply)), None)
