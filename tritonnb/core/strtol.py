"""Integers in strings, read as C's ``strtol`` reads them: everything after the digits is ignored."""

from __future__ import annotations

import re

_LEADING_NUMBER = re.compile(r"\s*([+-]?)0*(\d+)", re.ASCII)
_MAX_DIGITS = 20  # enough to exceed 64 bits: longer numbers are out of range in any case


def leading_number(text: str) -> int | None:
    """Return the integer at the beginning of a string; None if it begins otherwise.

    Only the first 20 digits are read, which is enough to exceed 64 bits.

    Examples
    --------
    >>> leading_number(" 12abc"), leading_number("abc")
    (12, None)
    """
    match = _LEADING_NUMBER.match(text)
    if match is None:
        return None
    number = int(match.group(2)[:_MAX_DIGITS])
    return -number if match.group(1) == "-" else number
