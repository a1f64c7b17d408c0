"""Generations: their steps, what static batching leaves idle, and what-if from one to the other."""

from __future__ import annotations

import numpy as np
import pytest

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.simulation.arrivals import constant
from tritonnb.lab.simulation.service import fixed
from tritonnb.lab.simulation.simulate import simulate
from tritonnb.recording.arrivals import Arrival
from tritonnb.recording.recording import Recording

CONTINUOUS = """
name: "m" max_batch_size: 2 model_transaction_policy { decoupled: true }
sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 2 } }
"""
STATIC = 'name: "m" max_batch_size: 2 model_transaction_policy { decoupled: true } dynamic_batching { }'
#: Three prompts at once, of 4, 2 and 3 tokens, on two slots; a step takes 1 ms.
PROMPTS = [Arrival(ms=0, steps=steps) for steps in (4, 2, 3)]


def places_of(rec: Recording) -> list[tuple[int, ...]]:
    """Lane, begin of the first step, end of the last one, and when the place is free, in ms; in order of arrival."""
    return [
        (generation.lane, *(ns // 10**6 for ns in (generation.steps[0][0], generation.end_ns, generation.free_ns)))
        for generation in sorted(rec.generations, key=lambda generation: generation.serial)
    ]


@pytest.mark.parametrize(
    ("config", "places", "idle"),
    [
        # The third prompt takes the slot of the second one at the next step.
        (CONTINUOUS, [(0, 0, 4, 4), (1, 1, 3, 3), (1, 3, 6, 6)], 0),
        # A batch runs until its longest generation ends: the place of the second one is idle for 1 ms of 10.
        (STATIC, [(0, 0, 4, 4), (0, 4, 6, 7), (1, 4, 7, 7)], 0.1),
    ],
)
def test_generation_holds_its_slot_for_its_steps_or_for_the_whole_batch(
    config: str, places: list[tuple[int, ...]], idle: float
) -> None:
    rec = simulate(config, PROMPTS, fixed(1))
    assert places_of(rec) == places
    assert [len(generation.steps) for generation in rec.generations] == [4, 2, 3]
    summary = rec.summary()
    assert summary["idle_slots"] == pytest.approx(idle)
    assert summary["tokens"] == 9
    assert summary["time_per_output_token_p50_ms"] == pytest.approx(1)
    assert summary["tokens_per_second"] == pytest.approx(9 / max(place[2] for place in places) * 1000)


def test_generation_of_one_token_leaves_its_slot_in_a_static_batch_idle() -> None:
    rec = simulate(STATIC, [Arrival(ms=0, steps=steps) for steps in (4, 1, 2)], fixed(1))
    assert places_of(rec) == [(0, 0, 4, 4), (0, 4, 5, 6), (1, 4, 6, 6)]


@pytest.mark.parametrize(("config", "other"), [(CONTINUOUS, STATIC), (STATIC, CONTINUOUS)])
def test_what_if_switches_between_static_and_continuous_batching(config: str, other: str) -> None:
    rec = simulate(config, PROMPTS, fixed(1))
    comparison = rec.what_if(continuous=other is CONTINUOUS)
    assert places_of(comparison.before) == places_of(rec)
    assert places_of(comparison.after) == places_of(simulate(other, PROMPTS, fixed(1)))
    assert "tokens per second" in comparison.verdict()
    assert {name for name, _, _ in comparison.table()} >= {"tokens_per_second", "idle_slots"}


def test_more_slots_accept_more_prompts() -> None:
    rec = simulate(CONTINUOUS, PROMPTS, fixed(1))
    after = rec.what_if(max_batch_size=4, max_candidate_sequences=4).after
    assert max(batch.size for batch in after.batches) == 3


def test_only_generations_can_be_batched_continuously() -> None:
    rec = simulate("max_batch_size: 2 dynamic_batching { }", constant(100, 0.1), fixed(1))
    assert rec.generations == []
    with pytest.raises(InvalidArgumentError, match="continuous expected a recording of generations"):
        rec.what_if(continuous=True)


@pytest.mark.parametrize(("config", "words"), [(CONTINUOUS, "0% of the time in them is idle"), (STATIC, "10% of the")])
def test_figure_has_a_description(config: str, words: str) -> None:
    rec = simulate(config, PROMPTS, fixed(1))
    assert words in rec.plot.alt("generations")
    assert "3 tokens" in rec.plot.svg("generations")


def test_time_range_contains_complete_and_waiting_generations() -> None:
    rec = simulate(STATIC, [Arrival(ms=0, steps=steps) for steps in (4, 2, 8, 3)], fixed(1))
    cut = rec.between(None, 6)  # within the second batch: the fourth prompt still waits
    assert cut.generations == rec.generations
    assert "at most 8 tokens" in cut.plot.alt("generations")
    ax = rec.plot.generations(end_ms=6).axes[1]
    [waiting] = ax.lines
    assert np.asarray(waiting.get_ydata())[-1] == 1
    assert rec.between(12.5, None).generations == rec.generations[-1:]


#: Times in ms.
@pytest.mark.parametrize(
    ("serial", "parts"),
    [
        (1, {"prefill": 1, "decode": 3}),
        (2, {"instances_busy": 1, "prefill": 1, "decode": 1}),
        (3, {"sequence_slot": 3, "prefill": 1, "decode": 2}),
    ],
)
def test_blame_of_a_generation_divides_its_latency_into_slot_prompt_and_tokens(
    serial: int, parts: dict[str, int]
) -> None:
    rec = simulate(CONTINUOUS, PROMPTS, fixed(1))
    blame = rec.blame(serial)
    assert {cause: ns / 10**6 for cause, ns in blame.parts.items()} == parts
    assert blame.latency_ns == next(one.end_ns for one in rec.generations if one.serial == serial)


def test_generation_counts_as_one_request() -> None:
    rec = simulate(CONTINUOUS, [Arrival(ms=0, steps=10)] * 40, fixed(1))
    summary = rec.summary()
    assert summary["requests"] == 40
    assert summary["latency_p99_ms"] == pytest.approx(max(one.end_ns for one in rec.generations) / 1e6, rel=0.05)
    assert "40 requests ran" in rec.verdict()
    beyond = next(diagnosis for diagnosis in rec.diagnoses() if diagnosis.name == "beyond_capacity")
    assert beyond.evidence["rows_in_server"] <= 40
