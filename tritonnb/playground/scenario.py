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
from collections.abc import Mapping
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.json_types import Json
from tritonnb.simulation.arrivals import Arrival, ClosedLoop, bursts, constant, poisson
from tritonnb.simulation.service import ServiceTime, fixed, linear, table

#: A page stays responsive up to this number of requests.
MOST_REQUESTS = 5000


#: The parameters of each kind of arrivals that is generated; the others are in ``requests``.
GENERATORS: Mapping[str, tuple[str, ...]] = {
    "constant": ("rate", "duration", "rows"),
    "poisson": ("rate", "duration", "seed", "rows"),
    "bursts": ("requests", "every_ms", "duration", "rows"),
    "closed": ("clients", "requests", "think_ms", "rows"),
}
_WHOLE = {"seed", "rows", "requests", "clients", "priority", "timeout_us", "steps"}
_OPTIONAL = {"rows": 1, "think_ms": 0, "seed": 0, "priority": 0, "timeout_us": 0, "steps": 1}
_FUNCTIONS: Mapping[str, Any] = {"constant": constant, "poisson": poisson, "bursts": bursts, "closed": ClosedLoop}


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
    kind = _kind(value, "arrivals", ("list", *GENERATORS))
    if kind == "list":
        requests = value.get("requests") or []
        _limit(len(requests))
        return sorted(map(read_arrival, requests), key=lambda arrival: arrival.time_us)
    values = {name: _number(value, name, f"{kind} arrivals") for name in GENERATORS[kind]}
    if "rate" in values:
        _limit(values["rate"] * values["duration"])
    elif kind == "bursts":
        _limit(values["requests"] * values["duration"] * 1000 / max(values["every_ms"], 1e-9))
    else:
        _limit(values["requests"])
    arrivals: list[Arrival] | ClosedLoop = _FUNCTIONS[kind](**values)
    return arrivals


def read_arrival(value: Json) -> Arrival:
    """Create one arrival of the kind ``list``."""
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"request expected an object with 'ms', got {value!r}")
    cancel_ms = value.get("cancel_ms")
    return Arrival(
        ms=_number(value, "ms", "request"),
        rows=_number(value, "rows", "request"),
        priority=_number(value, "priority", "request"),
        timeout_us=_number(value, "timeout_us", "request"),
        sequence_id=_sequence_id(value.get("sequence", "")),
        sequence_start=bool(value.get("start")),
        sequence_end=bool(value.get("end")),
        cancel_us=None if cancel_ms is None else _number(value, "cancel_ms", "request") * 1000,
        steps=_number(value, "steps", "request"),
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
    kind = _kind(value, "service times", ("fixed", "linear", "table"))
    if kind == "fixed":
        return fixed(_time(value, "ms"))
    if kind == "linear":
        return linear(per_row_ms=_time(value, "per_row_ms"), base_ms=_time(value, "base_ms"))
    return table(read_table(value))


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
    kind = value["kind"]
    if kind != "list" or isinstance(arrivals, ClosedLoop):
        parameters = {name: value[name] for name in GENERATORS[kind] if name in value}
        return f"tnb.{_FUNCTIONS[kind].__name__}({_arguments(parameters)})"
    lines = "".join(f"    tnb.Arrival({_arrival(arrival)}),\n" for arrival in arrivals)
    return f"[\n{lines}]"


def _arrival(arrival: Arrival) -> str:
    values = {
        "ms": _short(arrival.time_us / 1000), "rows": arrival.rows, "priority": arrival.priority,
        "timeout_us": arrival.timeout_us, "sequence_id": arrival.sequence_id, "sequence_start": arrival.sequence_start,
        "sequence_end": arrival.sequence_end, "steps": 0 if arrival.steps == 1 else arrival.steps,
    }  # fmt: skip
    set_values = {name: value for name, value in values.items() if value or name in ("ms", "rows")}
    if arrival.cancel_us is not None:
        set_values["cancel_us"] = _short(arrival.cancel_us)
    return _arguments(set_values)


def _service(value: Json) -> str:
    read_service(value)
    if value["kind"] == "table":
        return f"tnb.table({read_table(value)!r})"
    names = ("ms",) if value["kind"] == "fixed" else ("per_row_ms", "base_ms")
    return f"tnb.{value['kind']}({_arguments({name: float(value[name]) for name in names})})"


def _short(number: float) -> float:
    """Return a whole number without its fraction, which reads better."""
    return int(number) if number == int(number) else number


def _arguments(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
