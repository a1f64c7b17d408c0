"""Exercises drawn from a seed.

Times are drawn so that nothing hangs on which of two things at the same moment comes first.
"""

from __future__ import annotations

import random
import re
from itertools import pairwise

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.model_config.read import read_config
from tritonnb.simulation.arrivals import Arrival
from tritonnb.teaching.worksheet import LETTERS, Worksheet

_ATTEMPTS = 10_000


def worksheet(batcher: str = "dynamic", *, seed: int = 0, requests: int = 6) -> Worksheet:
    """Draw an exercise from a seed: which requests share a batch.

    Parameters
    ----------
    batcher : str, optional
        ``"dynamic"``, or ``"direct"`` or ``"oldest"`` for a sequence batcher with that strategy.
    seed : int, optional
        The same seed gives the same exercise.
    requests : int, optional
        How many, 3 to 26.

    Returns
    -------
    Worksheet

    Raises
    ------
    InvalidArgumentError
        If there is no such batcher, or the number is out of range.

    Examples
    --------
    >>> sheet = worksheet(seed=1)
    >>> bool(sheet.check(sheet.solution))
    True
    """
    if batcher not in _DRAWERS:
        raise InvalidArgumentError(f"batcher cannot be '{batcher}': give one of {', '.join(_DRAWERS)}")
    if not 3 <= requests <= len(LETTERS):
        raise InvalidArgumentError(f"requests must be 3 to {len(LETTERS)}, got {requests}")
    chance = random.Random(f"{batcher} {seed}")
    sheet = _DRAWERS[batcher](chance, requests)
    for _ in range(_ATTEMPTS):
        if _is_clear(sheet) and _is_worth_it(sheet):
            break
        sheet = _DRAWERS[batcher](chance, requests)
    return sheet


def _dynamic(chance: random.Random, requests: int) -> Worksheet:
    limit = chance.choice([4, 8])
    delay_ms = chance.choice([0, 5, 10, 20])
    lines = [f"  max_queue_delay_microseconds: {delay_ms * 1000}"] if delay_ms else []
    if chance.random() < 0.4:
        lines.append(f"  preferred_batch_size: [ {limit // 2} ]")
    body = "\n".join(["dynamic_batching {", *lines, "}"])
    times = _times(chance, requests, 12)
    arrivals = [Arrival(time_us, chance.randint(1, limit // 2)) for time_us in times]
    return Worksheet(f"max_batch_size: {limit}\n{body}", arrivals, chance.choice([10, 15, 20]))


def _direct(chance: random.Random, requests: int) -> Worksheet:
    slots = chance.choice([2, 3])
    lines = ["  direct {"]
    if chance.random() < 0.5:
        lines.append(f"    max_queue_delay_microseconds: {chance.choice([5, 10]) * 1000}")
        lines.append(f"    minimum_slot_utilization: {chance.choice([0.5, 1.0])}")
    return _stateful(chance, requests, slots, [*lines, "  }"])


def _oldest(chance: random.Random, requests: int) -> Worksheet:
    lines = ["  oldest {", f"    max_candidate_sequences: {chance.choice([2, 3])}"]
    if chance.random() < 0.5:
        lines.append(f"    max_queue_delay_microseconds: {chance.choice([5, 10]) * 1000}")
    return _stateful(chance, requests, chance.choice([2, 4]), [*lines, "  }"])


_DRAWERS = {"dynamic": _dynamic, "direct": _direct, "oldest": _oldest}


def _stateful(chance: random.Random, requests: int, limit: int, strategy: list[str]) -> Worksheet:
    body = "\n".join(["sequence_batching {", *strategy, "}"])
    count = max(2, requests // 2)
    owners = [chance.randrange(count) for _ in range(requests)]
    arrivals = [
        Arrival(
            time_us,
            sequence_id=owner + 1,
            sequence_start=owner not in owners[:at],
            sequence_end=owner not in owners[at + 1 :],
        )
        for at, (owner, time_us) in enumerate(zip(owners, _times(chance, requests, 8), strict=True))
    ]
    return Worksheet(f"max_batch_size: {limit}\n{body}", arrivals, chance.choice([7, 10, 13]))


def _times(chance: random.Random, requests: int, gap_ms: int) -> list[float]:
    """Whole milliseconds, the first at 0."""
    times = [0.0]
    while len(times) < requests:
        times.append(times[-1] + 1000 * chance.randint(1, gap_ms))
    return times


def _is_clear(sheet: Worksheet) -> bool:
    """Whether no two things that matter happen at the same moment."""
    ends = [each.exec_end_ns for each in sheet.recording.batches]
    arrived = sheet.arrived_ns
    delays = {int(each) * 1000 for each in re.findall(r"delay_microseconds: (\d+)", sheet.config)}
    due = {moment + delay for moment in arrived for delay in delays}
    moments = sorted([*ends, *arrived, *due])
    return all(a != b for a, b in pairwise(moments)) and not sheet.recording.refused


def _is_worth_it(sheet: Worksheet) -> bool:
    """Whether something is shared, something is not, and not everything has one reason."""
    sizes = {sum(each is not None for each in batch.requests) for batch in sheet.recording.batches}
    rules = {batch.reason.rule for batch in sheet.recording.batches}
    has_one_rule_only = read_config(sheet.config).HasField("sequence_batching")
    return len(sizes) > 1 and len(sheet.recording.batches) >= 3 and (has_one_rule_only or len(rules) > 1)
