"""What the documents teach about batches, level by level: an exercise asks only for what its reader can know.

Level 1 of the dynamic batcher is the three conditions of *docs/explanation/batching.md*, and level 2 adds the two
consequences. The rules of the sequence batchers are in *docs/explanation/sequences.md*; level 2 adds their delays.

A sentence can be read in more than one way. `form_batches` therefore applies every plausible reading.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Final

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.recording.arrivals import Arrival

LEVELS: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class _Reading:
    """How the sentences of level 2 are read where they leave something open.

    Attributes
    ----------
    limits_waiting : bool
        The largest preferred size also limits a batch that has waited for a busy instance.
    closes_late : bool
        A batch whose delay has expired takes requests until the instance takes the batch before it.
    completes_sizes : bool
        A batch whose delay has expired takes later requests that complete a preferred size.
    waits_in_turn : bool
        A request of a sequence waits since its turn has come, and not since it arrived.
    """

    limits_waiting: bool = False
    closes_late: bool = False
    completes_sizes: bool = False
    waits_in_turn: bool = False


def form_batches(
    config: pb.ModelConfig, arrivals: Sequence[Arrival], execution_ms: int, levels: Sequence[int]
) -> list[tuple[int, list[int]]] | None:
    """Return the batches that the taught rules lead to, or None if they lead to different batches.

    Parameters
    ----------
    config : ModelConfig
        With one instance.
    arrivals : sequence of Arrival
        Sorted by time.
    execution_ms : int
        Time of every execution.
    levels : sequence of int
        Each means whoever knows the rules up to this level, in every reading.

    Returns
    -------
    list of (int, list of int) or None
        When each batch is sent (in ns), and its requests by their places in ``arrivals``.
    """
    readings = [_Reading(*answers) for answers in product(*_answers(config))]
    found = (_batches(config, arrivals, execution_ms, level, reading) for level in levels for reading in readings)
    first = next(found)
    return first if all(batches == first for batches in found) else None


def _answers(config: pb.ModelConfig) -> list[Sequence[bool]]:
    """Return the answers to each question of `_Reading` that matter for a configuration."""
    oldest, dynamic = config.sequence_batching.HasField("oldest"), config.dynamic_batching
    has_delay = oldest or dynamic.max_queue_delay_microseconds > 0
    matters = [bool(dynamic.preferred_batch_size), has_delay, has_delay and not oldest, oldest]
    return [(False, True) if answer_matters else (False,) for answer_matters in matters]


def _batches(
    config: pb.ModelConfig, arrivals: Sequence[Arrival], execution_ms: int, level: int, reading: _Reading
) -> list[tuple[int, list[int]]]:
    line = (_Sequences if config.HasField("sequence_batching") else _Requests)(config, arrivals, level, reading)
    times = [round(1000 * arrival.time_us) for arrival in arrivals]
    ahead = deque(enumerate(times))
    moments = [*times, *(at_ns + line.delay_ns for at_ns in times)]
    heapq.heapify(moments)
    batches = []
    free_ns = 0
    while moments:
        now = heapq.heappop(moments)
        while ahead and ahead[0][1] <= now:
            line.arrive(*ahead.popleft())
        members = line.take_batch(now, free_ns) if now >= free_ns else []
        if members:
            batches.append((now, sorted(members)))
            free_ns = now + 1_000_000 * execution_ms
            heapq.heappush(moments, free_ns)
            heapq.heappush(moments, free_ns + line.delay_ns)
    return batches


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request that waits, since when, and its rows."""

    index: int
    since_ns: int
    rows: int


class _Requests:
    """The requests that wait for a dynamic batcher."""

    def __init__(self, config: pb.ModelConfig, arrivals: Sequence[Arrival], level: int, reading: _Reading) -> None:
        self._arrivals, self._reading = arrivals, reading
        self._knows_consequences = level > 1
        self._limit = config.max_batch_size
        self._preferred = set(config.dynamic_batching.preferred_batch_size) or {self._limit}
        self.delay_ns = 1000 * config.dynamic_batching.max_queue_delay_microseconds
        self._line: list[_Waiting] = []
        self._taken_ns = 0

    def arrive(self, index: int, at_ns: int) -> None:
        """Handle an arrival."""
        self._line.append(_Waiting(index, at_ns, self._arrivals[index].rows))

    def take_batch(self, now: int, idle_ns: int) -> list[int]:
        """Return the requests of the next batch of an instance that is idle since a time; empty to wait for more."""
        count = self._count(now, idle_ns) if self._line else 0
        members, self._line = self._line[:count], self._line[count:]
        if members:
            self._taken_ns = now
        return [waiting.index for waiting in members]

    def _count(self, now: int, idle_ns: int) -> int:
        due_ns = self._line[0].since_ns + self.delay_ns
        sums = list(accumulate(waiting.rows for waiting in self._line))
        if self._knows_consequences and self.delay_ns and due_ns < idle_ns:
            # The delay expired while the instance was busy.
            closed_ns = max(due_ns, self._taken_ns) if self._reading.closes_late else due_ns
            count = sum(waiting.since_ns <= closed_ns for waiting in self._line)
            later = sums[count:] if self._reading.completes_sizes else []
            sums = sums[
                : max((count + at for at, rows in enumerate(later, 1) if rows in self._preferred), default=count)
            ]
        fitting = sum(rows <= self._limit for rows in sums)
        reached = [count for count, rows in enumerate(sums[:fitting], 1) if rows in self._preferred]
        if reached:
            return reached[-1]
        if self._knows_consequences and (self._reading.limits_waiting or now > idle_ns):
            largest = max(self._preferred)
            fitting = max(1, sum(rows <= largest for rows in sums))
        return fitting if fitting < len(sums) or now >= due_ns else 0


class _Sequences(_Requests):
    """The next request of each sequence that has a slot, or is a candidate."""

    def __init__(self, config: pb.ModelConfig, arrivals: Sequence[Arrival], level: int, reading: _Reading) -> None:
        super().__init__(config, arrivals, level, reading)
        direct, oldest = config.sequence_batching.direct, config.sequence_batching.oldest
        self._is_direct = not config.sequence_batching.HasField("oldest")
        self._slots = oldest.max_candidate_sequences or self._limit
        self._utilization = direct.minimum_slot_utilization
        delay_us = direct.max_queue_delay_microseconds or oldest.max_queue_delay_microseconds
        self.delay_ns = 1000 * delay_us if level > 1 else 0
        self._requests: dict[object, deque[tuple[int, int]]] = {}
        self._in_slots: list[object] = []
        self._backlog: deque[object] = deque()
        self._running: list[int] = []
        #: Sequences that have a request in line or running; the next request waits for its turn.
        self._called: set[object] = set()

    def arrive(self, index: int, at_ns: int) -> None:
        """Handle an arrival."""
        sequence = self._arrivals[index].sequence_id
        if sequence not in self._requests:
            (self._in_slots if len(self._in_slots) < self._slots else self._backlog).append(sequence)
        self._requests.setdefault(sequence, deque()).append((index, at_ns))
        self._call(at_ns)

    def take_batch(self, now: int, idle_ns: int) -> list[int]:
        """Return the requests of the next batch, after the sequences of the previous batch have got their next turn."""
        for index in self._running:
            ended = self._arrivals[index]
            self._called.discard(ended.sequence_id)
            if ended.sequence_end:
                self._in_slots.remove(ended.sequence_id)
                self._in_slots += [self._backlog.popleft()] if self._backlog else []
        self._running = []
        self._call(now)
        self._running = super().take_batch(now, idle_ns)
        return self._running

    def _call(self, now: int) -> None:
        for sequence in self._in_slots:
            if sequence not in self._called and self._requests[sequence]:
                index, at_ns = self._requests[sequence].popleft()
                self._called.add(sequence)
                self._line.append(_Waiting(index, now if self._reading.waits_in_turn else at_ns, 1))
        self._line.sort(key=lambda waiting: waiting.since_ns)

    def _count(self, now: int, idle_ns: int) -> int:
        if not self._is_direct:
            return super()._count(now, idle_ns)
        ready, due_ns = len(self._line), self._line[0].since_ns + self.delay_ns
        waits = self.delay_ns and ready / self._slots < self._utilization and now < due_ns
        return 0 if waits else ready
