"""Which replica each live sequence is on.

A sequence is on one replica from its START request until it ends: by its END request, by being idle for too long, or
because its replica is gone. It never moves, whatever replicas are added or removed meanwhile. The replicas decide
whether a sequence is live, and report it; the table only remembers where.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

#: Seconds after its START during which a sequence is kept although its replica does not report it yet.
GRACE_S = 10.0


class SequenceKey(NamedTuple):
    """A sequence: correlation IDs of different models are independent; 1 and ``"1"`` are different IDs."""

    model: str
    id: int | str

    @property
    def text(self) -> str:
        """The key on the hash ring."""
        return f"{self.model}/{self.id!r}"


class SequenceRequest(NamedTuple):
    """What a request says about its sequence."""

    key: SequenceKey
    start: bool
    end: bool


@dataclass(slots=True)
class _Entry:
    replica: str
    since: float  # of the last START


class SequenceTable:
    """The replicas of all live sequences of a deployment.

    Every method takes the time in seconds where it needs it; the table uses no clock.

    Examples
    --------
    >>> table = SequenceTable()
    >>> key = SequenceKey("accumulator", 42)
    >>> table.start(key, "r1", 0.0), table.start(key, "r2", 1.0)  # a live sequence does not move
    ('r1', 'r1')
    >>> table.end(key, "r1")
    >>> table.start(key, "r2", 2.0)
    'r2'
    """

    def __init__(self) -> None:
        self._entries: dict[SequenceKey, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[SequenceKey, str]]:
        return ((key, entry.replica) for key, entry in self._entries.items())

    def find(self, key: SequenceKey) -> str | None:
        """The replica of a live sequence; None for an unknown one."""
        entry = self._entries.get(key)
        return None if entry is None else entry.replica

    def start(self, key: SequenceKey, proposed: str, now: float) -> str:
        """A START request arrived: the replica for it, which is the present one if the sequence is live."""
        entry = self._entries.setdefault(key, _Entry(proposed, now))
        entry.since = now
        return entry.replica

    def end(self, key: SequenceKey, replica: str) -> None:
        """A sequence ended on a replica; without effect if it is on another one now."""
        if self.find(key) == replica:
            del self._entries[key]

    def report(self, replica: str, live: Collection[SequenceKey], now: float) -> None:
        """A replica reported its live sequences: those that it does not have any more are removed."""
        for key in live:
            self._entries.setdefault(key, _Entry(replica, now))
        reported = frozenset(live)
        ended = [
            key
            for key, entry in self._entries.items()
            if entry.replica == replica and key not in reported and now - entry.since > GRACE_S
        ]
        for key in ended:
            del self._entries[key]

    def forget(self, replica: str) -> list[SequenceKey]:
        """A replica is gone: its sequences, which ended with it."""
        lost = [key for key, entry in self._entries.items() if entry.replica == replica]
        for key in lost:
            del self._entries[key]
        return lost

    def counts(self) -> Counter[str]:
        """The number of live sequences by replica."""
        return Counter(entry.replica for entry in self._entries.values())
