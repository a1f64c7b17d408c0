"""Parameters of a model's configuration that a backend reads: texts that stand for numbers and switches."""

from __future__ import annotations

from typing import TypeVar

from tritonnb.backends.contract import ModelContext
from tritonnb.core.errors import InvalidArgumentError

D = TypeVar("D")


def integer_parameter(context: ModelContext, name: str, default: D) -> int | D:
    """A whole number.

    Raises
    ------
    InvalidArgumentError
        If the parameter is not one.
    """
    text = context.parameters.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError(
            f"parameter '{name}' of model '{context.name}' must be an integer, got '{text}'"
        ) from None


def boolean_parameter(context: ModelContext, name: str, default: bool) -> bool:
    """``true`` or ``false``, in any case.

    Raises
    ------
    InvalidArgumentError
        If the parameter is neither.
    """
    text = context.parameters.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise InvalidArgumentError(
            f"parameter '{name}' of model '{context.name}' must be 'true' or 'false', got '{text}'"
        )
    return text.lower() == "true"
