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
from itertools import accumulate, chain, pairwise, zip_longest
from operator import attrgetter

from tritonnb.lab.analysis.instance_speeds import (
    LEAST_BATCHES,
    NOTABLE_RATIO,
    WithFactor,
    different_speeds,
    speeds_of,
)
from tritonnb.lab.analysis.interference import Company, Interference, companies, interference_in, slow_down_of
from tritonnb.lab.analysis.recorded_executions import RecordedExecution
from tritonnb.lab.analysis.slow_down import SlowDown
from tritonnb.lab.analysis.typical_times import RARE_COUNT, STALL_FACTOR, TypicalTimes
from tritonnb.lab.simulation.service import Draw, Service, VaryingService

#: A resampled run consists of pieces of the recording, each of this share of it, so that slow phases and bursts stay
#: together.
PIECES = 20
#: Begin and excess time of a stall, in ns.
Stall = tuple[int, int]
#: An execution that was not recorded varies like one of this many recorded executions before and after its time.
_NEIGHBOURS = 32
#: A pause in the recording is at least this many times as long as the average time between executions.
_PAUSE = 10
#: Executions that begin beside another execution share at least that much more of their time.
_LEAST_SHARED = 0.1
#: If it is not known which instance ran which execution, at least this share of them is not stalled, but of a slow one.
_LEAST_SLOW = 0.1
#: A slope of less than this many standard errors is chance.
_SIGNIFICANT = 3.0
#: An instance does not get faster below, or slower above, these idle times in ms.
_LEAST_IDLE_MS, _MOST_IDLE_MS = 1.0, 1000.0


@dataclass(frozen=True)
class LearnedTimes(VaryingService):
    """The execution times of a recording as a service model.

    A simulated execution with the rows, the busy instances and the time of a recorded one takes as long. Any other one
    takes the typical time of its size and of the idle time of its instance and server, varied like recorded ones around
    its time. A stall of the machine is added to the first execution that begins during it, regardless of size.

    Attributes
    ----------
    executions : tuple of RecordedExecution
        Ordered by begin.
    are_of_single : bool
        Whether the times are those of the only instance of a server.
    knows_instances : bool
        Whether it is known which instance ran each execution.
    names : tuple of str
        The instances, in the order of the configuration: a simulation has their speeds. Without names it has equal
        instances, with the times of all.
    gathering : float
        As of `VaryingService`.
    """

    executions: tuple[RecordedExecution, ...]
    are_of_single: bool = False
    knows_instances: bool = True
    names: tuple[str, ...] = ()
    gathering: float = 0.0

    def for_instances(self, count: int) -> LearnedTimes:
        """Return the times for a server with a number of instances.

        An execution may begin alone and be slowed down by one that begins later. The only instance never is.
        """
        return self._of_single if count == 1 else self

    @cached_property
    def _of_single(self) -> LearnedTimes:
        """The times without what other instances slowed the executions down."""
        cost_ns = self._cost_of_another()
        if cost_ns is None:
            return self

        def alone(one: RecordedExecution) -> RecordedExecution:
            alone_ns = one.time_ns - one.shared * cost_ns(one.rows) * self._simulated_speed_of(one)
            # Another one uses its share of the machine at most: what is left is at least that of this execution.
            return replace(one, time_ns=round(max(one.time_ns / max(2, one.busy), alone_ns)), busy=1)

        return replace(self, executions=tuple(map(alone, self.executions)), are_of_single=True)

    def _cost_of_another(self) -> Callable[[int], float] | None:
        """Return by how many ns executions of a size are longer if another instance is always busy; None if unknown.

        Whether one is busy when an execution begins does not depend on how long it takes: that tells the cost of sizes
        that often begin alone and beside another execution. Other sizes lose the same share as the nearest of them.
        """
        by_size: dict[int, tuple[list[RecordedExecution], list[RecordedExecution]]] = defaultdict(lambda: ([], []))
        for one, _ in self._regular:
            by_size[one.rows][one.busy > 1].append(one)
        shares = {
            rows: self._lost_ns(*groups) / max(1.0, self.function(rows))
            for rows, groups in sorted(by_size.items())
            if min(map(len, groups)) >= RARE_COUNT
        }
        if not shares:
            return None
        return lambda rows: self.function(rows) * shares[min(shares, key=lambda known: abs(known - rows))]

    def _lost_ns(self, alone: Sequence[RecordedExecution], beside: Sequence[RecordedExecution]) -> float:
        """Return by how many ns executions beside another one are longer if that runs all the time."""
        (faster_ns, other), (slower_ns, shared) = (
            (statistics.median(map(self._not_idle_ns, group)), statistics.median(one.shared for one in group))
            for group in (alone, beside)
        )
        return max(0.0, slower_ns - faster_ns) / max(_LEAST_SHARED, shared - other)

    def _not_idle_ns(self, one: RecordedExecution) -> float:
        """Return how long an execution would have taken on an average instance, without idle times before it."""
        return (one.time_ns - self.idle_cost_ns(one.idle_ns, one.server_idle_ns)) / self._simulated_speed_of(one)

    @cached_property
    def _fit(self) -> tuple[TypicalTimes, SlowDown, dict[str, float], dict[str, Interference]]:
        """The typical time by size, the slow-down by number of busy instances, the speeds that differ, and the costs.

        The costs are of the other models that are executed at the same time.
        """
        known = [one for one in self.executions if not one.first] or self.executions
        slow: dict[int, float] = {}
        cost: dict[str, Interference] = {}
        # First the speeds, among executions with the same rows and company: a slow instance that mostly runs alone
        # would make company look fast.
        speeds = different_speeds(((one, one.time_ns) for one in known), attrgetter("busy", "rows"))
        for _ in range(4):
            by_size, by_busy = defaultdict(list), defaultdict(list)
            times_ns = [one.time_ns / speeds.get(one.instance, 1.0) / slow_down_of(cost, one.beside) for one in known]
            for one, time_ns in zip(known, times_ns, strict=True):
                by_size[one.rows].append(time_ns / slow.get(one.busy, 1.0))
            typical = TypicalTimes(by_size)
            for one, time_ns in zip(known, times_ns, strict=True):
                by_busy[one.busy].append(time_ns / max(1.0, typical(one.rows)))
            levels = {busy: ratios for busy, ratios in sorted(by_busy.items()) if len(ratios) >= LEAST_BATCHES}
            base = statistics.median(next(iter(levels.values()))) if levels else 1.0
            # Company that seems to help is chance, an idle time before executions that begin alone, or in a trace
            # without names a fast instance that runs beside a slow one.
            slow = {
                busy: max(1.0, statistics.median(ratios) / base) if base else 1.0 for busy, ratios in levels.items()
            }
            pairs = [(one, one.time_ns / max(1.0, typical(one.rows) * slow.get(one.busy, 1.0))) for one in known]
            speeds = different_speeds((one, factor / slow_down_of(cost, one.beside)) for one, factor in pairs)
            cost = interference_in([(one.beside, ns / speeds.get(one.instance, 1.0)) for one, ns in pairs], cost)
        return typical, SlowDown(slow or {1: 1.0}), speeds, cost

    @property
    def function(self) -> TypicalTimes:  # type: ignore[override]
        """The typical time by batch size, which grows with it."""
        return self._fit[0]

    @property
    def slow_down(self) -> SlowDown:
        """By how much executions take longer while more instances are busy."""
        return self._fit[1]

    @property
    def interference(self) -> Mapping[str, Interference]:
        """By how much executions take longer beside other models, by the names of these models."""
        return self._fit[3]

    def expected_ns(self, rows: int, busy: int, sharing: float = 0.0) -> float:
        """Return the typical time with a number of busy instances, without other models beside it.

        ``sharing`` is as of `SlowDown.factor`.
        """
        return self.function(rows) * self.slow_down.factor(busy, sharing)

    def basis(self, sizes: Iterable[int], instances: int) -> list[str]:
        """Return what a simulation that formed batches of these sizes rests on: sentences without a period."""
        texts = (*self.function.basis(sizes), self.slow_down.basis(instances), self.speeds_text())
        return [text for text in texts if text]

    def _expected_ns_of(self, one: RecordedExecution) -> float:
        """Return the typical time of an execution on its instance; on a slow instance if its own is not known."""
        speed = self._fit[2].get(one.instance, 1.0) if self.knows_instances else self._slow_factor
        return self._typical_ns_of(one) * speed

    def _simulated_speed_of(self, one: RecordedExecution) -> float:
        """Return the speed of an execution that a simulation takes from its instance, not from the variation."""
        return self._fit[2].get(one.instance, 1.0) if self.names else 1.0

    @cached_property
    def speeds(self) -> tuple[float, ...]:
        """How long executions of each instance take, relative to all, by its number; further instances repeat them."""
        by_name = defaultdict(list)
        for instance, speed in self._fit[2].items():
            by_name[instance.rpartition(": ")[2]].append(speed)  # of all replicas
        return tuple([statistics.geometric_mean(by_name.get(name, [1.0])) for name in self.names]) or (1.0,)

    @cached_property
    def _slow_factor(self) -> float:
        """How many times as long as typical executions take on a slow instance: a tenth of all, unlike stalls."""
        factors = sorted(self.factor_of(one) for one in self.executions if not one.first) or [1.0]
        factor = factors[int((1 - _LEAST_SLOW) * len(factors))]
        # Smaller factors are the scatter of a busy machine, and make no execution look stalled.
        return factor if factor > 0.8 * STALL_FACTOR else 1.0

    def _typical_ns_of(self, one: RecordedExecution) -> float:
        """Return the typical time of executions with the rows and the company of an execution."""
        return self.expected_ns(one.rows, one.busy) * slow_down_of(self.interference, one.beside)

    def factor_of(self, one: RecordedExecution) -> float:
        """Return how many times as long as executions with its rows and its company an execution took."""
        return one.time_ns / max(1.0, self._typical_ns_of(one))

    def factor_after_idle_of(self, one: RecordedExecution) -> float:
        """Return the factor of an execution beyond what idle times before it cost."""
        expected_ns = max(1.0, self._typical_ns_of(one))
        return self.factor_of(one) / (1 + self.idle_cost_ns(one.idle_ns, one.server_idle_ns) / expected_ns)

    @cached_property
    def of_executions(self) -> LearnedTimes:
        """The times from the begin of each execution, without the wait before it."""
        executions = (
            replace(
                one,
                begin_ns=one.begin_ns + one.dispatch_ns,
                time_ns=one.time_ns - one.dispatch_ns,
                dispatch_ns=0,
            )
            for one in self.executions
        )
        return replace(self, executions=tuple(executions))

    @cached_property
    def late_starts(self) -> tuple[RecordedExecution, ...]:
        """The executions that began so late after they could have begun that this alone makes them outliers."""
        known = [one for one in self.executions if not one.first]
        if len(known) < LEAST_BATCHES:
            return ()
        pairs = [(one, (STALL_FACTOR - 1) * self._expected_ns_of(one)) for one in known]
        return tuple([one for one, limit_ns in pairs if one.dispatch_ns >= limit_ns > 0])

    @cached_property
    def instance_speeds(self) -> dict[str, float]:
        """The median time of the executions of each instance, relative to the expected time, by its name."""
        return {name: speed for name, (speed, _) in speeds_of(self._regular).items()}

    def speeds_text(self) -> str:
        """Return which instances are slower than others, as text; empty if all are about as fast."""
        speeds = sorted(self.instance_speeds.items(), key=lambda item: item[1])
        if len(speeds) < 2 or speeds[-1][1] <= NOTABLE_RATIO * speeds[0][1]:
            return ""
        (fastest, least), (slowest, most) = speeds[0], speeds[-1]
        simulated = "" if self.names else ", but are simulated as equal"
        return (
            f"instances have different speeds{simulated}: an execution of {slowest} takes "
            f"{most / least:.2f} times as long as one of {fastest}"
        )

    @cached_property
    def outliers(self) -> tuple[tuple[RecordedExecution, float], ...]:
        """The executions that took `STALL_FACTOR` times as long as expected, with the expected times in ns."""
        known = [one for one in self.executions if not one.first]
        if len(known) < LEAST_BATCHES:
            return ()
        pairs = [(one, self._expected_ns_of(one)) for one in known]
        return tuple([(one, ns) for one, ns in pairs if one.time_ns >= STALL_FACTOR * ns > 0])

    @cached_property
    def stalls(self) -> tuple[Stall, ...]:
        """The begin and excess time of the outliers, in ns."""
        return tuple([_stall(*pair) for pair in self.outliers])

    @cached_property
    def _regular(self) -> list[WithFactor]:
        """All executions but outliers and the first of each instance, with their factors of the expected time."""
        stalled = {begin_ns for begin_ns, _ in self.stalls}
        regular = [one for one in self.executions if not one.first and one.begin_ns not in stalled] or self.executions
        pairs = [(one, self.factor_of(one)) for one in regular]
        return list(self._undisturbed(pairs)) if self.are_of_single else pairs

    def _undisturbed(self, pairs: Sequence[WithFactor]) -> Iterator[WithFactor]:
        """Replace executions beside others, which vary more, by undisturbed executions from about the same time.

        Short ones are more often undisturbed: the other one took at least as long as the replaced one ran alone.
        """
        known = [pair for pair in pairs if not pair[0].shared]
        begins = [one.begin_ns for one, _ in known]
        for one, factor in pairs:
            other = (one, factor)
            if one.shared and len(known) >= _NEIGHBOURS:
                place, least = bisect_left(begins, one.begin_ns), one.alone_ns / max(1.0, self.function(one.rows))
                near = chain.from_iterable(zip_longest(range(place, len(known)), reversed(range(place))))
                longer = (known[at] for at in near if at is not None and known[at][1] >= least)
                other = next(longer, other)
            yield replace(other[0], begin_ns=one.begin_ns), other[1]

    def idle_cost_ns(self, idle_ns: float, server_idle_ns: float) -> float:
        """Return by how many ns executions are longer than after 1 ms if instance and server were idle for a time.

        Caches may be cold then, and clocks low: that costs larger batches as much.
        """
        typical_ns, of_instance, of_server = self._idle_effect
        return typical_ns * math.expm1(of_instance * _log_ms(idle_ns) + of_server * _log_ms(server_idle_ns))

    @cached_property
    def _idle_effect(self) -> tuple[float, float, float]:
        """The typical time in ns of undisturbed executions, and how it grows with idle times of instance and server.

        The growth is the slope of its logarithm over their logarithms.
        """
        # A slow instance that runs when others are busy is idle for longer, and would make idle times look slow.
        alone = [
            (one, factor / self._simulated_speed_of(one))
            for one, factor in self._regular
            if not one.shared and factor > 0
        ]
        if not alone:
            return 0.0, 0.0, 0.0
        typical_ns = statistics.fmean(self.function(one.rows) for one, _ in alone)
        own = [_log_ms(one.idle_ns) for one, _ in alone]
        of_all = [_log_ms(one.server_idle_ns) for one, _ in alone]
        times = [math.log(factor) for _, factor in alone]

        def proven(x: Sequence[float], y: Sequence[float]) -> float:
            return math.prod(_slope(x, y))

        # Least squares: the idle time of the server explains what it does beyond that of the instance.
        together, _ = _slope(own, of_all)
        beyond = [z - together * x for x, z in zip(own, of_all, strict=True)]
        of_server = max(0.0, proven(beyond, times))
        of_instance = proven(own, [y - of_server * z for y, z in zip(times, of_all, strict=True)])
        if of_instance < 0:
            of_instance, of_server = 0.0, max(0.0, proven(of_all, times))
        return typical_ns, of_instance, of_server

    @cached_property
    def factors(self) -> tuple[list[int], list[float]]:
        """The begins of the regular executions, and their factors without their instance's speed and idle time."""
        regular = [one for one, _ in self._regular]
        factors = [self.factor_after_idle_of(one) / self._simulated_speed_of(one) for one in regular]
        return [one.begin_ns for one in regular], factors

    @cached_property
    def without_pauses(self) -> LearnedTimes:
        """The times with shorter pauses, during which the speed of the machine is not known."""
        begins = [one.begin_ns for one in self.executions]
        longest = _PAUSE * (begins[-1] - begins[0]) // len(begins)
        steps = (min(max(0, later - earlier), longest) for earlier, later in pairwise(begins))
        executions = zip(self.executions, accumulate(steps, initial=0), strict=True)
        return replace(self, executions=tuple(replace(one, begin_ns=begin_ns) for one, begin_ns in executions))

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

    def draws(self, seed: int, company: Company | None = None) -> Draw:
        """Return the times of a simulation of the recorded arrivals.

        Parameters
        ----------
        seed : int
            It chooses how executions vary that were not recorded.
        company : Company, optional
            The other models that are executed in the same run.
        """
        # Which of several idle instances executes a batch depends on the server.
        recorded = {
            (one.begin_ns, one.rows, one.busy): one.time_ns / self._simulated_speed_of(one) for one in self.executions
        }
        speeds = self.speeds
        rng, (begins, factors) = random.Random(seed), self.factors
        count = min(_NEIGHBOURS, len(factors))
        last = len(factors) - count

        def around(now_ns: int) -> float:
            place = min(max(0, bisect_left(begins, now_ns) - count // 2), last)
            return factors[place + int(rng.random() * count)]

        # It is not known whether the machine stalled or a rare size takes so long: only its own batch repeats it.
        proven = [_stall(*pair) for pair in self.outliers if self.function.is_supported(pair[0].rows)]
        other = self.drawn(around, proven, company)

        def draw(rows: int, now_ns: int, busy: int, idle_ns: int, server_idle_ns: int, instance: int) -> float:
            # A stall that was recorded here is over then.
            time_ns = other(rows, now_ns, busy, idle_ns, server_idle_ns, instance)
            known_ns = recorded.get((now_ns, rows, busy))
            return time_ns if known_ns is None else round(known_ns * speeds[instance % len(speeds)])

        return draw

    def drawn(
        self,
        factor_at: Callable[[int], float],
        stalls: Iterable[Stall],
        company: Company | None,
        luck: float = 0.0,
        sharing: float = 0.0,
    ) -> Draw:
        """Return a function of times that vary by a factor at each time, with stalls.

        Parameters
        ----------
        factor_at : callable
        stalls : iterable of Stall
        company : Company or None
        luck : float, optional
            By how many standard deviations the true times of rare sizes differ from typical times.
        sharing : float, optional
            As of `SlowDown.factor`.
        """
        waiting = deque(stalls)
        typical = self.function
        of_size: dict[int, float] = {}

        speeds = self.speeds

        def draw(rows: int, now_ns: int, busy: int, idle_ns: int, server_idle_ns: int, instance: int) -> float:
            stalled_ns = 0
            while waiting and waiting[0][0] <= now_ns:
                begin_ns, excess_ns = waiting.popleft()
                if now_ns < begin_ns + excess_ns:
                    stalled_ns = max(stalled_ns, excess_ns)
            if luck and rows not in of_size:
                of_size[rows] = math.exp(luck * typical.deviation(rows))
            typical_ns = self.expected_ns(rows, busy, sharing) * of_size.get(rows, 1.0)
            typical_ns *= speeds[instance % len(speeds)]
            if company is not None:
                typical_ns *= company.slow_down(now_ns)
            return round((typical_ns + self.idle_cost_ns(idle_ns, server_idle_ns)) * factor_at(now_ns)) + stalled_ns

        return draw


@dataclass(frozen=True)
class _Accompanied(VaryingService):
    """The times of a model beside the other models of one simulated run."""

    times: LearnedTimes
    company: Company

    @property
    def function(self) -> TypicalTimes:  # type: ignore[override]
        return self.times.function

    @property
    def gathering(self) -> float:  # type: ignore[override]
        return self.times.gathering

    def draws(self, seed: int) -> Draw:
        return self.company.reporting(self.times.draws(seed, self.company))


def accompanied(services: Mapping[str, Service]) -> dict[str, Service]:
    """Return the times of the models of one simulated run, in which learned times slow each other down."""
    learned = {name: one for name, one in services.items() if isinstance(one, LearnedTimes)}
    beside = companies({name: one.interference for name, one in learned.items()})
    return {**services, **{name: _Accompanied(one, beside[name]) for name, one in learned.items()}}


def _stall(one: RecordedExecution, expected_ns: float) -> Stall:
    return one.begin_ns, round(one.time_ns - expected_ns)


def _log_ms(idle_ns: float) -> float:
    return math.log(min(max(idle_ns / 1e6, _LEAST_IDLE_MS), _MOST_IDLE_MS))


def _slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return the slope of y over x by least squares, and its certainty: 0 within three standard errors, up to 1."""
    if len(set(x)) < 3:
        return 0.0, 0.0
    slope, start = statistics.linear_regression(x, y)
    mean_x = statistics.fmean(x)
    spread = math.fsum((one - mean_x) ** 2 for one in x)
    scatter = math.fsum((other - start - slope * one) ** 2 for one, other in zip(x, y, strict=True))
    error = math.sqrt(scatter / (len(x) - 2) / spread)
    return slope, max(0.0, 1 - (_SIGNIFICANT * error / slope) ** 2) if slope else 0.0
