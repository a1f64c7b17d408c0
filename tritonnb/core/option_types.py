"""The check that the options of a dataclass have the types that it declares: a wrong type fails where it is written."""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tritonnb.core.errors import InvalidArgumentError

#: The names of one value and of several.
_NAMES: dict[type, tuple[str, str]] = {
    bool: ("True or False", "truth values"),
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
}


def check_types(options: Any, prefix: str) -> None:
    """Check the fields of a dataclass that are declared as truth values, numbers, texts, or sequences of them.

    Other types have their own checks.

    Parameters
    ----------
    options : dataclass
    prefix : str
        Of the names in error messages, such as ``"HttpOptions."``.

    Raises
    ------
    InvalidArgumentError
        If a field has another type.
    """
    for name, check in _checks(type(options)).items():
        value = getattr(options, name)
        if not check.fits(value):
            raise InvalidArgumentError(f"{prefix}{name}: expected {check.one}, got {value!r}")


class _Check(NamedTuple):
    fits: Callable[[object], bool]
    one: str
    several: str


#: By class: reading type hints evaluates their texts, for each instance again.
_CHECKS: dict[type, dict[str, _Check]] = {}


def _checks(kind: type) -> dict[str, _Check]:
    if kind not in _CHECKS:
        checks = {name: _check_of(hint) for name, hint in typing.get_type_hints(kind).items()}
        _CHECKS[kind] = {name: check for name, check in checks.items() if check is not None}
    return _CHECKS[kind]


def _check_of(hint: Any) -> _Check | None:
    """Return the check of a type; None for a type that is not checked here."""
    if hint in _NAMES:
        return _Check(functools.partial(_is_scalar, hint), *_NAMES[hint])
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        inner = _check_of(next(argument for argument in arguments if argument is not type(None)))
        if inner is not None:
            return _Check(functools.partial(_is_optional, inner.fits), f"{inner.one} or None", inner.several)
    if origin is Sequence or (origin is tuple and arguments[-1] is ...):
        inner = _check_of(arguments[0])
        return inner and _Check(functools.partial(_is_sequence, inner.fits), f"a list of {inner.several}", "lists")
    if origin is tuple:
        parts = [check for check in map(_check_of, arguments) if check is not None]
        tests = [check.fits for check in parts]
        if len(parts) == len(arguments):
            count = f"of {len(parts)} {parts[0].several}"
            return _Check(functools.partial(_is_tuple, tests), f"a tuple {count}", f"tuples {count}")
    return None


def _is_optional(fits: Callable[[object], bool], value: object) -> bool:
    return value is None or fits(value)


def _is_scalar(kind: type, value: object) -> bool:
    if kind is str:
        return isinstance(value, str)
    if kind is bool:
        return isinstance(value, bool)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return kind is float and isinstance(value, float) and not math.isnan(value)
    return True  # an integer, also of NumPy


def _is_sequence(fits: Callable[[object], bool], value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and all(map(fits, value))


def _is_tuple(tests: Sequence[Callable[[object], bool]], value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, (str, bytes))
        and len(value) == len(tests)
        and all(test(element) for test, element in zip(tests, value, strict=True))
    )
