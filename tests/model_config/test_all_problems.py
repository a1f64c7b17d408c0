"""All problems of a configuration at once, each at its token."""

from __future__ import annotations

from typing import Any

import pytest

from tritonnb.model_config.diagnose import diagnose, syntax_errors
from tritonnb.model_config.tokens import tokens_until
from tritonnb.model_config.validate import check_tensors, validate


def check(config: Any) -> Any:
    config.name = config.name or "m"
    validate(config)
    check_tensors(config)
    return config


def tokens_of_problems(text: str) -> list[str]:
    """The token at which each problem is shown."""
    problems = diagnose(text, check, "m").problems
    return [tokens_until(text, problem.line, problem.column)[-1].text for problem in problems]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("max_batchsize: 8\nbackend: python", ["max_batchsize", "python"]),
        ("input { data_typ: TYPE_FP32 dims: x }\noutput { data_type: TYPE_FP3 }", ["data_typ", "TYPE_FP3"]),
        ('instance_group [ { count: two } ]\nname: "m"\nmax_batch_size: y', ["two", "y"]),
    ],
)
def test_text_after_a_syntax_error_is_checked(text: str, tokens: list[str]) -> None:
    assert tokens_of_problems(text) == tokens


def test_lines_after_an_unterminated_string_are_checked() -> None:
    problems = diagnose('name: "m\nmax_batch_size: y', check).problems
    assert [(problem.line, problem.column) for problem in problems] == [(1, 9), (2, 17)]


@pytest.mark.parametrize("text", ["dynamic_batching {", "input [ { dims: [ 4 }", "a { b }"])
def test_consequences_of_wrong_nesting_are_not_reported(text: str) -> None:
    assert len(syntax_errors(text)) == 1


def test_valid_text_has_no_errors() -> None:
    assert syntax_errors("max_batch_size: 8 dynamic_batching { }") == []


def test_every_part_of_a_configuration_is_checked() -> None:
    text = """
    backend: "python"
    max_batch_size: -8
    input [ { name: "X" data_type: TYPE_FP32 dims: [ 0 ] }, { name: "Z" data_type: TYPE_FP32 dims: [ -3 ] } ]
    output { name: "Y" data_type: TYPE_FP32 dims: [ 0 ] }
    dynamic_batching { preferred_batch_size: [ 0 ] priority_levels: 2 default_priority_level: 5 }
    """
    expected = ["max_batch_size", "preferred_batch_size", "default_priority_level", "dims", "dims", "dims"]
    assert tokens_of_problems(text) == expected


def test_first_problem_is_the_one_that_a_server_reports() -> None:
    text = 'backend: "python" max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 9, 0 ] }'
    first, *_ = diagnose(text, check, "m").problems
    assert first.message == "dynamic batching preferred size must be <= max batch size for m"


def test_fields_that_a_backend_completes_are_not_problems() -> None:
    def reject(config: Any) -> Any:
        config.name = "m"
        validate(config)

    text = 'backend: "python" max_batch_size: -1 input { name: "X" }'
    assert [problem.line for problem in diagnose(text, reject, "m").problems] == [1]


@pytest.mark.parametrize("text", ['"\udcff": 1', "\udcff", '\0 name: "a" name: "b"', '"a\udcff" { }'])
def test_invalid_text_has_problems(text: str) -> None:
    assert diagnose(text, check, "m").problems
