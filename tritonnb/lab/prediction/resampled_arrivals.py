"""Arrivals of a recording, resampled for another run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tritonnb.lab.analysis.learned_times import PIECES
from tritonnb.recording.arrivals import Arrival


def resampled_arrivals(
    recorded: Sequence[Arrival], seed: int, scale: float, *, share: float = 1.0, count: int | None = None
) -> list[Arrival]:
    """Return arrivals made of random pieces of recorded arrivals; few of them, and sequences, stay as they are.

    Parameters
    ----------
    recorded : sequence of Arrival
    seed : int
    scale : float
        Factor of the times.
    share : float, optional
        Each arrival is kept with this probability: what one of several servers gets.
    count : int, optional
        How many to return; by default as many as were recorded.
    """
    if len(recorded) < 2 * PIECES or any(arrival.sequence_id for arrival in recorded):
        return [arrival.at(arrival.time_us * scale) for arrival in recorded]
    rng = np.random.default_rng(seed % 2**64)  # NumPy refuses a seed below 0
    size = len(recorded) if count is None else count
    index = np.arange(size) if share >= 1 else np.cumsum(rng.geometric(share, size)) - 1
    bounds = len(recorded) * np.arange(PIECES + 1) // PIECES
    times_us = np.array([arrival.time_us for arrival in recorded])
    firsts, sizes = times_us[bounds[:-1]], np.diff(bounds)
    spans = times_us[bounds[1:] - 1] - firsts + (times_us[-1] - times_us[0]) / (len(recorded) - 1)
    # Another recording would have consisted of other pieces: the recorded pieces are resampled first.
    learned = rng.integers(PIECES, size=PIECES)
    pieces = rng.choice(learned, size=index[-1] // sizes.min() + 1)
    ends, begins_us = np.cumsum(sizes[pieces]), np.cumsum(spans[pieces]) - spans[pieces]
    number = np.searchsorted(ends, index, "right")
    piece = pieces[number]
    place = bounds[piece] + index - (ends[number] - sizes[piece])
    when_us = (begins_us[number] + times_us[place] - firsts[piece]) * scale
    return [recorded[i].at(time_us) for i, time_us in zip(place.tolist(), when_us.tolist(), strict=True)]


def rate_of(arrivals: Sequence[Arrival]) -> float:
    """Return the arrivals per second; 0 if all of them arrive at once."""
    span_us = arrivals[-1].time_us - arrivals[0].time_us
    return (len(arrivals) - 1) / span_us * 1e6 if span_us else 0.0
