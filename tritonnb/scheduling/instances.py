"""The instances a scheduler may use, and which of them have nothing to do."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import final


@final
@dataclass(slots=True)
class TakenInstance:
    """An instance that is given a batch.

    Attributes
    ----------
    instance : int
    idle_since_ns : int
    has_run : bool
        It became idle by ending an execution, and not by being created.
    """

    instance: int
    idle_since_ns: int
    has_run: bool

    def facts(self, now: int) -> dict[str, int]:
        """What the reason of a batch that starts ``now`` says about its instance."""
        return {"instance": self.instance, "idle_ns": now - self.idle_since_ns, "has_run": self.has_run}


class Instances:
    """The instances of one model; the one that has been idle longest is taken first.

    Parameters
    ----------
    count : int
        Instances 0 to count - 1. None of them is idle until it says so.

    Attributes
    ----------
    active_ids : set of int
    dispatch_key : callable or None
        With a rate limiter: of the idle instances the one for which this is lowest is taken.
    """

    __slots__ = ("_idle", "_started", "active_ids", "dispatch_key")

    def __init__(self, count: int) -> None:
        self.active_ids = set(range(count))
        self.dispatch_key: Callable[[int], int] | None = None
        self._idle: dict[int, int] = {}
        self._started: set[int] = set()  # those that have been given a batch

    @property
    def idle(self) -> Collection[int]:
        """Those with nothing to do, longest idle first."""
        return self._idle.keys()

    def release(self, instance: int, now: int) -> bool:
        """An instance has become idle; False if it is no longer (or already) one to use."""
        if instance not in self.active_ids or instance in self._idle:
            return False
        self._idle[instance] = now
        return True

    def take(self) -> TakenInstance:
        """The instance whose turn it is is busy from now on."""
        instance = next(iter(self._idle)) if self.dispatch_key is None else min(self._idle, key=self.dispatch_key)
        taken = TakenInstance(instance, self._idle.pop(instance), instance in self._started)
        self._started.add(instance)
        return taken

    def replace(self, members: Collection[int]) -> None:
        """From now on these are the instances; a removed one gets no more work.

        A number must not be given to a new instance while a removed one of that number still runs.
        """
        self.active_ids = set(members)
        self._idle = {each: since for each, since in self._idle.items() if each in self.active_ids}
        self._started &= self.active_ids
