"""Patterns of forwarded headers."""

from __future__ import annotations

import pytest

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.endpoints.request_rules import check_forwarded, compile_forward_pattern


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
def test_header_is_forwarded_if_its_name_contains_a_match(pattern: str, header: str, forwarded: bool) -> None:
    compiled = compile_forward_pattern(pattern)
    assert compiled is not None
    assert bool(compiled.search(header)) == forwarded


@pytest.mark.parametrize(
    "name",
    [
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
        "triton_enable_empty_final_response",
        "triton_",
    ],
)
def test_headers_with_reserved_names_are_not_forwarded(name: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        check_forwarded({"x-one": "1", name: "1"})
    assert raised.value.message == f"Header '{name}' is reserved for Triton usage and cannot be forwarded."


def test_unreserved_headers_are_forwarded() -> None:
    headers = {"x-one": "1", "triton-x": "2", "x-triton_": "3", "timeouts": "4"}
    assert check_forwarded(headers) == headers


def test_no_headers_are_forwarded_without_a_pattern() -> None:
    assert compile_forward_pattern("") is None


def test_invalid_pattern_is_an_error() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"header forward pattern: expected a regular expression, got '\(': missing \)"
    ):
        compile_forward_pattern("(")
