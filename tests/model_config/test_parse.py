"""The text format: accepted input, and the positions of the fields."""

from __future__ import annotations

import pytest
from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.model_config.parse import ConfigSyntaxError, parse_text


def batching(text: str) -> pb.ModelDynamicBatching:
    return parse_text(f"dynamic_batching {{ {text} }}").config.dynamic_batching


@pytest.mark.parametrize(
    "text",
    [
        "preferred_batch_size: [ 4, 8 ]",
        "preferred_batch_size: 4 preferred_batch_size: 8",
        "preferred_batch_size: 0x4, preferred_batch_size: 010;",
        "preferred_batch_size: [ 4 ] # four\n\t, preferred_batch_size: [ 8 ]",
    ],
)
def test_list_is_parsed_in_every_notation(text: str) -> None:
    assert list(batching(text).preferred_batch_size) == [4, 8]


@pytest.mark.parametrize("text", ['backend: "python"', "backend: 'pyt' \"hon\"", r'backend: "\160\x79thon"'])
def test_string_is_parsed_in_every_notation(text: str) -> None:
    assert parse_text(text).config.backend == "python"


@pytest.mark.parametrize(
    ("written", "means"),
    [
        (r"\u00e9", "é"),
        (r"\uD83D\uDE00", "😀"),
        (r"\U0001F600", "😀"),
        (r"\U00110000", r"\U00110000"),
        (r"\U001FFFFF", r"\U001fffff"),
        (r"a\xffb", "a\ufffdb"),
        (r"\uDE00\uD83D", "\ufffd" * 6),
        ('\\uD83D" "\\uDE00', "\ufffd" * 6),
    ],
)
def test_characters_of_a_string_can_be_escaped(written: str, means: str) -> None:
    assert parse_text(f'backend: "{written}"').config.backend == means


def test_map_entry_can_omit_key_or_value_and_the_last_duplicate_wins() -> None:
    text = """
    metric_tags { key: "a" value: "1" }
    metric_tags [ { key: "a" value: "2" }, { key: "b" }, { value: "3" } ]
    """
    assert dict(parse_text(text).config.metric_tags) == {"a": "2", "b": "", "": "3"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "dynamic_batching {\n  delay: 5\n}",
            '2:8: Message type "inference.ModelDynamicBatching" has no field named "delay".',
        ),
        (
            "max_batch_size: 8\n\tmax_batch_size: 9",
            '2:23: Non-repeated field "max_batch_size" is specified multiple times.',
        ),
        (
            "[my.extension]: 1",
            '1:15: Extension "my.extension" is not defined or is not an extension of "inference.ModelConfig".',
        ),
        ("max_batch_size: 2147483648", "1:17: Integer out of range (2147483648)"),
        ("max_batch_size: " + "9" * 5000, "1:17: Integer out of range (" + "9" * 5000 + ")"),
        ("input { data_type: TYPE_FLOAT }", '1:31: Unknown enumeration value of "TYPE_FLOAT" for field "data_type".'),
        ("input [ { name: 'A' }\ninput { name: 'B' }", '2:1: Expected ",", found "input".'),
        ("backend: 'python", "1:17: Unexpected end of string."),
        (r'backend: "\X41"', "1:12: Invalid escape sequence in string literal."),
        (r'backend: "\u12"', "1:15: Expected four hex digits for \\u escape sequence."),
        (r'backend: "\U0020"', "1:15: Expected eight hex digits up to 10ffff for \\U escape sequence"),
        ("input.5", "1:6: Need space between identifier and decimal point."),
        ("backend: 1.2.3", "1:13: Already saw decimal point or exponent; can't have another one."),
    ],
)
def test_errors_equal_those_of_the_cpp_parser(text: str, complaint: str) -> None:
    with pytest.raises(ConfigSyntaxError) as caught:
        parse_text(text)
    assert str(caught.value) == complaint
    assert complaint == f"{caught.value.line}:{caught.value.column}: {caught.value.detail}"


def test_problem_positions_are_those_of_field_names() -> None:
    positions = parse_text(
        'max_batch_size: 8\ninput [\n  { name: "A" dims: [ 1, 2 ] },\n  { name: "B" }\n]\ndynamic_batching { }\n'
    ).positions
    assert positions["max_batch_size"] == (1, 1)
    assert positions["input[0].name"] == (3, 5)
    assert positions["input[0].dims[1]"] == (3, 15)
    assert positions["input[1].name"] == (4, 5)
    assert positions["dynamic_batching"] == (6, 1)
