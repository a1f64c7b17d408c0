"""The version that a request names."""

from __future__ import annotations

import pytest

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.endpoints.request_rules import version_number


@pytest.mark.parametrize(
    ("text", "version"), [(None, -1), ("", -1), ("3", 3), ("3abc", 3), (str(2**63 - 1), 2**63 - 1)]
)
def test_version_string_is_parsed(text: str | None, version: int) -> None:
    assert version_number(text) == version


@pytest.mark.parametrize("text", ["abc", str(2**63), "9" * 5000])
def test_invalid_model_version_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        version_number(text)
    assert raised.value.message == (
        f"failed to get model version from specified version string '{text}' (details: stol), version should be an "
        "integral value > 0"
    )


def test_negative_version_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^invalid model version specified '-1' , version should be"):
        version_number("-1")
