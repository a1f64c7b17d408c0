"""The instances that a scheduler may use, and which of them are idle."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import final


@final
class TakenInstance:
    """An instance that gets a batch.

    Attributes
    ----------
    instance : int
    idle_since_ns : int
    has_run : bool
        Whether it has executed a batch before.
    """

    __slots__ = ("has_run", "idle_since_ns", "instance")

    def __init__(self, instance: int, idle_since_ns: int, has_run: bool) -> None:
        self.instance = instance
        self.idle_since_ns = idle_since_ns
        self.has_run = has_run

    def facts(self, now: int) -> dict[str, int]:
        """The facts about the instance for the `Reason` of a batch that starts ``now``."""
        return {"instance": self.instance, "idle_ns": now - self.idle_since_ns, "has_run": self.has_run}


class Instances:
    """The instances of one model; the one that has been idle longest is used first.

    Parameters
    ----------
    count : int
        Instances 0 to count - 1. None is idle until it is reported.

    Attributes
    ----------
    active_ids : set of int
    dispatch_key : callable or None
        With a rate limiter, the idle instance with the lowest key is used first.
    """

    __slots__ = ("_idle", "_started", "active_ids", "dispatch_key")

    def __init__(self, count: int) -> None:
        self.active_ids = set(range(count))
        self.dispatch_key: Callable[[int], int] | None = None
        self._idle: dict[int, int] = {}
        self._started: set[int] = set()  # instances that have executed a batch

    @property
    def idle(self) -> Collection[int]:
        """Idle instances, longest idle first."""
        return self._idle.keys()

    def release(self, instance: int, now: int) -> bool:
        """Mark an instance as idle; False if it was removed or is idle already."""
        if instance not in self.active_ids or instance in self._idle:
            return False
        self._idle[instance] = now
        return True

    def take(self) -> TakenInstance:
        """Mark the next idle instance as busy and return it."""
        instance = next(iter(self._idle)) if self.dispatch_key is None else min(self._idle, key=self.dispatch_key)
        taken = TakenInstance(instance, self._idle.pop(instance), instance in self._started)
        self._started.add(instance)
        return taken

    def replace(self, instances: Collection[int]) -> None:
        """Replace the set of instances; removed ones get no more work.

        The number of a removed instance must not be used again while that instance is running.
        """
        self.active_ids = set(instances)
        self._idle = {instance: since for instance, since in self._idle.items() if instance in self.active_ids}
        self._started &= self.active_ids
