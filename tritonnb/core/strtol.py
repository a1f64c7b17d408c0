"""Whole numbers that clients write as text, read as C++ reads them: what follows the digits does not count."""

from __future__ import annotations

import re

_LEADING_NUMBER = re.compile(r"\s*([+-]?)0*(\d+)", re.ASCII)
_MOST_DIGITS = 20  # more than any number of 64 bits has; what is longer is out of every range as it is


def leading_number(text: str) -> int | None:
    """The number that a text begins with; None where it begins with none.

    Of a number that has more than 64 bits only the first digits are read: they make one that has more, too.
    """
    found = _LEADING_NUMBER.match(text)
    if found is None:
        return None
    number = int(found.group(2)[:_MOST_DIGITS])
    return -number if found.group(1) == "-" else number
