"""Requests of ensembles, with the requests of their steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tritonnb.core.events import EnsembleExecuted, Event, StepSent
from tritonnb.scheduling.reasons import pluralize


@dataclass(frozen=True, slots=True)
class EnsembleRequest:
    """One request of an ensemble.

    Attributes
    ----------
    serial : int
    model : str
        Name of the ensemble; of nested ensembles the outermost.
    steps : tuple of int
        Serials of the requests sent to the models of its steps, in order, including those of nested ensembles.
    received_ns, ended_ns : int or None
        Monotonic clock; None if outside the recording.
    failed : str
        Failure reason of the statistics; empty for a success.
    """

    serial: int
    model: str
    steps: tuple[int, ...]
    received_ns: int | None
    ended_ns: int | None
    failed: str

    def __repr__(self) -> str:
        failed = f"; failed: {self.failed}" if self.failed else ""
        return f"<EnsembleRequest {self.serial} of '{self.model}': {pluralize(len(self.steps), 'step')}{failed}>"


def ensemble_requests_of(events: Iterable[Event]) -> list[EnsembleRequest]:
    """Return the requests of ensembles in a stream of events, ordered by their first step."""
    outermost: dict[int, int] = {}
    models: dict[int, str] = {}
    steps: dict[int, list[int]] = {}
    ends: dict[int, EnsembleExecuted] = {}
    for event in events:
        if isinstance(event, StepSent):
            serial = outermost[event.step_serial] = outermost.get(event.serial, event.serial)
            models.setdefault(serial, event.model)
            steps.setdefault(serial, []).append(event.step_serial)
        elif isinstance(event, EnsembleExecuted):
            ends[event.serial] = event
    return [
        EnsembleRequest(
            serial,
            models[serial],
            tuple(sent),
            end.received_ns if (end := ends.get(serial)) else None,
            end.time_ns if end else None,
            end.failed if end else "",
        )
        for serial, sent in steps.items()
    ]
