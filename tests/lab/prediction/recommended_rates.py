"""Rates that sweeps and plans recommend for random models, pipelines and instances, and what then happens.

Each function returns the constrained figure over its bound in 30,000 requests of simulated truth, at the recommended
rate and with another seed; 0 if nothing was recommended, since many bounds are below the time of a batch.
``python -m tests.lab.prediction.recommended_rates CASES [FIRST_SEED]`` tries a number of fresh cases of each kind.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

import tritonnb as tnb
from tests.lab.prediction.scenarios import StallingMachine, Uneven, random_service
from tritonnb.lab.analysis.constraint import Constraint, measure
from tritonnb.lab.analysis.interference import Company, Interference, companies
from tritonnb.lab.load.trial import SimulatedTrials, Stopping
from tritonnb.lab.simulation.calls import calling
from tritonnb.lab.simulation.run import capacity, instance_count
from tritonnb.lab.simulation.service import Draw, Service, VaryingService
from tritonnb.model_config.read import read_config
from tritonnb.recording.arrivals import Arrival

REQUESTS = 30_000
QUANTITIES = ("p50", "p90", "p95", "p99", "p99.9", "mean")
TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'


class Beside(VaryingService):
    """A model of a pipeline, slower while others are executed."""

    def __init__(self, times: VaryingService, company: Company) -> None:
        self.function = times.function
        self.times = times
        self.company = company

    def draws(self, seed: int) -> Draw:
        """Return the times of one run."""
        draw = self.times.draws(seed)
        return self.company.reporting(lambda rows, now, *rest: draw(rows, now, *rest) * self.company.slow_down(now))


def random_bound(rng: random.Random, batch_ms: float) -> tuple[str, float, str]:
    """Return a quantity, its bound in ms and the constraint, for executions of a time."""
    quantity, bound_ms = rng.choice(QUANTITIES), rng.uniform(1.2, 8) * batch_ms
    return quantity, bound_ms, f"{quantity} < {bound_ms:.3f} ms"


def random_machine(rng: random.Random, seed: int, replicas: int = 1) -> StallingMachine:
    """Return a machine with stalls, on as many servers."""
    sigma, per_s, stall_ms = rng.choice((0.0, 0.1, 0.3)), rng.choice((0.0, 0.0, 0.3, 1.0)), rng.uniform(20, 80)
    return StallingMachine(random_service(rng), sigma, per_s * replicas, stall_ms, seed)


def outcome(models: Any, service: Any, rate: float, quantity: str, seed: int, replicas: int, rows: list[int]) -> float:
    """Return the quantity in ms of 30,000 requests."""
    rng = random.Random(seed)
    sent = [Arrival(one.time_us, rng.choice(rows)) for one in tnb.poisson(rate, REQUESTS / rate, seed=seed)]
    kept = tnb.simulate(models, sent, service, seed=seed, replicas=replicas, keep="latencies")
    latencies_ms: npt.NDArray[np.float64] = kept.latency_ns / 1e6
    return measure(latencies_ms, quantity)


def _planned(rec: tnb.Recording, constraint: str, rate: float, models: Mapping[str, Any]) -> Any:
    try:
        return rec.twin().plan(constraint, models, rate=rate)
    except tnb.TritonError as refusal:
        if "expected a combination with" not in str(refusal):
            raise
        return None


def of_plan(seed: int, are_uneven: bool = False) -> float:
    """Plan a model, with instances of different speed if asked."""
    rng = random.Random(f"{seed} plan")
    largest, count = rng.choice((4, 8)), rng.choice((2, 3) if are_uneven else (1, 2, 3))
    speeds = [rng.choice((1.0, 1.5, 2.5, 4.0)) if are_uneven else 1.0 for _ in range(count)]
    slow_down, rows = rng.choice((0.0, 0.0, 0.2)), rng.choice(([1], [1], [1, 2, 3]))
    config = (
        f'name: "m" max_batch_size: {largest} dynamic_batching {{ max_queue_delay_microseconds: '
        f"{rng.choice((0, 0, 2000))} }} instance_group {{ count: {count} kind: KIND_CPU }}"
    )

    def truth(replicas: int) -> Uneven:
        return Uneven(random_machine(random.Random(f"{seed} machine"), seed, replicas), speeds, slow_down)

    machine = truth(1)
    most = capacity(read_config(config), machine.function) / fmean(rows) / fmean(speeds) / (1 + slow_down)
    recorded = rng.uniform(0.2, 0.7) * most
    sent = [Arrival(one.time_us, rng.choice(rows)) for one in tnb.poisson(recorded, 3000 / recorded, seed=seed)]
    rec = tnb.simulate(config, sent, machine, seed=seed)
    quantity, bound_ms, constraint = random_bound(rng, max(speeds) * machine.function(largest) / 1e6)
    fields = {
        "count": [count],
        "max_queue_delay_microseconds": [0],
        "max_batch_size": [largest],
        "preferred_batch_size": [[]],
    }
    plan = _planned(rec, constraint, rng.choice((0.5, 1.5, 2.5)) * most, {"m": fields})
    if plan is None:
        return 0.0
    assert plan.capacity_share <= 0.9
    replicas = plan.best.replicas
    service = truth(replicas)
    return outcome(plan.best.config, service, plan.highest_rate, quantity, seed + 1, replicas, rows) / bound_ms


def random_pipeline(rng: random.Random) -> dict[str, str]:
    """Return a chain, or a fork with a join, of two to four models."""
    count, forks = rng.randint(2, 4), rng.random() < 0.5
    models = {}
    steps = []
    for number in range(count):
        source = "X" if number == 0 else "t0" if forks else f"t{number - 1}"
        result = "Y" if number == count - 1 else f"t{number}"
        steps.append(
            f'step {{ model_name: "s{number}" model_version: -1 input_map {{ key: "X" value: "{source}" }} '
            f'output_map {{ key: "Y" value: "{result}" }} }}'
        )
        batching = rng.choice(("", "dynamic_batching { }", "dynamic_batching { max_queue_delay_microseconds: 2000 }"))
        models[f"s{number}"] = (
            f"max_batch_size: 8 {batching} {TENSORS} instance_group {{ count: {rng.choice((1, 1, 2))} kind: KIND_CPU }}"
        )
    outputs = "".join(f'output {{ name: "t{n}" data_type: TYPE_FP32 dims: 1 }}' for n in range(1, count - 1) if forks)
    whole = f'platform: "ensemble" max_batch_size: 8 {TENSORS} {outputs} ensemble_scheduling {{ {" ".join(steps)} }}'
    return {**models, "all": whole}


def pipeline_truth(seed: int, steps: list[str], interferes: bool) -> Callable[[int], dict[str, Service]]:
    """Return the times of the models of a pipeline on a number of servers, in which they may slow each other down."""
    rng = random.Random(f"{seed} truth")
    factors = {one: {two: rng.choice((1.0, 1.2, 1.5)) for two in steps if two != one} for one in steps}
    known = {
        one: {two: Interference(factor, 0.0, 99, 99) for two, factor in others.items()}
        for one, others in factors.items()
    }

    def truth(replicas: int) -> dict[str, Service]:
        machines: dict[str, Service] = {
            name: random_machine(random.Random(f"{seed} {name}"), seed + at, replicas) for at, name in enumerate(steps)
        }
        if not interferes:
            return machines
        beside = companies(known, machines=replicas)
        return {name: Beside(one, beside[name]) for name, one in machines.items()}  # type: ignore[arg-type]

    return truth


def random_model(rng: random.Random) -> dict[str, str]:
    """Return a model, at times with a delay above the bound or with a preferred size."""
    delay_us, preferred = rng.choice((0, 1000, 60_000)), rng.choice(("", "preferred_batch_size: 6"))
    batching = f"dynamic_batching {{ max_queue_delay_microseconds: {delay_us} {preferred} }}"
    return {"m": f"max_batch_size: 8 {batching} instance_group {{ count: {rng.choice((1, 2, 3, 8))} kind: KIND_CPU }}"}


def of_sweep(seed: int, is_pipeline: bool = False) -> float:
    """Search the highest rate of a model, or of an ensemble, with given times."""
    rng = random.Random(f"{seed} sweep")
    models = {
        name: read_config(text, name=name)
        for name, text in (random_pipeline if is_pipeline else random_model)(rng).items()
    }
    steps = [name for name in models if name != "all"]
    truth = pipeline_truth(seed, steps, interferes=False)
    batch_ms = sum(truth(1)[name](8) for name in steps) / 1e6
    quantity, bound_ms, constraint = random_bound(rng, batch_ms)
    trials = SimulatedTrials(Constraint(constraint), seed, truth(1))
    rows = rng.choice((1, 1, 3, 5))

    def arrivals(rate: float, number: int, count: int) -> list[Arrival]:
        return tnb.poisson(rate, max(2000, count) / rate, seed=number, rows=rows) or [Arrival(0, rows)]

    found = trials.find_highest_rate(arrivals, math.inf, Stopping(), {}, models)
    if not found.meets:
        return 0.0
    assert found.capacity_share <= 0.9
    return outcome(models, truth(1), found.rate, quantity, seed + 1, 1, [rows]) / bound_ms


def of_pipeline_plan(seed: int) -> float:
    """Plan an ensemble whose models slow each other down."""
    rng = random.Random(f"{seed} pipeline")
    models = random_pipeline(rng)
    steps = [name for name in models if name != "all"]
    truth = pipeline_truth(seed, steps, interferes=True)
    times = truth(1)
    most = min(capacity(read_config(models[name]), times[name]) for name in steps) / 1.5
    recorded = rng.uniform(0.2, 0.6) * most
    rec = tnb.simulate(models, tnb.poisson(recorded, 3000 / recorded, seed=seed), times, seed=seed)
    quantity, bound_ms, constraint = random_bound(rng, sum(times[name](8) for name in steps) / 1e6)
    fields = {
        name: {
            "count": [instance_count(read_config(models[name]))],
            **({"max_queue_delay_microseconds": [0]} if "dynamic_batching" in models[name] else {}),
        }
        for name in steps
    }
    plan = _planned(rec, constraint, rng.choice((0.5, 1.5, 2.5)) * most, fields)
    if plan is None:
        return 0.0
    replicas = plan.best.replicas
    assert plan.capacity_share <= 0.9
    configs = dict(plan.best.models.configs)
    return outcome(configs, truth(replicas), plan.highest_rate, quantity, seed + 1, replicas, [1]) / bound_ms


def of_caller_plan(seed: int) -> float:
    """Plan a model that calls another one, and waits for it."""
    rng = random.Random(f"{seed} caller")
    models = {
        "caller": f"max_batch_size: 0 instance_group {{ count: {rng.choice((1, 2, 4))} kind: KIND_CPU }}",
        "net": f"max_batch_size: 8 dynamic_batching {{ }} instance_group {{ count: {rng.choice((1, 2))} }}",
    }
    calls = rng.choice((["net"], ["net", "net"], [["net", "net"]]))

    def truth(replicas: int) -> dict[str, Any]:
        machine = random_machine(random.Random(f"{seed} net"), seed, replicas)
        return {"caller": calling(calls, before_ms=1, between_ms=2, after_ms=1), "net": machine}

    net_ms = truth(1)["net"](1) / 1e6
    alone = instance_count(read_config(models["caller"])) * 1000 / (3 + 2 * net_ms)
    recorded = rng.uniform(0.2, 0.5) * alone
    rec = tnb.simulate(models, tnb.poisson(recorded, 2000 / recorded, seed=seed), truth(1), seed=seed)
    quantity, bound_ms, constraint = random_bound(rng, 3 + 2 * net_ms)
    fields = {
        "caller": {"count": [instance_count(read_config(models["caller"]))]},
        "net": {"count": [instance_count(read_config(models["net"]))], "max_queue_delay_microseconds": [0]},
    }
    plan = _planned(rec, constraint, rng.choice((0.5, 1.5, 2.5)) * alone, fields)
    if plan is None:
        return 0.0
    replicas = plan.best.replicas
    configs = dict(plan.best.models.configs)
    return outcome(configs, truth(replicas), plan.highest_rate, quantity, seed + 1, replicas, [1]) / bound_ms


#: What recommends a rate, by what is asked about.
KINDS: dict[str, Callable[[int], float]] = {
    "plan": of_plan,
    "plan of instances of different speed": lambda seed: of_plan(seed, are_uneven=True),
    "plan of a pipeline": of_pipeline_plan,
    "plan of a model that calls another one": of_caller_plan,
    "sweep": of_sweep,
    "sweep of a pipeline": lambda seed: of_sweep(seed, is_pipeline=True),
}


def main(count: int, first: int) -> None:
    """Print how many recommended rates exceed their bound by more than 5 %, of a number of cases of each kind."""
    everything: list[float] = []
    for kind, of_seed in KINDS.items():
        excesses = []
        for seed in range(first, first + count):
            excesses.append(of_seed(seed))
            print(f"{kind}, seed {seed}: {excesses[-1]:.2f} of the bound", flush=True)
        everything += excesses
        print(_summary(kind, excesses), flush=True)
    print(_summary("all", everything))


def _summary(kind: str, excesses: list[float]) -> str:
    recommended = [excess for excess in excesses if excess]
    exceeded = sum(excess > 1.05 for excess in recommended)
    return (
        f"| {kind} | {len(excesses)} cases | {len(recommended)} rates | {exceeded} exceeded | "
        f"largest {max(recommended, default=0):.2f} of the bound |"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else random.randrange(10**6))
