"""Patterns of forwarded headers."""

from __future__ import annotations

import pytest

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.endpoints.requests import compile_forward_pattern


@pytest.mark.parametrize(
    ("pattern", "header", "forwarded"),
    [
        ("x-.*", "x-one", True),
        ("X-.*", "x-one", True),
        ("one", "x-one-more", True),
        ("^one", "x-one", False),
        ("(?-i)X-.*", "x-one", False),
        ("(?-i)x-.*", "x-one", True),
        ("(?i)(?-i)X", "x", False),
        ("(?-i)(?i)X", "x", True),
    ],
)
def test_a_header_is_forwarded_if_the_pattern_is_found_in_its_name(pattern: str, header: str, forwarded: bool) -> None:
    found = compile_forward_pattern(pattern)
    assert found is not None
    assert bool(found.search(header)) == forwarded


def test_without_a_pattern_nothing_is_forwarded() -> None:
    assert compile_forward_pattern("") is None


def test_an_invalid_pattern_is_an_error() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"header forward pattern: expected a regular expression, got '\(': missing \)"
    ):
        compile_forward_pattern("(")
