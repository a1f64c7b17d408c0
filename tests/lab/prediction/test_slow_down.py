"""Instances that were never recorded at the same time: what is assumed, what is said, and what the ranges contain."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tritonnb as tnb
from tests.lab.prediction.scenarios import random_service
from tests.lab.prediction.shared_machine import SharedMachine
from tritonnb.lab.analysis.slow_down import SlowDown

LARGEST = 8


@given(st.floats(0, 1), st.integers(1, 8), st.integers(1, 8), st.integers(0, 8))
def test_amdahls_law_continues_and_the_bounds_enclose_it(alone: float, least: int, known: int, more: int) -> None:
    def by_law(busy: int) -> float:
        return (1 + alone * (busy - 1)) / (1 + alone * (least - 1))

    slow_down = SlowDown({busy: by_law(busy) for busy in range(least, least + known + 1)})
    busy = slow_down.most + more
    assert slow_down.factor(busy) == pytest.approx(by_law(busy))
    bounds = [slow_down.factor(busy, sharing) for sharing in (-1, -0.5, 0, 0.5, 1)]
    assert bounds == pytest.approx(sorted(bounds))
    # Neither do more instances make an execution shorter, nor do fewer executions end with them.
    assert bounds[0] == pytest.approx(slow_down.factor(slow_down.most))
    assert bounds[-1] / busy == pytest.approx(bounds[0] / slow_down.most)
    assert bool(slow_down.basis(busy)) is bool(more)


def test_number_of_instances_that_was_not_recorded_is_named_wherever_it_is_simulated() -> None:
    config = 'name: "m" max_batch_size: 8 dynamic_batching { }'
    rec = tnb.simulate(config, tnb.poisson(150, 4, seed=1), tnb.fixed(5))
    text = "2 instances at the same time were not recorded"
    assumed = f"{text}: executions are assumed to take 1.00 (1.00 to 2.00) times as long"
    assert assumed in repr(rec.what_if(count=2))
    assert assumed in repr(rec.twin().predict(count=2))
    slowest = max(rec.requests, key=lambda record: record.latency_ns)
    remedy = next(one for one in rec.blame(slowest).remedies.values() if "count" in one.edits)
    assert text in str(remedy)
    assert text not in repr(rec.what_if(max_queue_delay_microseconds=1000))


@pytest.mark.parametrize("slow_down", [0.0, 0.3, 1.0], ids=["share nothing", "share some", "share everything"])
def test_range_of_another_instance_contains_the_truth_whatever_the_instances_share(slow_down: float) -> None:
    seed = random.randrange(10**6)
    rng = random.Random(f"{seed} {slow_down}")
    machine = SharedMachine(random_service(rng), sigma=0.05, slow_down=slow_down)
    rate = LARGEST / machine.service(LARGEST) * 1e9 * rng.uniform(0.4, 0.7)
    arrivals_ns = [
        (np.cumsum([rng.expovariate(rate) for _ in range(round(rate * 6))]) * 1e9).astype(int).tolist() for _ in "12"
    ]
    recorded, after = (machine.record(arrivals_ns[count - 1], count, LARGEST, seed + count) for count in (1, 2))
    p50 = recorded.twin().predict(count=2).latency_p50_ms
    assert p50.low * 0.9 <= after.summary()["latency_p50_ms"] <= p50.high * 1.1, (seed, p50)
