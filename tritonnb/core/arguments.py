"""Checks of arguments that many functions share."""

from __future__ import annotations

from tritonnb.core.errors import InvalidArgumentError


def require_positive(**values: float | None) -> None:
    """Check that values are positive; None is accepted.

    Raises
    ------
    InvalidArgumentError
        With the name of the first value that is not.
    """
    for name, value in values.items():
        try:
            valid = value is None or value > 0
        except TypeError:
            valid = False
        if not valid:
            raise InvalidArgumentError(f"{name} must be positive, got {value!r}")
