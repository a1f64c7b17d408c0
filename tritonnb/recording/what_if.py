"""The requests of a recording, simulated under an edited configuration."""

from __future__ import annotations

from collections.abc import Iterator

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import RequestArrived
from tritonnb.model_config.editable_config import with_overrides
from tritonnb.recording.comparison import Comparison
from tritonnb.recording.continuous import GenerationWorkload, generation_workload, with_batching
from tritonnb.recording.recording import Recording
from tritonnb.recording.simulate import simulated
from tritonnb.scheduling.reasons import DELAY_EXCEEDED
from tritonnb.simulation.service import Service, Varying


def what_if(
    rec: Recording, service: Service | None, seed: int, continuous: bool | None, edits: dict[str, object]
) -> Comparison:
    """Simulate the arrivals of a recording with its configuration, and with edits; see `Recording.what_if`."""
    models = {event.model for event in rec.events if isinstance(event, RequestArrived)}
    if len(models) != 1:
        names = f"{', '.join(sorted(models))}: use rec.for_model()" if models else "no model"
        raise InvalidArgumentError(f"what_if expected a recording of one model, got one of {names}")
    name = models.pop()
    if name not in rec.configs:
        raise InvalidArgumentError(f"what_if expected the configuration of model '{name}', got none: give config=")
    config = rec.configs[name]
    edited = with_overrides(config, edits)
    if continuous is None and not rec.generations:
        times = service or (rec.service() if rec.source is None else recorded_times(rec))
        workload = GenerationWorkload(rec.arrivals(), times, 0)
    else:
        workload = generation_workload(rec, service)
    if continuous is not None:
        edited, edits = with_batching(edited, continuous), {"continuous": continuous, **edits}
    options = {"first_step_ns": workload.first_step_ns, "replicas": len(rec.replicas) or 1}
    before, after = (
        simulated(candidate, workload.arrivals, workload.service, seed, **options) for candidate in (config, edited)
    )
    return Comparison(before, after, edits, rec)


def recorded_times(rec: Recording) -> Service:
    """The median times by batch size, varied by what each recorded batch took, in the order of the recording.

    A server in its own process shares its machine, and takes a while to start a batch that is due: both are part of
    the time that an instance is occupied, and so of the simulated execution.

    Parameters
    ----------
    rec : Recording
        With at least one executed batch.
    """
    service = rec.service()
    medians_ns = {size: max(1.0, service(size)) for size in rec.batch_sizes()}
    return Varying(service, tuple([time_ns / medians_ns[size] for size, time_ns in _occupied(rec)]))


def _occupied(rec: Recording) -> Iterator[tuple[int, int]]:
    """Batch size and time in ns of each execution, from when the batch could have started."""
    queued: dict[int, list[int]] = {}
    for request in rec.requests:
        queued.setdefault(request.batch, []).append(request.queued_ns)
    free: dict[str, int] = {}
    for batch in sorted(rec.batches, key=lambda batch: batch.exec_start_ns):
        times = queued.get(batch.number, [batch.exec_start_ns])
        due_ns = max(times)
        if batch.reason.rule == DELAY_EXCEEDED:
            due_ns = max(due_ns, min(times) + batch.reason.facts["delay_ns"])
        begin_ns = min(batch.exec_start_ns, max(due_ns, free.get(batch.instance, 0)))
        free[batch.instance] = batch.exec_end_ns
        yield batch.size, batch.exec_end_ns - begin_ns
