"""Every rule that can fire has a meaning and a sentence."""

from __future__ import annotations

import pytest

from tritonnb.scheduling import reasons
from tritonnb.scheduling.decisions import Reason
from tritonnb.scheduling.reasons import RULES, explain

BATCH = {
    "requests": 2,
    "rows": 3,
    "nulls": 0,
    "waited_ns": 5_000_000,
    "delay_ns": 5_000_000,
    "preferred": (4, 8),
    "max_batch_size": 8,
    "next_rows": 6,
    "instance": 1,
    "idle_ns": 2_100_000,
    "ready_ns": 0,
    "merged": 0,
}
SLOTS = {"ready": 3, "slots": 4, "minimum_slot_utilization": 0.75}
REFUSAL = {"waited_ns": 250_000_000, "timeout_ns": 200_000_000, "sequence": 7}

SENTENCES = {
    "one_request": "executed alone, without a batcher; had waited 5.0 ms",
    "preferred_size": "preferred batch size reached (preferred: 4, 8)",
    "full": "largest preferred batch size 8 reached",
    "overshoots_preferred": "the next request's 6 rows would go beyond preferred 8",
    "does_not_fit": "the next request's 6 rows would go beyond max_batch_size 8",
    "different_inputs": "the next request's inputs may not share this batch",
    "excluded": "the model's batching library excludes the next request",
    "delay_exceeded": "the oldest had waited 5.0 ms >= max_queue_delay 5.0 ms; preferred 4 not reached",
    "no_delay": "max_queue_delay is 0, so whatever waited was sent",
    "grown": "no preferred size reached (4, 8), so it took what had come by then",
    "no_slot_wait": (
        "3 slots ready; no wait for others, as max_queue_delay is 5.0 ms and minimum_slot_utilization 0.75"
    ),
    "slot_utilization": "3 of 4 slots ready >= minimum_slot_utilization 0.75",
}
STEPS = {
    "inputs_ready": "its inputs are there: a, b",
    "inflight_free": "fewer than max_inflight_requests 4 of the step were in flight again",
    "bls_request": "a model sent it while it ran",
    "unknown": "the reason is not known: no configuration",
}


def test_every_rule_has_a_description() -> None:
    assert set(reasons._CAUSES) == set(RULES)
    assert all(RULES.values())


@pytest.mark.parametrize("rule", SENTENCES)
def test_execution_is_explained_with_its_numbers(rule: str) -> None:
    sentence = explain(Reason(rule, {**BATCH, **SLOTS}))
    assert sentence == f"2 requests, 3 rows: {SENTENCES[rule]}; instance 1 idle for 2.1 ms"


@pytest.mark.parametrize("rule", STEPS)
def test_reason_of_a_step_has_its_numbers(rule: str) -> None:
    assert explain(Reason(rule, {"tensors": ("a", "b"), "limit": 4, "cause": "no configuration"})) == STEPS[rule]


@pytest.mark.parametrize("rule", sorted(RULES.keys() - SENTENCES.keys() - STEPS.keys()))
def test_refusal_is_explained_with_its_numbers(rule: str) -> None:
    assert "250.0 ms" in explain(Reason(rule, REFUSAL))


@pytest.mark.parametrize(
    ("facts", "ending"),
    [
        ({"idle_ns": 0}, "instance 1 just became free"),
        ({"ready_ns": 12_000_000, "idle_ns": 0}, "ready for 12.0 ms before instance 1 was free"),
        ({"merged": 1, "idle_ns": 0}, "joined by 1 later batch; instance 1 just became free"),
        ({"idle_ns": 42_000}, "instance 1 idle for 42.0 µs"),
        ({"idle_ns": 0, "has_run": False}, "instance 1 idle from the start"),
        ({"late_ns": 101_000_000}, "instance 1 idle for 2.1 ms; sent 101.0 ms later: the server's own work"),
        (
            {"idle_ns": 0, "woken_by": "poll"},
            "formed when the batcher looked again after 500 ms; instance 1 just became free",
        ),
        (
            {"ready_ns": 12_000_000, "woken_by": "instance"},
            "formed when an instance took the batch before it; ready for 12.0 ms before instance 1 was free",
        ),
        (
            {"ready_ns": 12_000_000, "missed": 2},
            "ready for 12.0 ms before instance 1 was free; 2 requests that came later were not added, "
            "because the batcher looked again only when instance 1 took this batch",
        ),
    ],
)
def test_reason_describes_waits_of_batch_and_instance(facts: dict[str, int], ending: str) -> None:
    assert explain(Reason("no_delay", {**BATCH, **facts})).endswith(f"; {ending}")


def test_maximum_is_the_only_preferred_size_by_default() -> None:
    alone = {**BATCH, "preferred": (8,)}
    assert "max_batch_size 8 reached;" in explain(Reason("preferred_size", alone))
    assert "max_batch_size 8 reached;" in explain(Reason("full", alone))
    assert "max_batch_size 8 not reached;" in explain(Reason("delay_exceeded", alone))


def test_inferred_reason_is_marked() -> None:
    assert explain(Reason("no_delay", {**BATCH, "inferred": True})).endswith("instance 1 idle for 2.1 ms (inferred)")
