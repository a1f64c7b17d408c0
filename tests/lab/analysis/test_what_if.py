"""The same arrivals under an edited configuration."""

from __future__ import annotations

import re
from typing import Any

import pytest

import tritonnb as tnb
from tritonnb.model_config.normalize import normalize
from tritonnb.model_config.parse import parse_text

DELAYED = 'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }'
THIRD = 50_000 / 3
GUIDE = [(0, 4), (0, 2), (THIRD, 2), (2 * THIRD, 6), (2 * THIRD, 2)]


@pytest.fixture
def rec() -> tnb.Recording:
    return tnb.simulate(DELAYED, GUIDE, tnb.fixed(50))


def sizes(rec: tnb.Recording) -> list[int]:
    return [batch.size for batch in rec.batches]


def test_what_if_without_an_edit_equals_the_recording(rec: tnb.Recording) -> None:
    again = rec.what_if()
    assert again.before.events == again.after.events == rec.events
    assert again.verdict() == "Without an edit: nothing changes."


def test_edited_configuration_changes_the_batches(rec: tnb.Recording) -> None:
    changed = rec.what_if(max_queue_delay_microseconds=0)
    assert sizes(changed.before) == [8, 8]
    assert sizes(changed.after) == [4, 4, 8]
    assert "max_queue_delay_microseconds: 0" in changed.verdict()
    assert ("batches", 2, 3) in changed.table()
    assert "mean batch size" in repr(changed)
    assert "<table" in changed._repr_html_()


def test_recorded_values_are_shown_next_to_differing_simulated_ones(rec: tnb.Recording) -> None:
    assert f"{'recorded':>10}" not in repr(rec.what_if(count=2))
    assert ">recorded</th>" not in rec.what_if(count=2)._repr_html_()
    slower = rec.what_if(service=tnb.fixed(70), count=2)
    assert f"{'recorded':>10}{'before':>10}{'after':>10}" in repr(slower)
    assert re.search(">recorded</th><th[^>]*>before</th><th[^>]*>after</th>", slower._repr_html_())
    assert f">{rec.summary()['latency_p99_ms']:.2f}</td>" in slower._repr_html_()


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ({"max_batch_size": 16, "max_queue_delay_microseconds": 40000}, [16]),
        ({"count": 2, "max_queue_delay_microseconds": 0}, [4, 2, 8, 2]),
    ],
)
def test_every_field_can_be_edited(rec: tnb.Recording, edits: dict[str, Any], expected: list[int]) -> None:
    assert sum(sizes(rec.what_if(**edits).after)) == 16
    assert sorted(sizes(rec.what_if(**edits).after)) == sorted(expected)


def test_preferred_sizes_that_follow_from_the_maximum_follow_its_edit() -> None:
    config = parse_text('name: "m" max_batch_size: 8 dynamic_batching { }').config
    normalize(config)  # as of a live model
    rec = tnb.simulate(config, [(0, 8), (0, 8), (1, 8)], tnb.fixed(50))
    assert sizes(rec.what_if(max_batch_size=16).after) == [8, 16]


def test_error_names_the_unknown_field(rec: tnb.Recording) -> None:
    with pytest.raises(tnb.TritonError, match="model 'm': the configuration has no field 'max_candidate_sequences'"):
        rec.what_if(max_candidate_sequences=3)
    with pytest.raises(tnb.TritonError, match=r"field 'max_batch_size' expected an integer .*, got 'many'"):
        rec.what_if(max_batch_size="many")
    for count in (0, -1):
        with pytest.raises(tnb.TritonError, match=f"count expected a number of instances of at least 1, got {count}"):
            rec.what_if(count=count)


def test_empty_recording_cannot_be_replayed() -> None:
    with pytest.raises(tnb.TritonError, match=r"of one model, got one of no model$"):
        tnb.Recording().what_if(max_batch_size=1)


def test_recording_has_the_simulated_arrivals() -> None:
    arrivals = [
        tnb.Arrival(0, 2, priority=1, timeout_us=7000),
        tnb.Arrival(10, 1, priority=2),
        tnb.Arrival(20, cancel_us=100),
    ]
    config = """max_batch_size: 2 dynamic_batching {
        priority_levels: 2 default_priority_level: 1 default_queue_policy { allow_timeout_override: true }
    }"""
    assert tnb.simulate(config, arrivals, tnb.fixed(5)).arrivals() == arrivals


def test_comparison_describes_the_first_difference(rec: tnb.Recording) -> None:
    changed = rec.what_if(max_queue_delay_microseconds=0)
    assert changed.difference() == (
        "batch 1 differs. Before: at 16.7 ms 3 requests, 8 rows: max_batch_size 8 reached; "
        "instance 0 idle for 16.7 ms. After: at 0.0 ms 1 request, 4 rows: max_queue_delay is 0, so whatever waited "
        "was sent; instance 0 idle from the start."
    )
    assert rec.what_if().difference() == "the batches are the same"


def test_batches_missing_in_the_other_run_are_listed(rec: tnb.Recording) -> None:
    changed = rec.what_if(max_queue_delay_microseconds=0)
    requests = [{batch.requests for batch in run.batches} for run in (changed.before, changed.after)]
    missing = [
        {batch.requests for batch in run.batches if batch.number in numbers}
        for run, numbers in zip((changed.before, changed.after), changed.changed_batches(), strict=True)
    ]
    assert missing == [requests[0] - requests[1], requests[1] - requests[0]]
    assert rec.what_if().changed_batches() == (set(), set())
