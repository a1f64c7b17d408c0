"""Differences of configurations, and the fields that a backend has completed."""

from __future__ import annotations

import pytest

from tritonnb.model_config.diff import changed_fields, completed, effect_of
from tritonnb.model_config.parse import parse_text

ASKED = parse_text('backend: "onnxruntime" max_batch_size: 8').config
RUNNING = parse_text('backend: "onnxruntime" max_batch_size: 8 input { name: "X" dims: 4 } dynamic_batching { }').config


def test_same_configuration_changes_nothing() -> None:
    assert completed(ASKED, ASKED, RUNNING) == RUNNING


def test_changed_fields_are_replaced_and_the_others_stay_completed() -> None:
    written = parse_text('backend: "onnxruntime" max_batch_size: 4').config
    assert changed_fields(RUNNING, completed(written, ASKED, RUNNING)) == {"max_batch_size"}


def test_another_scheduler_replaces_the_completed_one() -> None:
    written = parse_text('backend: "onnxruntime" max_batch_size: 8 sequence_batching { }').config
    predicted = completed(written, ASKED, RUNNING)
    assert predicted.WhichOneof("scheduling_choice") == "sequence_batching"
    assert changed_fields(RUNNING, predicted) == {"dynamic_batching", "sequence_batching"}


DYNAMIC = "max_batch_size: 8 dynamic_batching { } instance_group { name: 'g' count: 1 kind: KIND_CPU }"
DIRECT = "max_batch_size: 8 sequence_batching { direct { } max_sequence_idle_microseconds: 9 }"
OLDEST = "max_batch_size: 8 sequence_batching { oldest { max_candidate_sequences: 2 } }"


@pytest.mark.parametrize(
    ("text", "old", "new", "effect"),
    [
        (DYNAMIC, "8", "8", "unchanged"),
        (DYNAMIC, "dynamic_batching { }", "dynamic_batching { max_queue_delay_microseconds: 5 }", "in place"),
        (DYNAMIC, "dynamic_batching { }", "dynamic_batching { priority_levels: 2 }", "in place"),
        (DYNAMIC, "count: 1", "count: 3", "in place"),
        (DYNAMIC, "KIND_CPU", "KIND_GPU", "reloaded"),
        (DYNAMIC, "kind: KIND_CPU", "kind: KIND_CPU passive: true", "reloaded"),
        (DYNAMIC, "dynamic_batching { }", "", "in place"),
        (DYNAMIC, "dynamic_batching { }", "sequence_batching { }", "reloaded"),
        (DYNAMIC, "size: 8", "size: 4", "reloaded"),
        ("max_batch_size: 8 instance_group { count: 1 }", "count: 1", "count: 2", "in place"),
        ("platform: 'ensemble' instance_group { count: 1 }", "count: 1", "count: 2", "reloaded"),
        (DIRECT, "microseconds: 9", "microseconds: 8", "in place"),
        (DIRECT, "direct { }", "direct { minimum_slot_utilization: 0.5 }", "in place"),
        (DIRECT, "direct { }", "oldest { }", "in place"),
        (DIRECT, "direct { }", "direct { } iterative_sequence: true", "reloaded"),
        (DIRECT, "direct { }", "direct { } control_input { name: 'START' }", "reloaded"),
        (OLDEST, "oldest {", "oldest { preferred_batch_size: 4", "in place"),
        (OLDEST, "sequences: 2", "sequences: 3", "in place"),
    ],
)
def test_changes_that_a_running_scheduler_supports_are_made_in_place(
    text: str, old: str, new: str, effect: str
) -> None:
    assert effect_of(parse_text(text).config, parse_text(text.replace(old, new)).config) == effect
