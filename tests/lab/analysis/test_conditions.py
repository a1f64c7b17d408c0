"""Conditions on named quantities: expressions without side effects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.analysis.conditions import Condition, Value

QUANTITIES: dict[str, Value] = {"batch": 3, "queue": 5, "rule": "full", "oldest_ms": 2.5, "zero": 0, "nothing": None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch < 4 and queue > 2", True),
        ("batch<4 and queue>5", False),
        ("batch < 4 or nothing > 1", True),
        ("nothing > 1 or batch > 4", False),
        ("nothing > 1", False),
        ("not nothing > 1", False),
        ("not not batch == 3", True),
        ("not (batch < 4 and queue > 5)", True),
        ("batch + queue * 2 == 13", True),
        ("(batch + queue) * 2 == 16", True),
        ("batch - queue - 1 == -3", True),
        ("queue / 2 / 5 == .5", True),
        ("queue / zero > 0", False),
        ("queue / zero > 0 or batch != 4", True),
        ("rule == 'full'", True),
        ('rule != "full" or rule == "no_delay"', False),
        ("rule == 3", False),
        ("rule + 1 == 3", False),
        ("oldest_ms >= 2.5 and oldest_ms <= 2.5", True),
        ("2 < batch < 4", True),
        ("2 < batch < nothing", False),
        ("batch", False),
        ("-batch < -2 and batch < - - 4", True),
    ],
)
def test_condition_evaluates_to_the_expected_value(text: str, expected: bool) -> None:
    assert Condition(text, QUANTITIES)(QUANTITIES) is expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "expected a string of 1 to 500 characters"),
        (" ", "expected a string of 1 to 500 characters"),
        ("1 <" * 300, "expected a string of 1 to 500 characters"),
        ("bach < 4", r"expected a quantity \(batch, .*\), got 'bach'; did you mean 'batch'"),
        ("batch <", "got an error: invalid syntax"),
        ("batch < 4)", "got an error: unmatched '\\)'"),
        ("(batch < 4", "got an error: '\\(' was never closed"),
        ("batch = 4", "got an error: invalid syntax"),
        ("batch.real == 3", "expected numbers, .*; got batch.real"),
        ("batch ** 9 < 3", "got Pow"),
        ("batch < 3j", "got 3j"),
        ("batch is 3", "got Is"),
        ("not True", "got True"),
        ("(batch := 3) < 4", r"got \(batch := 3\)"),
        ("__import__('os').system('id')", "got __import__"),
        ("batch\x00", "got an error"),
        ("(" * 240 + "1" + ")" * 240, "got an error: too many nested parentheses"),
        ("- " * 30 + "1 < 2", "expected at most 20 nested parts"),
        ("'open", "got an error: unterminated string"),
        (b"batch", "expected a string"),
    ],
)
def test_invalid_condition_is_an_error(text: str, complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        Condition(text, QUANTITIES)


@given(st.text(alphabet="abqueth 0123<>=!()+-*/'\"._and or not"))
def test_every_text_is_a_condition_or_an_error(text: str) -> None:
    try:
        condition = Condition(text, QUANTITIES)
    except InvalidArgumentError:
        return
    assert condition(QUANTITIES) in (True, False)
    assert condition({}) in (True, False)


numbers = st.integers(0, 9)


@given(numbers, numbers, numbers, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), st.sampled_from(["+", "-", "*"]))
def test_arithmetic_and_comparisons_follow_python(a: int, b: int, c: int, compare: str, sign: str) -> None:
    text = f"{a} {sign} {b} {compare} {c} - {a} * {b}"
    assert Condition(text, ())({}) is eval(text)  # made of numbers and operators above
