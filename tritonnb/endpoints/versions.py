"""The version that a request names."""

from __future__ import annotations

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.strtol import leading_number


def version_number(text: str | None) -> int:
    """The version that a request names; -1 where it names none.

    Raises
    ------
    InvalidArgumentError
        If the text does not begin with a number, or with one that no version can have.
    """
    if not text:
        return -1
    number = leading_number(text)
    if number is None or not -(2**63) <= number < 2**63:
        raise InvalidArgumentError(
            f"failed to get model version from specified version string '{text}' (details: stol), version should "
            "be an integral value > 0"
        )
    if number < 0:
        raise InvalidArgumentError(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return number
