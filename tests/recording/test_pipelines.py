"""The trees of pipeline requests, and the critical path through them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonnb.core.events import BatchExecuted, BatchSent, CacheHit, EnsembleExecuted, Event, RequestRefused, StepSent
from tritonnb.recording.pipelines import PipelineRequest
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import BLS_REQUEST, INPUTS_READY

TIMES = st.integers(0, 1000)


class Events:
    """Events of pipelines, written by hand: each request is in its own batch."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.serials = itertools.count(1)

    def ensemble(self, begin: int, end: int, failed: str = "", model: str = "e") -> int:
        serial = next(self.serials)
        self.events.append(EnsembleExecuted(end, model, 1, serial, 1, begin, begin, begin, 0, 0, 0, failed))
        return serial

    def execution(self, begin: int, end: int, model: str = "m", failed: str = "", mates: int = 1) -> int:
        serial = next(self.serials)
        members = (serial, *itertools.islice(self.serials, mates - 1))
        ran = tuple((member, 1, begin, begin, failed) for member in members)
        key = (model, 1, serial, f"{model}_0", mates)
        self.events.append(BatchSent(begin, *key, INPUTS_READY, 0, members, None, {}))
        self.events.append(BatchExecuted(end, *key, begin, begin, end, end, ran))
        return serial

    def step(self, parent: int, child: int, number: int = 0, rule: str = INPUTS_READY, **models: str) -> None:
        model, step_model = models.get("model", "e"), models.get("step_model", "m")
        self.events.append(StepSent(0, model, 1, parent, number, step_model, 1, child, 0, rule))

    def requests(self) -> list[PipelineRequest]:
        return Recording(self.events).ensemble_requests


def spans(request: PipelineRequest) -> list[tuple[int, int, int]]:
    return [(part.request.serial, part.begin_ns, part.end_ns) for part in request.critical_path()]


def test_critical_path_goes_through_the_step_that_ended_last() -> None:
    events = Events()
    root = events.ensemble(0, 100)
    first, slow, quick, last = (events.execution(*span) for span in ((5, 20), (22, 60), (22, 50), (61, 95)))
    for number, step in enumerate((first, slow, quick, last)):
        events.step(root, step, number)
    [request] = events.requests()
    expected = [(1, 0, 5), (2, 5, 20), (1, 20, 22), (3, 22, 60), (1, 60, 61), (5, 61, 95), (1, 95, 100)]
    assert spans(request) == expected
    assert request.concurrency == 2
    assert request.is_ensemble


def test_step_that_ends_after_its_request_is_not_waited_for() -> None:
    events = Events()
    root = events.execution(0, 50, "caller")
    events.step(root, events.execution(10, 90), rule=BLS_REQUEST)
    [request] = events.requests()
    assert spans(request) == [(1, 0, 50)]


def test_outcomes_of_steps_that_no_instance_executed() -> None:
    events = Events()
    root = events.ensemble(0, 100, "OTHER")
    hit, refused = next(events.serials), next(events.serials)
    events.events.append(CacheHit(30, "m", 1, hit, 10, 5))
    events.events.append(RequestRefused(90, "m", 1, refused, 1, 40, "Request timeout expired", "REJECTED"))
    events.step(root, hit, 0)
    events.step(root, refused, 1)
    [request] = events.requests()
    assert [(step.failed, step.latency_ns, step.record) for step in request.steps] == [
        ("", 20, None),
        ("REJECTED", 50, None),
    ]


def test_request_that_caused_itself_is_an_error() -> None:
    events = Events()
    root, first, second = events.ensemble(0, 100), events.ensemble(1, 50), events.ensemble(2, 40)
    events.step(root, first)
    events.step(first, second)
    events.events.append(StepSent(0, "e", 1, second, 0, "e", 1, second + 1, 0, INPUTS_READY))
    assert [request.serial for request in Recording(events.events).ensemble_requests] == [root]
    batch = events.execution(10, 20, "caller", mates=2)
    events.step(batch, batch + 1, rule=BLS_REQUEST, step_model="caller")
    events.step(root, batch, 5, step_model="caller")
    with pytest.raises(ValueError, match="caused itself"):
        events.requests()


@st.composite
def trees(draw: Any, depth: int = 3) -> Events:
    """Return pipelines of any shape whose times need not fit together: clocks of traces are not exact."""
    events = Events()

    def grow(parent: int, model: str, rule: str, levels: int) -> None:
        for number in range(draw(st.integers(0 if levels < depth else 1, 3))):
            begin, end = sorted((draw(TIMES), draw(TIMES)))
            nested = levels > 0 and draw(st.booleans())
            serial = events.ensemble(begin, end) if nested and draw(st.booleans()) else events.execution(begin, end)
            events.step(parent, serial, number, rule, model=model)
            if nested:
                grow(serial, "e", draw(st.sampled_from([INPUTS_READY, BLS_REQUEST])), levels - 1)

    for _ in range(draw(st.integers(1, 3))):
        begin, end = sorted((draw(TIMES), draw(TIMES)))
        grow(events.ensemble(begin, end), "e", INPUTS_READY, depth)
    return events


@given(trees())
def test_critical_path_is_adjacent_and_as_long_as_the_latency(events: Events) -> None:
    for root in events.requests():
        for request in root.walk():
            path = request.critical_path()
            assert path[0].begin_ns == request.received_ns
            assert path[-1].end_ns == request.ended_ns
            assert all(before.end_ns == after.begin_ns for before, after in itertools.pairwise(path))
            assert all(part.begin_ns <= part.end_ns for part in path)


def test_statistics_of_a_pipeline_are_by_step() -> None:
    events = Events()
    for begin in (0, 100):
        root = events.ensemble(begin, begin + 150)
        for number, (sent, over) in enumerate(((10, 40), (50, 90), (50, 150))):
            events.step(
                root,
                events.execution(begin + sent, begin + over, f"m{min(number, 1)}"),
                number,
                step_model=f"m{min(number, 1)}",
            )
    pipeline = Recording(events.events).pipelines["e"]
    own, first, short, long = pipeline.statistics()
    assert [one.step for one in (own, first, short, long)] == [(), ("m0",), ("m1 (step 1)",), ("m1 (step 2)",)]
    assert [(one.requests, one.fan_out, one.concurrency) for one in (own, first)] == [(2, 1.0, 2), (2, 1.0, 1)]
    assert [one.share for one in (own, first, short, long)] == pytest.approx([20 / 150, 30 / 150, 0, 100 / 150])
    assert "m1 (step 2)" in repr(pipeline)
    assert "m1 (step 2)" in pipeline._repr_html_()


@given(trees())
def test_shares_of_the_steps_sum_to_one(events: Events) -> None:
    for pipeline in Recording(events.events).pipelines.values():
        total = sum(one.share for one in pipeline.statistics())
        assert total == pytest.approx(1 if any(request.latency_ns for request in pipeline.requests) else 0)
