"""The events of a replica for clients that record: each reads what has happened since it last asked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, field

from tritonnb.core.packed_events import Packed, unpack
from tritonnb.telemetry.stream import EventStream

#: The stages of a recording; empty in between.
BEGIN, END = "begin", "end"
#: A recording that is not read for so many seconds has been left, or its client is gone.
_ABANDONED_S = 30.0
#: Where the model is in every packed event.
_MODEL = 2


@dataclass(slots=True)
class _Open:
    """A recording that is open."""

    events: list[Packed] = field(default_factory=list)
    abandon: asyncio.TimerHandle | None = None


class EventRecorder:
    """Collects events for recordings; used on the event loop of the engine.

    Parameters
    ----------
    stream : EventStream
    """

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._open: dict[str, _Open] = {}

    def take(self, recording: str, models: Collection[str], stage: str) -> str:
        """The events of a recording since the last call.

        Parameters
        ----------
        recording : str
            Chosen by the client.
        models : collection of str
        stage : str
            ``begin``: the first call for all replicas; ``end``: the last one; else empty. A replica that is called for
            the first time later has been added since the recording began: it returns its recent events.

        Returns
        -------
        str
            JSON: ``events``, and the times ``monotonic_ns``, which the events have, and ``wall_ns``.
        """
        entry = self._open.get(recording)
        if entry is None:
            entry = self._open[recording] = _Open([] if stage == BEGIN else list(self._stream.recent))
            self._stream.attach(entry.events.append)
        elif entry.abandon is not None:
            entry.abandon.cancel()
        taken = [unpack(packed) for packed in entry.events if packed[_MODEL] in models]
        entry.events.clear()
        if stage == END:
            self._forget(recording)
        else:
            entry.abandon = asyncio.get_running_loop().call_later(_ABANDONED_S, self._forget, recording)
        events = [{"event": type(event).__name__, **asdict(event)} for event in taken]
        return json.dumps({"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns(), "events": events})

    def _forget(self, recording: str) -> None:
        entry = self._open.pop(recording)
        self._stream.detach(entry.events.append)
