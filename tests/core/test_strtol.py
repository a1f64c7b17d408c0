"""Integers at the beginning of strings from clients."""

from __future__ import annotations

import pytest

from tritonnb.core.strtol import leading_number


@pytest.mark.parametrize(
    ("text", "number"),
    [("12", 12), (" +7x", 7), ("-3.5", -3), ("0", 0), ("000", 0), ("0" * 5000 + "4", 4), ("", None), ("x1", None)],
)
def test_leading_digits_of_a_string_are_read(text: str, number: int | None) -> None:
    assert leading_number(text) == number


@pytest.mark.parametrize("digits", [20, 21, 5000, 50_000])
def test_integer_with_thousands_of_digits_is_out_of_range(digits: int) -> None:
    assert (leading_number("1" * digits) or 0) >= 2**63
    assert (leading_number("-" + "1" * digits) or 0) < -(2**63)
