"""The event stream's home: a bounded ring of recent events, and whoever listens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tritonnb.core.events import Event, Packed, pack

Sink = Callable[[Packed], None]

#: Recent events kept: a few seconds of full load, about 20 MB.
RING_SIZE = 65_536


class EventStream:
    """Where the server's loop puts every event; touched from that loop only.

    Attributes
    ----------
    recent : collections.deque
        The newest `RING_SIZE` events, packed: what `Server.recent` shows.
    """

    def __init__(self, ring_size: int = RING_SIZE) -> None:
        self.recent: deque[Packed] = deque(maxlen=ring_size)
        self._sinks: tuple[Sink, ...] = ()

    def emit(self, event: Event) -> None:
        """Append an event and hand it to every sink."""
        self.emit_packed(pack(event))

    def emit_packed(self, packed: Packed) -> None:
        """Append an event that is packed already."""
        self.recent.append(packed)
        for sink in self._sinks:
            sink(packed)

    def attach(self, sink: Sink) -> None:
        """From now on, call ``sink(packed)`` for every event; it must be quick and never raise."""
        self._sinks = (*self._sinks, sink)

    def detach(self, sink: Sink) -> None:
        """Stop calling a sink."""
        self._sinks = tuple(other for other in self._sinks if other != sink)
