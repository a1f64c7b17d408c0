"""Properties that hold for every configuration."""

from __future__ import annotations

import contextlib
import math
import re
from typing import Any

import pytest
from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import example, given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.model_config.json_config import parse_json
from tritonnb.model_config.normalize import normalize, without_defaults
from tritonnb.model_config.parse import ConfigSyntaxError, parse_text
from tritonnb.model_config.to_json import config_to_json

pytestmark = pytest.mark.slow

INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
}
#: The index of a list, or the key of a map.
SUBSCRIPT = re.compile(r"""\[(?:[0-9]+|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]""")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def scalars(field: Any) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if field.cpp_type in INTEGERS:
        return INTEGERS[field.cpp_type]
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return TEXTS
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    return st.floats(width=32, allow_nan=False)


@st.composite
def messages(draw: st.DrawFn, kind: Any = pb.ModelConfig) -> Any:
    """Messages with a few fields set, whatever the rules of a configuration say."""
    message = kind()
    known = {field.name: field for field in kind.DESCRIPTOR.fields}
    fields = draw(st.lists(st.sampled_from(sorted(known)), max_size=4, unique=True)) if known else []
    for field in map(known.get, fields):
        value = getattr(message, field.name)
        if field.message_type is None:
            if field.is_repeated:
                value.extend(draw(st.lists(scalars(field), max_size=3)))
            else:
                setattr(message, field.name, draw(scalars(field)))
        elif field.message_type.GetOptions().map_entry:
            key, of = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
            for entry in draw(st.lists(scalars(key), max_size=2, unique=True)):
                if of.message_type is None:
                    value[entry] = draw(scalars(of))
                else:
                    value[entry].CopyFrom(draw(messages(of.message_type._concrete_class)))
        elif field.is_repeated:
            value.extend(draw(st.lists(messages(field.message_type._concrete_class), max_size=2)))
        else:
            value.CopyFrom(draw(messages(field.message_type._concrete_class)))
            value.SetInParent()
    return message


@given(messages(), st.booleans(), st.booleans(), st.booleans())
def test_printed_configuration_is_parsed_to_the_same_message(
    config: pb.ModelConfig, one_line: bool, pointed: bool, short: bool
) -> None:
    text = text_format.MessageToString(
        config, as_one_line=one_line, pointy_brackets=pointed, use_short_repeated_primitives=short
    )
    assert parse_text(text).config == config


@given(messages())
def test_every_problem_is_located_at_its_field_name(config: pb.ModelConfig) -> None:
    text = text_format.MessageToString(config)
    lines = text.split("\n")
    for path, (line, column) in parse_text(text).positions.items():
        name = SUBSCRIPT.sub("", path).rpartition(".")[2]
        assert lines[line - 1][column - 1 :].startswith(name), path


@given(messages())
def test_json_and_text_are_read_as_the_same_configuration(config: pb.ModelConfig) -> None:
    assert parse_json(json_format.MessageToJson(config)) == config
    assert parse_json(json_format.MessageToJson(config, preserving_proto_field_name=True)) == config


@given(messages())
def test_normalising_is_idempotent(config: pb.ModelConfig) -> None:
    normalize(config)
    once = config_to_json(config)
    normalize(config)
    assert config_to_json(config) == once


@example(value=3.4028234663852886e38)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_written_float_is_read_as_the_same_number(value: float) -> None:
    config = parse_text("sequence_batching { direct { } }").config
    config.sequence_batching.direct.minimum_slot_utilization = value
    again = parse_json(config_to_json(config))
    assert math.isclose(again.sequence_batching.direct.minimum_slot_utilization, value, rel_tol=0, abs_tol=0)


WORDS = [
    "input", "dims", "max_batch_size", "parameters", "key", "value", "TYPE_FP32", "nan", "true", "null",
    "{", "}", "[", "]", "<", ">", ":", ",", ";", '"', "'", "\\", "\\u00", ".", "-", "#", "\n", "\t", " ",
    "1", "0x", "08", "1e", "e", "é",
]  # fmt: skip
SNIPPETS = st.lists(st.sampled_from(WORDS), max_size=30).map("".join)


@given(SNIPPETS | st.binary(max_size=40))
def test_every_text_is_a_configuration_or_a_syntax_error(text: str | bytes) -> None:
    with contextlib.suppress(ConfigSyntaxError):
        parse_text(text)


@given(SNIPPETS | st.text(max_size=40))
def test_every_json_value_is_a_configuration_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidArgumentError):
        parse_json(text)


def test_json_nested_too_deeply_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="Message too deep"):
        parse_json("[" * 10_000)


@given(messages())
def test_normalising_restores_omitted_defaults(config: pb.ModelConfig) -> None:
    normalize(config)
    short = without_defaults(config)
    assert not any(field not in dict(config.ListFields()) for field, _ in short.ListFields())
    normalize(short)
    assert short == config
