"""Plans: how many replicas and instances, with which configuration, satisfy a constraint."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

import tritonnb as tnb
from tests.lab.prediction.recommended_rates import of_plan
from tritonnb.lab.analysis.constraint import Constraint
from tritonnb.lab.load import notebook_wait
from tritonnb.lab.prediction.plan import Plan
from tritonnb.lab.prediction.plan_search import GROUP
from tritonnb.lab.prediction.resampled_arrivals import rate_of, resampled_arrivals
from tritonnb.lab.prediction.resampled_times import Resampled
from tritonnb.lab.prediction.twin import Twin

CONFIG = 'name: "m" max_batch_size: 8 dynamic_batching { }'
#: A batch takes 5 ms and 1 ms per row, so one instance serves at most 8 / 13 ms = 615 rows/s.
SERVICE = tnb.jittered(tnb.linear(per_row_ms=1, base_ms=5), sigma=0.1)
#: Only the number of replicas is open; one serves at most 4 / 9 ms = 444 rows/s.
FIXED: dict[str, Any] = {
    "count": [1], "max_queue_delay_microseconds": [0], "max_batch_size": [4], "preferred_batch_size": [[]],
}  # fmt: skip
LARGE_RATE = 15_000


@pytest.fixture(scope="module")
def recording() -> tnb.Recording:
    return tnb.simulate(CONFIG, tnb.poisson(450, 4, seed=1), SERVICE, seed=1)


@pytest.fixture(scope="module")
def twin(recording: tnb.Recording) -> Twin:
    """Judged by its own recording once."""
    return recording.twin()


@pytest.fixture(scope="module")
def replicas_for(twin: Twin) -> Callable[[float], Plan]:
    """Return the plan for a rate in which only the number of replicas is open; each is computed once."""
    return cache(lambda rate: twin.plan("p99 < 40 ms", rate=rate, **FIXED))


@pytest.mark.parametrize("rate", [150, 1500])
def test_plan_satisfies_the_constraint_with_the_fewest_replicas(
    replicas_for: Callable[[float], Plan], rate: float
) -> None:
    plan = replicas_for(rate)
    constraint = Constraint("p99 < 40 ms")

    def holds(replicas: int) -> bool:
        kept = tnb.simulate(
            plan.best.config,
            tnb.poisson(rate, 4000 / rate, seed=9),
            SERVICE,
            seed=9,
            replicas=replicas,
            keep="latencies",
        )
        return constraint.holds(kept.latency_ns / 1e6)

    assert holds(plan.best.replicas)
    assert plan.best.replicas == 1 or not holds(plan.best.replicas - 2 or 1)
    assert plan.highest_rate >= rate
    assert plan.runner_up is None


@pytest.mark.usefixtures("short_searches")
@pytest.mark.parametrize(("rate", "spare", "holds_after_loss"), [(600, 0, False), (300, 2, True)])
def test_loss_of_a_replica_is_predicted(twin: Twin, rate: float, spare: int, holds_after_loss: bool) -> None:
    plan = twin.plan("p99 < 40 ms", rate=rate, spare=spare, **FIXED)
    assert plan.holds_after_loss == holds_after_loss
    assert plan.after_loss is not None
    assert plan.after_loss.utilization.value > plan.best.prediction.utilization.value
    assert f"{plan.best.replicas} replicas" in plan.verdict()


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_rate_that_is_recommended_for_a_random_model_is_sustained() -> None:
    """The law allows 5 % of the cases to exceed the bound by more than 5 %: one fresh case is not far above it.

    Cases of pipelines take 30 s: ``recommended_rates.KINDS`` has them.
    """
    seed = random.randrange(10**6)
    assert of_plan(seed, are_uneven=seed % 2 == 1) < 1.5, seed


@pytest.mark.usefixtures("short_searches")
def test_plan_names_the_runner_up_the_margin_and_the_limit_of_the_rate(twin: Twin) -> None:
    plan = twin.plan("p99 < 60 ms", rate=1000, max_queue_delay_microseconds=[0], count=[1])
    assert plan.runner_up is not None
    assert plan.runner_up.edits != plan.best.edits
    assert plan.best.cost <= plan.runner_up.cost
    assert 0 <= plan.margin < 1
    text = repr(plan)
    for part in ("runner-up", "margin", "breaks first", "one replica lost", "replicas were not recorded", "% busy"):
        assert part in text
    assert plan.verdict() in plan._repr_html_().replace("&lt;", "<").replace("&#x27;", "'")


@pytest.mark.usefixtures("short_searches")
def test_too_slow_batch_size_or_instance_is_not_chosen(twin: Twin) -> None:
    tight = twin.plan(
        "p99 < 18 ms", rate=150, **FIXED | {"max_queue_delay_microseconds": [0, 20_000], "max_batch_size": [8]}
    )
    assert tight.best.config.dynamic_batching.max_queue_delay_microseconds == 0
    sizes = twin.plan("p99 < 40 ms", rate=400, **FIXED | {"max_batch_size": [1, 8]})
    assert sizes.best.config.max_batch_size == 8


def test_more_traffic_never_needs_fewer_replicas(replicas_for: Callable[[float], Plan]) -> None:
    replicas = [replicas_for(rate).best.replicas for rate in (150, 1500, LARGE_RATE)]
    assert replicas == sorted(replicas)
    assert LARGE_RATE / 444 <= replicas[-1] <= LARGE_RATE / 444 / 0.8


def test_p99_of_a_group_is_close_to_that_of_all_replicas(twin: Twin, replicas_for: Callable[[float], Plan]) -> None:
    """The p99 of a planned group differs little from that of all replicas, simulated together."""
    plan = replicas_for(LARGE_RATE)
    replicas, rate = plan.best.replicas, LARGE_RATE
    arrivals = tnb.poisson(rate, 600 * replicas / rate, seed=2)
    times = Resampled(twin.times.without_pauses, 2, round(arrivals[-1].time_us * 1000), replicas)
    kept = tnb.simulate(plan.best.config, arrivals, times, replicas=replicas, keep="latencies", seed=2)
    late = kept.received_ns > 0.25 * kept.received_ns.max()
    p99_ms = np.quantile(kept.latency_ns[late] / 1e6, 0.99)
    assert replicas > 2 * GROUP
    assert p99_ms == pytest.approx(plan.best.prediction.latency_p99_ms.value, rel=0.1)


@pytest.mark.usefixtures("short_searches")
@pytest.mark.parametrize("constraint", ["p99 < 40 ms", "p90 < 30 ms", "mean < 25 ms and p95 < 40 ms"])
def test_plan_prints_the_constrained_figures_and_is_judged_by_them(twin: Twin, constraint: str) -> None:
    plan = twin.plan(constraint, rate=600, spare=1, **FIXED)
    bounds = Constraint(constraint).bounds
    assert list(plan.best.constrained) == list(bounds)
    rows = dict(plan.rows())
    for name, bound_ms in bounds.items():
        assert plan.best.constrained[name].high <= bound_ms
        assert rows[f"{name} (ms)"] == str(plan.best.constrained[name])
    lost_holds = all(plan.constrained_after_loss[name].high <= bound_ms for name, bound_ms in bounds.items())
    assert plan.holds_after_loss == lost_holds
    assert plan.best.prediction.utilization.high <= 1
    assert plan.capacity_share <= 0.9
    assert f"with {plan.best.replicas - 1} replicas, after the loss of the spare" in rows["margin"]
    assert "of the capacity" in rows["utilization"]


def test_interrupted_plan_is_what_was_found(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = count()
    assert twin.misfits

    def interrupt(*progress: float) -> str:
        if next(steps) == 30:  # one option is confirmed by 20 simulations
            raise KeyboardInterrupt
        return ""

    monkeypatch.setattr(notebook_wait, "time_left", interrupt)
    plan = twin.plan("p99 < 60 ms", rate=300, **FIXED)
    assert plan.interrupted
    assert plan.verdict().endswith("Interrupted: another plan may be cheaper.")


@pytest.mark.parametrize("share", [1.0, 0.1, 0.001])
def test_share_of_arrivals_has_the_same_share_of_the_rate(recording: tnb.Recording, share: float) -> None:
    recorded = recording.arrivals()
    thinned = resampled_arrivals(recorded, 3, 0.5, share=share, count=4000)
    times = [arrival.time_us for arrival in thinned]
    assert times == sorted(times)
    assert rate_of(thinned) == pytest.approx(2 * share * rate_of(recorded), rel=0.1)


def test_plan_is_exported_for_triton_ray_and_kubernetes(replicas_for: Callable[[float], Plan], tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    plan = replicas_for(1500)
    target = plan.export(tmp_path, model_repository="pvc://claim/models")
    written = text_format.Parse((target / "config.pbtxt").read_text(), pb.ModelConfig())
    assert written.max_batch_size == 4
    [ray] = yaml.safe_load_all((tmp_path / "ray.yaml").read_text())
    assert ray["applications"][0]["args"] == {"model_repository": "/models", "replicas": plan.best.replicas}
    deployment = next(iter(yaml.safe_load_all((tmp_path / "kubernetes.yaml").read_text())))
    assert deployment["spec"]["replicas"] == plan.best.replicas


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"constraint": "p99 < 1 ms", "rate": 10}, "expected a combination with p99 < 1 ms, got none of "),
        ({"constraint": "fast", "rate": 10}, "constraint expected bounds such as"),
        ({"constraint": "p99 < 50 ms", "rate": 0}, "rate must be positive, got 0"),
        ({"constraint": "p99 < 50 ms", "rate": 10, "spare": -1}, "spare expected a number of replicas of at least 0"),
        ({"constraint": "p99 < 50 ms", "rate": 10, "colour": [1]}, "no field 'colour'"),
    ],
)
def test_what_cannot_be_planned_is_refused(twin: Twin, arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(tnb.TritonError, match=complaint):
        twin.plan(**arguments)


@pytest.mark.usefixtures("short_searches")
def test_plan_names_the_stalls_that_violate_the_constraint() -> None:
    times_ns = itertools.cycle([5_000_000] * 19 + [205_000_000])
    stalled = tnb.simulate(CONFIG, [(20_000 * number, 1) for number in range(80)], lambda _: next(times_ns))
    with pytest.raises(tnb.TritonError, match=r"an execution alone takes 5\.00 .*ms; stalls: 3, of 200\.0, 200\.0"):
        stalled.twin().plan("p99 < 50 ms", rate=10, max_batch_size=[1])


@pytest.mark.usefixtures("short_searches")
@pytest.mark.parametrize(
    ("constraint", "seconds", "stall_ms", "remark"),
    [
        ("p95 < 40 ms", 2, 0, "no stall was recorded in 2.0 s: the p95 is not certain, record at least 6 s"),
        ("mean < 30 ms and p99.9 < 60 ms", 2, 0, "the p99.9 is not certain, record at least 300 s"),
        ("p95 < 40 ms", 7, 0, None),
        ("p95 < 99 ms", 2, 80, None),
    ],
)
def test_plan_says_for_which_quantity_the_recording_is_too_short_to_exclude_stalls(
    constraint: str, seconds: int, stall_ms: int, remark: str | None
) -> None:
    """With 0.3 stalls per second, 55 % of the recordings of 2 s contain none, and the p95 was twice as long."""
    times_ms = itertools.chain([5] * 50, [5 + stall_ms], itertools.repeat(5))
    recording = tnb.simulate(CONFIG, [(20_000 * n, 1) for n in range(50 * seconds)], lambda _: next(times_ms) * 10**6)
    remarks = " ".join(recording.twin().plan(constraint, rate=100, **FIXED).best.prediction.remarks)
    assert remark in remarks if remark else "no stall" not in remarks


def test_constraint_that_holds_in_a_part_of_the_simulations_is_refused() -> None:
    """One of 120 executions takes longer: at times that is one request of a hundred, at times not."""
    times_ns = itertools.cycle([5_000_000] * 119 + [205_000_000])
    stalled = tnb.simulate(CONFIG, [(20_000 * number, 1) for number in range(2400)], lambda _: next(times_ns))
    with pytest.raises(tnb.TritonError, match=r"expected a combination with p99 < 50 ms, got none of .*; stalls: 18"):
        stalled.twin().plan("p99 < 50 ms", rate=300, **FIXED | {"max_batch_size": [1, 2]})


@pytest.mark.usefixtures("short_searches")
@pytest.mark.parametrize(
    ("config", "steps"),
    [
        ('name: "m"', 1),
        ('name: "m" max_batch_size: 4', 1),
        (
            'name: "m" max_batch_size: 2 '
            "sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 2 } }",
            2,
        ),
    ],
)
def test_models_without_a_dynamic_batcher_are_planned(config: str, steps: int) -> None:
    """An instance executes 200 requests a second: one after another, or two steps of two requests at a time."""
    arrivals = [tnb.Arrival(ms=20 * number, steps=steps) for number in range(80)]
    plan = tnb.simulate(config, arrivals, tnb.fixed(5)).twin().plan("p99 < 60 ms", rate=300)
    assert 300 / 200 < plan.best.replicas <= 2 * 300 / 200
    assert plan.best.edits == {"m": {}}


def test_sequences_and_short_recordings_are_refused() -> None:
    sequences = tnb.simulate(
        "max_batch_size: 2 sequence_batching { }", tnb.sequences([20, 20], every_ms=10), tnb.fixed(2)
    )
    with pytest.raises(tnb.TritonError, match="at least 40 independent requests, got one of sequences"):
        sequences.twin().plan("p99 < 50 ms", rate=10)
    with pytest.raises(tnb.TritonError, match="at least 40 independent requests, got one of 1 requests at once"):
        tnb.simulate(CONFIG, [(0, 1)], SERVICE).twin().plan("p99 < 50 ms", rate=10)
    with pytest.raises(tnb.TritonError, match="got one of 50 requests at once"):
        tnb.simulate(CONFIG, [(0, 1)] * 50, SERVICE).twin().plan("p99 < 50 ms", rate=10)
