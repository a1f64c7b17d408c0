"""The events of a model while its traces arrive: each batch once, with numbers that stay."""

from __future__ import annotations

from collections import deque
from itertools import count

from tritonnb.core.events import BatchExecuted, BatchSent, Event, RequestArrived
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.traces.from_trace import infer_reasons
from tritonnb.lab.traces.trace_events import events_of, models_of
from tritonnb.lab.traces.traced_request import TracedRequest

#: Requests from which reasons are inferred, and how long the requests of a batch may come after each other, in ns.
_MAX_REQUESTS, _SETTLE_NS = 2000, 1_000_000_000


class LiveEvents:
    """The events of traced requests, in deliveries.

    Parameters
    ----------
    name : str
        Of the model.
    config : ModelConfig

    Attributes
    ----------
    received : int
        Number of requests that were added.
    reports : bool
        Whether the server reported the batches with their instances and reasons, so that nothing was inferred.
    """

    def __init__(self, name: str, config: pb.ModelConfig) -> None:
        self.name = name
        self.requests: deque[TracedRequest] = deque(maxlen=_MAX_REQUESTS)
        self._configs = {name: config}
        self._serials: dict[int | str, int] = {}
        self._numbers = count(1)
        self._until_ns = 0
        self.reports = False
        self.received = self._seen = 0

    def add(self, request: TracedRequest) -> None:
        """Add a request; requests of other models and incomplete requests are ignored."""
        if request.model == self.name and request.complete:
            self._serials.setdefault(request.key, len(self._serials) + 1)
            self.requests.append(request)
            self.received += 1

    def take_events(self) -> list[Event]:
        """Return the events of the batches that are complete and were not taken before, in the order of time."""
        requests = list(self.requests)
        quiet, self._seen = self.received == self._seen, self.received
        if not requests:
            return []
        newest_ns = max(request.stamps.get("COMPUTE_START", 0) for request in requests)
        until_ns = newest_ns if quiet else newest_ns - _SETTLE_NS
        if until_ns <= self._until_ns:
            return []
        models = models_of(requests, self._configs)
        for model in models:
            model.serials = self._serials
            self.reports = model.is_reported
            if not self.reports:
                infer_reasons(model, [])
        events = [event for event in events_of(models) if isinstance(event, BatchSent | BatchExecuted | RequestArrived)]
        numbers: dict[int, int] = {}
        serials: set[int | None] = set()
        for event in events:
            if isinstance(event, BatchSent) and self._until_ns < event.time_ns <= until_ns:
                numbers[event.batch] = next(self._numbers)
                serials.update(event.members)
        self._until_ns = until_ns
        taken: list[Event] = []
        for event in events:
            if isinstance(event, RequestArrived):
                if event.serial in serials:
                    taken.append(event)
            elif event.batch in numbers:
                event.batch = numbers[event.batch]
                taken.append(event)
        return taken
