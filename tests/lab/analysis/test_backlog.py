"""Recordings that begin in the middle of a load: earlier requests, which they do not contain, keep instances busy."""

from __future__ import annotations

import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tritonnb as tnb
from tests.lab.prediction.recommended_rates import TENSORS
from tests.laws import law
from tritonnb.lab.analysis.draft_replay import replay_draft


def later_part(rec: tnb.Recording, share: float) -> tnb.Recording:
    """Return what a recording contains that begins after a share of the time of another one."""
    first_ns, last_ns = rec.span_ns
    begin_ns = first_ns + share * (last_ns - first_ns)
    return tnb.Recording([event for event in rec.events if event.time_ns >= begin_ns], rec.configs)


def random_config(rng: random.Random, largest: int) -> str:
    """Return a configuration of a model with up to three instances."""
    batching = rng.choice(("dynamic_batching { }", "dynamic_batching { max_queue_delay_microseconds: 4000 }"))
    count = rng.choice((1, 2, 3))
    return f'name: "m" max_batch_size: {largest} {batching} instance_group {{ count: {count} kind: KIND_CPU }}'


@law(40)
@given(seed=st.integers(0, 10**6), share=st.floats(0.1, 0.6))
def test_backlog_is_repeated_exactly_if_batches_have_one_request(seed: int, share: float) -> None:
    rng = random.Random(seed)
    config = random_config(rng, largest=1)
    count = int(config.partition("count: ")[2][0])
    whole = tnb.simulate(config, tnb.poisson(rng.uniform(80, 115) * count, 3, seed=seed), tnb.fixed(10))
    rec = later_part(whole, share)
    again = rec.what_if()
    arrived = rec.arrived
    recorded = [(batch.exec_start_ns, batch.exec_end_ns) for batch in rec.batches if batch.requests[0] in arrived]
    begin_ns = rec.first_arrival_ns
    assert sorted((begin + begin_ns, end + begin_ns) for begin, end in _spans(again.before)) == sorted(recorded)
    assert again.differences == {}


def _spans(rec: tnb.Recording) -> list[tuple[int, int]]:
    return [(batch.exec_start_ns, batch.exec_end_ns) for batch in rec.batches]


def test_recording_that_begins_in_a_backlog_is_reproduced() -> None:
    """The first batch may have had more requests, which the recording does not contain: the rest differs by little."""
    first = random.randrange(10**6)
    errors = []
    for seed in range(first, first + 30):
        rng = random.Random(seed)
        config = random_config(rng, largest=8)
        count = int(config.partition("count: ")[2][0])
        rate = rng.uniform(0.5, 0.95) * count * 8 / 0.02
        whole = tnb.simulate(config, tnb.poisson(rate, 3, seed=seed), tnb.linear(1, 12))
        again = later_part(whole, rng.uniform(0.1, 0.6)).what_if()
        assert again.recorded is not None
        recorded, before = again.recorded.summary(), again.before.summary()
        errors.append(abs(before["mean_batch_size"] / recorded["mean_batch_size"] - 1))
    # From an empty server, 0.9 %.
    assert fmean(errors) < 0.005, first


def chain(tokens: str) -> dict[str, str]:
    """Return a chain of two models."""
    steps = "".join(
        f'step {{ model_name: "{name}" model_version: -1 input_map {{ key: "X" value: "{source}" }} '
        f'output_map {{ key: "Y" value: "{result}" }} }} '
        for name, source, result in (("tokens", "X", "t"), ("net", "t", "Y"))
    )
    return {
        "tokens": f"max_batch_size: 8 {tokens} {TENSORS}",
        "net": f"max_batch_size: 8 dynamic_batching {{ }} {TENSORS}",
        "all": f'platform: "ensemble" max_batch_size: 8 {TENSORS} ensemble_scheduling {{ {steps} }}',
    }


@law(40)
@given(seed=st.integers(0, 10**6), share=st.floats(0.1, 0.6))
def test_recording_of_a_pipeline_that_begins_in_a_backlog_is_reproduced(seed: int, share: float) -> None:
    rng = random.Random(seed)
    models = chain(rng.choice(("", "dynamic_batching { }")))
    times = {"tokens": tnb.fixed(8), "net": tnb.linear(1, 10)}
    whole = tnb.simulate(models, tnb.poisson(rng.uniform(60, 118), 5, seed=seed), times)
    assert later_part(whole, share).what_if({}).differences == {}


@pytest.mark.parametrize("count", [1, 2])
def test_wait_for_the_delay_or_an_idle_instance_is_no_backlog(count: int) -> None:
    batching = "dynamic_batching { max_queue_delay_microseconds: 20000 }"
    config = f'name: "m" max_batch_size: 8 {batching} instance_group {{ count: {count} }}'
    rec = tnb.simulate(config, tnb.poisson(20, 3, seed=1), tnb.fixed(10))
    at_once = rec.what_if(max_queue_delay_microseconds=0).after
    assert at_once.requests[0].queue_ns == 0
    assert max(request.queue_ns for request in at_once.requests) <= 10_000_000


@pytest.mark.parametrize("seed", [4, 5, 6])
def test_preview_of_a_draft_continues_the_backlog(seed: int) -> None:
    config = 'name: "m" max_batch_size: 1 dynamic_batching { }'
    rec = tnb.simulate(config, tnb.poisson(99, 20, seed=seed), tnb.fixed(10))
    replay = replay_draft(rec, rec.configs["m"])
    for name, value in replay.recorded.items():
        assert replay.figures()[name][0] == pytest.approx(value, rel=0.01)
