"""Requests of ensembles on their way through the steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.transforms import Bbox

import tritonnb as tnb
from tritonnb.core.events import BatchExecuted, BatchSent, EnsembleExecuted, Event, StepSent
from tritonnb.recording.batches import Batch
from tritonnb.recording.pipelines import PipelineRequest
from tritonnb.recording.recording import Recording

MS = 1_000_000


def step(serial: int, model: str, step_serial: int, ensemble: str = "both") -> StepSent:
    return StepSent(0, ensemble, 1, serial, 0, model, 1, step_serial, 0, "inputs_ready")


def batch(number: int, model: str, begin_ms: int, end_ms: int, *members: int) -> list[Event]:
    ran = tuple((member, 1, begin_ms * MS, begin_ms * MS, "") for member in members)
    name = f"{model}_0_0"
    sent = BatchSent(begin_ms * MS, model, 1, number, name, len(members), "x", 0, members, None, {})
    begin, end = begin_ms * MS, end_ms * MS
    return [sent, BatchExecuted(end, model, 1, number, name, len(members), begin, begin, end, end, ran)]


def _is(event: Event, ran: Batch) -> bool:
    return isinstance(event, BatchExecuted) and event.batch == ran.number


def _queued_at(event: BatchExecuted, time_ns: int) -> tuple[Any, ...]:
    return tuple((serial, size, time_ns, time_ns, failed) for serial, size, _, _, failed in event.requests)


def boxes(ax: Axes) -> list[tuple[Bbox, tuple[float, ...]]]:
    """The positions and colours of the boxes."""
    (drawn,) = (collection for collection in ax.collections if isinstance(collection, PolyCollection))
    paints = map(tuple, drawn.get_facecolor())  # type: ignore[arg-type]
    return [(path.get_extents(), paint) for path, paint in zip(drawn.get_paths(), paints, strict=True)]  # type: ignore[misc]


def over(serial: int, begin_ms: int, end_ms: int, failed: str = "") -> EnsembleExecuted:
    begin = begin_ms * MS
    return EnsembleExecuted(end_ms * MS, "both", 1, serial, 1, begin, begin, begin, 0, 0, 0, failed)


@pytest.fixture
def two() -> Recording:
    """Requests 1 and 4 of an ensemble of `first` and `second`, which share a batch of the second."""
    return Recording(
        [
            step(1, "first", 2),
            step(4, "first", 5),
            *batch(1, "first", 0, 10, 2),
            step(1, "second", 3),
            *batch(2, "first", 10, 20, 5),
            step(4, "second", 6),
            *batch(3, "second", 20, 50, 3, 6),
            over(1, 0, 50),
            over(4, 0, 51, "OTHER"),
        ]
    )


def serials(request: PipelineRequest) -> list[int]:
    return [below.serial for below in request.walk()][1:]


def test_ensemble_journey_contains_the_requests_of_its_steps(two: Recording) -> None:
    one, four = two.ensemble_requests
    assert (one.serial, one.model, serials(one), one.failed) == (1, "both", [2, 3], "")
    assert (four.serial, serials(four), four.failed) == (4, [5, 6], "OTHER")
    assert (one.received_ns, one.ended_ns) == (0, 50 * MS)


def test_steps_of_an_ensemble_within_an_ensemble_belong_to_the_outer_one() -> None:
    events = [step(1, "inner", 2, "outer"), step(2, "first", 3, "inner"), step(1, "second", 4, "outer")]
    (journey,) = Recording(events).ensemble_requests
    assert (journey.model, serials(journey)) == ("outer", [2, 3, 4])


def test_ensemble_journey_beyond_the_recording_has_no_end() -> None:
    begun = Recording([step(1, "first", 2)])
    (journey,) = begun.ensemble_requests
    assert not journey.complete
    assert begun.pipelines == {}
    assert [label.get_text() for label in begun.plot.steps().axes[0].texts] == ["Nothing was executed."]


def test_lanes_are_in_the_order_of_the_steps_and_requests_keep_their_number(two: Recording) -> None:
    [ax] = two.plot.steps().axes
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["first_0_0", "second_0_0"]
    assert [label.get_text() for label in ax.texts] == ["1", "2", "1", "2"]
    own, shared = [[paint for box, paint in boxes(ax) if (box.width > 10) == wide] for wide in (False, True)]
    assert own == shared
    assert len(own) == 2


def test_waiting_requests_are_drawn_below_running_ones(two: Recording) -> None:
    (batched,) = [batch for batch in two.batches if len(batch.requests) == 2]
    waited = [
        replace(event, requests=_queued_at(event, 12 * MS)) if _is(event, batched) else event  # type: ignore[arg-type]
        for event in two.events
    ]
    [ax] = Recording(waited).plot.steps().axes
    lowest = min(box.ymin for box, _ in boxes(ax))
    lines = [collection for collection in ax.collections if isinstance(collection, LineCollection)]
    segments = [segment for line in lines for segment in line.get_segments()]
    heights = [begin[1] for begin, end in segments if (begin[0], end[0]) == (12.0, 20.0)]
    assert len(set(heights)) == 2
    assert max(heights) < lowest


def test_description_has_the_duration_of_each_request(two: Recording) -> None:
    alt = two.plot.alt("steps")
    assert "2 requests of both through first, second; 1 of 3 executions had several requests" in alt
    assert "Request 1 took 50.0 ms, 2 took 51.0 ms and failed." in alt


def test_figure_of_a_recording_without_an_ensemble_has_a_note() -> None:
    rec = tnb.simulate("max_batch_size: 2 dynamic_batching { }", [(0, 1)], tnb.fixed(1))
    with pytest.raises(tnb.TritonError, match="a recording of an ensemble"):
        rec.plot.steps()
