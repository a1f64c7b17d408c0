"""An exercise on recorded requests."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from google.protobuf import text_format

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import RequestArrived
from tritonnb.core.failures import with_short_traceback
from tritonnb.teaching.worksheet import LETTERS, Worksheet

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording


@with_short_traceback
def recorded_worksheet(rec: Recording, start_ms: float = 0.0, requests: int = 10) -> Worksheet:
    """Make an exercise of recorded requests: predict their batches, then reveal them.

    Parameters
    ----------
    start_ms : float, optional
        The exercise begins with the first request after this time, in milliseconds from the beginning of the
        recording. The instances are idle then, whatever they did in the recording.
    requests : int, optional
        Number of requests, at most 26.

    Returns
    -------
    Worksheet
        With the recorded configuration and the median execution times. A notebook shows it as a widget.

    Raises
    ------
    InvalidArgumentError
        If the recording is not of exactly one model, or no request arrived after ``start_ms``.
    """
    models = sorted({event.model for event in rec.events if isinstance(event, RequestArrived)})
    if len(models) != 1 or models[0] not in rec.configs:
        names = ", ".join(models) or "none"
        raise InvalidArgumentError(
            f"worksheet expected a recording of one model with its configuration, got {names}: use rec.for_model()"
        )
    if not 1 <= requests <= len(LETTERS):
        raise InvalidArgumentError(f"requests expected a number from 1 to {len(LETTERS)}, got {requests}")
    first_ns = next(event.time_ns for event in rec.events if isinstance(event, RequestArrived))
    from_us = start_ms * 1000 - (first_ns - rec.origin_ns) / 1000
    chosen = [arrival for arrival in rec.arrivals() if arrival.time_us >= from_us and arrival.cancel_us is None]
    if not chosen:
        raise InvalidArgumentError(f"worksheet expected a request after start_ms={start_ms:g}, got none")
    begin_us = chosen[0].time_us
    # Times in whole µs can be read; the exercise has its own solution.
    arrivals = [
        dataclasses.replace(arrival, time_us=float(round(arrival.time_us - begin_us))) for arrival in chosen[:requests]
    ]
    times = {rows: max(0.001, round(rec.median_ms(rows), 3)) for rows in rec.batch_sizes()}
    text = text_format.MessageToString(rec.configs[models[0]])
    return Worksheet(text, arrivals, times if len(times) > 1 else next(iter(times.values())))
