"""Numbers as load generators and servers write them."""

from __future__ import annotations

import math
import re

#: Whether it is a number is examined later, so that "3,5" is not read as 3 or as 35.
NUMBER = r"(\d[\d.,]*(?:[eE][+-]?\d+)?)"
#: Counters have 64 bits.
MOST = 1 << 64
#: Milliseconds of a unit, as load generators write it.
MS = {"ns": 1e-6, "nsec": 1e-6, "us": 1e-3, "usec": 1e-3, "µs": 1e-3, "μs": 1e-3, "microseconds": 1e-3, "ms": 1.0,
      "msec": 1.0, "milliseconds": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3}  # fmt: skip
#: Digits with a decimal point, and with commas between thousands.
_PLAIN_NUMBER = re.compile(r"(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d*)?(?:[eE][+-]?\d+)?")


class NotANumberError(Exception):
    """A text in the place of a number."""


def read_number(text: str) -> float:
    """Return the number that a text is.

    Raises
    ------
    NotANumberError
        If it is not a finite number with a decimal point.
    """
    stripped = text.rstrip(".,")  # of the sentence
    number = float(stripped.replace(",", "")) if _PLAIN_NUMBER.fullmatch(stripped) else math.inf
    if number > MOST:
        raise NotANumberError(stripped)
    return number
