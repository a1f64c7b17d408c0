"""Several replicas of a model in virtual time, behind a router."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeAlias

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.schedulable import SEQUENCE_END, Schedulable
from tritonnb.scheduling.virtual_time import VirtualTime

#: Chooses a replica: takes the number of requests in flight on each, and returns an index.
RouterFunction: TypeAlias = Callable[[Sequence[int]], int]
#: The name of a router, or a function.
Router: TypeAlias = str | RouterFunction


def make_router(router: Router, seed: int) -> RouterFunction:
    """Return the function of a router.

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
    choose, turns = random.Random(f"{seed} router"), count()
    routers: dict[str, RouterFunction] = {
        "two_choices": lambda loads: min(choose.sample(range(len(loads)), 2), key=loads.__getitem__),
        "round_robin": lambda loads: next(turns) % len(loads),
        "random": lambda loads: choose.randrange(len(loads)),
        "least_loaded": lambda loads: loads.index(min(loads)),
    }
    if router not in routers:
        names = ", ".join(map(repr, routers))
        raise InvalidArgumentError(f"router: expected one of {names}, or a function, got {router!r}")
    return routers[router]


class Replicas:
    """The drivers of several schedulers with one virtual clock, behind a router.

    A request of a sequence goes to the replica of its first request.

    Parameters
    ----------
    replicas : sequence of VirtualTime
        With one clock.
    route : callable
    """

    def __init__(self, replicas: Sequence[VirtualTime], route: RouterFunction) -> None:
        self._replicas = replicas
        self._route = route
        self._in_flight = [0] * len(replicas)
        self._replica_of: dict[int | str, int] = {}  # by sequence
        self._sent_to: dict[Schedulable, int] = {}

    def arrived(self, request: Schedulable) -> None:
        """Handle the arrival of a request at the router, at the current time."""
        index = self._sent_to[request] = self._choose(request)
        self._in_flight[index] += 1
        self._replicas[index].arrived(request)

    def cancelled(self, request: Schedulable) -> None:
        """Handle the cancellation of a request before its response, at the current time."""
        self._replicas[self._sent_to[request]].cancelled(request)

    def responded(self, request: Schedulable) -> None:
        """Handle a replica's response to a request."""
        self._in_flight[self._sent_to.pop(request)] -= 1

    def _choose(self, request: Schedulable) -> int:
        placed: int = getattr(request, "replica", -1)  # a step is executed on the server of its ensemble's request
        if placed >= 0:
            return placed
        sequence = request.correlation_id
        index = self._replica_of.get(sequence) if sequence else None
        if index is None:
            index = self._route(self._in_flight)
        if sequence:
            self._replica_of[sequence] = index
            if request.flags & SEQUENCE_END:
                del self._replica_of[sequence]
        return index
