"""Packed events: they are restored as they were, and positions agree with the classes."""

from __future__ import annotations

import gc
from typing import Any, get_args, get_type_hints

from hypothesis import given
from hypothesis import strategies as st

from tritonnb.core.events import BatchExecuted, BatchSent, Event
from tritonnb.core.packed_events import (
    facts_of,
    failures_of,
    members_of,
    pack,
    pack_record,
    positions,
    record_of,
    slots_of,
    unpack,
)

# Compiled classes know the types of their simple fields only.
VALUES = {
    "correlation_id": st.integers() | st.text(),
    "members": st.lists(st.none() | st.integers(), min_size=1).map(tuple),
    "slots": st.none() | st.lists(st.integers(), min_size=1).map(tuple),
    "facts": st.dictionaries(st.text(), st.integers() | st.text()),
    "requests": st.lists(st.tuples(*[st.integers()] * 4, st.sampled_from(["", "FAILED"]))).map(tuple),
}


def event_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    types = get_type_hints(kind)
    return st.builds(kind, **{name: VALUES[name] if name in VALUES else st.from_type(types[name]) for name in types})


@given(st.sampled_from(get_args(Event)).flatmap(event_of))
def test_packed_event_round_trips_with_fields_at_their_positions(event: Any) -> None:
    packed = pack(event)
    assert unpack(packed) == event
    assert type(event)(*record_of(event)[1:]) == event
    assert pack_record(record_of(event)) == packed
    for name, position in vars(positions(type(event))).items():
        assert packed[position] == getattr(event, name)


@given(event_of(BatchSent))
def test_variable_parts_of_a_packed_batch_are_read_without_unpacking_it(event: BatchSent) -> None:
    packed = pack(event)
    assert (members_of(packed), slots_of(packed), facts_of(packed)) == (event.members, event.slots, event.facts)


@given(event_of(BatchExecuted))
def test_failures_are_counted_without_unpacking(event: BatchExecuted) -> None:
    assert failures_of(pack(event)) == sum(reason != "" for *_, reason in event.requests)


@given(st.lists(st.sampled_from(get_args(Event)).flatmap(event_of), max_size=5))
def test_packed_events_are_not_tracked_after_a_garbage_collection(events: list[Any]) -> None:
    packed = [pack(event) for event in events]
    gc.collect(0)
    assert not any(map(gc.is_tracked, packed))
