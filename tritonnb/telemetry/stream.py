"""The event stream: a ring buffer of recent events, and the sinks that receive every event."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tritonnb.core.events import Event
from tritonnb.core.packed_events import Packed, pack

Sink = Callable[[Packed], None]

#: Number of recent events that are kept: a few seconds of full load, about 20 MB.
RING_SIZE = 65_536


class EventStream:
    """Receives every event of a server; used only on the server's event loop.

    Attributes
    ----------
    recent : collections.deque
        The newest `RING_SIZE` events, packed: what `Server.recent` shows.
    """

    def __init__(self, ring_size: int = RING_SIZE) -> None:
        self.recent: deque[Packed] = deque(maxlen=ring_size)
        self._sinks: tuple[Sink, ...] = ()

    def emit(self, event: Event) -> None:
        """Append an event and pass it to every sink."""
        self.emit_packed(pack(event))

    def emit_packed(self, packed: Packed) -> None:
        """Append a packed event and pass it to every sink."""
        self.recent.append(packed)
        for sink in self._sinks:
            sink(packed)

    def attach(self, sink: Sink) -> None:
        """Call ``sink(packed)`` for every event from now on; it must be fast and must not raise."""
        self._sinks = (*self._sinks, sink)

    def detach(self, sink: Sink) -> None:
        """Stop calling a sink."""
        self._sinks = tuple(other for other in self._sinks if other != sink)
