"""Theory and measurement agree where theory holds."""

from __future__ import annotations

import math

import pytest

import tritonnb as tnb

UNLIMITED = 'name: "m" max_batch_size: 100000 dynamic_batching { }'


def simulated(rate: float, alpha_ms: float, tau0_ms: float, config: str = UNLIMITED) -> tnb.Recording:
    arrivals = tnb.poisson(rate, 8_000 / rate, seed=1)
    return tnb.simulate(config, arrivals, tnb.linear(per_row_ms=alpha_ms, base_ms=tau0_ms))


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "tau0"), [(0.2, 5), (1, 1)])
@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_latency_obeys_littles_law_and_inoues_bound(alpha: float, tau0: float, load: float) -> None:
    theory = tnb.theory(simulated(1000 * load / alpha, alpha, tau0))
    assert theory.alpha_ms == pytest.approx(alpha, rel=0.01)
    assert theory.tau0_ms == pytest.approx(tau0, rel=0.01)
    assert theory.expected_in_system == pytest.approx(theory.in_system, rel=1e-6)
    assert theory.latency_bound_ms is not None
    assert 0.9 * theory.latency_bound_ms < theory.latency_ms < 1.01 * theory.latency_bound_ms


@pytest.mark.slow
def test_unbatched_requests_are_an_m_d_1_queue() -> None:
    theory = tnb.theory(simulated(rate=70, alpha_ms=0, tau0_ms=10, config='name: "m" max_batch_size: 1'))
    assert theory.latency_ms == pytest.approx(theory.unbatched_latency_ms, rel=0.05)
    assert theory.load == pytest.approx(0.7, rel=0.02)
    assert theory.latency_bound_ms is None
    assert "without batching the latency would be" in theory.verdict()


def test_batches_sustain_a_rate_that_single_requests_cannot() -> None:
    config = (
        'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 100 } instance_group { count: 2 }'
    )
    theory = tnb.theory(simulated(rate=900, alpha_ms=0, tau0_ms=10, config=config))
    assert theory.saturation == pytest.approx(1600)
    assert theory.load == pytest.approx(900 / 1600, rel=0.05)
    assert math.isinf(theory.unbatched_latency_ms)
    assert theory.latency_bound_ms is None
    assert "would be overloaded" in repr(theory)
    assert "Inoue" not in theory._repr_html_()
    assert theory.to_dict()["saturation"] == theory.saturation


def test_recording_of_one_model_is_needed() -> None:
    with pytest.raises(tnb.TritonError, match="of one model, got one of no model"):
        tnb.theory(tnb.Recording())


def test_overload_compares_the_offered_rate() -> None:
    theory = tnb.theory(tnb.simulate("max_batch_size: 1", tnb.poisson(300, 5, seed=1), tnb.fixed(10)))
    assert theory.rate == pytest.approx(300, rel=0.05)
    assert theory.throughput == pytest.approx(100, rel=0.01)
    assert theory.load == pytest.approx(3, rel=0.05)
    assert theory.overloaded
    assert theory.expected_in_system == pytest.approx(theory.in_system, rel=1e-6)
    assert theory.verdict().startswith("Overloaded: ")
    assert "100 requests/s are served" in theory.verdict()


def test_offered_load_includes_requests_that_a_full_queue_refuses() -> None:
    config = "max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
    rec = tnb.simulate(config, tnb.poisson(300, 5, seed=1), tnb.fixed(10))
    assert rec.refused
    assert tnb.theory(rec).load == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("requests", [24, 400])
def test_closed_loop_is_never_overloaded(requests: int) -> None:
    theory = tnb.theory(tnb.simulate(UNLIMITED, tnb.ClosedLoop(clients=8, requests=requests), tnb.fixed(10)))
    assert theory.rate == pytest.approx(theory.throughput, rel=0.1)
    assert not theory.overloaded


def test_simultaneous_requests_have_no_arrival_rate() -> None:
    theory = tnb.theory(tnb.simulate("max_batch_size: 1", [(0, 1)] * 8, tnb.fixed(10)))
    assert theory.rate == theory.throughput == pytest.approx(100)
    assert not theory.overloaded
