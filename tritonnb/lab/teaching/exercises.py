"""`worksheet`: random exercises from a seed; `recorded_worksheet`: exercises on recorded requests.

In a random exercise, no two relevant events happen at the same time, so the solution is unambiguous.
"""

from __future__ import annotations

import random
import re
from itertools import accumulate

from google.protobuf import text_format

from tritonnb.core.arguments import require_seed
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.lab.teaching.worksheet import LETTERS, Worksheet
from tritonnb.model_config.read import read_config
from tritonnb.recording.arrivals import Arrival
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import OVERSHOOTS_PREFERRED

_ATTEMPTS = 10_000


@with_short_traceback
def worksheet(batcher: str = "dynamic", *, seed: int = 0, requests: int = 6, level: int = 1) -> Worksheet:
    """Generate an exercise from a seed.

    Parameters
    ----------
    batcher : str, optional
        ``"dynamic"``, or ``"direct"`` or ``"oldest"`` for a sequence batcher with that strategy.
    seed : int, optional
        The same seed generates the same exercise.
    requests : int, optional
        Number of requests, 3 to 26.
    level : int, optional
        Which rules of the dynamic batcher the solution needs. 1: a preferred size is reached, the next request does not
        fit, the delay is over. 2: also what happens beyond the largest preferred size, and to a batch whose delay
        expires while the instance is busy. The sequence batchers have one level.

    Returns
    -------
    Worksheet

    Raises
    ------
    InvalidArgumentError
        If the batcher does not exist, the seed is not an integer, or the number of requests or the level is out of
        range.

    Examples
    --------
    >>> sheet = worksheet(seed=1)
    >>> bool(sheet.check(sheet.solution))
    True
    """
    if batcher not in _GENERATORS:
        raise InvalidArgumentError(f"batcher expected one of {', '.join(_GENERATORS)}, got {batcher!r}")
    if not 3 <= requests <= len(LETTERS):
        raise InvalidArgumentError(f"requests expected a number from 3 to {len(LETTERS)}, got {requests}")
    if level not in (1, 2):
        raise InvalidArgumentError(f"level expected 1 or 2, got {level!r}")
    require_seed(seed)
    rng = random.Random(f"{batcher} {seed}")
    plain = None
    for _ in range(_ATTEMPTS):
        sheet = _GENERATORS[batcher](rng, requests)
        if _is_unambiguous(sheet) and (level == 2 or batcher != "dynamic" or _has_basic_rules(sheet)):
            if _is_instructive(sheet):
                return sheet
            plain = plain or sheet
    if plain is None:
        raise InvalidArgumentError(
            f"no exercise of level {level} with {requests} requests was found: use fewer requests"
        )
    return plain  # three requests form no more than two sizes


def _dynamic(rng: random.Random, requests: int) -> Worksheet:
    limit = rng.choice([4, 8])
    delay_ms = rng.choice([0, 5, 10, 20])
    lines = [f"  max_queue_delay_microseconds: {delay_ms * 1000}"] if delay_ms else []
    if rng.random() < 0.4:
        lines.append(f"  preferred_batch_size: [ {limit // 2} ]")
    body = "\n".join(["dynamic_batching {", *lines, "}"])
    times = _times(rng, requests, 12)
    arrivals = [Arrival(time_us, rng.randint(1, limit // 2)) for time_us in times]
    return Worksheet(f"max_batch_size: {limit}\n{body}", arrivals, rng.choice([10, 15, 20]))


def _direct(rng: random.Random, requests: int) -> Worksheet:
    slots = rng.choice([2, 3])
    lines = ["  direct {"]
    if rng.random() < 0.5:
        lines.append(f"    max_queue_delay_microseconds: {rng.choice([5, 10]) * 1000}")
        lines.append(f"    minimum_slot_utilization: {rng.choice([0.5, 1.0])}")
    return _stateful(rng, requests, slots, [*lines, "  }"])


def _oldest(rng: random.Random, requests: int) -> Worksheet:
    lines = ["  oldest {", f"    max_candidate_sequences: {rng.choice([2, 3])}"]
    if rng.random() < 0.5:
        lines.append(f"    max_queue_delay_microseconds: {rng.choice([5, 10]) * 1000}")
    return _stateful(rng, requests, rng.choice([2, 4]), [*lines, "  }"])


_GENERATORS = {"dynamic": _dynamic, "direct": _direct, "oldest": _oldest}


def _stateful(rng: random.Random, requests: int, limit: int, strategy: list[str]) -> Worksheet:
    body = "\n".join(["sequence_batching {", *strategy, "}"])
    count = max(2, requests // 2)
    owners = [rng.randrange(count) for _ in range(requests)]
    arrivals = [
        Arrival(
            time_us,
            sequence_id=owner + 1,
            sequence_start=owner not in owners[:at],
            sequence_end=owner not in owners[at + 1 :],
        )
        for at, (owner, time_us) in enumerate(zip(owners, _times(rng, requests, 8), strict=True))
    ]
    return Worksheet(f"max_batch_size: {limit}\n{body}", arrivals, rng.choice([7, 10, 13]))


def _times(rng: random.Random, requests: int, gap_ms: int) -> list[float]:
    """Return random increasing times in whole milliseconds (as µs), the first at 0."""
    return list(accumulate((1000 * rng.randint(1, gap_ms) for _ in range(requests - 1)), initial=0.0))


def _is_unambiguous(sheet: Worksheet) -> bool:
    """Return whether no two events that matter happen at the same time."""
    ends = [batch.exec_end_ns for batch in sheet.recording.batches]
    arrived = sheet.arrived_ns
    delays = {int(delay_us) * 1000 for delay_us in re.findall(r"delay_microseconds: (\d+)", sheet.config)}
    due = {moment + delay for moment in arrived for delay in delays}
    moments = [*ends, *arrived, *due]
    return len(set(moments)) == len(moments) and not sheet.recording.refused


def _is_instructive(sheet: Worksheet) -> bool:
    """Return whether batch sizes differ and, where several rules exist, reasons also differ."""
    sizes = {sum(request is not None for request in batch.requests) for batch in sheet.recording.batches}
    rules = {batch.reason.rule for batch in sheet.recording.batches}
    has_single_rule = read_config(sheet.config).HasField("sequence_batching")
    return len(sizes) > 1 and len(sheet.recording.batches) >= 3 and (has_single_rule or len(rules) > 1)


def _has_basic_rules(sheet: Worksheet) -> bool:
    """Return whether the solution of a dynamic batcher's exercise needs neither rule of level 2."""
    following = 0
    for batch in sheet.recording.batches:
        following += len(batch.requests)
        preferred, limit = batch.reason.facts["preferred"], batch.reason.facts["max_batch_size"]
        if batch.reason.rule == OVERSHOOTS_PREFERRED or batch.size > max(preferred):
            return False
        if batch.size in preferred or following == len(sheet.arrivals):
            continue
        # The next request was there and fits: the delay expired while the instance was busy.
        has_room = batch.size + sheet.arrivals[following].rows <= limit
        if has_room and sheet.arrived_ns[following] <= batch.sent_ns:
            return False
    return True


@with_short_traceback
def recorded_worksheet(rec: Recording, start_ms: float = 0.0, requests: int = 10) -> Worksheet:
    """Make an exercise of recorded requests: predict their batches, then reveal them.

    Parameters
    ----------
    start_ms : float, optional
        The exercise begins with the first request after this time, in milliseconds from the beginning of the
        recording. The instances are idle then, even if they were busy in the recording.
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

    Examples
    --------
    >>> from tritonnb import constant, fixed, simulate
    >>> sheet = simulate("max_batch_size: 4 dynamic_batching { }", constant(200, 1), fixed(8)).worksheet(requests=3)
    >>> bool(sheet.check("A"))
    False
    """
    models = sorted({event.model for event in rec.arrived.values()})
    if len(models) != 1 or models[0] not in rec.configs:
        names = ", ".join(models) or "none"
        raise InvalidArgumentError(
            f"worksheet expected a recording of one model with its configuration, got {names}: use rec.for_model()"
        )
    if not 1 <= requests <= len(LETTERS):
        raise InvalidArgumentError(f"requests expected a number from 1 to {len(LETTERS)}, got {requests}")
    first_ns = rec.first_arrival_ns
    from_us = start_ms * 1000 - (first_ns - rec.origin_ns) / 1000
    chosen = [arrival for arrival in rec.arrivals() if arrival.time_us >= from_us and arrival.cancel_us is None]
    if not chosen:
        raise InvalidArgumentError(f"worksheet expected a request after start_ms={start_ms:g}, got none")
    begin_us = chosen[0].time_us
    # Times in whole µs can be read; the exercise has its own solution.
    arrivals = [arrival.at(float(round(arrival.time_us - begin_us))) for arrival in chosen[:requests]]
    times = {rows: max(0.001, round(rec.median_ms(rows), 3)) for rows in rec.batch_sizes()}
    text = text_format.MessageToString(rec.configs[models[0]])
    return Worksheet(text, arrivals, times if len(times) > 1 else next(iter(times.values())))
