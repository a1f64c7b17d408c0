"""Numbers in texts of clients."""

from __future__ import annotations

import pytest

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.endpoints.numbers import leading_number, version_number


@pytest.mark.parametrize(
    ("text", "number"),
    [("12", 12), (" +7x", 7), ("-3.5", -3), ("0", 0), ("000", 0), ("0" * 5000 + "4", 4), ("", None), ("x1", None)],
)
def test_the_digits_at_the_beginning_count(text: str, number: int | None):
    assert leading_number(text) == number


@pytest.mark.parametrize("digits", [20, 21, 5000, 50_000])
def test_a_number_of_very_many_digits_stays_beyond_64_bits(digits: int):
    assert (leading_number("1" * digits) or 0) >= 2**63
    assert (leading_number("-" + "1" * digits) or 0) < -(2**63)


@pytest.mark.parametrize(
    ("text", "version"), [(None, -1), ("", -1), ("3", 3), ("3abc", 3), (str(2**63 - 1), 2**63 - 1)]
)
def test_a_version_is_a_number_or_absent(text: str | None, version: int):
    assert version_number(text) == version


@pytest.mark.parametrize("text", ["abc", str(2**63), "9" * 5000])
def test_what_no_version_can_be_is_refused(text: str):
    with pytest.raises(InvalidArgumentError) as raised:
        version_number(text)
    assert raised.value.message == (
        f"failed to get model version from specified version string '{text}' (details: stol), version should be an "
        "integral value > 0"
    )


def test_a_negative_version_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"^invalid model version specified '-1' , version should be"):
        version_number("-1")
