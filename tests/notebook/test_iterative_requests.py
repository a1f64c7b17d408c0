"""A live view of iterative sequences: every step with its number, and the end of each occupancy."""

from __future__ import annotations

from typing import Any

from tests.notebook.view_page import deliveries
from tritonnb.core.sequence_flags import SEQUENCE_START
from tritonnb.notebook.view_encoding import MEMBER_FIELDS, OCCUPANCY_FIELDS, STEP, TICKS
from tritonnb.recording.simulate import simulate
from tritonnb.simulation.arrivals import Arrival
from tritonnb.simulation.service import fixed

CONFIG = """
name: "m" max_batch_size: 2 model_transaction_policy { decoupled: true }
sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 2 } }
"""


def record() -> Any:
    """Three prompts at once, of 4, 2 and 3 tokens, on two slots; a step takes 50 ms."""
    return simulate(CONFIG, [Arrival(ms=0, steps=steps) for steps in (4, 2, 3)], fixed(50))


def test_the_steps_of_a_request_are_numbered_and_only_the_first_one_waited() -> None:
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


def test_an_occupancy_ends_with_the_last_step() -> None:
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
