"""Mistakes in what is simulated: arrivals, workloads, service times, configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tritonnb as tnb
from tests.mistakes import BATCHING, FORMS, text_of


@pytest.mark.parametrize(
    ("arrivals", "words"),
    [
        ([5], "arrivals expected Arrival or (time in µs, rows), got 5"),
        ([(0, 9)], "inference request batch-size must be <= 3 for 'simulated', got 9"),
        ([(-1, 1)], "Arrival expected a time in µs of at least 0, and rows of at least 1, got -1 and 1"),
        ([(0, 0)], "Arrival expected a time in µs of at least 0, and rows of at least 1, got 0 and 0"),
        ([("a", 1)], "Arrival expected a time in µs of at least 0, and rows of at least 1, got 'a' and 1"),
        ([(0, 1.5)], "Arrival expected a time in µs of at least 0, and rows of at least 1, got 0 and 1.5"),
        (5, "arrivals expected a list of Arrival or of (time in µs, rows), got 5"),
    ],
)
def test_invalid_arrival_is_refused(arrivals: list[Any], words: str) -> None:
    assert text_of(lambda: tnb.simulate(BATCHING, arrivals, tnb.fixed(1))) == words


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: tnb.poisson(0, 1, seed=1), "rate must be positive, got 0"),
        (lambda: tnb.poisson(1, 1, seed="x"), "seed expected an integer, got 'x'"),  # type: ignore[arg-type]
        (lambda: tnb.worksheet(seed="x"), "seed expected an integer, got 'x'"),  # type: ignore[arg-type]
        (lambda: tnb.prompts(seed=None), "seed expected an integer, got None"),  # type: ignore[arg-type]
        (lambda: tnb.simulate(BATCHING, [(0, 1)], tnb.fixed(1), seed=0.5), "seed expected an integer, got 0.5"),  # type: ignore[call-overload]
        (lambda: tnb.constant(5, -1), "duration must be positive, got -1"),
        (lambda: tnb.bursts(2, 0, 1), "every_ms must be positive, got 0"),
        (lambda: tnb.sequences([2, 0], every_ms=0.005), "length must be positive, got 0"),
        (
            lambda: tnb.sequences(3, every_ms=0.005),  # type: ignore[arg-type]
            "lengths expected a list of integers, got 3",
        ),
        (lambda: tnb.ClosedLoop(0, 5), "clients must be positive, got 0"),
        (lambda: tnb.ClosedLoop(2, 5, think_ms=-1), "think_ms must not be negative, got -1"),
        (
            lambda: tnb.table({}),
            "table expected a dict from batch sizes to milliseconds with at least one entry, got {}",
        ),
        (lambda: tnb.measured([]), "statistics expected a dict with 'batch_stats', got list"),  # type: ignore[arg-type]
        (
            lambda: tnb.measured({"model_stats": [{"name": "a"}, {"name": "b"}]}),
            "statistics expected one model in 'model_stats', got 'a', 'b': give one entry",
        ),
        (
            lambda: tnb.measured({}),
            "statistics expected at least one execution in batch_stats, got none; send requests to the model first",
        ),
        (lambda: tnb.theory("rec"), "theory expected a recording, got str"),  # type: ignore[arg-type]
        (
            lambda: tnb.worksheet().check(5),  # type: ignore[arg-type]
            "answer expected a string such as 'A BC' or a list such as ['A', 'BC'] or [['A'], ['B', 'C']], got 5",
        ),
    ],
)
def test_invalid_workload_or_service_time_is_refused(mistake: Callable[[], object], words: str) -> None:
    assert text_of(mistake) == words


@pytest.mark.parametrize(
    ("config", "service", "words"),
    [
        (None, tnb.fixed(1), f"configuration expected {FORMS}, got None"),
        ("/no/m.pbtxt", tnb.fixed(1), "cannot read the configuration '/no/m.pbtxt': No such file or directory"),
        (
            "max_batch_size: -1",
            tnb.fixed(1),
            "'max_batch_size' must be non-negative value for simulated; set max_batch_size: 0",
        ),
        (
            "max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }",
            tnb.fixed(1),
            "dynamic batching preferred size must be <= max batch size for simulated; keep preferred sizes from 1 to 4",
        ),
        (
            'name: "m" ensemble_scheduling { }',
            tnb.fixed(1),
            "model 'm': simulation expected a model that is executed, got an ensemble; simulate it with the models "
            "of its steps: tnb.simulate(repository, arrivals, {step: service, ...})",
        ),
        (BATCHING, 5, "service expected a function or a dict of functions, got 5"),
        (
            BATCHING,
            tnb.fixed(-1),
            "service model expected a time in ms of at least 0 for 1 row, got -1",
        ),
    ],
)
def test_impossible_simulation_is_refused(config: Any, service: Any, words: str) -> None:
    assert text_of(lambda: tnb.simulate(config, [(0, 1)], service)) == words


def test_simulation_that_refuses_all_requests_names_the_reason() -> None:
    rec = tnb.simulate("max_batch_size: 4 sequence_batching { }", [(0, 1), (5, 1)], tnb.fixed(1))
    assert rec.verdict() == (
        "Nothing was executed: 2 refused, the first with 'inference request to model 'simulated' must specify a "
        "non-zero or non-empty correlation ID'."
    )


def test_mistake_in_a_field_of_a_sweep_is_named() -> None:
    rec = tnb.simulate(BATCHING, [(0, 1)], tnb.fixed(1))
    assert text_of(lambda: rec.median_ms(2)) == "no batch of 2 rows ran"
    assert text_of(lambda: rec.what_if(max_queue_delay=3)) == (
        "model 'simulated': the configuration has no field 'max_queue_delay'; did you mean "
        "'max_queue_delay_microseconds'?"
    )
