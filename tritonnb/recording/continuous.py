"""What-if between continuous and static batching: the steps of recorded generations, and what a step costs."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import RequestArrived
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.recording.generations import Generation
from tritonnb.simulation.arrivals import Arrival
from tritonnb.simulation.service import Service, table

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording


@dataclass(frozen=True)
class GenerationWorkload:
    """The generations of a recording, to be simulated.

    Attributes
    ----------
    arrivals : list of Arrival
        With the number of steps of each.
    service : Service
        The time of a step by batch size.
    first_step_ns : int
        What the first step of a generation, which reads its prompt, takes longer.
    """

    arrivals: list[Arrival]
    service: Service
    first_step_ns: int


def generation_workload(rec: Recording, service: Service | None) -> GenerationWorkload:
    """The generations of a recording of one model, with static or continuous batching.

    Parameters
    ----------
    rec : Recording
    service : Service or None
        The time of a step by batch size; None for the recorded medians.

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
    return GenerationWorkload(arrivals, step, max(0, round(statistics.median(extra))) if extra else 0)


def with_batching(config: pb.ModelConfig, continuous: bool) -> pb.ModelConfig:
    """The configuration with continuous or with static batching: as many slots as a batch has rows.

    Raises
    ------
    InvalidArgumentError
        If the model does not batch.
    """
    if config.max_batch_size < 1:
        raise InvalidArgumentError(f"continuous expected model '{config.name}' to have a max_batch_size, got 0")
    edited = pb.ModelConfig()
    edited.CopyFrom(config)
    if continuous and not config.sequence_batching.iterative_sequence:
        edited.sequence_batching.iterative_sequence = True
        edited.sequence_batching.oldest.max_candidate_sequences = config.max_batch_size
    elif not continuous:
        edited.dynamic_batching.SetInParent()
    return edited


def _by_size(times: Iterable[tuple[int, int]]) -> dict[int, float]:
    """The median time of a step in ms, by batch size."""
    by_size: dict[int, list[int]] = defaultdict(list)
    for size, time_ns in times:
        by_size[size].append(time_ns)
    return {size: statistics.median(values) / 1e6 for size, values in by_size.items()}


def _recorded_steps(rec: Recording, generations: list[Generation]) -> list[tuple[int, int, int]]:
    """Of each step: the batch size, how many generations began with it, and its time in ns."""
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
