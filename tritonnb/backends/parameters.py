"""Read ``parameters`` of a model configuration, which are strings, as integers and booleans."""

from __future__ import annotations

from typing import TypeVar

from tritonnb.backends.contract import ModelContext
from tritonnb.core.errors import InvalidArgumentError

D = TypeVar("D")


def integer_parameter(context: ModelContext, name: str, default: D) -> int | D:
    """Read a parameter as an integer.

    Parameters
    ----------
    context : ModelContext
    name : str
    default : object
        Returned if the configuration does not have the parameter.

    Raises
    ------
    InvalidArgumentError
        If the parameter is not an integer.
    """
    value = context.parameters.get(name)
    if value is None:
        return default
    try:
        return int(value)
    except ValueError:
        raise InvalidArgumentError(
            f"model '{context.name}': parameter '{name}' expected an integer, got '{value}'"
        ) from None


def boolean_parameter(context: ModelContext, name: str, default: bool) -> bool:
    """Read a parameter as a boolean: ``true`` or ``false``, in upper or lower case.

    Parameters
    ----------
    context : ModelContext
    name : str
    default : bool
        Returned if the configuration does not have the parameter.

    Raises
    ------
    InvalidArgumentError
        If the parameter is neither ``true`` nor ``false``.
    """
    value = context.parameters.get(name)
    if value is None:
        return default
    if value.lower() not in ("true", "false"):
        raise InvalidArgumentError(
            f"model '{context.name}': parameter '{name}' expected 'true' or 'false', got '{value}'"
        )
    return value.lower() == "true"
