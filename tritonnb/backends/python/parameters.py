"""The parameters of requests and responses that a model makes: strings, booleans, and integers of 64 bits.

Types are checked where the model makes them; that an integer is too large is noticed when they are sent, as on Triton.
"""

from __future__ import annotations

from collections.abc import Mapping

from tritonnb.backends.python.error import TritonModelException
from tritonnb.core.errors import InternalError
from tritonnb.core.messages import ParameterValue

_INTEGERS = range(-(2**63), 2**63)


def check_types(parameters: object) -> None:
    """Refuse what are no parameters.

    Raises
    ------
    TritonModelException
        With Triton's text.
    """
    if not isinstance(parameters, dict | None):
        raise TritonModelException(f"Expect dict, got {type(parameters)}")
    for name, value in (parameters or {}).items():
        if not isinstance(name, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(name)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")


def find_parameter_error(parameters: Mapping[str, ParameterValue] | None) -> InternalError | None:
    """Why parameters cannot be sent; None if they can."""
    for value in (parameters or {}).values():
        if isinstance(value, int) and value not in _INTEGERS:
            return InternalError("Unsupported value type on parameters")
    return None
