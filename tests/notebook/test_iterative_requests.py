"""Generations in a live view: every step of iterative sequences, and the tokens of static batches."""

from __future__ import annotations

from typing import Any

from tests.notebook.view_page import deliveries
from tritonnb.core.schedulable import SEQUENCE_START
from tritonnb.lab.simulation.service import fixed
from tritonnb.lab.simulation.simulate import simulate
from tritonnb.notebook.view_encoding import GENERATION_FIELDS, MEMBER_FIELDS, OCCUPANCY_FIELDS, STEP, TICKS
from tritonnb.notebook.view_session import recorded_history
from tritonnb.recording.arrivals import Arrival

CONFIG = """
name: "m" max_batch_size: 2 model_transaction_policy { decoupled: true }
sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 2 } }
"""
STATIC = 'name: "m" max_batch_size: 2 model_transaction_policy { decoupled: true } dynamic_batching { }'


def record() -> Any:
    """Three prompts at once, of 4, 2 and 3 tokens, on two slots; a step takes 50 ms."""
    return simulate(CONFIG, [Arrival(ms=0, steps=steps) for steps in (4, 2, 3)], fixed(50))


def record_static() -> Any:
    """The same prompts in static batches: the second one ends 50 ms before the batch that it shares with the third."""
    return simulate(STATIC, [Arrival(ms=0, steps=steps) for steps in (4, 2, 3)], fixed(50))


def test_steps_of_a_request_are_numbered_and_only_the_first_one_waited() -> None:
    history, sent = deliveries(record())
    names = ("sequence", "flags")
    members = [
        sorted(tuple(dict(zip(MEMBER_FIELDS, member, strict=True))[name] for name in names) for member in batch)
        for delivery in sent
        for batch in delivery["batches"].get("members", [])
    ]
    first = SEQUENCE_START | STEP
    assert members == [
        [("#1", first)],
        [("#1", 2 * STEP), ("#2", first)],
        [("#1", 3 * STEP), ("#2", 2 * STEP)],
        [("#1", 4 * STEP), ("#3", first)],
        [("#3", 2 * STEP)],
        [("#3", 3 * STEP)],
    ]
    assert history["meta"]["iterative"]
    assert sent[-1]["counts"]["requests"] == 3
    assert sent[-1]["depth"] == 0


def test_occupancy_ends_with_the_last_step() -> None:
    _, sent = deliveries(record())
    latest = {}
    for delivery in sent:
        for values in delivery["occupancy"]:
            held = dict(zip(OCCUPANCY_FIELDS, values, strict=True))
            latest[held["sequence"]] = tuple(held[name] for name in ("slot", "released", "ended_by", "executed"))
    assert latest == {
        "#1": (0, 200 * TICKS, "END", 4),
        "#2": (1, 150 * TICKS, "END", 2),
        "#3": (1, 300 * TICKS, "END", 3),
    }


def test_static_batch_has_the_tokens_of_each_request() -> None:
    first, second = recorded_history(record_static())["batches"]["generated"]
    assert GENERATION_FIELDS == ("tokens", "first", "last")
    assert first == [[4, 50 * TICKS, 200 * TICKS]]
    assert second == [[2, 250 * TICKS, 300 * TICKS], [3, 250 * TICKS, 350 * TICKS]]


def test_live_view_receives_tokens_at_the_end_of_the_batch() -> None:
    _, sent = deliveries(record_static())
    generated: dict[int, Any] = {}
    for delivery in sent:
        for part in (delivery["batches"], delivery["done"]):
            generated.update(zip(part.get("n", []), part.get("generated", []), strict=True))
    assert generated == dict(enumerate(recorded_history(record_static())["batches"]["generated"], 1))


def test_batches_of_other_models_have_no_tokens() -> None:
    rec = simulate("max_batch_size: 2 dynamic_batching { }", [(0, 1), (1, 1)], fixed(50))
    assert recorded_history(rec)["batches"]["generated"] == [None, None]
