"""Recording files: one JSON value per line; every value is checked.

The first line holds the format, whether the recording is simulated, the configurations of the models as *config.pbtxt*
text, and what is known about the trace from which it was made. Every other line is one event.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, get_args

from google.protobuf import text_format

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import BatchSent, Event
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.recording.trace_source import TraceSource
from tritonnb.scheduling.decisions import Reason
from tritonnb.scheduling.reasons import RULES, explain

#: What reading the first line of another kind of file can raise.
_UNREADABLE = (
    *(StopIteration, ValueError, TypeError, LookupError, AttributeError, RecursionError),
    text_format.ParseError,
)
_FORMAT = {"format": "tritonnb recording", "version": 1}
_KINDS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}


def write(
    path: str | os.PathLike[str],
    events: Iterable[Event],
    configs: Mapping[str, pb.ModelConfig],
    *,
    simulated: bool,
    source: TraceSource | None,
) -> None:
    """Write a recording; an existing file is replaced atomically."""
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            texts = {name: text_format.MessageToString(config) for name, config in configs.items()}
            origin = {} if source is None else {"trace": asdict(source)}
            print(json.dumps(_FORMAT | {"models": texts, "simulated": simulated} | origin), file=file)
            for event in events:
                print(json.dumps({"event": type(event).__name__} | asdict(event)), file=file)
        partial.replace(target)
    except BaseException:  # such as a full disk, which the file would keep full
        partial.unlink(missing_ok=True)
        raise


def read(
    path: str | os.PathLike[str],
) -> tuple[list[Event], dict[str, pb.ModelConfig], bool, TraceSource | None]:
    """Read the events and configurations of a file, whether it is a simulation, and its trace if it comes from one.

    Raises
    ------
    InvalidArgumentError
        If the file is not a recording, or has an unknown format version.
    """
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        lines = enumerate(file, 1)
        try:
            head = json.loads(next(lines)[1])
            form, version, texts = head["format"], head["version"], head["models"]
            if form != _FORMAT["format"]:
                raise ValueError(form)
            source = TraceSource.from_dict(head["trace"]) if "trace" in head else None
            configs = {name: text_format.Parse(text, pb.ModelConfig()) for name, text in texts.items()}
        except _UNREADABLE:
            raise InvalidArgumentError(
                f"'{path}': expected a tritonnb recording, got another kind of file: traces are read by "
                "Recording.from_trace"
            ) from None
        if version != _FORMAT["version"]:
            raise InvalidArgumentError(
                f"recording '{path}': expected format version {_FORMAT['version']}, got {version}"
            )
        events = [_event(path, number, line) for number, line in lines]
        return events, configs, bool(head.get("simulated")), source


def is_recording(content: bytes) -> bool:
    """Return whether bytes begin like a recording file."""
    return f'"format": "{_FORMAT["format"]}"'.encode() in content.partition(b"\n")[0]


def _event(path: str | os.PathLike[str], number: int, line: str) -> Event:
    try:
        return event_of(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"recording '{path}', line {number}: expected an event: {error}") from error


def event_of(values: Any) -> Event:
    """Return the event that a JSON object describes.

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
    expected = {definition.name: definition.type for definition in fields(kind)}
    given = values.keys() - {"event"}
    # A field with a default was added after files had been written without it.
    optional = {definition.name for definition in fields(kind) if definition.default is not MISSING}
    if not expected.keys() - optional <= given <= expected.keys():
        raise ValueError(f"{name} expected the fields {', '.join(sorted(expected))}, got {', '.join(map(str, values))}")
    checked = {field: _checked(field, expected[field], values[field]) for field in expected if field in given}
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


def _checked(field: str, annotation: Any, value: Any) -> Any:
    """Return the value of a field, with tuples for lists."""
    value = _tuple(value)
    if not _CHECKS[annotation](value) or (annotation == "int" and field not in _UNSIGNED and not _is_number(value)):
        raise ValueError(f"{field} has a value of the wrong type: {value!r:.80}")
    return value


def _tuple(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuple(part) for name, part in value.items()}
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def _is_integer(value: object) -> bool:
    """Return whether it is an integer of 64 bits; hashes and identifiers may be unsigned."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64


def _is_number(value: object) -> bool:
    """Return whether it is an integer whose differences and sums are integers of 64 bits, as times and sizes are."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**62) <= value < 2**62


def _is_serial(value: object) -> bool:
    """Return whether it is the serial of a request; None is a null request."""
    return value is None or _is_integer(value)


def _is_request(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) != 5:
        return False
    return all(map(_is_number, value[:4])) and isinstance(value[4], str)


def _is_fact(value: object) -> bool:
    return isinstance(value, int | float | str) or _is_tuple(value, _is_fact)


def _is_tuple(value: object, is_item: Callable[[object], bool]) -> bool:
    return isinstance(value, tuple) and all(map(is_item, value))


#: Integers that may have 64 bits: hashes, and what a client sends.
_UNSIGNED = {"shape_key", "timeout_us", "priority"}
#: Whether a value has the type of a field, by its annotation in `tritonnb.core.events`.
_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "int": _is_integer,
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int | str": lambda value: isinstance(value, str) or _is_integer(value),
    "tuple[int | None, ...]": lambda value: _is_tuple(value, _is_serial),
    "tuple[int, ...] | None": lambda value: value is None or _is_tuple(value, _is_integer),
    "tuple[ExecutedRequest, ...]": lambda value: _is_tuple(value, _is_request),
    "dict[str, Any]": lambda value: isinstance(value, dict) and all(map(_is_fact, value.values())),
}
