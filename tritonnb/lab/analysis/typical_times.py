"""The typical execution time of each batch size, in which sizes that ran rarely borrow strength from their neighbours.

A size that ran often is known from its own executions. One that ran once or twice is not: its only batch may have been
stalled, and large batches form just after a stall. So the time of a size combines its own median with what its
neighbours suggest, a robust line through their times, by how much each of the two is worth.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tritonnb.scheduling.reasons import pluralize

#: An execution of at least this multiple of the expected time is a stall, not a slow batch.
STALL_FACTOR = 3.0
#: The neighbours of a size weigh as much as this number of executions with that size.
NEIGHBOUR_COUNT = 5
#: A size with fewer executions is compared with its neighbours before it is believed: its median may be a stall's.
RARE_COUNT = 4 * NEIGHBOUR_COUNT
#: Sizes that differ by this factor are worth half as much to each other as adjacent sizes.
_HALF_WEIGHT_RATIO = 2.0
#: The nearest recorded sizes that determine a line, on each side of a size.
_NEAREST = 8
#: Least deviation of the logarithm of a size's time from what its neighbours suggest: no model is exactly linear.
_LEAST_DEVIATION = 0.03
#: The same where no recorded size tells.
_UNKNOWN_DEVIATION = 0.1
#: Neighbours that are worth more than this test how linear the times are.
_WELL_SUPPORTED = 0.5
#: Few executions are believed up to this number of standard deviations above what their neighbours suggest.
_BELIEVED = 3.0
#: Iterations of the robust regression.
_ITERATIONS = 8
#: Ratio of the standard deviation of a normal distribution to its median absolute deviation.
_ROBUST = 1.4826


@dataclass(frozen=True)
class SizeTimes:
    """The executions of one batch size, and the typical time.

    Attributes
    ----------
    rows : int
    times_ns : list of float
        The recorded executions without stalled executions, ascending.
    stalled : int
        The number of stalled executions.
    typical_ns : float
        The typical time.
    suggested_ns : float
        What the neighbours suggest.
    support : float
        How much the neighbours are worth: 1 if one next to it ran often, 0 without any.
    """

    rows: int
    times_ns: list[float] = field(repr=False)
    stalled: int
    typical_ns: float
    suggested_ns: float
    support: float

    @property
    def own_share(self) -> float:
        """The share (0 to 1) that its own executions have in the typical time; all if it ran often."""
        count = len(self.times_ns)
        if count >= RARE_COUNT:
            return 1.0
        return count / (count + NEIGHBOUR_COUNT * self.support) if count else 0.0

    @property
    def moved_ns(self) -> list[float]:
        """The executions, moved so that their median is the typical time; that time if all were stalled."""
        factor = self.typical_ns / statistics.median(self.times_ns) if self.times_ns else 1.0
        return [time * factor for time in self.times_ns] or [self.typical_ns]


class TypicalTimes:
    """The typical time in ns by batch size in rows; larger batches never take less.

    Parameters
    ----------
    times_ns : mapping of int to sequence of float
        The recorded executions, by their rows; at least one.

    Attributes
    ----------
    sizes : dict of int to SizeTimes
        The recorded sizes, ascending.

    Examples
    --------
    >>> often = {rows: [5.0 + rows] * 50 for rows in range(1, 7)}
    >>> typical = TypicalTimes({**often, 7: [44.0]})
    >>> round(typical(7), 3), round(typical(8), 3), typical.sizes[7].stalled
    (12.0, 13.0, 1)
    >>> typical.is_supported(6), typical.is_supported(7)
    (True, False)
    >>> typical.deviation(6) < typical.deviation(7) < typical.deviation(16)
    True
    """

    def __init__(self, times_ns: Mapping[int, Sequence[float]]) -> None:
        recorded = {rows: sorted(max(1.0, time) for time in times) for rows, times in sorted(times_ns.items())}
        points = _points(recorded)
        regular = {rows: _not_stalled(rows, times, points) for rows, times in recorded.items()}
        if not any(regular.values()):
            regular = recorded
        # The stalled executions of a rare size would distort what it suggests for its neighbours.
        points = _points(regular)
        self._rows = list(regular)
        self._points = points
        self._noise = _noise(regular.values())
        self._linearity = _linearity(regular, points)
        sizes = [self._size(rows, own, len(recorded[rows]) - len(own)) for rows, own in regular.items()]
        levels = never_decreasing({size.rows: size.moved_ns for size in sizes})
        self.sizes = {size.rows: replace(size, typical_ns=levels[size.rows]) for size in sizes}
        self._growth = {upwards: self._growth_beyond(upwards) for upwards in (False, True)}

    def _size(self, rows: int, own: list[float], stalled: int) -> SizeTimes:
        """Combine the executions of a size with what its neighbours suggest."""
        suggested_ns, support = _suggested(rows, self._points)
        size = SizeTimes(rows, own, stalled, suggested_ns, suggested_ns, support)
        apart = size.own_share * self._apart(size)
        return replace(size, typical_ns=suggested_ns * math.exp(apart))

    def _apart(self, size: SizeTimes) -> float:
        """Return how far the executions of a size are from what its neighbours suggest (logarithm).

        A few that are far above may be shorter stalls than those that are recognised: they are believed to a limit.
        """
        if not size.times_ns:
            return 0.0
        apart = math.log(statistics.median(size.times_ns) / size.suggested_ns)
        if len(size.times_ns) >= NEIGHBOUR_COUNT:
            return apart
        return min(apart, _BELIEVED * math.hypot(self._noise, self._line_deviation(size.rows)))

    def __call__(self, rows: int) -> float:
        """Return the typical time of a batch size in ns: between recorded sizes it is interpolated."""
        first, last = self._rows[0], self._rows[-1]
        if first <= rows <= last:
            place = bisect_left(self._rows, rows)
            high = self.sizes[self._rows[place]]
            if high.rows == rows:
                return high.typical_ns
            low = self.sizes[self._rows[place - 1]]
            return low.typical_ns + (high.typical_ns - low.typical_ns) * (rows - low.rows) / (high.rows - low.rows)
        edge = self.sizes[last if rows > last else first]
        return max(0.0, edge.typical_ns + self._growth[rows > last] * (rows - edge.rows))

    def is_supported(self, rows: int) -> bool:
        """Return whether a size ran often enough to be known from its own executions."""
        return rows in self.sizes and len(self.sizes[rows].times_ns) >= NEIGHBOUR_COUNT

    def basis(self, sizes: Iterable[int]) -> dict[str, int]:
        """Return what the times of batch sizes rest on, for those that ran rarely or never.

        Parameters
        ----------
        sizes : iterable of int
            In rows.

        Returns
        -------
        dict of str to int
            Sentences without a period, and the largest size of each.
        """
        unsupported = {rows for rows in sizes if not self.is_supported(rows)}
        unknown = sorted(unsupported - self.sizes.keys())
        nearest = {min(self.sizes, key=lambda size: abs(size - rows)) for rows in unknown}
        rare = [self.sizes[rows] for rows in sorted(unsupported | nearest) if rows in self.sizes]
        rare = [size for size in rare if not self.is_supported(size.rows)]
        sentences: dict[str, int] = {}
        for is_stalled in (True, False):
            group = [size for size in rare if bool(size.stalled) == is_stalled]
            if not group:
                continue
            stalls = sum(size.stalled for size in group)
            count = stalls + sum(len(size.times_ns) for size in group)
            kept = f", of which {stalls} stalled" if stalls < count else ", which were stalled"
            remark = "" if not stalls else ", which was stalled" if count == 1 else kept
            recorded = pluralize(count, "recorded batch", "recorded batches")
            sentences[f"{_batches_text([size.rows for size in group])} rest on {recorded}{remark}"] = group[-1].rows
        if unknown:
            sentences[f"{_batches_text(unknown)} were not recorded"] = unknown[-1]
        return sentences

    def deviation(self, rows: int) -> float:
        """Return the standard deviation of the logarithm of the true time around the typical one."""
        size = self.sizes.get(rows)
        of_line = self._line_deviation(rows)
        if size is None:
            place = bisect_left(self._rows, rows)
            return max([of_line, *(self.deviation(other) for other in self._rows[max(0, place - 1) : place + 1])])
        if not size.times_ns:
            return of_line
        of_own = self._noise * math.sqrt(math.pi / 2 / len(size.times_ns))
        share = size.own_share
        # Either its executions are right or its neighbours: the fewer there are, the less is known which.
        of_choice = (1 - share) * math.sqrt(share) * abs(self._apart(size))
        return math.hypot(share * of_own, (1 - share) * of_line, of_choice)

    def _line_deviation(self, rows: int) -> float:
        """Return the same for what the neighbours of a size suggest."""
        others = [other for other, _, _ in self._points if other != rows] or self._rows
        distance = min(abs(math.log(other / rows)) for other in others)
        closeness = _suggested(rows, self._points)[1] * _closeness(distance)
        # Far from recorded sizes, anything between no growth and a growth in proportion to the rows is as likely.
        return math.hypot(self._linearity, (1 - closeness) * distance / 2)

    def _growth_beyond(self, upwards: bool) -> float:
        """Return the growth in ns per row beyond the largest, or below the smallest, recorded size."""
        edge = self.sizes[self._rows[-1 if upwards else 0]]
        points = [(size.rows, size.typical_ns, _worth(max(1, len(size.times_ns)))) for size in self.sizes.values()]
        # A row costs at most as much as in the recorded batches.
        slope = min(_line(_weighted(points, edge.rows))[1], edge.typical_ns / edge.rows)
        if upwards:
            return slope
        # Smaller batches are only as much faster as the number and the range of the recorded executions prove.
        counts = [(size.rows, len(size.times_ns)) for size in self.sizes.values()]
        mean = sum(rows * count for rows, count in counts) / max(1, sum(count for _, count in counts))
        proof = sum(count * (rows - mean) ** 2 for rows, count in counts)
        return slope * proof / (proof + NEIGHBOUR_COUNT)


#: A batch size in rows, its time in ns, and its weight.
_Point = tuple[int, float, float]


def _worth(count: int) -> float:
    """Return the weight (0 to 1) of the median of executions: it grows ever more slowly with their number."""
    return count / (count + NEIGHBOUR_COUNT)


def _points(times: Mapping[int, Sequence[float]]) -> list[_Point]:
    return [(rows, statistics.median(known), _worth(len(known))) for rows, known in times.items() if known]


def _suggested(rows: int, points: Sequence[_Point]) -> tuple[float, float]:
    """Return the time in ns that the neighbours of a size suggest, and how much they are worth (0 to 1)."""
    weighted = [point for point in _weighted(points, rows) if point[0] != rows]
    if not weighted:  # the only recorded size suggests its own time
        return points[0][1], 0.0
    base, slope = _line(weighted)
    return max(1.0, base + slope * rows), min(1.0, sum(weight for _, _, weight in weighted))


def _weighted(points: Sequence[_Point], rows: int) -> list[_Point]:
    """Return the nearest points around a size, with weights that fall with the distance."""
    place = bisect_left([size for size, _, _ in points], rows)
    near = points[max(0, place - _NEAREST) : place + _NEAREST + 1]
    return [(size, time, weight * _closeness(math.log(size / rows))) for size, time, weight in near]


def _closeness(distance: float) -> float:
    """Return how much sizes are worth to each other (0 to 1), by the difference of their logarithms."""
    return 1 / (1 + (distance / math.log(_HALF_WEIGHT_RATIO)) ** 2)


def _line(points: Sequence[tuple[int, float, float]]) -> tuple[float, float]:
    """Return the base and the slope of a line through (rows, ns, weight), by least absolute relative differences.

    Neither is negative: a batch takes no time less than none, and an additional row does not save any.
    """
    base = slope = 0.0
    residuals = [1.0] * len(points)
    for _ in range(_ITERATIONS):
        weights = [
            weight / (time * time * residual) for (_, time, weight), residual in zip(points, residuals, strict=True)
        ]
        total = math.fsum(weights)
        mean_x = math.fsum(w * x for w, (x, _, _) in zip(weights, points, strict=True)) / total
        mean_y = math.fsum(w * y for w, (_, y, _) in zip(weights, points, strict=True)) / total
        spread = math.fsum(w * (x - mean_x) ** 2 for w, (x, _, _) in zip(weights, points, strict=True))
        common = math.fsum(w * (x - mean_x) * y for w, (x, y, _) in zip(weights, points, strict=True))
        slope = min(max(0.0, common / spread if spread > 0 else 0.0), mean_y / mean_x)
        base = mean_y - slope * mean_x
        residuals = [max(1e-3, abs(base + slope * x - y) / y) for x, y, _ in points]
    return base, slope


def _not_stalled(rows: int, times: list[float], points: Sequence[_Point]) -> list[float]:
    """Return the executions of a size that are not stalled."""
    others = [size for size, _, _ in points if size != rows]
    if len(times) >= RARE_COUNT or not others:
        limit = STALL_FACTOR * statistics.median(times) if len(times) >= NEIGHBOUR_COUNT else math.inf
        return times[: bisect_left(times, limit)]
    suggested_ns, support = _suggested(rows, points)
    nearest = min(others, key=lambda size: abs(math.log(size / rows)))
    in_proportion_ns = max(suggested_ns, next(time for size, time, _ in points if size == nearest) * rows / nearest)
    # Far from the recorded sizes, the time may have grown in proportion to the rows.
    limit = STALL_FACTOR * suggested_ns**support * in_proportion_ns ** (1 - support)
    regular = times[: bisect_left(times, limit)]
    # Several executions of which none is as fast as the neighbours suggest: this size is slow.
    return regular if regular or len(times) < NEIGHBOUR_COUNT else times


def never_decreasing(times: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Return the nearest times by size that do not fall with it (least absolute differences).

    Parameters
    ----------
    times : mapping of int to sequence of float
        By batch size; neighbours in the wrong order are pooled, and take the median of their times.

    Examples
    --------
    >>> never_decreasing({1: [1.0], 2: [4.0], 3: [2.0], 4: [5.0]})
    {1: 1.0, 2: 3.0, 3: 3.0, 4: 5.0}
    """
    pools: list[tuple[float, list[float]]] = []
    sizes: list[int] = []
    for rows in sorted(times):
        pools.append((statistics.median(times[rows]), list(times[rows])))
        sizes.append(1)
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            values = pools[-2][1] + pools[-1][1]
            pools[-2:] = [(statistics.median(values), values)]
            sizes[-2:] = [sizes[-2] + sizes[-1]]
    levels = [level for (level, _), count in zip(pools, sizes, strict=True) for _ in range(count)]
    return dict(zip(sorted(times), levels, strict=True))


def _noise(times: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation of the logarithm of the executions of one size."""
    values = [_scatter([math.log(time) for time in known]) for known in times if len(known) >= NEIGHBOUR_COUNT]
    return statistics.median(values) if values else _UNKNOWN_DEVIATION


def _linearity(times: Mapping[int, Sequence[float]], points: Sequence[_Point]) -> float:
    """Return how far the times of sizes that ran often are from what their neighbours suggest (logarithm)."""
    off = []
    for rows, known in times.items():
        suggested_ns, support = _suggested(rows, points)
        if len(known) >= NEIGHBOUR_COUNT and support > _WELL_SUPPORTED:
            off.append(abs(math.log(statistics.median(known) / suggested_ns)))
    return max(_LEAST_DEVIATION, _ROBUST * statistics.median(off)) if off else _UNKNOWN_DEVIATION


def _scatter(values: Sequence[float]) -> float:
    """Return a standard deviation that outliers do not change."""
    middle = statistics.median(values)
    return _ROBUST * statistics.median(abs(value - middle) for value in values)


def _batches_text(sizes: Sequence[int]) -> str:
    """Return batch sizes as text, adjacent sizes as spans: ``batches of 3 and 5 to 7 rows``."""
    spans: list[list[int]] = []
    for rows in sizes:
        if spans and spans[-1][-1] == rows - 1:
            spans[-1].append(rows)
        else:
            spans.append([rows])
    texts: list[str] = []
    for span in spans:
        texts += [f"{span[0]} to {span[-1]}"] if len(span) > 2 else map(str, span)
    listed = " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))
    return f"batches of {listed} {'row' if listed == '1' else 'rows'}"
