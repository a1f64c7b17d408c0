"""Configurations as JSON and as tensors, differences, and unsupported settings."""

from __future__ import annotations

import json

import pytest

from tritonnb.core.datatypes import INVALID
from tritonnb.core.errors import UnsupportedError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.diff import changed_fields, effect_of
from tritonnb.model_config.parse import parse_text
from tritonnb.model_config.schema import ModelSpec
from tritonnb.model_config.to_json import config_to_json
from tritonnb.model_config.validate import check_batch_tensors


def config(text: str) -> pb.ModelConfig:
    return parse_text(text).config


@pytest.mark.parametrize(
    ("text", "shown"),
    [("0.1", 0.1), ("1", 1), ("3.4e38", 3.4e38), ("16777217", 16777216), ("nan", "NaN"), ("inf", "Infinity")],
)
def test_floats_are_shown_as_triton_shows_them(text: str, shown: float | int | str) -> None:
    message = config(f"sequence_batching {{ direct {{ minimum_slot_utilization: {text} }} }}")
    direct = json.loads(config_to_json(message))["sequence_batching"]["direct"]
    assert direct["minimum_slot_utilization"] == shown
    assert type(direct["minimum_slot_utilization"]) is type(shown)


def test_only_dims_of_initial_states_are_strings() -> None:
    message = config('sequence_batching { state { dims: 2 initial_state { dims: 2 zero_data: true name: "s" } } }')
    (state,) = json.loads(config_to_json(message))["sequence_batching"]["state"]
    assert state["dims"] == [2]
    assert state["initial_state"][0] == {"data_type": "TYPE_INVALID", "dims": ["2"], "name": "s", "zero_data": True}


def test_unknown_enum_number_stays_a_number() -> None:
    (tensor,) = json.loads(config_to_json(config("input { data_type: 99 }")))["input"]
    assert tensor["data_type"] == 99


def test_first_of_two_inputs_with_the_same_name_is_used() -> None:
    spec = ModelSpec.from_config(
        config("""
        name: "m" max_batch_size: 4
        input [ { name: "A" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } },
                { name: "A" data_type: TYPE_INT8 dims: [ 2 ] optional: true },
                { name: "B" data_type: 99 dims: [ -1, 3 ] allow_ragged_batch: true } ]
        output { name: "C" data_type: TYPE_STRING dims: 1 }
        """)
    )
    assert (spec.inputs["A"].datatype.name, spec.inputs["A"].reshape) == ("FP32", ())
    assert (spec.inputs["B"].datatype, spec.inputs["B"].dims, spec.inputs["B"].ragged) == (INVALID, (-1, 3), True)
    assert spec.outputs["C"].datatype.name == "BYTES"


def test_adding_or_removing_a_message_is_a_change() -> None:
    assert changed_fields(config(""), config("dynamic_batching { }")) == {"dynamic_batching"}
    assert changed_fields(config('name: "a"'), config('name: "b" max_batch_size: 1')) == {"name", "max_batch_size"}
    assert changed_fields(config('name: "a"'), config('name: "a"')) == set()


def test_dynamic_batcher_can_be_changed_added_and_removed_in_place() -> None:
    plain, delayed = config("dynamic_batching { }"), config("dynamic_batching { max_queue_delay_microseconds: 5 }")
    assert effect_of(plain, delayed) == "in place"
    assert effect_of(config(""), delayed) == "in place"
    assert effect_of(plain, config("dynamic_batching { } max_batch_size: 4")) == "reloaded"


def test_batch_inputs_and_outputs_are_refused_if_the_backend_does_not_support_them() -> None:
    with_batch_input = config('name: "m" backend: "minimal" batch_input { }')
    check_batch_tensors(with_batch_input, takes_batch_tensors=True)
    with pytest.raises(UnsupportedError, match="model 'm': the backend 'minimal' does not support"):
        check_batch_tensors(with_batch_input, takes_batch_tensors=False)
