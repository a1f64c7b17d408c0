"""The form: every field is written into the configuration and read back."""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.model_config.parse import parse_text
from tritonnb.notebook.config_report import form_of, set_field
from tritonnb.notebook.field_help import HELP, schema


def fields(config: Any) -> dict[str, Any]:
    return {field["path"]: field["value"] for section in form_of(config) for field in section["fields"]}


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("", "max_batch_size", 16),
        ("", "instance_group[0].count", 3),
        ("", "instance_group[0].kind", "KIND_CPU"),
        ("instance_group { } instance_group { }", "instance_group[1].count", 2),
        ("dynamic_batching { }", "dynamic_batching.preferred_batch_size", [4, 8]),
        ("dynamic_batching { preferred_batch_size: 4 }", "dynamic_batching.preferred_batch_size", []),
        ("dynamic_batching { }", "dynamic_batching.max_queue_delay_microseconds", 500),
        ("dynamic_batching { priority_levels: 2 }", "dynamic_batching.default_priority_level", 2),
        ("dynamic_batching { priority_levels: 2 }", "dynamic_batching.priority_queue_policy[2].max_queue_size", 9),
        ("dynamic_batching { }", "dynamic_batching.default_queue_policy.timeout_action", "DELAY"),
        ("sequence_batching { }", "sequence_batching.max_sequence_idle_microseconds", 5),
        ("sequence_batching { }", "sequence_batching.direct.minimum_slot_utilization", 0.5),
        ("sequence_batching { oldest { } }", "sequence_batching.oldest.max_candidate_sequences", 4),
        ("", "version_policy.latest.num_versions", 2),
        ("", "version_policy", "all"),
        ("", "version_policy", "specific"),
        ("", "scheduler", "dynamic"),
        ("", "scheduler", "oldest"),
        ("dynamic_batching { }", "scheduler", "direct"),
        ("dynamic_batching { }", "scheduler", "none"),
    ],
)
def test_entered_value_is_shown_by_the_form(text: str, path: str, value: object) -> None:
    config = parse_text(text).config
    set_field(config, path, value)
    assert fields(config)[path] == value


def test_reading_the_form_changes_nothing() -> None:
    config = parse_text("dynamic_batching { priority_levels: 3 } instance_group { }").config
    before = config.SerializeToString(deterministic=True)
    form_of(config)
    assert config.SerializeToString(deterministic=True) == before


def test_every_help_text_belongs_to_a_field() -> None:
    known = schema()
    for key in HELP:
        message, _, field = key.rpartition(".")
        assert field in known[message], key


def test_every_field_of_the_form_has_help() -> None:
    text = "dynamic_batching { priority_levels: 1 } instance_group { }"
    for config in (parse_text(text).config, parse_text("sequence_batching { }").config, pb.ModelConfig()):
        for section in form_of(config):
            assert [field for field in section["fields"] if field["help"] and field["help"] not in HELP] == []
