"""The requests of a recording, simulated under an edited configuration."""

from __future__ import annotations

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import RequestArrived
from tritonnb.model_config.field_overrides import with_overrides
from tritonnb.recording.comparison import Comparison
from tritonnb.recording.continuous import GenerationWorkload, generation_workload, with_batching
from tritonnb.recording.recorded_times import recorded_times
from tritonnb.recording.recording import Recording
from tritonnb.simulation.run import run
from tritonnb.simulation.service import Service


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
    runs = [
        Recording(
            run(
                candidate,
                workload.arrivals,
                workload.service,
                seed,
                first_step_ns=workload.first_step_ns,
                replicas=len(rec.replicas) or 1,
            ),
            {name: candidate},
            simulated=True,
        )
        for candidate in (config, edited)
    ]
    return Comparison(runs[0], runs[1], edits, rec)
