"""The event stream: a ring buffer of recent events, and the sinks that receive every event."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable

from tritonnb.core.events import Event
from tritonnb.core.packed_events import Packed, pack

Sink = Callable[[Packed], None]

#: Number of recent events that are kept: a few seconds of full load, about 20 MB.
RING_SIZE = 65_536
#: Events after which the garbage collector visits new objects; after how many of these visits it visits older ones,
#: too, and after how many all.
YOUNG_EVENTS, OLDER, ALL = 2048, 16, 1024


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
        self._young = self._collections = 0

    def emit(self, event: Event) -> None:
        """Append an event and pass it to every sink."""
        self.emit_packed(pack(event))

    def emit_packed(self, packed: Packed) -> None:
        """Append a packed event and pass it to every sink."""
        self.recent.append(packed)
        self._young += 1
        if self._young == YOUNG_EVENTS:
            self._collect_young()
        for sink in self._sinks:
            sink(packed)

    def attach(self, sink: Sink) -> None:
        """Call ``sink(packed)`` for every event from now on; it must be fast and must not raise."""
        self._sinks = (*self._sinks, sink)

    def detach(self, sink: Sink) -> None:
        """Stop calling a sink."""
        self._sinks = tuple(other for other in self._sinks if other != sink)

    def _collect_young(self) -> None:
        """Let the garbage collector visit new objects, unless it is switched off.

        It stops tracking an event when it first visits it. By itself it waits until there are as many more objects as
        its threshold says, and once the history is full each event frees another: sooner or later it would visit the
        whole history at once, out of the processor's cache, for 40 to 65 ms.
        """
        self._young = 0
        if gc.isenabled() and gc.get_threshold()[0]:
            self._collections += 1
            gc.collect(2 if self._collections % ALL == 0 else 1 if self._collections % OLDER == 0 else 0)
