"""The instances a scheduler may use, and which of them have nothing to do."""

from __future__ import annotations

from collections.abc import Callable, Collection


class Instances:
    """The instances of one model; the one that has been idle longest is taken first.

    Parameters
    ----------
    count : int
        Instances 0 to count - 1. None of them is idle until it says so.

    Attributes
    ----------
    members : set of int
    turn : callable or None
        With a rate limiter: of the idle instances the one for which this is lowest is taken.
    """

    __slots__ = ("_idle", "members", "turn")

    def __init__(self, count: int) -> None:
        self.members = set(range(count))
        self.turn: Callable[[int], int] | None = None
        self._idle: dict[int, int] = {}

    @property
    def idle(self) -> Collection[int]:
        """Those with nothing to do, longest idle first."""
        return self._idle.keys()

    def release(self, instance: int, now: int) -> bool:
        """An instance has become idle; False if it is no longer (or already) one to use."""
        if instance not in self.members or instance in self._idle:
            return False
        self._idle[instance] = now
        return True

    def take(self) -> tuple[int, int]:
        """The instance whose turn it is, now busy, and since when it was idle (ns)."""
        instance = next(iter(self._idle)) if self.turn is None else min(self._idle, key=self.turn)
        return instance, self._idle.pop(instance)

    def replace(self, members: Collection[int]) -> None:
        """From now on these are the instances; a removed one gets no more work.

        A number must not be given to a new instance while a removed one of that number still runs.
        """
        self.members = set(members)
        self._idle = {each: since for each, since in self._idle.items() if each in self.members}
