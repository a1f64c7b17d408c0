"""The parameters of requests and responses that a model creates: strings, booleans, and 64-bit integers.

As on Triton, types are checked when the model creates the object, and the range of integers when it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping

from tritonnb.backends.python.error import TritonModelException
from tritonnb.core.errors import InternalError
from tritonnb.core.messages import ParameterValue

_INTEGERS = range(-(2**63), 2**63)


def check_types(parameters: object) -> None:
    """Check the types of parameters.

    Raises
    ------
    TritonModelException
        If they are wrong; with Triton's text.
    """
    if parameters is None:
        return
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)}")
    for name, value in parameters.items():
        if not isinstance(name, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(name)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")


def find_parameter_error(parameters: Mapping[str, ParameterValue] | None) -> InternalError | None:
    """The error if parameters cannot be sent, else None."""
    if not parameters:
        return None
    for value in parameters.values():
        if isinstance(value, int) and value not in _INTEGERS:
            return InternalError("Unsupported value type on parameters")
    return None
