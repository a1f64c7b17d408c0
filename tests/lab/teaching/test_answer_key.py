"""The answers in docs/teaching.md are what the simulator says."""

from __future__ import annotations

from pathlib import Path

import pytest

import tritonnb as tnb

TEXT = " ".join((Path(__file__).parents[3] / "docs" / "teaching.md").read_text("utf-8").split())

FIVE = [(0, 4), (0, 2), (50_000 / 3, 2), (100_000 / 3, 6), (100_000 / 3, 2)]


@pytest.mark.parametrize(
    ("batching", "total_ms", "answer"),
    [
        ("", 250, "250 ms. 16 rows are two full executions, and the last rows arrive at 33 ms: 133 ms at best"),
        ("dynamic_batching { }", 150, "150 ms"),
        ("dynamic_batching { max_queue_delay_microseconds: 20000 }", 117, "Two full batches, 117 ms."),
    ],
)
def test_five_requests(batching: str, total_ms: int, answer: str) -> None:
    run = tnb.simulate(f"max_batch_size: 8 {batching}", FIVE, tnb.fixed(50))
    assert round(max(batch.exec_end_ns for batch in run.batches) / 1e6) == total_ms
    assert answer in TEXT


@pytest.mark.parametrize(("preferred", "has_eight"), [("[8]", True), ("[]", True), ("[4, 8]", True), ("[2, 6]", False)])
def test_batch_of_eight(preferred: str, has_eight: bool) -> None:
    batching = f"preferred_batch_size: {preferred} max_queue_delay_microseconds: 300000"
    config = f"max_batch_size: 8 dynamic_batching {{ {batching} }}"
    run = tnb.simulate(config, [(0, 6), *((10_000 * number + 1000, 1) for number in range(8))], tnb.fixed(100))
    assert (8 in run.batch_sizes()) == has_eight
    assert "any list of preferred sizes with 8, or none" in TEXT


def direct(idle: str = "", delay: str = "") -> tnb.Recording:
    """The first example of lesson 04."""
    config = f"max_batch_size: 2 sequence_batching {{ {idle} direct {{ {delay} }} }} instance_group {{ count: 2 }}"
    begin = [(name, 30 * place) for place, name in enumerate("012345")]
    middle = [(name, at_ms + 180) for name, at_ms in begin]
    end = [(name, 360 + 60 * place) for place, name in enumerate("201345")]
    arrivals = [
        tnb.Arrival(ms=at_ms, sequence_id=name, sequence_start=step is begin, sequence_end=step is end)
        for step in (begin, middle, end)
        for name, at_ms in step
    ]
    return tnb.simulate(config, arrivals, tnb.fixed(20))


def null_requests(run: tnb.Recording) -> int:
    return sum(request is None for batch in run.batches for request in batch.requests)


def test_idle_sequences() -> None:
    run = direct(idle="max_sequence_idle_microseconds: 100000")
    assert (len(run.requests), len(run.refused)) == (6, 12)
    assert "6 requests are executed, 12 refused" in TEXT


def test_fewest_null_requests() -> None:
    plain = direct()
    waiting = direct(delay="max_queue_delay_microseconds: 60000 minimum_slot_utilization: 1")
    assert (null_requests(plain), null_requests(waiting)) == (9, 0)
    assert (len(plain.batches), len(waiting.batches)) == (18, 9)
    assert (plain.summary()["latency_p50_ms"], waiting.summary()["latency_p50_ms"]) == (20, 80)
    assert "none instead of 9, in 9 instead of 18 batches. The median latency is 80 ms instead of 20 ms" in TEXT


@pytest.mark.parametrize(("limit", "clients"), [(4, 5), (8, 9), (16, 17)])
def test_clients_of_full_batches(limit: int, clients: int) -> None:
    config = f"max_batch_size: {limit} dynamic_batching {{ }}"
    fewer, enough = (
        tnb.simulate(config, tnb.ClosedLoop(clients=count, requests=20 * count), tnb.fixed(20)).batch_sizes()
        for count in (clients - 1, clients)
    )
    assert limit not in fewer
    assert set(enough) == {1, limit}
    assert "one more than `max_batch_size`: 5, 9, 17" in TEXT


def test_delay_of_the_lowest_median() -> None:
    run = tnb.simulate(
        "max_batch_size: 10 dynamic_batching { }", [(200 * number, 1) for number in range(100)], tnb.fixed(1)
    )
    full = run.what_if(max_queue_delay_microseconds=2000).after
    assert (round(run.summary()["latency_p50_ms"], 1), round(full.summary()["latency_p50_ms"], 1)) == (1.6, 1.9)
    assert set(full.batch_sizes()) == {10}
    assert "no delay, 1.6 ms; the fullest batches, with 2 ms, have 1.9 ms" in TEXT
