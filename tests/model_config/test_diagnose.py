"""Errors in a configuration have the position of their cause and a suggested fix."""

from __future__ import annotations

from typing import NoReturn

import pytest

from tritonnb.core.errors import InvalidArgumentError, Problem
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.diagnose import diagnose
from tritonnb.model_config.validate import validate

BASE = """\
name: "m"
backend: "python"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 4 ] } ]
dynamic_batching {
  max_queue_delay_microseconds: 100
}
"""


def problem(text: str) -> Problem:
    (only,) = diagnose(text, validate).problems
    return only


def test_configuration_without_mistakes_has_no_problems() -> None:
    diagnosis = diagnose(BASE, lambda config: config)
    assert diagnosis.problems == []
    assert diagnosis.checked.max_batch_size == 8


@pytest.mark.parametrize(
    ("right", "wrong", "line", "column", "complaint"),
    [
        ("max_batch_size", "max_batchsize", 3, 1, 'has no field named "max_batchsize"'),
        ("max_queue_delay_microseconds", "max_queue_delay_us", 6, 3, 'has no field named "max_queue_delay_us"'),
        ("TYPE_FP32", "FP32", 4, 32, 'Unknown enumeration value of "FP32" for field "data_type"'),
        ("100", '"100"', 6, 33, 'Expected integer, got: "100"'),
        ('"python"', "python", 2, 10, "Expected string, got: python"),
        ("max_batch_size:", "max_batch_size", 3, 16, 'Expected ":", found "8".'),
    ],
)
def test_typo_is_located_and_fixed(right: str, wrong: str, line: int, column: int, complaint: str) -> None:
    mistake = problem(BASE.replace(right, wrong))
    assert complaint in mistake.message
    assert (mistake.line, mistake.column) == (line, column)
    assert mistake.fix is not None
    assert mistake.fix.text == BASE


def test_missing_brace_is_added() -> None:
    mistake = problem(BASE[:-2])
    assert mistake.fix is not None
    assert diagnose(mistake.fix.text, validate).problems == []


@pytest.mark.parametrize(
    ("right", "wrong", "line", "fixed_line"),
    [
        ("100\n", "100\n  preferred_batch_size: [ 4, 16 ]\n", 7, "  preferred_batch_size: [ 4 ]"),
        ("100\n", "100\n  priority_levels: 3\n", 7, "  default_priority_level: 2"),
        ("max_batch_size: 8", "max_batch_size: -8", 3, "max_batch_size: 0"),
        (
            "100\n",
            "100\n preserve_ordering: true\n priority_levels: 2 default_priority_level: 1\n",
            7,
            " preserve_ordering: false",
        ),
    ],
)
def test_violated_rule_is_located_at_its_field_and_fixed(right: str, wrong: str, line: int, fixed_line: str) -> None:
    mistake = problem(BASE.replace(right, wrong))
    assert mistake.line == line
    assert mistake.fix is not None
    assert fixed_line in mistake.fix.text.splitlines()
    assert diagnose(mistake.fix.text, validate).problems == []


def test_rejected_tensor_is_located_by_its_name() -> None:
    def refuse(config: pb.ModelConfig) -> NoReturn:
        raise InvalidArgumentError("model input 'X' must specify 'dims' for m")

    (mistake,) = diagnose(BASE, refuse).problems
    assert mistake.line == 4


def test_error_about_a_missing_field_has_no_line() -> None:
    def refuse(config: pb.ModelConfig) -> NoReturn:
        raise InvalidArgumentError("no luck today")

    (mistake,) = diagnose(BASE, refuse).problems
    assert (mistake.line, mistake.fix) == (0, None)


@pytest.mark.parametrize(
    ("right", "wrong", "hint"),
    [
        ("dynamic_batching {", "max_batch_size: -8\ndynamic_batching {", "remove the second max_batch_size"),
        ('backend: "python"\n', 'backend: "python"\nbackend: "x" "y";\n', "remove the second backend"),
        (
            "dynamic_batching {",
            "sequence_batching { direct { } # strategy\n}\ndynamic_batching {",
            "remove dynamic_batching",
        ),
        ("dims: [ 4 ]", "dims: [ 4, ]", "remove the comma before ]"),
        ("TYPE_FP32", '"TYPE_FP32"', "did you mean 'TYPE_FP32'?"),
    ],
)
def test_superfluous_fields_are_removed(right: str, wrong: str, hint: str) -> None:
    mistake = problem(BASE.replace(right, wrong, 1))
    assert mistake.hint == hint
    assert mistake.fix is not None
    diagnosis = diagnose(mistake.fix.text, validate)
    assert diagnosis.problems == []
    if hint != "remove dynamic_batching":
        assert "".join(mistake.fix.text.split()) == "".join(BASE.split())
