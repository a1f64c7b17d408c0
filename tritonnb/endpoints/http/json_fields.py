"""Members of a JSON request, with the error texts of Triton's JSON library.

A wrong type is an INTERNAL error of that library, hence status 500; only the checks of Triton's server itself are
INVALID_ARG.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tritonnb.core.errors import InternalError
from tritonnb.endpoints.http.json_arrays import LongArray
from tritonnb.endpoints.http.json_reader import RepeatedMembers

T = TypeVar("T")
_MISSING = object()


def string(value: object) -> str:
    """Return a string."""
    if type(value) is not str:
        raise InternalError("attempt to access JSON non-string as string")
    return value


def boolean(value: object) -> bool:
    """Return a boolean."""
    # Exact types throughout: to Python, `True` is an int, and to RapidJSON it is not.
    if type(value) is not bool:
        raise InternalError("attempt to access JSON non-boolean as boolean")
    return value


def unsigned(value: object) -> int:
    """Return an unsigned integer of 64 bits."""
    if type(value) is not int or not 0 <= value < 2**64:
        raise InternalError("attempt to access JSON non-unsigned-integer as unsigned-integer")
    return value


def array(value: object) -> list[object]:
    """Return an array that is no tensor."""
    if type(value) is LongArray:
        return value.elements()
    if type(value) is not list:
        raise InternalError("attempt to access JSON non-array as array")
    return value


def member(value: object, name: str) -> object:
    """Return a required member; a value that is not an object has none."""
    result = value.get(name, _MISSING) if isinstance(value, dict) else _MISSING
    if result is _MISSING:
        raise InternalError(f"attempt to access non-existing object member '{name}'")
    return result


def names(value: object) -> list[str]:
    """Return the names of an object's members, in order; a name may occur several times."""
    if not isinstance(value, dict):
        raise InternalError("attempt to get members for non-object")
    return value.names if isinstance(value, RepeatedMembers) else list(value)


def read_field(field: str, read: Callable[..., T], *values: object) -> T:
    """Call ``read`` with the values; the text of its error then names the field."""
    try:
        return read(*values)
    except InternalError as error:
        raise InternalError(f"Unable to parse '{field}': {error}") from None
