"""Fields of a configuration as attributes, at every depth."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.editable_config import EditableFields
from tritonnb.model_config.parse import parse_text

TEXT = """
name: "m" max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "Z" data_type: TYPE_FP32 dims: [ 2 ] } ]
dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 5 }
instance_group { count: 1 }
"""


@pytest.fixture
def config() -> EditableFields:
    return EditableFields(parse_text(TEXT).config, "")


def assign(target: Callable[[Any], Any], name: str, value: object) -> Callable[[Any], None]:
    return lambda config: setattr(target(config), name, value)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (assign(lambda config: config, "max_batch_size", 4), "max_batch_size: 4"),
        (assign(lambda config: config, "max_batch_size", np.int64(4)), "max_batch_size: 4"),
        (assign(lambda config: config, "dynamic_batching", {}), "dynamic_batching { }"),
        (assign(lambda config: config, "sequence_batching", {"direct": {}}), "sequence_batching { direct { } }"),
        (assign(lambda config: config.dynamic_batching, "preferred_batch_size", [4]),
         "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 5 }"),
        (assign(lambda config: config.dynamic_batching, "preferred_batch_size", np.array([2, 4])),
         "dynamic_batching { preferred_batch_size: [ 2, 4 ] max_queue_delay_microseconds: 5 }"),
        (assign(lambda config: config.dynamic_batching.default_queue_policy, "max_queue_size", 3),
         "dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 5 "
         "default_queue_policy { max_queue_size: 3 } }"),
        (assign(lambda config: config.instance_group[0], "gpus", [0, 1]), "instance_group { count: 1 gpus: [ 0, 1 ] }"),
        (assign(lambda config: config.instance_group[-1], "count", 3), "instance_group { count: 3 }"),
        (assign(lambda config: config, "instance_group", [{"count": 2}, {"count": 3}]),
         "instance_group [ { count: 2 }, { count: 3 } ]"),
        (lambda config: config.instance_group.add(count=2), "instance_group [ { count: 1 }, { count: 2 } ]"),
        (lambda config: config.instance_group.append(config.instance_group[0]),
         "instance_group [ { count: 1 }, { count: 1 } ]"),
        (lambda config: config.dynamic_batching.preferred_batch_size.append(9),
         "dynamic_batching { preferred_batch_size: [ 8, 9 ] max_queue_delay_microseconds: 5 }"),
        (lambda config: config.dynamic_batching.CopyFrom(pb.ModelDynamicBatching()), "dynamic_batching { }"),
    ],
)  # fmt: skip
def test_field_is_set_at_every_depth(
    config: EditableFields, change: Callable[[EditableFields], None], fields: str
) -> None:
    expected, changed = parse_text(TEXT).config, parse_text(fields).config
    for field, _ in changed.ListFields():
        expected.ClearField(field.name)
    expected.MergeFrom(changed)
    change(config)
    assert config == expected


def test_field_of_another_configuration_is_copied(config: EditableFields) -> None:
    other: Any = EditableFields(pb.ModelConfig(), "")
    other.dynamic_batching = config.dynamic_batching
    other.input = config.input
    other.output = [config.input[1]]
    assert other.dynamic_batching == config.dynamic_batching
    assert list(other.input) == list(config.input)
    assert [tensor.name for tensor in other.output] == ["Z"]
    other.dynamic_batching.max_queue_delay_microseconds = 7
    assert config.dynamic_batching.max_queue_delay_microseconds == 5


def test_messages_of_a_list_are_removed(config: EditableFields) -> None:
    del config.input[0]
    assert [tensor.name for tensor in config.input[:]] == ["Z"]
    assert len(config.input) == 1


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (assign(lambda config: config, "max_batchsize", 4), AttributeError,
         "model configuration: expected a field of ModelConfig, got 'max_batchsize'; did you mean 'max_batch_size'"),
        (assign(lambda config: config.dynamic_batching, "max_queue_delay", 4), AttributeError,
         "field 'dynamic_batching': expected a field of ModelDynamicBatching, got 'max_queue_delay'; did you mean"),
        (lambda config: config.instance_group[0].cont, AttributeError, "field 'instance_group\\[0\\]': .* 'count'"),
        (assign(lambda config: config.dynamic_batching, "preferred_batch_size", "many"), InvalidArgumentError,
         "field 'dynamic_batching.preferred_batch_size' expected .*, got 'many'"),
        (assign(lambda config: config.instance_group[0], "gpus", [0, "one"]), InvalidArgumentError,
         "field 'instance_group\\[0\\].gpus\\[1\\]' expected an integer .*, got 'one'"),
    ],
)  # fmt: skip
def test_error_names_the_field_and_changes_nothing(
    config: EditableFields, change: Callable[[EditableFields], None], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        change(config)
    assert config == parse_text(TEXT).config


def test_private_name_is_not_a_field(config: EditableFields) -> None:
    assert not hasattr(config, "_repr_mimebundle_")
    assert not hasattr(copy.copy(object.__new__(EditableFields)), "_message")
