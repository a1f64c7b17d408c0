"""What models of a pipeline cost each other, on a machine with stalls: a stall is not the work of another model."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tritonnb as tnb
from tests.lab.prediction import recommended_rates
from tests.laws import law
from tools.differential.random_pipelines import random_pipeline
from tritonnb.lab.simulation.service import Draw, VaryingService
from tritonnb.recording.arrivals import Arrival

#: The parts of a recording: shares of the rate that the slowest model can execute.
RATES = (0.05, 0.12, 0.3, 0.7)


class Stalling(VaryingService):
    """Times that do not depend on other models; a share of the executions stalls."""

    def __init__(self, ms: float, share: float, stall_ms: float) -> None:
        self.function = tnb.fixed(ms)
        self._share, self._stall_ns = share, stall_ms * 1e6

    def draws(self, seed: int) -> Draw:
        rng = random.Random(f"{seed} {self.function(1)}")

        def draw(rows: int, *_: int) -> float:
            stall_ns = rng.expovariate(1 / self._stall_ns) if rng.random() < self._share else 0.0
            return self.function(rows) * math.exp(rng.gauss(0.0, 0.05)) + stall_ns

        return draw


@law(40)
@given(seed=st.integers(0, 10**9))
def test_models_that_run_together_on_a_machine_with_stalls_cost_each_other_nothing(seed: int) -> None:
    choose = random.Random(seed)
    pipeline = random_pipeline(choose, unit_ms=3.0)
    times = {
        name: Stalling(ms, choose.choice((0.0, 0.05, 0.15)), choose.choice((10, 30)))
        for name, ms in pipeline.base_ms.items()
    }
    most = 1000 / max(pipeline.base_ms.values())
    arrivals = [
        Arrival(one.time_us + part * 2e6)
        for part, share in enumerate(RATES)
        for one in tnb.poisson(share * most, 2, seed=seed + part)
    ]
    twin = tnb.simulate({name: str(config) for name, config in pipeline.configs.items()}, arrivals, times).twin()
    for name, ms in pipeline.base_ms.items():
        assert twin.range_ms(1, name).value == pytest.approx(ms, rel=0.1)
    for one in twin.interference.pairs.values():
        # A pair that was rarely together may be off by chance, and says by how much.
        assert 1.0 <= one.factor <= math.exp(0.1 + 2 * one.deviation)


def test_models_that_begin_at_the_same_time_do_not_hide_what_they_cost_each_other() -> None:
    """A simulated step begins when the step before it ends, and so does the next batch of that step."""
    models = recommended_rates.random_pipeline(random.Random("954801 pipeline"))
    steps = [name for name in models if name != "all"]
    times = recommended_rates.pipeline_truth(954801, steps, interferes=True)(1)
    rec = tnb.simulate(models, tnb.poisson(60, 50, seed=954801), times, seed=954801)
    assert rec.twin().interference.pairs["s1", "s0"].factor == pytest.approx(1.5, rel=0.06)
