"""Several replicas of a model in virtual time, behind a router."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.sequence_flags import SEQUENCE_END
from tritonnb.scheduling.virtual_time import FinalResponse, VirtualTime

if TYPE_CHECKING:
    from tritonnb.simulation.run import SimulatedRequest

#: Chooses a replica: takes the number of requests in flight on each, and returns an index.
RouterFunction: TypeAlias = Callable[[Sequence[int]], int]
#: The name of a router, or a function.
Router: TypeAlias = str | RouterFunction

_REPLICA = "replica "


def instance_on(replica: int | str, instance: str) -> str:
    """The name of an instance in a recording of several replicas.

    Examples
    --------
    >>> instance_on(2, "m_0_0"), replica_of(instance_on(2, "m_0_0")), replica_of("m_0_0")
    ('replica 2: m_0_0', '2', '')
    """
    return f"{_REPLICA}{replica}: {instance}"


def replica_of(instance: str) -> str:
    """The replica in the name of an instance; empty if the recording is of one server."""
    replica, separator, _ = instance.removeprefix(_REPLICA).partition(": ")
    return replica if separator and instance.startswith(_REPLICA) else ""


def _two_choices(choose: random.Random) -> RouterFunction:
    def route(loads: Sequence[int]) -> int:
        return min(choose.sample(range(len(loads)), 2), key=loads.__getitem__)

    return route


def _round_robin(choose: random.Random) -> RouterFunction:
    turns = count()
    return lambda loads: next(turns) % len(loads)


def _random(choose: random.Random) -> RouterFunction:
    return lambda loads: choose.randrange(len(loads))


def _least_loaded(choose: random.Random) -> RouterFunction:
    return lambda loads: loads.index(min(loads))


_ROUTERS: dict[str, Callable[[random.Random], RouterFunction]] = {
    "two_choices": _two_choices,
    "round_robin": _round_robin,
    "random": _random,
    "least_loaded": _least_loaded,
}


def make_router(router: Router, seed: int) -> RouterFunction:
    """The function of a router.

    Parameters
    ----------
    router : str or callable
        ``"two_choices"``: the less loaded of two random replicas, as Ray Serve routes; ``"least_loaded"``,
        ``"round_robin"``, ``"random"``; or a function.
    seed : int

    Raises
    ------
    InvalidArgumentError
        If the name is unknown.
    """
    if callable(router):
        return router
    if router not in _ROUTERS:
        names = ", ".join(map(repr, _ROUTERS))
        raise InvalidArgumentError(f"router: expected one of {names}, or a function, got {router!r}")
    return _ROUTERS[router](random.Random(f"{seed} router"))


class ReplicatedTime:
    """The driver of several schedulers in one virtual time; has the interface of `VirtualTime` that simulations use.

    A request of a sequence goes to the replica of its first request.

    Parameters
    ----------
    replicas : sequence of VirtualTime
    route : callable
    """

    def __init__(self, replicas: Sequence[VirtualTime], route: RouterFunction) -> None:
        self._replicas = replicas
        self._route = route
        self._in_flight = [0] * len(replicas)
        self._replica_of: dict[int | str, int] = {}
        self._sent_to: dict[int, int] = {}  # by serial number
        self._arrivals: list[tuple[int, int, SimulatedRequest]] = []
        self._cancellations: dict[int, int] = {}  # times, by serial number

    @property
    def responses(self) -> list[FinalResponse]:
        """The responses of all replicas."""
        return [response for replica in self._replicas for response in replica.responses]

    def arrive(self, time_ns: int, request: SimulatedRequest) -> None:
        """Schedule the arrival of a request at the router."""
        heapq.heappush(self._arrivals, (time_ns, request.serial, request))

    def cancel(self, time_ns: int, request: SimulatedRequest) -> None:
        """Schedule the cancellation of a request."""
        self._cancellations[request.serial] = time_ns

    def responded(self, request: SimulatedRequest) -> None:
        """A replica sent the response to a request."""
        self._in_flight[self._sent_to.pop(request.serial)] -= 1

    def run(self) -> None:
        """Process all events in the order of their times; at equal times, those of replicas before arrivals."""
        while True:
            nexts = [
                (time, index) for index, replica in enumerate(self._replicas) if (time := replica.next_ns()) is not None
            ]
            if nexts and (not self._arrivals or min(nexts)[0] <= self._arrivals[0][0]):
                time_ns, index = min(nexts)
                self._replicas[index].run(time_ns)
            elif self._arrivals:
                time_ns, _, request = heapq.heappop(self._arrivals)
                self._send(time_ns, request)
            else:
                return

    def _send(self, time_ns: int, request: SimulatedRequest) -> None:
        index = self._choose(request)
        self._in_flight[index] += 1
        self._sent_to[request.serial] = index
        replica = self._replicas[index]
        replica.arrive(time_ns, request)
        cancelled_ns = self._cancellations.pop(request.serial, None)
        if cancelled_ns is not None:
            replica.cancel(cancelled_ns, request)
        replica.run(time_ns)

    def _choose(self, request: SimulatedRequest) -> int:
        sequence = request.correlation_id
        index = self._replica_of.get(sequence) if sequence else None
        if index is None:
            index = self._route(self._in_flight)
        if sequence:
            self._replica_of[sequence] = index
            if request.flags & SEQUENCE_END:
                del self._replica_of[sequence]
        return index
