"""What of a configuration changes, and what a backend had added to it."""

from __future__ import annotations

from tritonnb.model_config.diff import changed_fields, completed
from tritonnb.model_config.parse import parse_text

ASKED = parse_text('backend: "onnxruntime" max_batch_size: 8').config
RUNNING = parse_text('backend: "onnxruntime" max_batch_size: 8 input { name: "X" dims: 4 } dynamic_batching { }').config


def test_asking_for_the_same_again_changes_nothing():
    assert completed(ASKED, ASKED, RUNNING) == RUNNING


def test_what_is_asked_for_otherwise_changes_and_the_rest_stays_completed():
    wanted = parse_text('backend: "onnxruntime" max_batch_size: 4').config
    assert changed_fields(RUNNING, completed(wanted, ASKED, RUNNING)) == {"max_batch_size"}


def test_another_scheduler_takes_the_place_of_the_completed_one():
    wanted = parse_text('backend: "onnxruntime" max_batch_size: 8 sequence_batching { }').config
    found = completed(wanted, ASKED, RUNNING)
    assert found.WhichOneof("scheduling_choice") == "sequence_batching"
    assert changed_fields(RUNNING, found) == {"dynamic_batching", "sequence_batching"}
