"""`worksheet`: random exercises from a seed; `recorded_worksheet`: exercises on recorded requests.

In a random exercise, no two relevant events happen at the same time, so the solution is unambiguous.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from google.protobuf import text_format

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.option_types import with_checked_types
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.teaching.rules import LEVELS, form_batches
from tritonnb.lab.teaching.worksheet import LETTERS, Worksheet
from tritonnb.model_config.read import read_config
from tritonnb.recording.arrivals import Arrival
from tritonnb.recording.recording import Recording

#: Configurations that are tried, and requests that are drawn for each request of the exercise.
_CONFIGURATIONS, _DRAWS = 1000, 12


@with_short_traceback
@with_checked_types
def worksheet(batcher: str = "dynamic", *, seed: int = 0, requests: int = 6, level: int = 1) -> Worksheet:
    """Generate an exercise from a seed.

    Whoever knows the rules up to its level solves it, and with level 2 nobody else does.

    Parameters
    ----------
    batcher : str, optional
        ``"dynamic"``, or ``"direct"`` or ``"oldest"`` for a sequence batcher with that strategy.
    seed : int, optional
        The same seed generates the same exercise.
    requests : int, optional
        Number of requests, 3 to 26.
    level : int, optional
        The rules that have been taught. For the dynamic batcher, 1: a preferred size is reached, the next request does
        not fit, the delay is over. 2: also what happens beyond the largest preferred size, or to a batch whose delay
        expires while the instance is busy. For the sequence batchers, 1: slots and turns. 2: also the delay.

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
    if batcher not in _DRAFTS:
        raise InvalidArgumentError(f"batcher expected one of {', '.join(_DRAFTS)}, got {batcher!r}")
    if not isinstance(requests, int) or not 3 <= requests <= len(LETTERS):
        raise InvalidArgumentError(f"requests expected a number from 3 to {len(LETTERS)}, got {requests!r}")
    if type(level) is not int or level not in LEVELS:
        raise InvalidArgumentError(f"level expected 1 or 2, got {level!r}")
    rng = random.Random(f"{batcher} {seed}")
    for _ in range(_CONFIGURATIONS):
        sheet = _grow(_DRAFTS[batcher](rng, level), rng, requests, level)
        if sheet is not None:
            return sheet
    raise InvalidArgumentError(f"no exercise of level {level} with {requests} requests was found: use another seed")


@dataclass(frozen=True)
class _Draft:
    """An exercise without its requests.

    Attributes
    ----------
    config : str
    execution_ms : int
    gap_ms : int
        The longest time between two requests.
    details : sequence of int
        What is drawn for a request: its rows, or its sequence.
    """

    config: str
    execution_ms: int
    gap_ms: int
    details: Sequence[int]

    @cached_property
    def message(self) -> pb.ModelConfig:
        """The configuration."""
        return read_config(self.config)

    def arrivals(self, drawn: Sequence[tuple[float, int]]) -> list[Arrival]:
        """Return the requests with these times (µs) and details."""
        if self.message.HasField("dynamic_batching"):
            return [Arrival(time_us, rows) for time_us, rows in drawn]
        owners = [owner for _, owner in drawn]
        return [
            Arrival(
                time_us,
                sequence_id=owner,
                sequence_start=owner not in owners[:at],
                sequence_end=owner not in owners[at + 1 :],
            )
            for at, (time_us, owner) in enumerate(drawn)
        ]


def _grow(draft: _Draft, rng: random.Random, requests: int, level: int) -> Worksheet | None:
    """Draw requests after each other, such that the rules lead to the solution; None if this fails too often."""
    drawn: list[tuple[float, int]] = []
    for _ in range(_DRAWS * requests):
        time_us = drawn[-1][0] + 1000 * rng.randint(1, draft.gap_ms) if drawn else 0.0
        drawn.append((time_us, rng.choice(draft.details)))
        arrivals = draft.arrivals(drawn)
        by_rules = form_batches(draft.message, arrivals, draft.execution_ms, LEVELS[level - 1 :])
        if by_rules is None or not _is_unambiguous(draft, arrivals, by_rules):
            drawn.pop()
        elif len(drawn) == requests:
            by_less = form_batches(draft.message, arrivals, draft.execution_ms, [level - 1]) if level > 1 else None
            if by_rules != by_less:
                sheet = Worksheet(draft.config, arrivals, draft.execution_ms)
                if by_rules == _batches(sheet) and _is_instructive(sheet):
                    return sheet
            del drawn[requests // 2 :]
    return None


def _dynamic(rng: random.Random, level: int) -> _Draft:
    limit = rng.choice([4, 8])
    has_sizes = rng.random() < 0.4
    # The consequences of level 2 need a delay that is shorter than an execution, or a preferred size.
    delays_ms = [0, 5, 10, 20] if level == 1 or has_sizes else [5, 10]
    lines = [f"  max_queue_delay_microseconds: {1000 * delay_ms}"] if (delay_ms := rng.choice(delays_ms)) else []
    if has_sizes:
        lines.append(f"  preferred_batch_size: [ {limit // 2} ]")
    config = "\n".join([f"max_batch_size: {limit}", "dynamic_batching {", *lines, "}"])
    return _Draft(config, rng.choice([10, 15, 20]), 12 if level == 1 else 8, range(1, limit // 2 + 1))


def _direct(rng: random.Random, level: int) -> _Draft:
    lines, slots = ["  direct {"], rng.choice([2, 3])
    if level > 1:
        lines.append(f"    max_queue_delay_microseconds: {rng.choice([5, 10]) * 1000}")
        # A single request is already half of two slots.
        lines.append(f"    minimum_slot_utilization: {rng.choice([0.5, 1.0]) if slots > 2 else 1.0}")
    return _stateful(rng, slots, [*lines, "  }"])


def _oldest(rng: random.Random, level: int) -> _Draft:
    lines = ["  oldest {", f"    max_candidate_sequences: {rng.choice([2, 3])}"]
    if level > 1:
        lines.append(f"    max_queue_delay_microseconds: {rng.choice([5, 10]) * 1000}")
    return _stateful(rng, rng.choice([2, 4]), [*lines, "  }"])


_DRAFTS = {"dynamic": _dynamic, "direct": _direct, "oldest": _oldest}


def _stateful(rng: random.Random, limit: int, strategy: list[str]) -> _Draft:
    config = "\n".join([f"max_batch_size: {limit}", "sequence_batching {", *strategy, "}"])
    return _Draft(config, rng.choice([7, 10, 13]), 8, range(1, rng.choice([2, 3, 4]) + 1))


def _batches(sheet: Worksheet) -> list[tuple[int, list[int]]]:
    """Return when each batch is sent, and its requests by their places."""
    return [
        (batch.sent_ns, sorted([serial - 1 for serial in batch.requests if serial is not None]))
        for batch in sheet.batches
    ]


def _is_unambiguous(draft: _Draft, arrivals: Sequence[Arrival], batches: Sequence[tuple[int, list[int]]]) -> bool:
    """Return whether no two events that matter happen at the same time."""
    ends = [sent_ns + 1_000_000 * draft.execution_ms for sent_ns, _ in batches]
    arrived = [round(1000 * arrival.time_us) for arrival in arrivals]
    delays = [int(delay_us) * 1000 for delay_us in re.findall(r"delay_microseconds: (\d+)", draft.config)]
    moments = [*ends, *arrived, *(at_ns + delay_ns for at_ns in arrived for delay_ns in delays)]
    return len(set(moments)) == len(moments)


def _is_instructive(sheet: Worksheet) -> bool:
    """Return whether batch sizes differ and, where several rules exist, reasons also differ."""
    sizes = {len(members) for members in sheet.members}
    rules = {batch.reason.rule for batch in sheet.batches}
    has_single_rule = read_config(sheet.config).HasField("sequence_batching")
    enough = min(3, len(sheet.arrivals) - 1)  # three requests form no more than two batches of different sizes
    return len(sizes) > 1 and len(sheet.batches) >= enough and (has_single_rule or len(rules) > 1)


@with_short_traceback
@with_checked_types
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
