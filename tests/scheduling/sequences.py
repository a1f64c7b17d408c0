"""Sequence batchers, and arrivals of sequences."""

from __future__ import annotations

from tests.scheduling.harness import MS, Arrival, Play, members
from tritonnb.scheduling.policy import DynamicBatcherSettings
from tritonnb.scheduling.sequence_batcher import SequenceBatcher
from tritonnb.scheduling.sequence_strategies import DirectSettings, OldestSettings, SequenceBatcherSettings


def direct(size: int, instances: int = 1, idle_ms: float = 10_000, **fields: float) -> SequenceBatcher:
    strategy = DirectSettings(size, **fields)  # type: ignore[arg-type]
    return SequenceBatcher(SequenceBatcherSettings("seq", strategy, int(idle_ms * MS)), instances)


def oldest(
    candidates: int,
    size: int,
    preferred: int = 0,
    delay_ms: float = 0,
    idle_ms: float = 10_000,
    iterative: bool = False,
    instances: int = 1,
) -> SequenceBatcher:
    batcher = DynamicBatcherSettings(size, (preferred or size,), int(delay_ms * MS))
    strategy = OldestSettings(candidates, batcher)
    return SequenceBatcher(SequenceBatcherSettings("seq", strategy, int(idle_ms * MS), iterative=iterative), instances)


def steps(*lines: tuple[str, float], run: float = 1) -> list[Arrival]:
    """Arrivals from names: ``A1^`` begins sequence A, ``A3$`` ends it."""
    return [step(name, at, run) for name, at in lines]


def step(name: str, at: float, run: float) -> Arrival:
    plain = name.rstrip("^$")
    sequence = plain.split(".")[0] if "." in plain else plain.rstrip("0123456789")
    return Arrival(plain, at, run=run, sequence=sequence, start="^" in name, end="$" in name)


def slow(arrival: Arrival, run: float) -> Arrival:
    arrival.run = run
    return arrival


def idle_error(sequence: str) -> str:
    return (
        f"inference request for sequence {sequence} to model 'seq' must specify the START flag on the first "
        "request of the sequence"
    )


TIMED_OUT = "timeout of the corresponding sequence has been expired"


A = Arrival


def on_instances(play: Play) -> list[tuple[int, str]]:
    return [(batch.decision.instance, members(batch.decision)) for batch in play.time.batches]
