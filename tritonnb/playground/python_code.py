"""A scenario as a Python program that simulates it."""

from __future__ import annotations

from typing import Any

from tritonnb.core.json_types import Json
from tritonnb.playground.scenario import GENERATORS, read_arrivals, read_service, read_table
from tritonnb.simulation.arrivals import Arrival, ClosedLoop

_FUNCTIONS = {"constant": "constant", "poisson": "poisson", "bursts": "bursts", "closed": "ClosedLoop"}


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
    if value["kind"] != "list" or isinstance(arrivals, ClosedLoop):
        kind = value["kind"]
        return (
            f"tnb.{_FUNCTIONS[kind]}({_arguments({name: value[name] for name in GENERATORS[kind] if name in value})})"
        )
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
    """A whole number without its fraction, which reads better."""
    return int(number) if number == int(number) else number


def _arguments(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
