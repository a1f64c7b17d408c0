"""The check that options and arguments have the types that are declared: a wrong type fails where it is written."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import os
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

from tritonnb.core.errors import InvalidArgumentError

P = ParamSpec("P")
T = TypeVar("T")

#: The names of one value and of several.
_NAMES: dict[type, tuple[str, str]] = {
    bool: ("True or False", "truth values"),
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
    type(None): ("None", "None"),
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


def with_checked_types(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function: the arguments must have the declared types, as far as `check_types` knows these.

    Examples
    --------
    >>> @with_checked_types
    ... def send(rate: float | None = None) -> None: ...
    >>> send("fast")
    Traceback (most recent call last):
    tritonnb.core.errors.InvalidArgumentError: rate expected a number or None, got 'fast'
    """
    signature = inspect.signature(function)

    @functools.cache
    def checks() -> dict[str, _Check]:
        # Without the type of the result, which may be imported for type checkers only.
        declared = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
        holder = types.SimpleNamespace(__annotations__=declared)
        return _checks_of(typing.get_type_hints(holder, function.__globals__))

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            given = {}  # an argument is unknown or missing: the call says it better
        for name, check in checks().items():
            if name in given and not check.fits(given[name]):
                raise InvalidArgumentError(f"{name} expected {check.one}, got {given[name]!r}")
        return function(*args, **kwargs)

    return call


class _Check(NamedTuple):
    fits: Callable[[object], bool]
    one: str
    several: str


#: By class: reading type hints evaluates their texts, for each instance again.
_CHECKS: dict[type, dict[str, _Check]] = {}


def _checks(kind: type) -> dict[str, _Check]:
    if kind not in _CHECKS:
        _CHECKS[kind] = _checks_of(typing.get_type_hints(kind))
    return _CHECKS[kind]


def _checks_of(hints: Mapping[str, Any]) -> dict[str, _Check]:
    checks = {name: _check_of(hint) for name, hint in hints.items()}
    return {name: check for name, check in checks.items() if check is not None}


def _check_of(hint: Any) -> _Check | None:
    """Return the check of a type; None for a type that is not checked here."""
    if hint in _NAMES:
        return _Check(functools.partial(_is_scalar, hint), *_NAMES[hint])
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        members = [check for check in map(_check_of, arguments) if check is not None]
        if len(members) < len(arguments):
            return None
        *others, last = [member.one for member in members]
        return _Check(
            functools.partial(_is_one_of, [member.fits for member in members]),
            f"{', '.join(others)} or {last}",
            " or ".join(member.several for member in members),
        )
    if origin is os.PathLike:
        return _Check(lambda value: isinstance(value, os.PathLike), "a path", "paths")
    if origin is Callable:
        return _Check(callable, "a function", "functions")
    if origin is Mapping:
        key, inner = map(_check_of, arguments)
        of_inner = f" of {inner.several}" if inner else ""
        return _Check(functools.partial(_is_mapping, key, inner), f"a dict{of_inner}", "dicts")
    if origin in (Sequence, Collection) or (origin is tuple and arguments[-1] is ...):
        inner = _check_of(arguments[0])
        has_order = origin is not Collection
        return inner and _Check(
            functools.partial(_is_list, has_order, inner.fits), f"a list of {inner.several}", "lists"
        )
    if origin is tuple:
        parts = [check for check in map(_check_of, arguments) if check is not None]
        tests = [check.fits for check in parts]
        if len(parts) == len(arguments):
            count = f"of {len(parts)} {parts[0].several}"
            return _Check(functools.partial(_is_tuple, tests), f"a tuple {count}", f"tuples {count}")
    return None


def _is_one_of(tests: Sequence[Callable[[object], bool]], value: object) -> bool:
    return any(test(value) for test in tests)


def _is_mapping(key: _Check | None, inner: _Check | None, value: object) -> bool:
    return isinstance(value, Mapping) and all(
        (key is None or key.fits(name)) and (inner is None or inner.fits(element)) for name, element in value.items()
    )


def _is_scalar(kind: type, value: object) -> bool:
    if kind is not float and kind is not int:
        return isinstance(value, kind)
    if isinstance(value, bool):
        return False
    if hasattr(value, "__index__"):  # an integer, also of NumPy
        return True
    return kind is float and isinstance(value, numbers.Real) and not math.isnan(value)


def _is_list(has_order: bool, fits: Callable[[object], bool], value: object) -> bool:
    if not isinstance(value, Collection) or isinstance(value, str | bytes):
        return False
    # An array of NumPy and a column of pandas are no `Sequence`.
    is_ordered = hasattr(value, "__getitem__") and not isinstance(value, Mapping)
    return (is_ordered or not has_order) and all(fits(one) for one in value)


def _is_tuple(tests: Sequence[Callable[[object], bool]], value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, (str, bytes))
        and len(value) == len(tests)
        and all(test(element) for test, element in zip(tests, value, strict=True))
    )
