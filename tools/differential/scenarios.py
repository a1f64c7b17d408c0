"""Random configurations and arrivals whose outcome does not depend on a few milliseconds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

from tools.differential.thread_order import ThreadOrder
from tritonnb.lab.simulation.engine import SimulatedRequest
from tritonnb.model_config.parse import parse_text
from tritonnb.recording.arrivals import Arrival
from tritonnb.scheduling.decisions import Execute, Scheduler
from tritonnb.scheduling.from_config import make_scheduler
from tritonnb.scheduling.virtual_time import VirtualTime

#: A live execution takes this much longer than its sleep, in ms.
OVERHEAD_MS = 1.0
#: How far arrivals and executions may be off, in ms, and how many variations a scenario must stand.
JITTER_MS, VARIATIONS = 5.0, 24

Batches = list[tuple[int, ...]]


@dataclass(frozen=True)
class Request:
    """One request of a scenario; ``width`` is its variable dimension, ``optional`` whether it has the second input."""

    at_ms: float
    rows: int
    width: int = 1
    optional: bool = False


@dataclass(frozen=True)
class Scenario:
    """A configuration, and the requests that are sent to it."""

    max_batch_size: int
    batching: str
    instances: int
    execution_ms: float
    row_ms: float
    variable: bool
    requests: tuple[Request, ...]

    def config(self, name: str = "recorder") -> str:
        """Return the *config.pbtxt*."""
        parameters = "".join(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '
            for key, value in (("EXECUTION_MS", self.execution_ms), ("ROW_MS", self.row_ms))
        )
        dims = -1 if self.variable else 1
        optional = 'input { name: "O" data_type: TYPE_FP32 dims: [1] optional: true } ' if self.has_optional else ""
        return (
            f'name: "{name}" backend: "python" max_batch_size: {self.max_batch_size} '
            f'input {{ name: "X" data_type: TYPE_FP32 dims: [{dims}] }} {optional}'
            f'output {{ name: "Y" data_type: TYPE_FP32 dims: [{dims}] }} '
            f"instance_group {{ kind: KIND_CPU count: {self.instances} }} {parameters}"
            f"dynamic_batching {{ {self.batching} }}"
        )

    @property
    def has_optional(self) -> bool:
        """True if the model has an optional input."""
        return any(request.optional for request in self.requests)

    @property
    def checks_inputs(self) -> bool:
        """True if some requests cannot share a batch because of their inputs."""
        return len({self._batch_key(request) for request in self.requests}) > 1

    def simulate(self) -> Batches:
        """Return the batches that the simulator forms: each the indices of its requests."""
        return self._run(())[0]

    def outcomes(self) -> Iterator[Batches]:
        """Yield the batches that Triton can form, first those of the simulator: see `ThreadOrder`."""
        untried: list[tuple[bool, ...]] = [()]
        while untried:
            order = untried.pop()
            batches, races = self._run(order)
            yield batches
            untried += [(*order, *[False] * skipped, True) for skipped in range(races - len(order))]

    def _run(self, order: tuple[bool, ...]) -> tuple[Batches, int]:
        """Return the batches with an order of threads, and how often two threads raced."""
        scheduler = ThreadOrder(make_scheduler(parse_text(self.config()).config, self.instances, {}), order)
        time = VirtualTime(cast(Scheduler, scheduler), self._execution_ns, [0] * self.instances)
        for index, request in enumerate(self.requests):
            arrival = Arrival(0.0, request.rows, batch_key=self._batch_key(request))
            time.arrive(round(request.at_ms * 1e6), SimulatedRequest(arrival, index))
        time.run()
        batches = [tuple(request.serial for request in batch.decision.requests) for batch in time.batches]
        return sorted(batches), scheduler.races

    def _execution_ns(self, decision: Execute) -> int:
        return int((self.execution_ms + OVERHEAD_MS + self.row_ms * decision.size) * 1e6)

    def _batch_key(self, request: Request) -> object:
        if self.has_optional:
            return request.width, request.optional
        return request.width if self.variable else None

    def is_stable(self, rng: random.Random) -> bool:
        """Return whether the same batches form when arrivals and executions are a few milliseconds off."""
        expected = self.simulate()
        for _ in range(VARIATIONS):
            requests = tuple(
                replace(request, at_ms=max(0.0, request.at_ms + rng.uniform(-JITTER_MS, JITTER_MS) / 2))
                for request in self.requests
            )
            longer = self.execution_ms + rng.uniform(0, JITTER_MS)
            if replace(self, requests=requests, execution_ms=longer).simulate() != expected:
                return False
        return True


def random_scenario(rng: random.Random) -> Scenario:
    """Return a scenario, not necessarily a stable one."""
    largest = rng.choice([2, 4, 8, 8, 16])
    delay_ms = rng.choice([0, 10, 10, 20, 50, 80, 120, 150, 300, 700])
    count = min(rng.choice([0, 0, 0, 1, 2, 3]), largest - 1)
    preferred = sorted(rng.sample(range(2, largest + 1), count))
    batching = f"preferred_batch_size: {preferred} " if preferred else ""
    batching += f"max_queue_delay_microseconds: {delay_ms * 1000}" if delay_ms else ""
    variable, optional = rng.random() < 0.2, rng.random() < 0.15
    gaps = rng.choice([[13, 17, 23, 27, 33, 37, 43, 63, 117], [13, 17, 23], [43, 63, 117, 210]])
    requests, at_ms = [], 0.0
    for _ in range(rng.randint(4, rng.choice([9, 9, 25]))):
        rows = rng.choice([1, 1, 1, 2, 3]) if largest >= 4 else 1
        width = rng.choice([1, 1, 1, 2]) if variable else 1
        requests.append(Request(at_ms, rows, width, optional and rng.random() < 0.3))
        at_ms += rng.choice(gaps)
    return Scenario(
        largest,
        batching,
        instances=rng.choice([1, 1, 1, 2, 3]),
        execution_ms=rng.choice([30, 100, 100, 100, 180, 620]),
        row_ms=rng.choice([0, 0, 5]),
        variable=variable,
        requests=tuple(requests),
    )


def stable_scenario(rng: random.Random, checks_inputs: bool = False) -> Scenario:
    """Return the next random scenario whose outcome a few milliseconds do not change.

    With ``checks_inputs`` some of its requests cannot share a batch because of their inputs.
    """
    while True:
        scenario = random_scenario(rng)
        if (scenario.checks_inputs or not checks_inputs) and scenario.is_stable(rng):
            return scenario
