"""Parameters of requests and responses: what every protocol, and the process of an isolated model, can carry."""

from __future__ import annotations

from typing import Any

from tritonnb.core.messages import ParameterValue
from tritonnb.core.texts import encodable, find_text_error, shown

#: The integers that a parameter can have, as in Triton's C interface.
PARAMETER_INTEGERS = range(-(2**63), 2**63)


def find_parameter_error(name: object, value: object) -> str:
    """Return what is wrong with a parameter; empty if nothing is.

    Parameters
    ----------
    name, value : object

    Returns
    -------
    str

    Examples
    --------
    >>> find_parameter_error("tokens", 2**64)
    "parameter 'tokens': expected an int from -2**63 to 2**63 - 1, got 18446744073709551616"
    """
    problem = find_text_error("name of a parameter", name)
    what = f"parameter {shown(name)}"
    if problem:
        return problem
    if isinstance(value, str):
        return find_text_error(what, value)
    if not isinstance(value, (bool, int, float)):
        return f"{what}: expected a str, int, float or bool, got {shown(value)}"
    if isinstance(value, int) and value not in PARAMETER_INTEGERS:
        return f"{what}: expected an int from -2**63 to 2**63 - 1, got {shown(value)}"
    return ""


def plain_parameter(value: Any) -> ParameterValue:
    """Return the value of a parameter with a type that every encoder knows, instead of a subclass.

    Examples
    --------
    >>> from enum import IntEnum
    >>> plain_parameter(IntEnum("Color", "RED").RED)
    1
    """
    if isinstance(value, str):
        return encodable(value)
    return value if isinstance(value, bool) else int(value) if isinstance(value, int) else float(value)
