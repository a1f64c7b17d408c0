"""The threshold of the garbage collector while live views are open."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import tritonnb as tnb
from tritonnb.notebook.garbage_collector import THRESHOLD, RelaxedCollector


@pytest.fixture
def collector() -> Iterator[RelaxedCollector]:
    before = gc.get_threshold()
    gc.set_threshold(700, 9, 8)
    yield RelaxedCollector()
    gc.set_threshold(*before)


def test_the_threshold_is_higher_from_the_first_view_to_the_last(collector: RelaxedCollector) -> None:
    collector.begin()
    collector.begin()
    collector.end()
    assert gc.get_threshold() == (THRESHOLD, 9, 8)
    collector.end()
    assert gc.get_threshold() == (700, 9, 8)


@pytest.mark.parametrize("chosen", [0, 50_000], ids=["off", "higher"])
def test_what_the_user_chose_is_kept(collector: RelaxedCollector, chosen: int) -> None:
    gc.set_threshold(chosen, 9, 8)
    collector.begin()
    assert gc.get_threshold() == (chosen, 9, 8)
    collector.end()
    assert gc.get_threshold() == (chosen, 9, 8)


def test_what_the_user_sets_while_a_view_is_open_is_kept(collector: RelaxedCollector) -> None:
    collector.begin()
    gc.set_threshold(1234, 5, 6)
    collector.end()
    assert gc.get_threshold() == (1234, 5, 6)


@pytest.mark.usefixtures("collector")
def test_a_live_view_raises_it_until_it_has_ended() -> None:
    with tnb.Server(port=None) as server:

        @server.model
        def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X * 2

        view = server["double"].watch()
        assert gc.get_threshold()[0] == THRESHOLD
        view.close()
        assert gc.get_threshold() == (700, 9, 8)
        again = server["double"].watch()
    assert again.ended.wait(30)
    assert gc.get_threshold() == (700, 9, 8)
