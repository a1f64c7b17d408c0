"""Sending times of the requests of a load."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

import tritonnb as tnb
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.load.workload import ClosedLoopWorkload, OpenLoop, workload


def arrivals(**arguments: Any) -> list[tnb.Arrival]:
    traffic = workload(**arguments)
    assert isinstance(traffic, OpenLoop)
    return list(traffic.arrivals)


def test_arrival_processes_equal_those_of_simulations() -> None:
    assert arrivals(rate=100, duration=0.1) == tnb.constant(100, 0.1)
    assert arrivals(rate=100, duration=1, arrivals="poisson", seed=3) == tnb.poisson(100, 1, seed=3)
    assert arrivals(rate=100, duration=0.2, arrivals="burst", burst=5) == tnb.bursts(5, 50, 0.2)


def test_open_loop_without_a_limit_is_endless() -> None:
    traffic = workload(rate=1000)
    assert isinstance(traffic, OpenLoop)
    assert [arrival.time_us for arrival in islice(traffic.arrivals, 5000)][-1] == 4999 * 1000


def test_requests_limit_an_open_loop() -> None:
    assert len(arrivals(rate=1000, requests=7)) == 7
    assert len(arrivals(arrivals=[(0, 1), (9, 2), (5, 1)], requests=2)) == 2


def test_list_is_sent_in_order_of_time() -> None:
    assert [(arrival.time_us, arrival.rows) for arrival in arrivals(arrivals=[(9, 2), (0, 1)])] == [(0, 1), (9, 2)]


def test_recording_can_be_replayed_as_load() -> None:
    rec = tnb.simulate("max_batch_size: 8 dynamic_batching { }", [(0, 4), (100, 2)], tnb.fixed(1))
    assert [(arrival.time_us, arrival.rows) for arrival in arrivals(arrivals=rec.arrivals())] == [(0, 4), (100, 2)]


def test_sequences_take_turns_and_each_has_start_and_end() -> None:
    sent = arrivals(rate=1000, requests=12, sequence_length=3, sequences=2)
    ids = [request.sequence_id for request in sent]
    first, second = ids[:2]
    assert ids[:6] == [first, second] * 3
    assert not {first, second} & set(ids[6:])
    assert [request.sequence_start for request in sent[:6]] == [True, True, False, False, False, False]
    assert [request.sequence_end for request in sent[:6]] == [False, False, False, False, True, True]
    assert [request.time_us for request in sent] == [1000 * number for number in range(12)]


def test_no_two_loads_share_a_correlation_id() -> None:
    one, other = (arrivals(rate=1000, requests=9, sequence_length=3) for _ in range(2))
    assert not {request.sequence_id for request in one} & {request.sequence_id for request in other}


def test_each_client_of_a_closed_loop_sends_separate_sequences() -> None:
    traffic = workload(clients=2, sequence_length=2)
    assert isinstance(traffic, ClosedLoopWorkload)
    one, other = ([next(dealer) for _ in range(4)] for dealer in traffic.client_requests())
    assert [request.sequence_end for request in one] == [False, True, False, True]
    assert one[0].sequence_id == one[1].sequence_id
    assert len({request.sequence_id for request in [*one, *other]}) == 4


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "workload expected rate=300"),
        ({"arrivals": "poisson"}, "workload expected rate=300"),
        ({"rate": 0}, "rate must be positive, got 0"),
        ({"rate": 5, "duration": -1}, "duration must be positive"),
        ({"clients": 0}, "clients must be positive"),
        ({"rate": 5, "clients": 5}, "rate cannot be combined with a closed loop"),
        ({"rate": 5, "arrivals": "sometimes"}, "arrivals expected one of constant, poisson, burst"),
        ({"rate": 5, "arrivals": [(0, 1)]}, "rate cannot be combined with a list of arrivals"),
        ({"arrivals": []}, "got an empty list"),
        ({"arrivals": [(-1, 1)]}, "Arrival expected a time in µs of at least 0"),
        ({"arrivals": tnb.ClosedLoop(2, 9), "clients": 2}, "clients cannot be combined with a ClosedLoop"),
        ({"rate": 5, "sequence_length": -1}, "sequence_length expected 0 or more, got -1"),
        ({"rate": 5, "sequence_length": 0, "stateful": True}, "sequence_length of a stateful model expected 1 or more"),
        ({"arrivals": [(0, 1)], "stateful": True}, "expected a sequence_id, got none in the list"),
    ],
)
def test_invalid_workload_options_are_named(arguments: Any, complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        workload(**arguments)
