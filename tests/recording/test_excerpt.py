"""A part of the time of a recording: what was in the server then, in every figure."""

from __future__ import annotations

import io
from typing import Any

import pytest
from matplotlib.figure import Figure

import tritonnb as tnb

#: A batch every 10 ms from 0 to 90, each 4 ms long.
REGULAR = tnb.simulate('name: "m" max_batch_size: 4', [(10_000 * n, 1 + n % 4) for n in range(10)], tnb.fixed(4))
SLOTS = tnb.simulate(
    'name: "m" max_batch_size: 2 sequence_batching { direct { } }',
    tnb.sequences([3, 3, 3, 3], every_ms=20, stagger_ms=5),
    tnb.fixed(4),
)
NAMES = ["timeline", "batch_sizes", "latency", "queue"]


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "batches"),
    [
        (None, None, range(1, 11)),
        (25, 45, [4, 5]),
        (23, None, range(4, 11)),  # 3 ran from 20 to 24 and is in it
        (None, 5, [1]),
        (10, 10.5, [2]),
        (5, 9, []),
        (-100, 1000, range(1, 11)),
    ],
)
def test_excerpt_has_the_batches_that_ran_in_it(start_ms: float | None, end_ms: float | None, batches: Any) -> None:
    part = REGULAR.between(start_ms, end_ms)
    expected = [*([3] if start_ms == 23 else []), *batches]
    assert [batch.number for batch in part.batches] == expected
    assert len(part.requests) == len(part.arrivals()) == len(expected)
    assert part.batches == [batch for batch in REGULAR.batches if batch.number in expected]


def test_waiting_request_is_in_an_excerpt_before_its_batch() -> None:
    rec = tnb.simulate("max_batch_size: 1", [(0, 1), (1000, 1)], tnb.fixed(10))
    part = rec.between(2, 5)
    assert len(part.requests) == 2
    assert "1 request waited at the same time" in part.plot.alt("timeline")
    boxes = part.plot.timeline().axes[0].collections
    assert max(len(box.get_paths()) for box in boxes if "Poly" in type(box).__name__) == 1


def test_times_count_from_the_beginning_of_the_recording() -> None:
    [ax] = REGULAR.plot.timeline(start_ms=25, end_ms=45).axes
    assert ax.get_xlim() == pytest.approx((25 - 0.4, 45 + 0.4))
    assert "at 30.0 ms; 1 row on m_0_0 at 40.0 ms" in REGULAR.between(25, 45).plot.alt("timeline")
    assert REGULAR.between(20, 60).between(25, 45).plot.timeline().axes[0].get_xlim() == ax.get_xlim()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_figure_accepts_a_time_range_and_can_be_saved(name: str) -> None:
    ax = Figure().add_subplot()
    assert getattr(REGULAR.plot, name)(ax, start_ms=25, end_ms=45) is ax.figure
    for figure in (getattr(REGULAR.plot, name)(start_ms=5, end_ms=9), getattr(REGULAR.plot, name)(end_ms=45)):
        figure.savefig(io.BytesIO(), format="svg")
    assert getattr(REGULAR.plot, name)(start_ms=5, end_ms=9).axes[0].texts[0].get_text() == "Nothing was executed."


def test_slots_keep_their_sequences_and_numbers() -> None:
    part = SLOTS.between(18, 30)
    assert {occupancy.sequence for occupancy in part.slot_occupancy} < {
        occupancy.sequence for occupancy in SLOTS.slot_occupancy
    } | {0}
    labels = {text.get_text() for text in part.plot.slots().axes[0].texts}
    assert "1·2" in labels
    assert "1·1" not in labels
    SLOTS.plot.slots(start_ms=18, end_ms=30).savefig(io.BytesIO())


def test_missing_figure_is_refused_for_part_of_a_recording() -> None:
    with pytest.raises(tnb.TritonError, match="a recording of a stateful model"):
        REGULAR.plot.slots(start_ms=5, end_ms=9)


@pytest.mark.parametrize("window", [(5, 5), (6, 5), (200, None)])
def test_empty_part_of_a_recording_is_refused(window: tuple[int, int | None]) -> None:
    with pytest.raises(
        tnb.TritonError,
        match=r"time range of a recording expected numbers start_ms < end_ms, got .* from 0\.0 to 94\.0 ms",
    ):
        REGULAR.between(*window)


@pytest.mark.parametrize("rec", [REGULAR, SLOTS, tnb.Recording()], ids=["dynamic", "stateful", "empty"])
def test_overview_has_the_main_figures(rec: tnb.Recording) -> None:
    figure = rec.plot()
    figure.savefig(io.BytesIO())
    assert rec.plot.alt("slots" if rec is SLOTS else "timeline") in figure.alt
    assert rec.plot.alt("latency") in figure.alt


def test_overview_can_be_limited_to_a_time_range() -> None:
    assert "2 requests ran in 2 batches" in REGULAR.plot(start_ms=25, end_ms=45).alt
    assert "plot() for an overview" in repr(REGULAR.plot)


def test_requests_completed_before_the_time_range_are_not_drawn_as_waiting() -> None:
    rec = tnb.simulate("max_batch_size: 4 dynamic_batching { }", [(0, 1), *[(1000, 1)] * 3], tnb.fixed(10))
    assert len(rec.between(0, 5).plot.alt("timeline").split("At most 3 requests waited at the same time")) == 2
    assert "At most 0 requests waited at the same time" in rec.between(12, 15).plot.alt("timeline")
