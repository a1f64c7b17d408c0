"""The event stream: sinks get every event, and the history keeps the newest ones without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.test_events import event_of
from tritonnb.core.events import Event, RequestArrived, RequestCancelled
from tritonnb.core.packed_events import Packed, pack
from tritonnb.telemetry.stream import CHUNK, EventStream

INTEGERS = range(-(2**63), 2**64)


def numbers(value: Any) -> Iterator[int]:
    """The integers of a packed event."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, tuple):
        for element in value:
            yield from numbers(element)


events = (
    st.sampled_from(get_args(Event))
    .flatmap(event_of)
    .filter(lambda event: all(number in INTEGERS for number in numbers(pack(event))))
)


@given(few=st.lists(events, min_size=1, max_size=4), count=st.integers(0, 5 * CHUNK), size=st.integers(1, 3 * CHUNK))
def test_history_restores_the_newest_events_as_sinks_get_them(few: list[Event], count: int, size: int) -> None:
    stream = EventStream(size)
    seen: list[Packed] = []
    stream.attach(seen.append)
    for number in range(count):
        stream.emit(few[number % len(few)])
    assert list(stream.recent) == seen[-size:]
    assert seen == [pack(few[number % len(few)]) for number in range(count)]


class Priority(IntEnum):
    HIGH = 1


class Name(str):
    """A subclass of str."""


def test_history_accepts_subclasses_of_integers_and_strings() -> None:
    arrived = RequestArrived(1, "m", 1, 1, 1, Priority.HIGH, 0, Name("a"), np.str_("b"), 0, 0)
    stream = EventStream()
    for _ in range(CHUNK):
        stream.emit(arrived)
    assert set(stream.recent) == {pack(arrived)}


def test_history_adds_no_objects_for_the_garbage_collector() -> None:
    stream = EventStream(10 * CHUNK)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for number in range(20 * CHUNK):
            stream.emit(RequestCancelled(number, "m", 1, number))
        assert len(gc.get_objects()) - before < 2 * CHUNK
    finally:
        if was_enabled:
            gc.enable()


def test_sinks_receive_every_event_until_they_are_detached() -> None:
    stream = EventStream(history_size=2)
    seen: list[Packed] = []
    cancelled = [RequestCancelled(number, "m", 1, number) for number in range(4)]
    stream.attach(seen.append)
    for event in cancelled[:3]:
        stream.emit(event)
    stream.detach(seen.append)
    stream.emit(cancelled[3])
    assert seen == list(map(pack, cancelled[:3]))


@pytest.mark.parametrize("size", [1, CHUNK, CHUNK + 1])
def test_history_is_empty_at_first(size: int) -> None:
    assert list(EventStream(size).recent) == []
