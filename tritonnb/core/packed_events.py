"""Events as tuples: records as they happen, and flat tuples, the form in which the event stream passes them on.

The garbage collector stops tracking flat tuples when it first visits them, so that long recordings cause no pauses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from itertools import chain
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final, get_args

from tritonnb.core.events import BatchExecuted, BatchSent, Event

#: An event as the server creates it: the name of its type, then all its fields in the order of the class.
Record = tuple[Any, ...]
#: An event as one flat tuple: the name of its type, then its fields in the order of the class, those of variable
#: length last. `positions` says where a field of fixed length is.
Packed = tuple[Any, ...]

_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}
_VARIABLE = {"members", "slots", "facts", "requests"}
#: Names of the fields of fixed length of each type of event.
_FIXED: dict[type[Event], tuple[str, ...]] = {
    kind: tuple([field.name for field in fields(kind) if field.name not in _VARIABLE]) for kind in _KINDS.values()
}
_values: dict[type[Event], Callable[[Event], Record]] = {
    kind: attrgetter(*[field.name for field in fields(kind)]) for kind in _KINDS.values()
}
_END_OF_BATCH_SENT: Final = 1 + len(_FIXED[BatchSent])
_END_OF_BATCH_EXECUTED: Final = 1 + len(_FIXED[BatchExecuted])


def positions(kind: type[Event]) -> SimpleNamespace:
    """Return the positions of the fields of a type of event in its packed form.

    Parameters
    ----------
    kind : type
        Such as `RequestArrived`.

    Returns
    -------
    types.SimpleNamespace
        An index for each field of fixed length, by name.

    Examples
    --------
    >>> from tritonnb.core.events import RequestCancelled
    >>> cancelled = pack(RequestCancelled(time_ns=5, model="m", version=1, serial=7))
    >>> cancelled[positions(RequestCancelled).serial]
    7
    """
    return SimpleNamespace(**{name: position for position, name in enumerate(_FIXED[kind], start=1)})


def record_of(event: Event) -> Record:
    """Return an event as a record."""
    kind = type(event)
    return (kind.__name__, *_values[kind](event))


def pack(event: Event) -> Packed:
    """Pack an event as a flat tuple, which the garbage collector untracks at its first collection."""
    return pack_record(record_of(event))


def pack_record(record: Record) -> Packed:
    """Pack a record as a flat tuple; the record itself if it is flat."""
    name = record[0]
    if name == "BatchSent":
        members, slots, facts = record[_END_OF_BATCH_SENT:]
        slots = slots or ()
        variable = (len(members), *members, len(slots), *slots, *facts, *facts.values())
        return record[:_END_OF_BATCH_SENT] + variable
    if name == "BatchExecuted":
        return record[:_END_OF_BATCH_EXECUTED] + tuple(chain.from_iterable(record[_END_OF_BATCH_EXECUTED]))
    return record


def unpack(packed: Packed) -> Event:
    """Restore a packed event."""
    name = packed[0]
    if name == "BatchSent":
        return BatchSent(*(*packed[1:_END_OF_BATCH_SENT], members_of(packed), slots_of(packed), facts_of(packed)))
    if name == "BatchExecuted":
        return BatchExecuted(*(*packed[1:_END_OF_BATCH_EXECUTED], requests_of(packed)))
    event: Event = _KINDS[name](*packed[1:])
    return event


def members_of(batch_sent: Packed) -> tuple[int | None, ...]:
    """Return the ``members`` of a packed `BatchSent`."""
    at = _END_OF_BATCH_SENT + 1
    return batch_sent[at : at + batch_sent[at - 1]]


def slots_of(batch_sent: Packed) -> tuple[int, ...] | None:
    """Return the ``slots`` of a packed `BatchSent`."""
    at = _END_OF_BATCH_SENT + 2 + batch_sent[_END_OF_BATCH_SENT]
    return batch_sent[at : at + batch_sent[at - 1]] or None


def facts_of(batch_sent: Packed) -> dict[str, Any]:
    """Return the ``facts`` of a packed `BatchSent`."""
    at = _END_OF_BATCH_SENT + 2 + batch_sent[_END_OF_BATCH_SENT]
    rest = batch_sent[at + batch_sent[at - 1] :]
    half = len(rest) // 2
    return dict(zip(rest[:half], rest[half:], strict=True))


def requests_of(batch_executed: Packed) -> tuple[tuple[Any, ...], ...]:
    """Return the ``requests`` of a packed `BatchExecuted`."""
    flat = iter(batch_executed[_END_OF_BATCH_EXECUTED:])
    return tuple(zip(flat, flat, flat, flat, flat, strict=True))


def failures_of(batch_executed: Packed) -> int:
    """Return the number of failed requests of a packed `BatchExecuted`."""
    reasons = batch_executed[_END_OF_BATCH_EXECUTED + 4 :: 5]
    return len(reasons) - reasons.count("")
