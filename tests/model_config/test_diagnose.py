"""Complaints stand where their cause is, and bring what would mend them."""

from __future__ import annotations

from typing import NoReturn

import pytest

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.problems import Problem
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
    (found,) = diagnose(text, validate).problems
    return found


def test_a_configuration_without_mistakes_has_no_problems() -> None:
    found = diagnose(BASE, lambda config: config)
    assert found.problems == []
    assert found.checked.max_batch_size == 8


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
def test_a_slip_of_the_pen_is_found_and_mended(right: str, wrong: str, line: int, column: int, complaint: str) -> None:
    found = problem(BASE.replace(right, wrong))
    assert complaint in found.message
    assert (found.line, found.column) == (line, column)
    assert found.fix is not None
    assert found.fix.text == BASE


def test_what_is_left_open_is_closed() -> None:
    found = problem(BASE[:-2])
    assert found.fix is not None
    assert diagnose(found.fix.text, validate).problems == []


@pytest.mark.parametrize(
    ("right", "wrong", "line", "mended"),
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
def test_a_broken_rule_is_shown_at_its_field_and_mended(right: str, wrong: str, line: int, mended: str) -> None:
    found = problem(BASE.replace(right, wrong))
    assert found.line == line
    assert found.fix is not None
    assert mended in found.fix.text.splitlines()
    assert diagnose(found.fix.text, validate).problems == []


def test_a_tensor_that_is_refused_is_found_by_its_name() -> None:
    def refuse(config: pb.ModelConfig) -> NoReturn:
        raise InvalidArgumentError("model input 'X' must specify 'dims' for m")

    (found,) = diagnose(BASE, refuse).problems
    assert found.line == 4


def test_a_complaint_about_nothing_in_the_text_has_no_line() -> None:
    def refuse(config: pb.ModelConfig) -> NoReturn:
        raise InvalidArgumentError("no luck today")

    (found,) = diagnose(BASE, refuse).problems
    assert (found.line, found.fix) == (0, None)


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
def test_what_is_too_much_is_removed(right: str, wrong: str, hint: str) -> None:
    found = problem(BASE.replace(right, wrong, 1))
    assert found.hint == hint
    assert found.fix is not None
    mended = diagnose(found.fix.text, validate)
    assert mended.problems == []
    if hint != "remove dynamic_batching":
        assert "".join(found.fix.text.split()) == "".join(BASE.split())
