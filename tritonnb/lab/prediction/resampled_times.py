"""Execution times of a recording, resampled for other arrivals."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tritonnb.lab.analysis.interference import Company
from tritonnb.lab.analysis.learned_times import PIECES, LearnedTimes, Stall
from tritonnb.lab.analysis.typical_times import TypicalTimes
from tritonnb.lab.simulation.service import Draw, VaryingService

#: The largest number of pieces of a run. The pieces of a run that is much longer than its recording repeat it.
_MOST_PIECES = 1000
#: How often the stalls of a run are repeated, since executions may go on after the last arrival.
_REPEATED = 4
#: A fraction that grows by the golden ratio from seed to seed is spread evenly; few random numbers are not.
_GOLDEN = (math.sqrt(5) - 1) / 2
#: Of the simulations of a prediction, a share has the typical value of what is not known, and another one each bound.
_TYPICAL, _AT_BOUND = 0.2, 0.1


def _sharing(seed: int) -> float:
    """Return what instances share that were not recorded at the same time, as of `SlowDown.factor`.

    Its range contains both bounds: instances that share nothing, or everything, such as a lock, are no exceptions.
    """
    place = 2 * (seed * _GOLDEN % 1) - 1
    return math.copysign(min(1.0, max(0.0, (abs(place) - _TYPICAL) / (1 - _TYPICAL - 2 * _AT_BOUND))), place)


@dataclass(frozen=True)
class Resampled(VaryingService):
    """The execution times of a recording for other arrivals: each machine repeats pieces of it at random.

    Attributes
    ----------
    times : LearnedTimes
        Without pauses.
    seed : int
    span_ns : int
        How long the run takes.
    machines : int
    company : Company or None
        The other models in the run.
    typical : bool
        Whether what differs from run to run is typical: the speed of the machine, the times of rare sizes, and what
        instances share that were not recorded at the same time.
    """

    times: LearnedTimes
    seed: int
    span_ns: int
    machines: int = 1
    company: Company | None = None
    typical: bool = False

    @property
    def function(self) -> TypicalTimes:  # type: ignore[override]
        """The typical time by batch size."""
        return self.times.function

    @property
    def gathering(self) -> float:  # type: ignore[override]
        """As of the recorded times."""
        return self.times.gathering

    def draws(self, seed: int) -> Draw:
        """Return the times of one simulation.

        The models of a run share the seed of the resampling: a machine is faster or slower for all of them.
        """
        rng, times = random.Random(f"{self.seed} {self.seed}"), self.times
        begins, factors = times.factors
        last = len(factors) - 1
        differing = 0.0 if self.typical else 1.0
        scale = math.exp(differing * rng.gauss(0.0, times.speed_variation))
        machines = [self._pieces(rng) for _ in range(self.machines)]
        stalls = [stall for _ in machines for stall in self._stalls(self._pieces(rng))]

        def factor_at(now_ns: int) -> float:
            pieces = machines[int(rng.random() * self.machines)]
            number, offset_ns = divmod(now_ns, self._length_ns)  # executions go on after the last arrival
            recorded_ns = (pieces[number % len(pieces)] + offset_ns) % self._recorded_ns
            # As the recorded one after or before that time: with the next one alone, fast ones would be repeated more
            # often than slow ones at a higher rate.
            place = bisect_left(begins, recorded_ns) - (rng.random() < 0.5)
            return scale * factors[min(max(0, place), last)]

        luck, sharing = differing * rng.gauss(0.0, 1.0), differing * _sharing(self.seed)
        draw = times.drawn(factor_at, sorted(stalls), self.company, luck, sharing)
        return draw if self.company is None else self.company.reporting(draw)

    @cached_property
    def _recorded_ns(self) -> int:
        return self.times.executions[-1].begin_ns + 1

    @cached_property
    def _length_ns(self) -> int:
        return max(self._recorded_ns // PIECES, self.span_ns // _MOST_PIECES, 1)

    def _pieces(self, rng: random.Random) -> list[int]:
        """Return the recorded times at which the pieces of a run begin."""
        # Another recording would have consisted of other pieces: the recorded pieces are resampled first.
        learned = [rng.randrange(self._recorded_ns) for _ in range(PIECES)]
        return rng.choices(learned, k=-(-self.span_ns // self._length_ns) + 1)

    def _stalls(self, pieces: Sequence[int]) -> Iterator[Stall]:
        """Yield the stalls of a run that consists of these pieces."""
        # Under an overload, executions go on long after the last arrival, and so do stalls.
        for number, piece_ns in enumerate([*pieces] * _REPEATED):
            for begin_ns, excess_ns in self.times.stalls:
                for offset_ns in range((begin_ns - piece_ns) % self._recorded_ns, self._length_ns, self._recorded_ns):
                    yield number * self._length_ns + offset_ns, excess_ns
