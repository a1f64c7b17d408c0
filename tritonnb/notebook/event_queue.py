"""A sink of the event stream: the server's loop appends, and the thread of a view takes."""

from __future__ import annotations

from collections import deque
from itertools import repeat, starmap

from tritonnb.core.packed_events import Packed

#: Events that wait to be taken; of more, the oldest are lost. A thread takes them several times a second.
_MOST_EVENTS = 1_000_000


class EventQueue:
    """Keeps packed events until they are taken.

    Attributes
    ----------
    append : callable
        The sink, called on the server's loop; it does nothing but append.

    Examples
    --------
    >>> events = EventQueue()
    >>> events.append(("RequestArrived", 0))
    >>> events.take(), events.take()
    ([('RequestArrived', 0)], [])
    """

    def __init__(self) -> None:
        self._events: deque[Packed] = deque(maxlen=_MOST_EVENTS)
        self.append = self._events.append

    def take(self) -> list[Packed]:
        """Return and forget the events so far; called on one other thread."""
        return list(starmap(self._events.popleft, repeat((), len(self._events))))
