"""Random ensembles of two to five models, with service times: chains, diamonds, steps with several readers, calls."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import tritonnb as tnb
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.simulation.calls import CallingService, ExecutionPlan, Planner
from tritonnb.lab.simulation.engine import SimulatedRequest
from tritonnb.lab.simulation.service import Service
from tritonnb.scheduling.decisions import Decision
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.from_config import make_scheduler

ENSEMBLE = "pipeline"
#: The batches of each model: the positions of their requests among the requests of clients.
Batches = dict[str, list[list[int]]]


#: The model that the model of a step may call.
CALLED = "called"


@dataclass
class RandomPipeline:
    """An ensemble, its configurations by name, and its traffic.

    ``calls`` has the number of calls that each request of a model makes, one after another, by its name. Its times are
    about a few ``unit_ms``: changes of ``tolerance_ms`` must not change the batches of a stable pipeline.
    """

    unit_ms: float
    calls: dict[str, int] = field(default_factory=dict)
    configs: dict[str, pb.ModelConfig] = field(default_factory=dict)
    base_ms: dict[str, float] = field(default_factory=dict)
    row_ms: dict[str, float] = field(default_factory=dict)
    arrivals: list[tnb.Arrival] = field(default_factory=list)

    @property
    def services(self) -> dict[str, Service]:
        """The service time of each model."""
        times = {name: tnb.linear(per_row_ms=self.row_ms[name], base_ms=base) for name, base in self.base_ms.items()}
        return times | {name: self._calling(name, self.base_ms[name]) for name in self.calls}

    def _calling(self, name: str, before_ms: float) -> Service:
        return tnb.calling([(CALLED, self.calls[name])], before_ms=before_ms)

    @property
    def tolerance_ms(self) -> float:
        """How late executions and arrivals may be."""
        return self.unit_ms / 4

    def batches(self, rng: random.Random | None = None) -> Batches:
        """Simulate the pipeline; with ``rng`` executions and requests are a little late."""
        if rng is None:
            return batches_by_step(tnb.simulate(self.configs, self.arrivals, self.services))

        def late_ms() -> float:
            return rng.uniform(0, self.tolerance_ms)

        def slower(service: Service) -> Service:
            if isinstance(service, CallingService):
                return _LateCalls(service, late_ms)
            return tnb.service_time(partial(_later, service, late_ms), unit="ms")

        arrivals = [tnb.Arrival(one.time_us + 1000 * late_ms(), one.rows) for one in self.arrivals]
        services = {name: slower(service) for name, service in self.services.items()}
        return batches_by_step(tnb.simulate(self.configs, arrivals, services))

    def batches_like(self, observed: Batches) -> Batches:
        """Simulate the pipeline with the order of Triton's threads that the observed batches show: see `ThreadRace`."""
        positions = {id(one): number for number, one in enumerate(self.arrivals)}

        def create(config: pb.ModelConfig, *options: Any) -> Any:
            scheduler = make_scheduler(config, *options)
            batches = observed.get(config.name, [])
            return ThreadRace(scheduler, batches, positions) if isinstance(scheduler, DynamicBatcher) else scheduler

        with patch("tritonnb.lab.simulation.run.make_scheduler", create):
            return self.batches()


class ThreadRace:
    """A dynamic batcher that takes the responses of a batch of an earlier step as the observed batches say.

    A thread of Triton delivers them one by one. The first wakes the thread of an idle batcher, which takes that
    request alone, or with the others if these are there before it runs.

    Parameters
    ----------
    scheduler : DynamicBatcher
    observed : list of list of int
        The observed batches: the positions of their requests.
    positions : dict of int to int
        The position of the arrival with this identity.
    """

    def __init__(self, scheduler: DynamicBatcher, observed: list[list[int]], positions: dict[int, int]) -> None:
        self._scheduler = scheduler
        self._joint = {position for batch in observed if len(batch) > 1 for position in batch}
        self._positions = positions
        self._held: list[SimulatedRequest] = []
        self._now = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    @property
    def next_wake_ns(self) -> int | None:
        """When the batcher wakes by itself: with requests that it has not looked at, immediately."""
        return self._now if self._held else self._scheduler.next_wake_ns

    def enqueue(self, request: SimulatedRequest, now: int) -> Sequence[Decision]:
        """Handle the arrival of a request; it waits for those that are delivered with it if they shared a batch."""
        scheduler = self._scheduler
        is_idle = scheduler.instances.idle and not scheduler.queue.size and not scheduler.settings.max_queue_delay_ns
        if self._held or (is_idle and self._positions.get(id(request.arrival)) in self._joint):
            self._held.append(request)
            self._now = now
            return ()
        return scheduler.enqueue(request, now)

    def wake(self, now: int) -> Sequence[Decision]:
        """Look at the requests that came together, or do what is due."""
        if not self._held:
            return self._scheduler.wake(now)
        *others, last = self._held
        self._held = []
        for request in others:
            self._scheduler.add(request, now)
        return self._scheduler.enqueue(last, now)

    def instance_idle(self, instance: int, now: int) -> Sequence[Decision]:
        """Handle an instance that has become idle."""
        return [*(self.wake(now) if self._held else ()), *self._scheduler.instance_idle(instance, now)]


@dataclass(frozen=True)
class _LateCalls(CallingService):
    """A model that calls others, with executions that are a little late."""

    service: CallingService
    late_ms: Callable[[], float]

    @property
    def models(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.service.models

    def __call__(self, rows: int) -> float:
        return self.service(rows)

    def plans(self, seed: int) -> Planner:
        plan_of = self.service.plans(seed)

        def plan(rows: Sequence[int]) -> ExecutionPlan:
            first, *others = (plan := plan_of(rows)).calls
            late_ns = round(self.late_ms() * 1e6)
            return replace(plan, calls=(replace(first, own_ns=first.own_ns + late_ns), *others))

        return plan


def _later(service: Service, late_ms: Callable[[], float], rows: int) -> float:
    return service(rows) / 1e6 + late_ms()


def random_pipeline(
    rng: random.Random, requests: int = 12, unit_ms: float = 10, calls_share: float = 0.0
) -> RandomPipeline:
    """Draw a pipeline; its times are about a few units. In a share of the pipelines, a model calls another one."""
    pipeline = RandomPipeline(unit_ms)
    tensors = ["X"]
    steps = []
    for number in range(rng.randint(2, 5)):
        name, config = f"m{number}", pb.ModelConfig(name=f"m{number}", backend="python", max_batch_size=8)
        if rng.random() < 0.8:
            config.dynamic_batching.SetInParent()
            config.dynamic_batching.max_queue_delay_microseconds = rng.choice(
                (0, 0, round(rng.uniform(1, 3) * unit_ms * 1000))
            )
        config.instance_group.add(count=rng.choice((1, 1, 2)), kind="KIND_CPU")
        inputs = rng.sample(tensors, min(len(tensors), rng.choice((1, 1, 2))))
        for index in range(len(inputs)):
            config.input.add(name=f"I{index}", data_type="TYPE_FP32", dims=[1])
        config.output.add(name="O", data_type="TYPE_FP32", dims=[1])
        steps.append((name, inputs, f"t{number}"))
        tensors.append(f"t{number}")
        pipeline.configs[name] = config
        pipeline.base_ms[name] = round(rng.uniform(0.5, 4) * unit_ms, 1)
        pipeline.row_ms[name] = rng.choice((0.0, round(0.2 * unit_ms, 1)))
    if rng.random() < calls_share:
        _add_call(pipeline, rng.choice(list(pipeline.configs)), rng)
    ensemble = pb.ModelConfig(name=ENSEMBLE, platform="ensemble", max_batch_size=8)
    ensemble.input.add(name="X", data_type="TYPE_FP32", dims=[1])
    read = {tensor for _, inputs, _ in steps for tensor in inputs}
    for name, inputs, output in steps:
        step = ensemble.ensemble_scheduling.step.add(model_name=name, model_version=-1, output_map={"O": output})
        step.input_map.update({f"I{index}": tensor for index, tensor in enumerate(inputs)})
        if output not in read:
            ensemble.output.add(name=output, data_type="TYPE_FP32", dims=[1])
    pipeline.configs[ENSEMBLE] = ensemble
    time_ms = 0.0
    for _ in range(requests):
        pipeline.arrivals.append(tnb.Arrival(ms=round(time_ms, 1), rows=rng.choice((1, 1, 2, 3))))
        time_ms += rng.choice((0.3, 1, 2)) * unit_ms * rng.random()
    return pipeline


def _add_call(pipeline: RandomPipeline, caller: str, rng: random.Random) -> None:
    """Let a model execute one request at a time, and call another model for it."""
    called = pb.ModelConfig(name=CALLED, backend="python", max_batch_size=8, dynamic_batching={})
    called.instance_group.add(count=1, kind="KIND_CPU")
    called.input.add(name="I0", data_type="TYPE_FP32", dims=[1])
    called.output.add(name="O", data_type="TYPE_FP32", dims=[1])
    pipeline.configs = {CALLED: called, **pipeline.configs}  # loaded first
    pipeline.base_ms[CALLED], pipeline.row_ms[CALLED] = round(rng.uniform(0.5, 2) * pipeline.unit_ms, 1), 0.0
    pipeline.configs[caller].ClearField("dynamic_batching")
    pipeline.row_ms[caller], pipeline.calls[caller] = 0.0, rng.choice((1, 2))


def stable_pipeline(rng: random.Random, unit_ms: float = 10) -> RandomPipeline:
    """Draw a pipeline whose batches a few milliseconds do not change."""
    while True:
        pipeline = random_pipeline(rng, unit_ms=unit_ms, calls_share=0.3)
        expected = pipeline.batches()
        if all(pipeline.batches(rng) == expected for _ in range(12)):
            return pipeline


def batches_by_step(rec: tnb.Recording) -> Batches:
    """The batches of each step's model: the positions of their requests among the requests of clients."""
    members: dict[tuple[str, int], list[int]] = defaultdict(list)
    roots = sorted(rec.pipelines[ENSEMBLE].requests, key=lambda root: (root.received_ns, root.serial))
    for position, root in enumerate(roots):
        for step in root.walk():
            if step.record is not None:
                members[step.model, step.record.batch].append(position)
    batches: dict[str, list[list[int]]] = defaultdict(list)
    for (model, _), positions in members.items():
        batches[model].append(sorted(positions))
    return {model: sorted(groups) for model, groups in batches.items()}
