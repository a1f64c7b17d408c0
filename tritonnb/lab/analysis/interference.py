"""Interference: how much longer executions take while other models of the same server are executed."""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from tritonnb.core.html_table import html_table
from tritonnb.lab.simulation.service import Draw

#: Fewer executions than this, beside another model or without it, determine no factor.
_LEAST = 5
#: The factor of two models that were never executed at the same time is between 1 and the largest known factor, within
#: these bounds; without any known factor, between 1 and the higher bound.
_UNKNOWN = (1.1, 1.5)
#: How often the factor of each model is found anew.
_ROUNDS = 3
#: Ratio of the standard deviation of a normal distribution to its median absolute deviation.
_ROBUST = 1.4826


@dataclass(frozen=True, slots=True)
class Interference:
    """By how much the executions of a model take longer if another model is executed when they begin.

    Attributes
    ----------
    factor : float
        1.1 for 10 %; 1 if it is not known.
    deviation : float
        Standard deviation of its logarithm.
    beside, without : int
        Executions that began beside the other model, and without it.
    """

    factor: float
    deviation: float
    beside: int
    without: int

    @property
    def is_known(self) -> bool:
        """True if enough executions began beside the other model, and without it."""
        return min(self.beside, self.without) >= _LEAST


def interference_in(
    factors: Sequence[tuple[frozenset[str], float]], known: Mapping[str, Interference]
) -> dict[str, Interference]:
    """Return the interference of each other model with the executions of a model.

    Models of a pipeline mostly run together: each factor is found with the newest ones of the others, again and again.

    Parameters
    ----------
    factors : sequence of (frozenset of str, float)
        Of each execution: the models beside it, and how many times as long as expected without them it took.
    known : dict of str to Interference
        An earlier result, by which the effects of several models at once are told apart.
    """
    by_company: dict[frozenset[str], list[float]] = defaultdict(list)
    for beside, factor in factors:
        by_company[beside].append(factor)
    others = sorted(frozenset[str]().union(*by_company))
    found = {other: known[other] for other in others if other in known}
    for other in others * _ROUNDS:
        groups: tuple[list[float], list[float]] = ([], [])
        for beside, together in by_company.items():
            rest = slow_down_of(found, beside - {other})
            groups[other in beside].extend([factor / rest for factor in together])
        found[other] = _compared(*groups)
    return found


def slow_down_of(interference: Mapping[str, Interference], beside: frozenset[str]) -> float:
    """Return the factor of an execution beside other models; models without a known factor have none."""
    return math.prod(interference[other].factor for other in beside if other in interference)


def _compared(without: Sequence[float], beside: Sequence[float]) -> Interference:
    """Compare medians; a difference within their uncertainty counts for little, and company that seems to help not."""
    if min(len(without), len(beside)) < _LEAST:
        return Interference(1.0, 0.0, len(beside), len(without))
    medians = [max(1e-9, statistics.median(group)) for group in (without, beside)]
    variance = sum(
        math.pi / 2 / len(group) * (_ROBUST * statistics.median(abs(one - middle) for one in group) / middle) ** 2
        for group, middle in zip((without, beside), medians, strict=True)
    )
    logarithm = max(0.0, math.log(medians[1] / medians[0]))
    certainty = logarithm**2 / (logarithm**2 + variance) if logarithm else 0.0
    return Interference(math.exp(logarithm * certainty), math.sqrt(variance), len(beside), len(without))


class Company:
    """The other models in a simulated run, for the times of one of the models.

    Parameters
    ----------
    model : str
    running : dict of str to list of int
        When the current executions of each model end; the companies of a run share it.
    factors : dict of str to float
        By how much the model is slower beside others.
    machines : int
        Executions are distributed at random to so many servers.
    rng : random.Random
    """

    def __init__(
        self,
        model: str,
        running: Mapping[str, list[int]],
        factors: Mapping[str, float],
        machines: int,
        rng: random.Random,
    ) -> None:
        self._own = running[model]
        self._others = [(running[other], factor) for other, factor in factors.items() if factor != 1]
        self._machines = machines
        self._rng = rng

    def slow_down(self, now_ns: int) -> float:
        """Return the factor of an execution that begins now."""
        factor = 1.0
        for ends, cost in self._others:
            while ends and ends[0] <= now_ns:
                heappop(ends)
            elsewhere = (1 - 1 / self._machines) ** len(ends)  # the share of servers that execute none of them
            if ends and (self._machines == 1 or self._rng.random() >= elsewhere):
                factor *= cost
        return factor

    def reporting(self, draw: Draw) -> Draw:
        """Return the times of a model that the other models of the run then take into account."""

        def reported(rows: int, now_ns: int, *rest: int) -> float:
            time_ns = draw(rows, now_ns, *rest)
            heappush(self._own, now_ns + round(time_ns))
            return time_ns

        return reported


def companies(
    models: Mapping[str, Mapping[str, Interference]], seed: int | None = None, machines: int = 1
) -> dict[str, Company]:
    """Return the company of each model in one simulated run.

    Parameters
    ----------
    models : dict of str to dict of str to Interference
        By model, and by the other model.
    seed : int, optional
        Factors differ from run to run by as much as they are uncertain; by default they are the learned factors.
    machines : int, optional
    """
    rng = random.Random(f"{seed} interference")
    running: dict[str, list[int]] = {model: [] for model in models}
    known = [one.factor for others in models.values() for one in others.values() if one.is_known]
    most = max(_UNKNOWN[0], min(max(known), _UNKNOWN[1])) if known else _UNKNOWN[1]

    def factor(one: Interference | None) -> float:
        if one is None or one.beside < _LEAST:
            return 1.0 if seed is None else rng.uniform(1.0, most)
        # Of models that were never apart, the times without a factor are already those beside each other.
        return one.factor if seed is None else one.factor * math.exp(rng.gauss(0.0, one.deviation))

    factors = {
        model: {other: factor(others.get(other)) for other in models if other != model}
        for model, others in models.items()
    }
    return {model: Company(model, running, factors[model], machines, rng) for model in models}


@dataclass(frozen=True, repr=False)
class InterferenceTable:
    """By how much the models of a server slow each other down, as learned from a recording; displayed as a table.

    Attributes
    ----------
    pairs : dict of (str, str) to Interference
        By the model and the other model beside it.
    """

    pairs: Mapping[tuple[str, str], Interference]

    @classmethod
    def of(cls, models: Mapping[str, Mapping[str, Interference]], executions: Mapping[str, int]) -> InterferenceTable:
        """Return the table of all pairs.

        Parameters
        ----------
        models : dict of str to dict of str to Interference
        executions : dict of str to int
            Number of executions by model.
        """
        never = {model: Interference(1.0, 0.0, 0, count) for model, count in executions.items()}
        return cls({(one, two): models[one].get(two, never[one]) for one in models for two in models if one != two})

    @property
    def never_together(self) -> list[tuple[str, str]]:
        """The pairs of which too few executions began beside each other."""
        return [pair for pair, one in self.pairs.items() if one.beside < _LEAST]

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return the rows of the table."""
        return [
            (model, other, _factor_text(one), str(one.beside), str(one.without))
            for (model, other), one in self.pairs.items()
        ]

    def __repr__(self) -> str:
        cells = [_HEAD, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join(
            "  ".join(text.ljust(n) for text, n in zip(row, widths, strict=True)).rstrip() for row in cells
        )

    def _repr_html_(self) -> str:
        return html_table(_HEAD, self.rows())


_HEAD = ("executions of", "beside", "take", "began beside it", "without it")


def _factor_text(one: Interference) -> str:
    if one.is_known:
        return f"{one.factor:.2f} ± {one.factor * one.deviation:.2f} times as long"
    return "not known: " + ("never apart" if one.without < one.beside else "never at the same time")
