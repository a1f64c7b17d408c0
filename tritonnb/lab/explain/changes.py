"""What a change of the configuration would give: simulations that agree with the figures, as ranges."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.explain.batches import instances_of
from tritonnb.lab.explain.figures import Figures
from tritonnb.lab.simulation.arrivals import Arrivals, ClosedLoop, poisson
from tritonnb.lab.simulation.service import Service, fixed, linear, table
from tritonnb.lab.simulation.simulate import simulate
from tritonnb.scheduling.from_config import queue_delay_ns

#: A simulation that differs by more from the measured rate, or the mean batch, does not explain the figures.
_RATE_TOLERANCE, _BATCH_TOLERANCE = 0.2, 0.35
#: Requests of a simulation, and the most clients.
_REQUESTS, _MOST_CLIENTS = 2000, 2000
#: A simulation is at least as wrong about a change as it is about what was measured, and by this share: so far were
#: Triton's rates after a change (tests/lab/explain/test_real_outputs.py).
_ERROR = 0.1
#: A change that improves neither rate nor latency by this share has no effect.
_EFFECT = 0.03


#: A service, and the time in ms that a client is outside of the server.
Fit = tuple[Service, float]


@dataclass(frozen=True)
class Outcome:
    """Requests per second and mean latency in ms (server and client) of a simulation."""

    rate: float
    latency_ms: float


def effects(figures: Figures, config: pb.ModelConfig | None) -> list[str]:
    """Return a sentence for each change, or one that says why nothing can be simulated."""
    if config is None:
        return ["A configuration is needed to simulate a change: add the config.pbtxt"]
    if config.HasField("sequence_batching") or config.HasField("ensemble_scheduling") or figures.steps:
        return ["Averages do not determine a model of sequences or an ensemble: record it with a trace"]
    if not figures.rate or not figures.execution_ms or not (figures.mean_rows or config.max_batch_size <= 1):
        return ["Rate, executions and their time are needed to simulate a change; see what to measure next"]
    if (figures.clients or 0) > _MOST_CLIENTS:
        return [f"More than {_MOST_CLIENTS} clients are not simulated"]
    if not instances_of(config):
        config = copy.deepcopy(config)
        del config.instance_group[:]
        config.instance_group.add(count=1, kind=pb.ModelInstanceGroup.KIND_CPU)
    fits = [fit for fit in _possible(figures) if _agrees(figures, _outcome(figures, config, fit))]
    if not fits:
        return [
            "No simulation of this configuration gives the measured rate and batches, so what a change gives cannot be "
            "said: the figures are averages of different times, or something beside the batcher decides"
        ]
    return [_sentence(figures, config, fits, *change) for change in _changes(config, figures)]


def _possible(figures: Figures) -> Iterator[Fit]:
    """Yield services and times outside of the server: of each client the mean, or of the last client of a batch.

    A batch that waits for all clients waits for the slowest, and a mean does not tell how slow that one is: about as
    slow as the slowest of as many clients whose times are exponential.
    """
    clients = min(figures.clients or 1, _MOST_CLIENTS)
    outside = _outside_ms(figures)
    slowest = sum(1 / number for number in range(1, round(clients) + 1))
    for service in _services(figures):
        yield from ((service, outside * factor) for factor in dict.fromkeys((1.0, slowest if outside else 1.0)))


def _outside_ms(figures: Figures) -> float:
    server = (figures.queue_ms or 0) + (figures.compute_ms or 0)
    return max(0.0, (figures.latency_ms or server) - server) if figures.clients else 0.0


def _services(figures: Figures) -> Iterator[Service]:
    """Yield the extremes that the figures leave open: the time of an execution does or does not depend on its rows."""
    execution, rows = figures.execution_ms or 0.0, figures.mean_rows or figures.request_rows or 1.0
    if len(figures.sizes) > 1:
        yield table({size: ms for size, (_, ms) in figures.sizes.items()})
    else:
        yield fixed(execution)
        yield linear(per_row_ms=execution / rows, base_ms=0.0)


def _outcome(figures: Figures, config: pb.ModelConfig, fit: Fit) -> tuple[Outcome, float]:
    service, outside = fit
    rows = figures.request_rows or max(1, round((figures.mean_rows or 1) / (figures.mean_requests or 1)))
    rows = min(rows, config.max_batch_size) or 1
    arrivals: Arrivals
    if figures.clients:
        clients = round(figures.clients)
        arrivals = ClosedLoop(clients, max(_REQUESTS, 8 * clients), outside, rows)
    else:
        arrivals = poisson(figures.rate or 1, _REQUESTS / (figures.rate or 1), seed=1, rows=rows)
    summary = simulate(config, arrivals, service, keep="summary")
    batches = summary["mean_batch_size"]
    latency = summary["latency_mean_ms"] if "latency_mean_ms" in summary else summary["latency_p50_ms"]
    if figures.clients:
        latency = figures.clients / summary["rate"] * 1e3 - outside  # Little's law: the mean
    return Outcome(summary["rate"], latency + outside), batches


def _agrees(figures: Figures, simulated: tuple[Outcome, float]) -> bool:
    outcome, batch = simulated
    near_rate = abs(outcome.rate / (figures.rate or 1) - 1) <= _RATE_TOLERANCE
    return near_rate and (not figures.mean_rows or abs(batch / figures.mean_rows - 1) <= _BATCH_TOLERANCE)


def _changes(config: pb.ModelConfig, figures: Figures) -> Iterator[tuple[str, pb.ModelConfig]]:
    """Yield the changes that are tried, with a name each."""

    def edited() -> pb.ModelConfig:
        return copy.deepcopy(config)

    more = edited()
    for group in more.instance_group:
        group.count = 2 * max(1, group.count)
    yield "twice as many instances", more
    if config.max_batch_size > 1 and not config.HasField("dynamic_batching"):
        batched = edited()
        batched.dynamic_batching.SetInParent()
        yield "dynamic_batching { }", batched
    if config.HasField("dynamic_batching") and config.max_batch_size > 1:
        larger = edited()
        larger.max_batch_size *= 2
        yield f"max_batch_size {larger.max_batch_size}", larger
        changed = edited()
        delay_ms = queue_delay_ns(config) / 1e6
        us = 0 if delay_ms else max(100, round(500 * (figures.execution_ms or 1)))
        changed.dynamic_batching.max_queue_delay_microseconds = us
        yield f"max_queue_delay_microseconds {us}", changed


def _sentence(figures: Figures, config: pb.ModelConfig, fits: list[Fit], name: str, changed: pb.ModelConfig) -> str:
    pairs = [(_outcome(figures, config, fit)[0], _outcome(figures, changed, fit)[0]) for fit in fits]
    # Instances that share a GPU, or cores, may gain nothing: the figures of one configuration do not tell.
    if name == "twice as many instances":
        pairs += [(before, before) for before, _ in pairs]
    rates = [after.rate / before.rate for before, after in pairs]
    latencies = [after.latency_ms / max(1e-9, before.latency_ms) for before, after in pairs]
    measured_ms = figures.latency_ms or figures.server_ms or pairs[0][0].latency_ms
    helps = max(rates) >= 1 + _EFFECT or min(latencies) <= 1 - _EFFECT
    error = max(_ERROR, *(abs(before.rate / (figures.rate or 1) - 1) for before, _ in pairs))

    def around(values: list[float], unit: float, form: str) -> str:
        # What does not change at all is no estimate.
        low, high = (value if abs(value - 1) < _EFFECT or not helps else value * factor
                     for value, factor in ((min(values), 1 - error), (max(values), 1 + error)))  # fmt: skip
        return f"{unit * low:{form}} to {unit * high:{form}}"

    rate = f"{around(rates, figures.rate or 0, ',.0f')} requests/s"
    latency = f"{around(latencies, measured_ms, '.1f')} ms"
    if not helps:
        worse = min(rates) < 1 - _EFFECT or max(latencies) > 1 + _EFFECT
        return f"**{name}** would not help: {rate}, {latency}" + (" (worse)" if worse else "")
    condition = "; the lower end if they share a resource that one already fills" if "instances" in name else ""
    return f"**{name}**: {rate} (now {figures.rate:,.0f}), {latency} (now {measured_ms:.1f} ms){condition}"
