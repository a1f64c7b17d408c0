"""The queue of the dynamic batcher: priority levels, expiry, and the pending batch.

Requests stand in scan order: by level; inside a level first the live ones, then those that have
outlived their timeout under the policy DELAY; inside each in order of arrival. The batcher walks
along the queue once and *takes* what it provisionally chooses into the pending batch, so that the
next walk goes on where the last one ended. Whatever would have to stand before or inside the
pending batch (an arrival of a higher precedence, an expiry, a cancellation) restores it to the queue, and the
walk begins anew.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from tritonnb.core.errors import UnavailableError
from tritonnb.scheduling.deadlines import Deadlines
from tritonnb.scheduling.decisions import Reason, Refuse
from tritonnb.scheduling.policy import QueuePolicy, QueueSettings, TimeoutAction
from tritonnb.scheduling.reasons import TIMED_OUT

Arrivals = OrderedDict[Any, int]  # request -> when it entered, in ns; oldest first


@dataclass(slots=True)
class Level:
    """The requests of one priority that are not in the pending batch."""

    number: int
    policy: QueuePolicy
    live: Arrivals = field(default_factory=OrderedDict)
    delayed: Arrivals = field(default_factory=OrderedDict)
    pending: int = 0


class PriorityQueue:
    """Requests that wait to be batched.

    Parameters
    ----------
    settings : QueueSettings

    Attributes
    ----------
    size : int
        How many wait, the pending ones included.
    rows : int
        Sum of the batch sizes of these.
    pending : list
        The requests provisionally chosen for the next batch, in order.
    pending_rows : int
        Their sizes added up.
    pending_oldest_ns : int
        When the one that has waited longest entered.
    """

    def __init__(self, settings: QueueSettings) -> None:
        self._configure(settings)
        self._reset_pending()

    def _configure(self, settings: QueueSettings) -> None:
        self.settings = settings
        self._levels: dict[int, Level] = {}
        self._scan: list[Level] = []  # by number
        self.size = 0
        self.rows = 0
        self._timeouts: Deadlines[Any] = Deadlines()

    def _reset_pending(self) -> None:
        self.pending: list[Any] = []
        self._sources: list[tuple[Level, Arrivals, int]] = []  # where each pending request stood
        self.pending_rows = 0
        self.pending_oldest_ns = 0

    def add(self, request: Any, now: int) -> None:
        """A request begins to wait.

        Raises
        ------
        UnavailableError
            If its level is full.
        """
        level = self._level(request)
        limit = level.policy.max_queue_size
        if limit and len(level.live) + len(level.delayed) + level.pending >= limit:
            raise UnavailableError(f"{request.id_prefix}Exceeds maximum queue size")
        self._insert(level, request, now, now)

    def put(self, request: Any, since: int, now: int) -> None:
        """A request that was admitted elsewhere goes on waiting, since then; its timeout runs from now."""
        self._insert(self._level(request), request, since, now)

    def clear(self) -> list[Any]:
        """Everyone leaves, in the order of scanning."""
        self.restore()
        everyone = [request for level in self._scan for part in (level.live, level.delayed) for request in part]
        self._configure(self.settings)
        return everyone

    @property
    def batch_key(self) -> Hashable:
        """What the pending batch's requests have in common."""
        key: Hashable = self.pending[0].batch_key
        return key

    def candidate(self) -> Any:
        """The first request that is not pending, or None."""
        for level in self._scan:
            if level.live:
                return next(iter(level.live))
            if level.delayed:
                return next(iter(level.delayed))
        return None

    def take(self) -> None:
        """Add the candidate to the pending batch."""
        for level in self._scan:
            source = level.live or level.delayed
            if source:
                request, since = source.popitem(last=False)
                if not self.pending or since < self.pending_oldest_ns:
                    self.pending_oldest_ns = since
                self.pending.append(request)
                self.pending_rows += request.batch_size
                self._sources.append((level, source, since))
                level.pending += 1
                return

    def restore(self) -> None:
        """Give up the pending batch: its requests stand at the head of the queue again."""
        if not self.pending:
            return
        for request, (level, source, since) in zip(self.pending[::-1], self._sources[::-1], strict=True):
            source[request] = since
            source.move_to_end(request, last=False)
            level.pending -= 1
        self._reset_pending()

    def withdraw(self, count: int) -> list[Any]:
        """The first ``count`` pending requests leave the queue; the others are restored."""
        leaving, staying = self.pending[:count], self.pending[count:]
        timed = len(self._timeouts) > 0
        for request, (level, _, _) in zip(leaving, self._sources, strict=False):
            level.pending -= 1
            self.rows -= request.batch_size
            if timed:
                self._timeouts.forget(request)
        self.size -= count
        if staying:
            self.pending, self._sources = staying, self._sources[count:]
            self.restore()
        else:
            self._reset_pending()
        return leaving

    def remove(self, request: Any) -> bool:
        """A request leaves, wherever it stands; False if it does not wait here."""
        level = self._levels.get(self.settings.level_of(request.priority))
        if level is None:
            return False
        if any(pending is request for pending in self.pending):
            self.restore()
        if level.live.pop(request, None) is None and level.delayed.pop(request, None) is None:
            return False
        self.rows -= request.batch_size
        self.size -= 1
        self._timeouts.forget(request)
        return True

    def next_expiry(self) -> int | None:
        """The nearest time (ns) at which a waiting request is expired, or None."""
        return self._timeouts.next()

    def expire(self, now: int) -> list[Refuse]:
        """Apply the timeout action to every request that is expired."""
        refused: list[Refuse] = []
        for request in self._timeouts.pop_due(now):
            level = self._level(request)
            if request not in level.live:
                self.restore()
            if level.policy.timeout_action is TimeoutAction.DELAY:
                level.delayed[request] = level.live.pop(request)
                continue
            waited, timeout = now - level.live[request], level.policy.timeout_ns(request.timeout_us)
            self.remove(request)
            why = Reason(TIMED_OUT, {"waited_ns": waited, "timeout_ns": timeout})
            refused.append(Refuse(request, UnavailableError("Request timeout expired"), "REJECTED", why))
        return refused

    def reconfigure(self, settings: QueueSettings, now: int) -> None:
        """Move every request to the level it has under new settings.

        No request is refused for it: limits of size hold for later arrivals, and the timeouts of the new
        policies run from now. What was delayed stays delayed.
        """
        self.restore()
        waiting = [(since, request, False) for level in self._scan for request, since in level.live.items()]
        waiting += [(since, request, True) for level in self._scan for request, since in level.delayed.items()]
        waiting.sort(key=lambda entry: entry[0])
        self._configure(settings)
        for since, request, delayed in waiting:
            level = self._level(request)
            self._insert(level, request, since, now)
            if delayed:
                self._timeouts.forget(request)
                level.delayed[request] = level.live.pop(request)

    def validate(self) -> None:
        """Check the invariants."""
        standing = [request for level in self._scan for part in (level.live, level.delayed) for request in part]
        everyone = standing + self.pending
        assert len(set(everyone)) == len(everyone) == self.size
        assert self.rows == sum(request.batch_size for request in everyone)
        assert self.pending_rows == sum(request.batch_size for request in self.pending)
        assert [level.number for level in self._scan] == sorted(self._levels)
        assert all(level is self._levels[level.number] for level in self._scan)
        assert set(self._timeouts) <= set(everyone)
        assert len(self.pending) == len(self._sources) == sum(level.pending for level in self._scan)
        if self.pending:
            assert self.pending_oldest_ns == min(since for _, _, since in self._sources)
            last = self._sources[-1][0].number
            assert all(not level.live for level in self._scan if level.number < last)

    def _level(self, request: Any) -> Level:
        number = self.settings.level_of(request.priority)
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = Level(number, self.settings.policy_of(number))
            insort(self._scan, level, key=lambda other: other.number)
        return level

    def _insert(self, level: Level, request: Any, since: int, timeout_from: int) -> None:
        if self._sources:
            last, source, _ = self._sources[-1]
            if level.number < last.number or source is level.delayed:
                self.restore()
        level.live[request] = since
        self.rows += request.batch_size
        self.size += 1
        timeout = level.policy.timeout_ns(request.timeout_us)
        if timeout:
            # A request is expired once it has waited longer than its timeout.
            self._timeouts.set(request, timeout_from + timeout + 1)
