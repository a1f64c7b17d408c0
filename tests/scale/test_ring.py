"""The hash ring moves only the keys that have to move."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonnb.scale.dispatch import HashRing

members = st.frozensets(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=8)
KEYS = [str(number) for number in range(200)]


@given(members, st.text("xyz", min_size=1))
def test_new_hash_ring_member_moves_keys_only_to_itself(old: frozenset[str], new: str) -> None:
    before, after = HashRing(old), HashRing(old | {new})
    moved = [key for key in KEYS if before.owner(key) != after.owner(key)]
    assert {after.owner(key) for key in moved} <= {new}


@given(members, st.data())
def test_removing_a_hash_ring_member_moves_only_its_keys(old: frozenset[str], data: st.DataObject) -> None:
    removed = data.draw(st.sampled_from(sorted(old)))
    if old == {removed}:
        return
    before, after = HashRing(old), HashRing(old - {removed})
    assert all(before.owner(key) in (removed, after.owner(key)) for key in KEYS)


def test_hash_ring_distributes_keys_evenly() -> None:
    ring = HashRing(f"replica {number}" for number in range(10))
    counts = Counter(ring.owner(str(key)) for key in range(10_000))
    assert len(counts) == 10
    assert max(counts.values()) < 2 * 1000


def test_empty_ring_has_no_owner() -> None:
    with pytest.raises(LookupError, match="expected a ring with members for the key 'a', got an empty ring"):
        HashRing([]).owner("a")
