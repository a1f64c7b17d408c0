"""`Recording.what_if`: recorded requests, simulated under an edited configuration or another kind of batching."""

from __future__ import annotations

import copy
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import RequestArrived
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.editable_config import with_overrides
from tritonnb.recording.comparison import Comparison
from tritonnb.recording.generations import Generation
from tritonnb.recording.recording import Recording
from tritonnb.recording.simulate import simulated
from tritonnb.simulation.arrivals import Arrival
from tritonnb.simulation.service import Service, table


def config_of(rec: Recording, purpose: str) -> pb.ModelConfig:
    """Return the configuration of the only model in a recording.

    Raises
    ------
    InvalidArgumentError
        If it is of another number of models, or lacks the configuration.
    """
    models = {event.model for event in rec.events if isinstance(event, RequestArrived)}
    if len(models) != 1:
        names = f"{', '.join(sorted(models))}: use rec.for_model()" if models else "no model"
        raise InvalidArgumentError(f"{purpose} expected a recording of one model, got one of {names}")
    name = models.pop()
    if name not in rec.configs:
        raise InvalidArgumentError(f"{purpose} expected the configuration of model '{name}', got none: give config=")
    return rec.configs[name]


def what_if(
    rec: Recording, service: Service | None, seed: int, continuous: bool | None, edits: dict[str, object]
) -> Comparison:
    """Simulate the arrivals of a recording with its configuration, and with edits; see `Recording.what_if`."""
    config = config_of(rec, "what_if")
    edited = with_overrides(config, edits)
    if continuous is None and not rec.generations:
        arrivals, times, first_step_ns = rec.arrivals(), service or rec.service(), 0
    else:
        arrivals, times, first_step_ns = _generation_workload(rec, service)
    if continuous is not None:
        edited, edits = _with_batching(edited, continuous), {"continuous": continuous, **edits}
    options = {"first_step_ns": first_step_ns, "replicas": len(rec.replicas) or 1}
    before, after = (simulated(candidate, arrivals, times, seed, **options) for candidate in (config, edited))
    return Comparison(before, after, edits, rec)


def _generation_workload(rec: Recording, service: Service | None) -> tuple[list[Arrival], Service, int]:
    """Return the generations of a recording of one model, with static or continuous batching.

    Parameters
    ----------
    rec : Recording
    service : Service or None
        The time of a step by batch size; None for the recorded medians.

    Returns
    -------
    tuple of (list of Arrival, Service, int)
        The arrivals with the number of steps of each, the time of a step, and how many ns longer the first step of a
        generation takes, which reads its prompt.

    Raises
    ------
    InvalidArgumentError
        If it contains no generations.
    """
    generations = rec.generations
    if not generations:
        raise InvalidArgumentError(
            "continuous expected a recording of generations (iterative sequences, or several responses to a request), "
            "got none"
        )
    steps = {generation.serial: len(generation.steps) for generation in generations}
    serials = [event.serial for event in rec.events if isinstance(event, RequestArrived)]
    arrivals = [
        arrival.with_steps(steps.get(serial, 1)) for serial, arrival in zip(serials, rec.arrivals(), strict=True)
    ]
    recorded = _recorded_steps(rec, generations)
    later = _by_size((size, time_ns) for size, first, time_ns in recorded if not first)
    step = service or table(later or _by_size((size, time_ns) for size, _, time_ns in recorded))
    extra = [(time_ns - step(size)) / first for size, first, time_ns in recorded if first]
    return arrivals, step, max(0, round(statistics.median(extra))) if extra else 0


def _with_batching(config: pb.ModelConfig, continuous: bool) -> pb.ModelConfig:
    """Return the configuration with continuous or with static batching: as many slots as a batch has rows.

    Raises
    ------
    InvalidArgumentError
        If the model does not batch.
    """
    if config.max_batch_size < 1:
        raise InvalidArgumentError(f"continuous expected model '{config.name}' to have a max_batch_size, got 0")
    edited = copy.deepcopy(config)
    if continuous and not config.sequence_batching.iterative_sequence:
        edited.sequence_batching.iterative_sequence = True
        edited.sequence_batching.oldest.max_candidate_sequences = config.max_batch_size
    elif not continuous:
        edited.dynamic_batching.SetInParent()
    return edited


def _by_size(times: Iterable[tuple[int, int]]) -> dict[int, float]:
    """Return the median time of a step in ms, by batch size."""
    by_size: dict[int, list[int]] = defaultdict(list)
    for size, time_ns in times:
        by_size[size].append(time_ns)
    return {size: statistics.median(values) / 1e6 for size, values in by_size.items()}


def _recorded_steps(rec: Recording, generations: list[Generation]) -> list[tuple[int, int, int]]:
    """Return for each step the batch size, the number of generations that began with it, and its time in ns."""
    members: dict[tuple[str, int], list[Generation]] = defaultdict(list)
    began = Counter((generation.instance, generation.steps[0]) for generation in generations)
    for generation in generations:
        members[generation.instance, generation.steps[0][0]].append(generation)
    recorded = []
    for batch in rec.batches:
        if batch.slots is not None:
            span = (batch.exec_start_ns, batch.exec_end_ns)
            recorded.append((batch.size, began[batch.instance, span], batch.compute_ns))
            continue
        together = members[batch.instance, batch.exec_start_ns]
        longest = max(together, key=lambda generation: len(generation.steps), default=None)
        for number, (begin_ns, end_ns) in enumerate(longest.steps if longest else ()):
            recorded.append((batch.size, 0 if number else len(together), end_ns - begin_ns))
    return recorded
