"""What clients, and models that call others, sent in a recording of several models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import replace

from tritonnb.core.events import CacheHit, EnsembleExecuted, RequestArrived, RequestCancelled, StepSent
from tritonnb.recording.arrivals import Arrival, arrival_of
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import BLS_REQUEST


class RecordedArrivals:
    """The requests in a recording that are no steps of ensembles.

    Parameters
    ----------
    rec : Recording

    Attributes
    ----------
    begin_ns : int
        When the first request of a client was received.
    """

    def __init__(self, rec: Recording) -> None:
        self._rec = rec
        sent = [event for event in rec.events if isinstance(event, StepSent)]
        self._steps: dict[int, list[StepSent]] = defaultdict(list)  # by the serial of an ensemble's request
        inner: set[int] = set()
        for event in sent:
            if event.rule != BLS_REQUEST and event.step_serial not in inner:  # a request has one cause
                self._steps[event.serial].append(event)
            inner.add(event.step_serial)
        self._ensembles = {event.serial: event for event in rec.events if isinstance(event, EnsembleExecuted)}
        self._hits = {event.serial for event in rec.events if isinstance(event, CacheHit)}
        cancelled = (event for event in rec.events if isinstance(event, RequestCancelled))
        self._cancelled_ns = {event.serial: event.time_ns for event in cancelled}
        received = [(event.time_ns, serial, event.model) for serial, event in rec.arrived.items()]
        received += [
            (event.received_ns, serial, event.model)
            for serial, event in self._ensembles.items()
            if serial not in inner and any(self._answered_below(serial))
        ]
        self._received = sorted(entry for entry in received if entry[1] not in inner)
        self.begin_ns = self._received[0][0] if self._received else 0

    def of(self, serial: int, begin_ns: int = 0) -> Arrival | None:
        """Return a request, in µs after ``begin_ns``; None if it is not recorded."""
        arrived, ended = self._rec.arrived.get(serial), self._ensembles.get(serial)
        if arrived is not None:
            return arrival_of(arrived, begin_ns, self._cancelled_ns.get(serial))
        # An ensemble has no event for an arrival; its steps inherit everything but the time and the number of rows.
        below, cached = list(self._executed_below(serial)), list(self._cached_below(serial))
        if ended is None or not (below or cached):
            return None
        rows = dict.fromkeys(cached, 0) | {event.model: event.size for event in below if event.size != ended.size}
        if not below:
            return Arrival((ended.received_ns - begin_ns) / 1000, ended.size, step_rows=rows)
        first = replace(below[0], time_ns=ended.received_ns, size=ended.size)
        arrival = arrival_of(first, begin_ns, self._cancelled_ns.get(first.serial))
        keys: dict[str, Hashable] = {
            event.model: event.shape_key or None for event in below if event.shape_key != first.shape_key
        }
        return replace(arrival, step_rows=rows or None, step_keys=keys or None)

    def of_clients(self) -> dict[str, list[Arrival]]:
        """Return what clients sent, by model, in µs after the first of them."""
        by_model: dict[str, list[Arrival]] = defaultdict(list)
        for _, serial, model in self._received:
            arrival = self.of(serial, self.begin_ns)
            if arrival is not None:
                by_model[model].append(arrival)
        return dict(by_model)

    def _executed_below(self, serial: int) -> Iterator[RequestArrived]:
        """Yield the requests of the steps of an ensemble's request, and of the ensembles in it, in order."""
        for step in self._answered_below(serial):
            if step.step_serial in self._rec.arrived:
                yield self._rec.arrived[step.step_serial]

    def _cached_below(self, serial: int) -> Iterator[str]:
        """Yield the models, or ensembles, of the steps that the response cache answered."""
        for step in self._answered_below(serial):
            if step.step_serial in self._hits:
                yield step.step_model

    def _answered_below(self, serial: int) -> Iterator[StepSent]:
        """Yield the steps that a model or the response cache answered, in order."""
        waiting = self._steps.get(serial, [])[::-1]
        while waiting:
            step = waiting.pop()
            if step.step_serial in self._rec.arrived or step.step_serial in self._hits:
                yield step
            else:
                waiting += reversed(self._steps.get(step.step_serial, ()))
