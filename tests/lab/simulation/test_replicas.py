"""Several replicas behind a router, in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

import tritonnb as tnb
from tritonnb.core.errors import InvalidArgumentError

CONFIG = 'name: "m" max_batch_size: 8 dynamic_batching { }'
SEQUENCES = 'name: "m" max_batch_size: 8 sequence_batching { direct { } }'


def replicas_of(recording: tnb.Recording) -> Counter[str]:
    """The number of batches on each replica."""
    return Counter(batch.instance.partition(":")[0] for batch in recording.batches)


def test_simulation_of_one_replica_equals_that_without_a_router() -> None:
    arrivals = tnb.poisson(300, 1, seed=3)
    alone = tnb.simulate(CONFIG, arrivals, tnb.fixed(5))
    routed = tnb.simulate(CONFIG, arrivals, tnb.fixed(5), replicas=1, router="random")
    assert routed.batches == alone.batches


def test_request_that_arrives_when_a_delay_expires_joins_the_batch_with_any_number_of_replicas() -> None:
    config = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 10000 }"
    arrivals = [tnb.Arrival(ms=0), tnb.Arrival(ms=10), tnb.Arrival(ms=25, cancel_us=26_000), tnb.Arrival(ms=26)]
    alone, routed = (
        tnb.simulate(config, arrivals, tnb.fixed(5), replicas=replicas, router=lambda loads: 0) for replicas in (1, 3)
    )
    assert [batch.requests for batch in routed.batches] == [batch.requests for batch in alone.batches] == [(1, 2), (4,)]
    assert routed.refused == alone.refused


def test_round_robin_distributes_requests_equally() -> None:
    arrivals = [tnb.Arrival(ms=10 * number) for number in range(12)]
    recording = tnb.simulate(CONFIG, arrivals, tnb.fixed(1), replicas=3, router="round_robin")
    assert replicas_of(recording) == {"replica 1": 4, "replica 2": 4, "replica 3": 4}


def test_least_loaded_replica_is_the_one_that_is_idle() -> None:
    arrivals = [tnb.Arrival(ms=0), tnb.Arrival(ms=1), tnb.Arrival(ms=2)]
    recording = tnb.simulate(CONFIG, arrivals, tnb.fixed(100), replicas=3, router="least_loaded")
    assert [batch.instance.partition(":")[0] for batch in recording.batches] == ["replica 1", "replica 2", "replica 3"]
    assert [batch.sent_ns for batch in recording.batches] == [0, 1_000_000, 2_000_000]


def test_sequence_stays_on_its_replica() -> None:
    arrivals = [
        tnb.Arrival(ms=step, sequence_id=id, sequence_start=step == 0, sequence_end=step == 9)
        for step in range(10)
        for id in range(1, 7)
    ]
    recording = tnb.simulate(SEQUENCES, arrivals, tnb.fixed(0.1), replicas=4, router="random", seed=1)
    homes: dict[int | str, set[str]] = {}
    for batch in recording.batches:
        for serial in batch.requests:
            if serial is not None:
                homes.setdefault(arrivals[serial - 1].sequence_id, set()).add(batch.instance.partition(":")[0])
    assert all(len(replicas) == 1 for replicas in homes.values())
    assert len(set.union(*homes.values())) > 1


def test_closed_loop_uses_all_replicas() -> None:
    loop = tnb.ClosedLoop(clients=8, requests=80)
    recording = tnb.simulate('name: "m"', loop, tnb.fixed(10), replicas=4, router="least_loaded")
    assert replicas_of(recording) == {f"replica {number}": 20 for number in range(1, 5)}
    assert max(batch.exec_end_ns for batch in recording.batches) == 20 * 10_000_000


def test_function_chooses_a_replica_from_the_loads() -> None:
    seen: list[list[int]] = []

    def last(loads: Sequence[int]) -> int:
        seen.append(list(loads))
        return len(loads) - 1

    recording = tnb.simulate(CONFIG, [tnb.Arrival(ms=0), tnb.Arrival(ms=1)], tnb.fixed(5), replicas=2, router=last)
    assert replicas_of(recording) == {"replica 2": 2}
    assert seen == [[0, 0], [0, 1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": 0}, "model 'm': simulation expected at least 1 replica, got 0"),
        ({"replicas": 2, "router": "hash"}, "router: expected one of 'two_choices', .* or a function, got 'hash'"),
    ],
)
def test_invalid_options_are_errors(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        tnb.simulate(CONFIG, [(0, 1)], tnb.fixed(1), **options)  # type: ignore[call-overload]
