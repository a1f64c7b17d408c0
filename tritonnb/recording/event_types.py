"""Creates events from JSON, and checks every value: a recording may come from a stranger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, get_args

from tritonnb.core.events import BatchSent, Event
from tritonnb.scheduling.decisions import Reason
from tritonnb.scheduling.reasons import RULES, explain

_KINDS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}
_TEXTS = {
    *("model", "id", "message", "counted_as", "instance", "rule", "outcome", "step_model", "state", "reason"),
    "failed",
}


def event_of(values: Any) -> Event:
    """The event that a JSON object describes.

    Parameters
    ----------
    values : dict
        ``event``, the name of its class, and its fields.

    Raises
    ------
    ValueError
        If it is not an object with a known ``event``, a field is missing or unknown, or a value has the wrong type.

    Examples
    --------
    >>> event_of({"event": "RequestCancelled", "time_ns": 5, "model": "m", "version": 1, "serial": 7})
    RequestCancelled(time_ns=5, model='m', version=1, serial=7)
    """
    name = values.get("event") if isinstance(values, dict) else None
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"expected an object whose 'event' is one of {', '.join(_KINDS)}, got {values!r:.80}")
    expected = {definition.name for definition in fields(kind)}
    if values.keys() - {"event"} != expected:
        raise ValueError(f"{name} expected the fields {', '.join(sorted(expected))}, got {', '.join(map(str, values))}")
    checked = {field: _checked(field, values[field]) for field in expected}
    if kind is BatchSent and checked["rule"] not in RULES:
        raise ValueError(f"{name} expected a rule of {', '.join(RULES)}, got {checked['rule']!r:.80}")
    if kind is BatchSent:
        _check_facts(Reason(checked["rule"], checked["facts"]))
    event: Event = kind(**checked)
    return event


def _check_facts(reason: Reason) -> None:
    try:
        explain(reason)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"BatchSent expected the facts of the rule {reason.rule!r}, got {reason.facts!r:.80}"
        ) from error


def _checked(field: str, value: Any) -> Any:
    """The value of a field, with tuples for lists."""
    value = _tuple(value)
    if not _checks.get(field, _is_text if field in _TEXTS else _is_integer)(value):
        raise ValueError(f"{field} has a value of the wrong type: {value!r:.80}")
    return value


def _tuple(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuple(part) for name, part in value.items()}
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def _is_integer(value: object) -> bool:
    """Whether it is an integer of 64 bits; hashes and identifiers may be unsigned."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_identifier(value: object) -> bool:
    return _is_text(value) or _is_integer(value)


def _is_members(value: object) -> bool:
    return isinstance(value, tuple) and all(serial is None or _is_integer(serial) for serial in value)


def _is_slots(value: object) -> bool:
    return value is None or (isinstance(value, tuple) and all(map(_is_integer, value)))


def _is_requests(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(request, tuple) and len(request) == 5 and all(map(_is_integer, request[:4])) and _is_text(request[4])
        for request in value
    )


def _is_fact(value: object) -> bool:
    return isinstance(value, int | float | str) or (isinstance(value, tuple) and all(map(_is_fact, value)))


def _is_facts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_fact, value.values()))


_checks: Mapping[str, Callable[[object], bool]] = {
    "correlation_id": _is_identifier,
    "members": _is_members,
    "slots": _is_slots,
    "requests": _is_requests,
    "facts": _is_facts,
}
