"""A scenario: a configuration, arrivals and service times as plain values, as they stand in the address of the page.

`python_code` writes it as a program.

The form of a scenario is that of JSON::

    {"config": "max_batch_size: 8 dynamic_batching { }",
     "arrivals": {"kind": "list", "requests": [{"ms": 0, "rows": 4}]},
     "service": {"kind": "fixed", "ms": 50},
     "baseline": ""}

``arrivals`` may also be of the kinds ``constant``, ``poisson``, ``bursts`` and ``closed``, with the parameters of
`tritonnb.constant`, `tritonnb.poisson`, `tritonnb.bursts` and `tritonnb.ClosedLoop`; ``service`` of the kinds
``linear`` and ``table``. ``baseline`` is another configuration to compare with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import signature
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.json_types import Json
from tritonnb.lab.simulation.arrivals import ClosedLoop, bursts, constant, poisson
from tritonnb.lab.simulation.service import ServiceTime, fixed, linear, table
from tritonnb.recording.arrivals import Arrival

#: A page stays responsive up to this number of requests.
MOST_REQUESTS = 5000


#: The functions of the kinds of arrivals and service times that have parameters, with the same names.
_GENERATORS: Mapping[str, Callable[..., Any]] = {
    "constant": constant, "poisson": poisson, "bursts": bursts, "closed": ClosedLoop,
}  # fmt: skip
_SERVICES: Mapping[str, Callable[..., ServiceTime]] = {"fixed": fixed, "linear": linear}
_WHOLE = {"seed", "rows", "requests", "clients", "priority", "timeout_us", "steps"}
_OPTIONAL = {"rows": 1, "think_ms": 0, "seed": 0, "priority": 0, "timeout_us": 0, "steps": 1}


def read_arrivals(value: Any) -> list[Arrival] | ClosedLoop:
    """Create the arrivals of a scenario.

    Raises
    ------
    InvalidArgumentError
        If a value is missing or invalid, or there are too many requests.

    Examples
    --------
    >>> read_arrivals({"kind": "bursts", "requests": 2, "every_ms": 10, "duration": 0.02})[-1].time_us == 10_000
    True
    """
    kind = _kind(value, "arrivals", ("list", *_GENERATORS))
    if kind == "list":
        requests = value.get("requests") or []
        _limit(len(requests))
        return sorted(map(read_arrival, requests), key=lambda arrival: arrival.time_us)
    generate = _GENERATORS[kind]
    values = {name: _number(value, name, f"{kind} arrivals") for name in signature(generate).parameters}
    if "rate" in values:
        _limit(values["rate"] * values["duration"])
    elif kind == "bursts":
        _limit(values["requests"] * values["duration"] * 1000 / max(values["every_ms"], 1e-9))
    else:
        _limit(values["requests"])
    arrivals: list[Arrival] | ClosedLoop = generate(**values)
    return arrivals


def read_arrival(value: Json) -> Arrival:
    """Create one arrival of the kind ``list``."""
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"request expected an object with 'ms', got {value!r}")
    cancel_ms = value.get("cancel_ms")
    return Arrival(
        **{name: _number(value, name, "request") for name in ("ms", "rows", "priority", "timeout_us", "steps")},
        sequence_id=_sequence_id(value.get("sequence", "")),
        sequence_start=bool(value.get("start")),
        sequence_end=bool(value.get("end")),
        cancel_us=None if cancel_ms is None else _number(value, "cancel_ms", "request") * 1000,
    )


def write_arrival(arrival: Arrival) -> Json:
    """Return the plain values of an arrival, without those that have their defaults; the inverse of `read_arrival`.

    Examples
    --------
    >>> write_arrival(Arrival(ms=1.5, rows=2, sequence_id=7, sequence_start=True))
    {'ms': 1.5, 'rows': 2, 'sequence': '7', 'start': True}
    """
    written: Json = {"ms": arrival.time_us / 1000, "rows": arrival.rows}
    optional = {
        "priority": arrival.priority, "timeout_us": arrival.timeout_us, "sequence": str(arrival.sequence_id or ""),
        "start": arrival.sequence_start, "end": arrival.sequence_end,
        "cancel_ms": None if arrival.cancel_us is None else arrival.cancel_us / 1000,
        "steps": 0 if arrival.steps == 1 else arrival.steps,
    }  # fmt: skip
    return written | {name: value for name, value in optional.items() if value or (name == "cancel_ms" and value == 0)}


def read_service(value: Any) -> ServiceTime:
    """Create the service times of a scenario.

    Raises
    ------
    InvalidArgumentError
        If a value is missing or invalid.

    Examples
    --------
    >>> read_service({"kind": "table", "ms": {"1": 10, "3": 20}})(2)
    15000000
    """
    kind = _kind(value, "service times", (*_SERVICES, "table"))
    return table(read_table(value)) if kind == "table" else _SERVICES[kind](**_times(value))


def _times(value: Json) -> dict[str, float]:
    """Return the parameters of service times that are not of the kind ``table``."""
    return {name: _time(value, name) for name in signature(_SERVICES[value["kind"]]).parameters}


def read_table(value: Json) -> dict[int, float]:
    """Return the milliseconds by number of rows of service times of the kind ``table``."""
    times = value.get("ms")
    if not isinstance(times, dict) or not times:
        raise InvalidArgumentError("service times expected at least one row of the table, got none")
    read = {}
    for rows in times:
        if not str(rows).isdigit() or int(rows) < 1:
            raise InvalidArgumentError(f"service times expected a number of rows of at least 1, got '{rows}'")
        read[int(rows)] = _time(times, rows)
    return dict(sorted(read.items()))


def _kind(value: Any, what: str, kinds: tuple[str, ...]) -> str:
    kind = value.get("kind") if isinstance(value, dict) else value
    if kind not in kinds:
        raise InvalidArgumentError(f"{what} expected one of the kinds {', '.join(kinds)}, got {kind!r}")
    return str(kind)


def _number(value: Json, name: str, what: str) -> Any:
    """Return a finite number; a whole one where only these make sense."""
    number = value.get(name, _OPTIONAL.get(name))
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise InvalidArgumentError(f"{what}: '{name}' expected a number, got {number!r}")
    if name in _WHOLE and number != int(number):
        raise InvalidArgumentError(f"{what}: '{name}' expected a whole number, got {number!r}")
    return int(number) if name in _WHOLE else number


def _time(value: Json, name: str) -> float:
    number = _number(value, name, "service times")
    if number < 0:
        raise InvalidArgumentError(f"service times: '{name}' expected at least 0 ms, got {number!r}")
    return float(number)


def _sequence_id(value: object) -> int | str:
    """Parse a correlation ID: a number if it looks like one, except "0": the number 0 means no sequence."""
    text = str(value).strip()
    is_number = not text or (text.isascii() and text.isdigit() and text[0] != "0")
    return int(text or 0) if is_number else text


def _limit(requests: float) -> None:
    if requests > MOST_REQUESTS:
        raise InvalidArgumentError(
            f"arrivals expected at most {MOST_REQUESTS} requests in this page, got {requests:.0f}; "
            "in Python, tnb.simulate has no limit"
        )


def python_code(scenario: Json) -> str:
    """Return a program that defines ``recording``, the simulation of the scenario.

    Raises
    ------
    InvalidArgumentError
        If the scenario is invalid.

    Examples
    --------
    >>> scenario = {
    ...     "config": "max_batch_size: 8",
    ...     "arrivals": {"kind": "list", "requests": [{"ms": 0, "rows": 4}]},
    ...     "service": {"kind": "fixed", "ms": 50},
    ... }
    >>> print(python_code(scenario))
    import tritonnb as tnb
    <BLANKLINE>
    config = \"\"\"
    max_batch_size: 8
    \"\"\"
    arrivals = [
        tnb.Arrival(ms=0, rows=4),
    ]
    recording = tnb.simulate(config, arrivals, tnb.fixed(ms=50.0))
    print(recording)
    recording.view()
    <BLANKLINE>
    """
    config = scenario["config"].strip().replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return (
        f'import tritonnb as tnb\n\nconfig = """\n{config}\n"""\narrivals = {_arrivals(scenario["arrivals"])}\n'
        f"recording = tnb.simulate(config, arrivals, {_service(scenario['service'])})\n"
        "print(recording)\nrecording.view()\n"
    )


def _arrivals(value: Json) -> str:
    arrivals = read_arrivals(value)
    if isinstance(arrivals, ClosedLoop) or value["kind"] != "list":
        generate = _GENERATORS[value["kind"]]
        return _call(generate, {name: value[name] for name in signature(generate).parameters if name in value})
    return "".join(["[\n", *(f"    {_arrival(arrival)},\n" for arrival in arrivals), "]"])


def _arrival(arrival: Arrival) -> str:
    changed = {
        field.name: _short(getattr(arrival, field.name))
        for field in fields(Arrival)
        if getattr(arrival, field.name) != field.default
    }
    del changed["time_us"]
    return _call(Arrival, {"ms": _short(arrival.time_us / 1000), "rows": arrival.rows} | changed)


def _service(value: Json) -> str:
    read_service(value)
    if value["kind"] == "table":
        return f"tnb.table({read_table(value)!r})"
    return _call(_SERVICES[value["kind"]], _times(value))


def _short(value: Any) -> Any:
    """Return a whole number without its fraction, which reads better."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    return f"tnb.{function.__name__}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
