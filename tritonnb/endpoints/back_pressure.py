"""Fairness between the connections of an endpoint, and the limit of what their clients do not read.

A client can send requests faster than they are started, and can stop reading while it sends. Neither may delay other
clients, nor fill the memory:

- What has arrived on a connection is handled in *turns* of about a millisecond (`Turns`).
- Requests that the client has sent ahead are started while the connection has room: see `share`.
- If the responses that clients do not read exceed a limit, connections that read nothing are closed (`SlowReaders`).
- A streaming call with too many responses that its client has not read is cancelled, and so is the largest such call of
  an endpoint if all of them together have too many (`UnreadResponses`). A model is not held back instead, since that
  would also hold it back for its other clients.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Protocol

from tritonnb.core.errors import TritonError, UnavailableError

logger = logging.getLogger(__name__)

#: Seconds that one connection is handled without a break, and turns in a pass of the loop.
_TURN, _TURNS = 0.001, 4
#: Bytes of responses that a client has not read, from which on no more of its requests are started.
MAX_UNREAD = 64 << 20
#: The same for the responses of a streaming call, of all streaming calls of an endpoint, and the bytes that a response
#: takes in addition to its contents.
MAX_UNREAD_OF_CALL, MAX_UNREAD_OF_CALLS, _OVERHEAD = 256 << 20, 512 << 20, 2048
#: Seconds between checks of clients that do not read, and the checks without progress after which a client is stalled.
_INTERVAL, _CHECKS = 1.0, 5


class Waiting(Protocol):
    """A connection with more to do."""

    def take_turn(self) -> None:
        """Work for about the seconds of a turn."""


class StreamingCalls:
    """The streaming calls of an endpoint whose clients have responses to read.

    Attributes
    ----------
    size : int
        The bytes of these responses.
    """

    def __init__(self) -> None:
        self.size = 0
        self._calls: set[UnreadResponses] = set()

    def changed(self, call: UnreadResponses, size: int) -> None:
        """Add bytes to a call, or subtract them; end the largest call if there are too many."""
        self.size += size
        (self._calls.add if call.size else self._calls.discard)(call)
        if self.size > MAX_UNREAD_OF_CALLS:
            max(self._calls, key=attrgetter("size")).end()


class UnreadResponses:
    """The size of the responses of one streaming call that its client has not read.

    Parameters
    ----------
    name : str
        Of the call, for the error.
    calls : StreamingCalls
        Of the endpoint.
    end : callable
        Called with the error for the client if the call is to end; it drops the unread responses.

    Attributes
    ----------
    size : int
    is_over : bool
        The call is to end, or has ended; its responses are not counted any more.

    Examples
    --------
    >>> unread = UnreadResponses("generate_stream", StreamingCalls(), lambda error: print(str(error).split(":")[0]))
    >>> unread.add(1000)
    >>> unread.add(1 << 30)
    generate_stream expected a client that reads its responses, got more than 256 MiB of unread ones
    >>> unread.size, unread.is_over
    (0, True)
    """

    def __init__(self, name: str, calls: StreamingCalls, end: Callable[[TritonError], None]) -> None:
        self.size = 0
        self.is_over = False
        self._name = name
        self._calls = calls
        self._end = end

    def add(self, size: int) -> None:
        """Count a response of some bytes; the call ends if there are too many."""
        # Without the overhead, a model that sends empty responses could fill the memory and never reach the limit.
        self._change(size + _OVERHEAD)
        if self.size > MAX_UNREAD_OF_CALL:
            self.end()

    def remove(self, size: int) -> None:
        """Count a response that was sent."""
        self._change(-size - _OVERHEAD)

    def close(self) -> None:
        """Count no response any more: the call has ended."""
        self._change(-self.size)
        self.is_over = True
        self._end = _ignore  # breaks the reference cycle of the call and this object

    def end(self) -> None:
        """End the call with an error."""
        size, end = self.size, self._end
        self.close()
        # UNAVAILABLE and not INTERNAL: neither the model nor the server has failed, and a client that reads may try
        # again.
        unread = (
            f"more than {MAX_UNREAD_OF_CALL >> 20} MiB of unread ones"
            if size > MAX_UNREAD_OF_CALL
            else f"{size >> 20} MiB of unread ones, the most of the calls, which have more than "
            f"{MAX_UNREAD_OF_CALLS >> 20} MiB together"
        )
        end(
            UnavailableError(
                f"{self._name} expected a client that reads its responses, got {unread}: read them as they arrive, or "
                "send fewer requests"
            )
        )

    def _change(self, size: int) -> None:
        if not self.is_over:
            self.size += size
            self._calls.changed(self, size)


def _ignore(error: TritonError) -> None:
    """Do nothing."""


class Turns:
    """The connections of an endpoint that have more to do; each gets its turn.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
    seconds : float, optional
        The length of a turn.

    Attributes
    ----------
    seconds : float
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float = _TURN) -> None:
        self.seconds = seconds
        self._loop = loop
        self._waiting: deque[Waiting] = deque()
        self._is_scheduled = False
        self._end = 0.0  # of a pass

    async def take(self) -> None:
        """Wait for a turn: the task may then work for about `seconds`."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.add(_Task(self, future))
        await future

    def shorten_pass(self) -> None:
        """Take the time of a turn from this pass: a task will use it afterwards."""
        # A waiting task only runs in the next iteration of the loop, after this pass, so its time is charged in
        # advance.
        self._end -= self.seconds

    def turn(self) -> float:
        """Return how long, in seconds, a connection may work as soon as something arrives.

        If others wait, it gets no time beyond its first request: many connections may have something at once.
        """
        return 0.0 if self._waiting else self.seconds

    def add(self, connection: Waiting) -> None:
        """Let a connection take a turn in one of the next passes of the loop; it must not be added twice."""
        self._waiting.append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            # One entry in the loop for all connections: with one entry for each, a thousand busy connections would run
            # before the loop polls its sockets again.
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """Give turns for a while. Between two passes the loop handles what has arrived on other connections."""
        self._end = time.monotonic() + _TURNS * self.seconds
        try:
            for _ in range(len(self._waiting)):  # what is added meanwhile comes in the next pass
                self._waiting.popleft().take_turn()
                if time.monotonic() > self._end:
                    break
        finally:
            self._is_scheduled = False
            self._schedule()


class _Task:
    """A task that waits for its turn."""

    def __init__(self, turns: Turns, future: asyncio.Future[None]) -> None:
        self._turns = turns
        self._future = future

    def take_turn(self) -> None:
        """Let the task go on."""
        # The task may have been cancelled since: a client can disconnect while its stream waits for a turn.
        if not self._future.done():
            self._future.set_result(None)
            self._turns.shorten_pass()


def share(total: int, connections: int, least: int, most: int) -> int:
    """Return how much of a total each of an endpoint's connections may have.

    Parameters
    ----------
    total, connections : int
    least, most : int
        The limits of the result.

    Examples
    --------
    >>> [share(4096, connections, 1, 32) for connections in (1, 256, 10_000)]
    [32, 16, 1]
    """
    # The minimum wins over the total: a connection without any room would never be answered, which is worse than a
    # total that is exceeded.
    return max(least, min(most, total // max(1, connections)))


class Reader(Protocol):
    """A connection with a client that reads its responses."""

    @property
    def unread(self) -> int:
        """Bytes of responses that the client has not read."""

    def abort(self) -> None:
        """Close the connection at once."""


class SlowReaders:
    """The connections of an endpoint with responses that their clients have not read.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
    limit : int
        Bytes of responses in all. Beyond it, connections are closed that read nothing for some seconds, the largest
        first. A client that only reads slowly is never closed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        #: By connection: the unread bytes at the last check, and the number of checks without progress.
        self._readers: dict[Reader, tuple[int, int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: Reader) -> None:
        """Watch a connection."""
        self._readers.setdefault(connection, (0, 0))
        if self._timer is None:
            self._timer = self._loop.call_later(_INTERVAL, self._check)

    def discard(self, connection: Reader) -> None:
        """Watch a connection no longer: its client has caught up, or disconnected."""
        self._readers.pop(connection, None)

    def _check(self) -> None:
        self._timer = self._loop.call_later(_INTERVAL, self._check) if self._readers else None
        for connection, (before, checks) in list(self._readers.items()):
            unread = connection.unread
            # A client that reads slowly makes progress between two checks and starts again at 0; only what stands still
            # for all checks is stalled.
            self._readers[connection] = unread, checks + 1 if unread >= before > 0 else 0
        total = sum(unread for unread, _ in self._readers.values())
        # A stalled client alone is no reason to close its connection: it may be a program in a debugger, and its memory
        # is only needed when the total is too high.
        if total <= self._limit:
            return
        stalled = [(unread, connection) for connection, (unread, checks) in self._readers.items() if checks >= _CHECKS]
        # The largest first, so that few clients pay for the limit.
        for unread, connection in sorted(stalled, key=lambda entry: -entry[0]):
            if total <= self._limit:
                break
            logger.warning(
                "closed a connection whose client has not read %d bytes of responses for %d s: clients have not read "
                "%d bytes, more than the limit of %d",
                *(unread, int(_CHECKS * _INTERVAL), total, self._limit),
            )
            total -= unread
            self._readers.pop(connection, None)
            connection.abort()
