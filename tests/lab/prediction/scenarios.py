"""Random recordings with rare batch sizes, stalls and bursts, and what the same server then does: simulated truth."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tritonnb as tnb
from tritonnb.lab.simulation.run import capacity
from tritonnb.lab.simulation.service import Draw, Service, VaryingService
from tritonnb.recording.arrivals import Arrival

NS = 1_000_000


class StallingMachine(VaryingService):
    """Execution times by size that vary, on a machine that stalls at random times.

    The first execution that begins during a stall takes longer by the time that is left of it, whatever its size.

    Parameters
    ----------
    typical : Service
    sigma : float
        Standard deviation of the logarithm of the variation.
    stalls_per_s : float
    stall_ms : float
        Mean duration of a stall.
    seed : int
    """

    def __init__(self, typical: Service, sigma: float, stalls_per_s: float, stall_ms: float, seed: int) -> None:
        self.function = typical
        self.sigma = sigma
        self.stalls_per_s = stalls_per_s
        self.stall_ms = stall_ms
        self.seed = seed

    def draws(self, seed: int) -> Draw:
        """Return the times of one run; stalls do not depend on what the server does."""
        rng, stalling = random.Random(f"{self.seed} {seed}"), random.Random(f"{self.seed} {seed} stalls")
        next_ns, end_ns = self._next(stalling, 0)

        def draw(rows: int, now_ns: int, busy: int, idle_ns: int, server_idle_ns: int, instance: int) -> float:
            nonlocal next_ns, end_ns
            stalled_ns = 0.0
            while next_ns <= now_ns:
                stalled_ns = max(stalled_ns, end_ns - now_ns)
                next_ns, end_ns = self._next(stalling, next_ns)
            return float(self.function(rows)) * math.exp(rng.gauss(0.0, self.sigma)) + stalled_ns

        return draw

    def _next(self, rng: random.Random, after_ns: float) -> tuple[float, float]:
        """Return the begin and the end of the next stall."""
        if not self.stalls_per_s:
            return math.inf, math.inf
        begin_ns = after_ns + rng.expovariate(self.stalls_per_s) * 1e9
        return begin_ns, begin_ns + rng.uniform(0.5, 1.5) * self.stall_ms * NS


class Uneven(VaryingService):
    """Instances of different speed, of which several at a time slow each other down."""

    def __init__(self, machine: StallingMachine, speeds: Sequence[float], slow_down: float = 0.0) -> None:
        self.function = machine.function
        self.machine = machine
        self.speeds = speeds
        self.slow_down = slow_down

    def draws(self, seed: int) -> Draw:
        """Return the times of one run."""
        time_ns = self.machine.draws(seed)

        def draw(rows: int, now_ns: int, busy: int, idle_ns: int, server_idle_ns: int, instance: int) -> float:
            factor = self.speeds[instance] * (1 + self.slow_down * (busy - 1))
            return time_ns(rows, now_ns, busy, idle_ns, server_idle_ns, instance) * factor

        return draw


def random_service(rng: random.Random) -> Service:
    """Return times by size: constant, linear, in steps (padded batches), or proportional from some size on."""
    base, per_row = rng.uniform(3, 12), rng.uniform(0.1, 1.5)
    step, knee = rng.choice((2, 4)), rng.randint(2, 6)
    return rng.choice(
        (
            tnb.fixed(base),
            tnb.linear(per_row_ms=per_row, base_ms=base),
            tnb.linear(per_row_ms=per_row, base_ms=base),
            tnb.service_time(lambda rows: base + per_row * step * math.ceil(rows / step), unit="ms"),
            tnb.service_time(lambda rows: base * max(1.0, rows / knee), unit="ms"),
        )
    )


@dataclass(frozen=True)
class Scenario:
    """A server with traffic, the recording of it, and an edit with a rate, whose outcome is to be predicted.

    Attributes
    ----------
    seed : int
    service : Service
    machine : StallingMachine
    config : str
    recording : Recording
    edits : dict
    rate : float
        Requests per second after the edit.
    """

    seed: int
    service: Service
    machine: StallingMachine
    config: str
    recording: tnb.Recording
    edits: dict[str, Any]
    rate: float

    def arrivals(self, seed: int, seconds: float | None = None) -> list[Arrival]:
        """Return other arrivals of the same kind, at the rate after the edit, for as long as was recorded."""
        recorded = self.recording.arrivals()
        return _traffic(self.seed, seed, self.rate, seconds or recorded[-1].time_us / 1e6)

    def outcome(self, seed: int) -> tnb.Recording:
        """Return what the server then does."""
        from tritonnb.model_config.editable_config import with_overrides

        config = with_overrides(next(iter(self.recording.configs.values())), self.edits)
        return tnb.simulate(config, self.arrivals(seed), self.machine, seed=seed)


def _traffic(kind: int, seed: int, rate: float, seconds: float) -> list[Arrival]:
    """Return arrivals with several rows at times, and with bursts at times; ``kind`` decides which."""
    choose, rng = random.Random(f"{kind} traffic"), random.Random(f"{kind} {seed}")
    weights = choose.choice(((1,), (1,), (6, 2, 1), (1, 1)))
    bursts_per_s = choose.choice((0.0, 0.0, 0.3, 1.0))
    burst = choose.randint(4, 12)
    rest = max(0.3 * rate, rate - bursts_per_s * burst)
    arrivals = tnb.poisson(rest, seconds, seed=rng.randrange(2**31))
    begins_us = [rng.uniform(0, seconds * 1e6) for _ in range(round(bursts_per_s * seconds))]
    times_us = sorted([one.time_us for one in arrivals] + [begin_us for begin_us in begins_us for _ in range(burst)])
    rows = rng.choices(range(1, len(weights) + 1), weights, k=len(times_us))
    return [Arrival(time_us, size) for time_us, size in zip(times_us, rows, strict=True)]


def random_scenario(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    rng = random.Random(f"{seed} scenario")
    service = random_service(rng)
    largest, count = rng.choice((4, 8, 8, 16)), rng.choice((1, 2, 2, 3))
    delay_us = rng.choice((0, 0, 1000, 4000))
    config = (
        f'name: "m" max_batch_size: {largest} dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }} '
        f"instance_group {{ count: {count} kind: KIND_CPU }}"
    )
    machine = StallingMachine(
        service,
        sigma=rng.choice((0.0, 0.05, 0.1, 0.2)),
        stalls_per_s=rng.choice((0.0, 0.2, 0.5, 1.5)),
        stall_ms=rng.uniform(20, 80),
        seed=seed,
    )
    # Rare sizes: instances are idle at most times, and batches larger than a few rows form in bursts or after stalls.
    alone = count * 1e9 / service(1)
    rate = rng.uniform(0.15, 0.6) * alone
    recorded = tnb.simulate(config, _traffic(seed, 0, rate, rng.uniform(500, 1500) / rate), machine, seed=1)
    edits: dict[str, Any] = rng.choice(
        (
            {},
            {"count": max(1, count - 1)},
            {"count": count + 1},
            {"max_batch_size": max(4, largest // 2)},
            {"max_queue_delay_microseconds": rng.choice((0, 2000, 6000))},
        )
    )
    edited = edits.get("count", count)
    most = 0.75 * _capacity(edited, edits.get("max_batch_size", largest), service)
    after = min(rng.choice((1.0, 1.0, 0.8, 1.25)) * rate, most)
    return Scenario(seed, service, machine, config, recorded, edits, after)


def _capacity(count: int, largest: int, service: Service) -> float:
    from tritonnb.model_config.read import read_config

    config = read_config(f"max_batch_size: {largest} dynamic_batching {{ }} instance_group {{ count: {count} }}")
    return capacity(config, service) / 1.5  # requests have up to three rows
