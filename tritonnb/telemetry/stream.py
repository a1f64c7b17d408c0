"""The event stream: a history of recent events, and the sinks that receive every event."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import msgpack
import msgspec

from tritonnb.core.events import Event
from tritonnb.core.packed_events import Packed, Record, pack_record, record_of

Sink = Callable[[Packed], None]

#: Number of recent events that are kept: a few seconds of full load, about 7 MB.
HISTORY_SIZE: Final = 65_536
#: Events that are encoded together.
CHUNK: Final = 128
_SURROGATES: Final = "surrogatepass"  # IDs of clients may be any text


class EventHistory:
    """The newest events, as bytes; iterating over it restores them as packed events, the oldest first.

    As tuples they would be 65,536 objects that the garbage collector visits. A new event frees an old one, so that the
    collector's count of new objects does not rise, and then one collection visits the whole history, for 40 to 65 ms.

    Parameters
    ----------
    size : int
        Number of events.

    Examples
    --------
    >>> history = EventHistory(2)
    >>> for event in [("A", 1), ("B", 2), ("C", 3)]:
    ...     history.append(event)
    >>> list(history)
    [('B', 2), ('C', 3)]
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._new: list[Record] = []
        self._encoded: deque[bytes] = deque(maxlen=-(-size // CHUNK))
        self._encode = msgspec.msgpack.Encoder(enc_hook=str).encode

    @property
    def complete(self) -> bool:
        """True if no event has been discarded."""
        return len(self._encoded) * CHUNK + len(self._new) < self._size

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self._size, self._new, list(self._encoded))

    def copy(self, newest: int | None = None) -> EventHistory:
        """Return a copy, to which later events are not added; another thread may iterate over it.

        Parameters
        ----------
        newest : int, optional
            How many of the newest events it has; by default all.
        """
        copy = EventHistory(self._size if newest is None else min(newest, self._size))
        copy._new = self._new.copy()
        copy._encoded.extend(self._encoded)
        return copy

    def append(self, record: Record) -> None:
        """Add an event."""
        self._new.append(record)
        if len(self._new) == CHUNK:
            self._encoded.append(self._encode_new())
            self._new.clear()

    def _encode_new(self) -> bytes:
        try:
            encoded: bytes = self._encode(self._new)  # in a seventh of the time, the same bytes
        except (UnicodeError, OverflowError):
            encoded = msgpack.packb(self._new, default=str, unicode_errors=_SURROGATES)
        return encoded

    def __iter__(self) -> Iterator[Packed]:
        surplus = max(0, len(self._encoded) * CHUNK + len(self._new) - self._size)
        return map(pack_record, islice(self._records(), surplus, None))

    def __reversed__(self) -> Iterator[Packed]:
        yield from map(pack_record, reversed(self._new))
        for encoded in reversed(self._encoded):
            records = msgpack.unpackb(encoded, use_list=False, unicode_errors=_SURROGATES)
            yield from map(pack_record, reversed(records))

    def _records(self) -> Iterator[Record]:
        for encoded in self._encoded:
            yield from msgpack.unpackb(encoded, use_list=False, unicode_errors=_SURROGATES)
        yield from self._new


def _restored(size: int, new: list[Record], encoded: list[bytes]) -> EventHistory:
    history = EventHistory(size)
    history._new = new
    history._encoded.extend(encoded)
    return history


class EventStream:
    """The stream of a server's events; used only on the server's event loop.

    Attributes
    ----------
    recent : EventHistory
        The newest `HISTORY_SIZE` events: what `Server.recent` shows.
    """

    def __init__(self, history_size: int = HISTORY_SIZE) -> None:
        self.recent = EventHistory(history_size)
        self._sinks: tuple[Sink, ...] = ()

    def emit(self, event: Event) -> None:
        """Append an event and pass it to every sink."""
        self.emit_record(record_of(event))

    def emit_record(self, record: Record) -> None:
        """Append a record; it is packed here only if there are sinks, and otherwise when the history is read."""
        self.recent.append(record)
        if self._sinks:
            packed = pack_record(record)
            for sink in self._sinks:
                sink(packed)

    def attach(self, sink: Sink) -> None:
        """Call ``sink(packed)`` for every event from now on; it must be fast and must not raise."""
        self._sinks = (*self._sinks, sink)

    def detach(self, sink: Sink) -> None:
        """Stop calling a sink."""
        self._sinks = tuple(other for other in self._sinks if other != sink)
