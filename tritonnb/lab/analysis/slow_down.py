"""Slow-down: how much longer executions take while more instances of their model are busy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class SlowDown:
    """By how much executions take longer while instances of their model are busy.

    More instances than were recorded at the same time follow Amdahl's law: each one needs the same part of its time
    for itself alone. At best they cost nothing more; at worst no more executions end than with the recorded ones.

    Attributes
    ----------
    known : dict of int to float
        The recorded factors by the number of busy instances, in ascending order; the first one is 1.

    Examples
    --------
    >>> slow_down = SlowDown({1: 1.0, 2: 1.4})
    >>> [round(slow_down.factor(busy), 2) for busy in (1, 2, 4)]
    [1.0, 1.4, 2.2]
    >>> [round(slow_down.factor(4, sharing), 2) for sharing in (-1, 0.5, 1)]
    [1.4, 2.5, 2.8]
    >>> slow_down.basis(4)
    '4 instances at the same time were not recorded: executions are assumed to take 2.20 (1.40 to 2.80) times as long'
    """

    known: Mapping[int, float]

    @cached_property
    def most(self) -> int:
        """The largest number of instances that were recorded at the same time."""
        return max(self.known)

    def factor(self, busy: int, sharing: float = 0.0) -> float:
        """Return how many times as long executions take with a number of busy instances.

        Parameters
        ----------
        busy : int
            A smaller number that was not recorded has the factor of the nearest one.
        sharing : float, optional
            Of more instances than were recorded, what they share of the machine: from -1, at best, to 1, at worst.
        """
        if busy <= self.most:
            return self.known.get(busy) or self.known[min(self.known, key=lambda level: abs(level - busy))]
        recorded = self.known[self.most]
        typical = recorded * (1 + self._alone * (busy - 1)) / (1 + self._alone * (self.most - 1))
        bound = recorded if sharing < 0 else recorded * busy / self.most
        return typical + abs(sharing) * (bound - typical)

    def unknown(self, instances: int) -> str:
        """Return that a number of instances was not recorded at the same time; ``""`` if it was.

        Parameters
        ----------
        instances : int
        """
        return f"{instances} instances at the same time were not recorded" if instances > self.most else ""

    def basis(self, instances: int) -> str:
        """Return what a number of instances rests on, as a sentence without a period; ``""`` if it was recorded.

        Parameters
        ----------
        instances : int
        """
        unknown = self.unknown(instances)
        typical, least, most = (self.factor(instances, sharing) for sharing in (0, -1, 1))
        assumed = f"executions are assumed to take {typical:.2f} ({least:.2f} to {most:.2f}) times as long"
        return unknown and f"{unknown}: {assumed}"

    @cached_property
    def _alone(self) -> float:
        """The share (0 to 1) of its time for which an execution needs the machine for itself, by Amdahl's law."""
        least = min(self.known)
        ratio = self.known[self.most] / self.known[least]
        shared = (self.most - 1) - ratio * (least - 1)
        return min(1.0, max(0.0, (ratio - 1) / shared)) if shared > 0 else float(ratio > 1)
