"""Scenarios as plain values: what they mean, what is rejected, and the Python program of each."""

from __future__ import annotations

from typing import Any

import pytest

import tritonnb as tnb
from docs.playground.presets import PRESETS, preset
from docs.playground.scenario import python_code, read_arrival, read_arrivals, read_service, write_arrival
from docs.playground.session import simulate_scenario
from tests.playground.random_scenarios import random_scenarios


@pytest.mark.parametrize("scenario", random_scenarios(60, seed=3))
def test_arrival_survives_saving_and_loading(scenario: dict[str, Any]) -> None:
    arrivals = read_arrivals(scenario["arrivals"])
    if isinstance(arrivals, list):
        for arrival in arrivals:
            again = read_arrival(write_arrival(arrival))
            assert again.time_us == pytest.approx(arrival.time_us, abs=1e-6)
            assert (again.rows, again.sequence_id, again.steps) == (
                arrival.rows, arrival.sequence_id, arrival.steps,
            )  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_python_program_makes_the_same_recording(name: str) -> None:
    program = python_code(preset(name)).replace("recording.view()", "")
    variables: dict[str, Any] = {}
    exec(program, variables)
    assert variables["recording"].events == simulate_scenario(preset(name)).events


REJECTED = [
    ({"kind": "waves"}, "arrivals expected one of the kinds list, constant, poisson, bursts, closed, got 'waves'"),
    ({"kind": "poisson", "rate": "fast", "duration": 1}, "poisson arrivals: 'rate' expected a number, got 'fast'"),
    ({"kind": "poisson", "rate": 1e9, "duration": 1}, "arrivals expected at most 5000 requests in this page"),
    ({"kind": "bursts", "requests": 1.5, "every_ms": 1, "duration": 1}, "'requests' expected a whole number, got 1.5"),
    ({"kind": "list", "requests": [{"rows": 1}]}, "request: 'ms' expected a number, got None"),
    ({"kind": "list", "requests": [7]}, "request expected an object with 'ms', got 7"),
    ({"kind": "list", "requests": [{"ms": -1}]}, "a time in ms of at least 0"),
    (None, "arrivals expected one of the kinds"),
]


@pytest.mark.parametrize(("value", "message"), REJECTED)
def test_arrivals_of_a_link_that_are_wrong_are_described(value: Any, message: str) -> None:
    with pytest.raises(tnb.TritonError, match=message.replace("(", r"\(")):
        read_arrivals(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kind": "fixed", "ms": -1}, "service times: 'ms' expected at least 0 ms, got -1"),
        ({"kind": "linear", "per_row_ms": 1}, "service times: 'base_ms' expected a number, got None"),
        ({"kind": "table", "ms": {}}, "service times expected at least one row of the table, got none"),
        ({"kind": "table", "ms": {"0": 1}}, "service times expected a number of rows of at least 1, got '0'"),
    ],
)
def test_service_times_of_a_link_that_are_wrong_are_described(value: Any, message: str) -> None:
    with pytest.raises(tnb.TritonError, match=message):
        read_service(value)
