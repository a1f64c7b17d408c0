"""Execution times learned from a recording: by batch size, with their variation, stalls and busy instances."""

from __future__ import annotations

import math
import random
import statistics
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from tritonnb.scheduling.reasons import DELAY_EXCEEDED
from tritonnb.simulation.replicas import replica_of
from tritonnb.simulation.service import Draw, Service, VaryingService, table

if TYPE_CHECKING:
    from tritonnb.recording.batches import Batch
    from tritonnb.recording.recorded_events import RecordedEvents

#: An outlier takes at least this multiple of the expected time, which so many executions determine at least.
LEAST_FACTOR, LEAST_BATCHES = 3.0, 5
#: A resampled run consists of so many parts of the recording, so that slow phases and bursts stay together.
PIECES = 20
#: Begin and excess time of a stall, in ns.
Stall = tuple[int, int]
#: An execution that was not recorded varies like one of so many recorded before and after its time.
_NEIGHBOURS = 32


@dataclass(frozen=True, slots=True)
class RecordedExecution:
    """A recorded execution, for the times of others.

    A server in its own process shares its machine, and takes a while to start a batch that is due: both are part of the
    time that an instance is occupied.

    Attributes
    ----------
    begin_ns : int
        When it could have begun, after the first arrival.
    rows : int
    time_ns : int
        From then to its end.
    dispatch_ns : int
        The part of it before the execution began.
    busy : int
        Instances of the server that were busy then, with this one.
    alone : bool
        Whether no other instance was busy at any time during it.
    first : bool
        Whether it was the first one of its instance.
    batch : int
        Its number in the recording.
    """

    begin_ns: int
    rows: int
    time_ns: int
    dispatch_ns: int
    busy: int
    alone: bool
    first: bool
    batch: int


@dataclass(frozen=True)
class LearnedTimes(VaryingService):
    """The execution times of a recording as a service model.

    A simulated execution with the rows, the busy instances and the time of a recorded one takes as long. Any other one
    takes the typical time of its size, varied like recorded ones around its time. A stall of the machine is added to
    the first execution that begins during it, regardless of size.

    Attributes
    ----------
    executions : tuple of RecordedExecution
        In the order in which they began.
    single : bool
        Whether they are for a server with one instance: see `for_instances`.
    """

    executions: tuple[RecordedExecution, ...]
    single: bool = False

    def for_instances(self, count: int) -> LearnedTimes:
        """Return the times for a server with so many instances.

        An execution that begins while no other instance is busy may still be slowed down by one that begins later. The
        only instance of a server never is: its times vary like those of executions that ran alone.
        """
        return self._of_single if count == 1 else self

    @cached_property
    def _of_single(self) -> LearnedTimes:
        alone = sum(1 for one in self.executions if one.alone and not one.first)
        return replace(self, single=True) if alone >= _NEIGHBOURS else self

    @cached_property
    def _fit(self) -> tuple[Service, dict[int, float]]:
        """The typical time by size, and the slow-down by number of busy instances."""
        known = [one for one in self.executions if not one.first] or self.executions
        slow: dict[int, float] = {}
        for _ in range(3):
            by_size, by_busy = defaultdict(list), defaultdict(list)
            for one in known:
                by_size[one.rows].append(one.time_ns / slow.get(one.busy, 1.0))
            typical = monotone({rows: (statistics.median(times), len(times)) for rows, times in by_size.items()})
            for one in known:
                by_busy[one.busy].append(one.time_ns / max(1.0, typical(one.rows)))
            levels = {busy: ratios for busy, ratios in sorted(by_busy.items()) if len(ratios) >= LEAST_BATCHES}
            base = statistics.median(next(iter(levels.values()))) if levels else 1.0
            slow = {busy: statistics.median(ratios) / base if base else 1.0 for busy, ratios in levels.items()}
        return typical, slow or {1: 1.0}

    @property
    def function(self) -> Service:  # type: ignore[override]
        """The typical time by batch size, which grows with it."""
        return self._fit[0]

    @property
    def slow_down(self) -> Mapping[int, float]:
        """The factor by which executions take longer, by the recorded numbers of busy instances."""
        return self._fit[1]

    def expected_ns(self, rows: int, busy: int) -> float:
        """Return the typical time with so many busy instances; a number that was not recorded is as the nearest."""
        slow = self.slow_down
        return self.function(rows) * slow.get(busy, slow[min(slow, key=lambda level: abs(level - busy))])

    @cached_property
    def outliers(self) -> tuple[tuple[RecordedExecution, float], ...]:
        """The executions that took `LEAST_FACTOR` times as long as expected, with the expected times in ns."""
        known = [one for one in self.executions if not one.first]
        expected = ((one, self.expected_ns(one.rows, one.busy)) for one in known)
        return tuple(
            [
                (one, expected_ns)
                for one, expected_ns in expected
                if len(known) >= LEAST_BATCHES and one.time_ns >= LEAST_FACTOR * expected_ns > 0
            ]
        )

    @cached_property
    def stalls(self) -> tuple[Stall, ...]:
        """The begin and excess time of the outliers, in ns."""
        return tuple([(one.begin_ns, round(one.time_ns - expected_ns)) for one, expected_ns in self.outliers])

    @cached_property
    def factors(self) -> tuple[list[int], list[float]]:
        """The begins and factors of all other executions, except the first one of each instance.

        For a server with one instance, only of those that ran alone.
        """
        stalled = {begin_ns for begin_ns, _ in self.stalls}
        known = [one for one in self.executions if one.alone or not self.single]
        regular = [one for one in known if not one.first and one.begin_ns not in stalled] or known
        pairs = [(one.begin_ns, one.time_ns / max(1.0, self.expected_ns(one.rows, one.busy))) for one in regular]
        return [begin_ns for begin_ns, _ in pairs], [factor for _, factor in pairs]

    @cached_property
    def dispatch_share(self) -> float:
        """The share of the time (0 to 1, median) that passes before the execution begins."""
        return statistics.median(one.dispatch_ns / max(1, one.time_ns) for one in self.executions)

    @cached_property
    def speed_variation(self) -> float:
        """Standard deviation of the logarithm of the factors from part to part, beyond that within the parts.

        The machine was faster or slower for a while, and may be so during another run.
        """
        logarithms = [math.log(factor) for factor in self.factors[1] if factor > 0]
        size = len(logarithms) // PIECES
        if size < 2:
            return 0.0
        parts = [logarithms[part * size : (part + 1) * size] for part in range(PIECES)]
        between = statistics.variance(map(statistics.fmean, parts))
        return math.sqrt(max(0.0, between - statistics.fmean(map(statistics.variance, parts)) / size))

    def draws(self, seed: int) -> Draw:
        """Return the times of a simulation of the recorded arrivals; a seed chooses how other executions vary."""
        recorded = {(one.begin_ns, one.rows, one.busy): one.time_ns for one in self.executions}
        begins, factors = self.factors
        count = min(_NEIGHBOURS, len(factors))
        last = len(factors) - count

        def around(now_ns: int) -> int:
            return min(max(0, bisect_left(begins, now_ns) - count // 2), last)

        other = self.drawn(random.Random(seed), around, count, self.stalls)

        def draw(rows: int, now_ns: int, busy: int) -> float:
            time_ns = other(rows, now_ns, busy)  # a stall that was recorded here is over then
            return recorded.get((now_ns, rows, busy), time_ns)

        return draw

    def resampled(self, seed: int, span_ns: int, machines: int = 1) -> Resampled:
        """Return times for other arrivals: parts of the recording, and stalls of machines at random times of a span."""
        return Resampled(self, seed, span_ns, machines)

    def drawn(
        self,
        rng: random.Random,
        place: Callable[[int], int],
        count: int,
        stalls: Iterable[Stall],
        scale: float = 1.0,
    ) -> Draw:
        """Return a function of varying times, with factors of ``count`` executions from ``place(now_ns)`` on.

        A larger ``scale`` makes all of them longer.
        """
        _, factors = self.factors
        waiting = deque(stalls)

        def draw(rows: int, now_ns: int, busy: int) -> float:
            stalled_ns = 0
            while waiting and waiting[0][0] <= now_ns:
                begin_ns, excess_ns = waiting.popleft()
                if now_ns < begin_ns + excess_ns:
                    stalled_ns = max(stalled_ns, excess_ns)
            factor = factors[place(now_ns) + int(rng.random() * count)]
            return round(self.expected_ns(rows, busy) * factor * scale) + stalled_ns

        return draw


@dataclass(frozen=True)
class Resampled(VaryingService):
    """The execution times of a recording for other arrivals, resampled; see `LearnedTimes.resampled`."""

    times: LearnedTimes
    seed: int
    span_ns: int
    machines: int = 1

    @property
    def function(self) -> Service:  # type: ignore[override]
        """The typical time by batch size."""
        return self.times.function

    def draws(self, seed: int) -> Draw:
        """Return the times of one simulation."""
        rng, times = random.Random(f"{self.seed} {seed}"), self.times
        recorded_ns = times.executions[-1].begin_ns - times.executions[0].begin_ns + 1
        rate = _poisson(rng, len(times.stalls)) * self.machines / recorded_ns
        stalls = [
            (rng.randrange(self.span_ns), rng.choice(times.stalls)[1])
            for _ in range(_poisson(rng, rate * self.span_ns))
        ]
        executions = len(times.factors[1])
        count = -(-executions // PIECES)
        # Another recording would have consisted of other parts: the recorded ones are resampled first.
        learned = [rng.randrange(executions - count + 1) for _ in range(PIECES)]
        places = [rng.choice(learned) for _ in range(PIECES)]
        scale = math.exp(rng.gauss(0.0, times.speed_variation))

        def place(now_ns: int) -> int:
            return places[min(PIECES - 1, now_ns * PIECES // self.span_ns)]

        return times.drawn(rng, place, count, sorted(stalls), scale)


def _poisson(rng: random.Random, mean: float) -> int:
    """Return a random number of events."""
    count, time = 0, rng.expovariate(1.0)
    while time < mean:
        count, time = count + 1, time + rng.expovariate(1.0)
    return count


def monotone(times: Mapping[int, tuple[float, int]]) -> Service:
    """Return times in ns that do not fall with the size, through weighted times of some sizes.

    They are interpolated between sizes, and extrapolated with the average growth. Smaller sizes are only as much faster
    as the number and the difference of the measured ones prove.

    Examples
    --------
    >>> service = monotone({1: (100.0, 1), 2: (300.0, 3), 4: (200.0, 1), 5: (500.0, 1)})
    >>> [round(service(rows)) for rows in (1, 2, 3, 4, 5, 6)]
    [100, 275, 275, 275, 500, 572]
    """
    blocks: list[tuple[float, int, list[int]]] = []  # isotonic regression: neighbours in the wrong order are pooled
    for rows, (time, weight) in sorted(times.items()):
        block = (time, weight, [rows])
        while blocks and blocks[-1][0] > block[0]:
            time, weight, sizes = blocks.pop()
            total = weight + block[1]
            block = ((time * weight + block[0] * block[1]) / total, total, [*sizes, *block[2]])
        blocks.append(block)
    fitted = {rows: time / 1e6 for time, _, sizes in blocks for rows in sizes}
    low, high = min(fitted), max(fitted)
    slope, certainty = _slope([(rows, fitted[rows], times[rows][1]) for rows in fitted])
    inside = table(fitted)

    def service(rows: int) -> float:
        outside = certainty * min(0, rows - low) + max(0, rows - high)
        return max(0.0, inside(min(max(rows, low), high)) + outside * slope * 1e6)

    return service


def _slope(points: Sequence[tuple[int, float, int]]) -> tuple[float, float]:
    """Return milliseconds per row by weighted least squares, and its certainty (0 to 1) by the number of executions.

    A row costs at most as much as in the recorded batches.
    """
    total = sum(weight for _, _, weight in points)
    mean_rows, mean_ms = (sum(point[column] * point[2] for point in points) / total for column in (0, 1))
    spread = sum(weight * (rows - mean_rows) ** 2 for rows, _, weight in points)
    slope = sum(weight * (rows - mean_rows) * ms for rows, ms, weight in points) / spread if spread else 0.0
    return min(slope, mean_ms / mean_rows), spread / (spread + LEAST_BATCHES)


def steepest(service: Service, sizes: Sequence[int]) -> float:
    """Return the steepest growth between measured sizes, in ns per row."""
    return max(((service(high) - service(low)) / (high - low) for low, high in pairwise(sizes)), default=0.0)


def executions_of(rec: RecordedEvents) -> Iterator[RecordedExecution]:
    """Yield the executions of a recording, in the order in which they began."""
    origin_ns = rec.first_arrival_ns
    queued: dict[int, list[int]] = {}
    for request in rec.requests:
        queued.setdefault(request.batch, []).append(request.queued_ns)
    free: dict[str, int] = {}
    ordered = sorted(rec.batches, key=lambda batch: batch.exec_start_ns)
    joined = _joined(ordered)
    for batch in ordered:
        times = queued.get(batch.number, [batch.exec_start_ns])
        due_ns = max(times)
        if batch.reason.rule == DELAY_EXCEEDED:
            due_ns = max(due_ns, min(times) + batch.reason.facts["delay_ns"])
        first = batch.instance not in free
        begin_ns = min(batch.exec_start_ns, max(due_ns, free.get(batch.instance, 0)))
        replica = replica_of(batch.instance)
        busy = sum(
            1
            for instance, end_ns in free.items()
            if end_ns > begin_ns and instance != batch.instance and replica_of(instance) == replica
        )
        free[batch.instance] = batch.exec_end_ns
        dispatch_ns, time_ns = batch.exec_start_ns - begin_ns, batch.exec_end_ns - begin_ns
        yield RecordedExecution(
            *(begin_ns - origin_ns, batch.size, time_ns, dispatch_ns, busy + 1),
            *(not busy and batch.number not in joined, first, batch.number),
        )


def _joined(ordered: Sequence[Batch]) -> set[int]:
    """Return the numbers of the batches during which another instance of their replica began to execute."""
    joined, later = set(), defaultdict[str, dict[str, int]](dict)
    for batch in reversed(ordered):
        begins = later[replica_of(batch.instance)]
        if any(begin < batch.exec_end_ns for instance, begin in begins.items() if instance != batch.instance):
            joined.add(batch.number)
        begins[batch.instance] = batch.exec_start_ns
    return joined
