"""The trees of pipeline requests, and the critical path through them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonnb.core.events import (
    BatchExecuted,
    BatchSent,
    CacheHit,
    EnsembleExecuted,
    Event,
    RequestArrived,
    RequestRefused,
    StepSent,
)
from tritonnb.errors import InvalidArgumentError
from tritonnb.lab.analysis.backlog import from_its_begin
from tritonnb.lab.analysis.recorded_arrivals import RecordedArrivals
from tritonnb.recording.pipelines import PipelineRequest, step_paths
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


def nested(*steps: tuple[int, int], requests: int) -> Recording:
    """Return a recording that began after the first two of some requests of an ensemble, which caused each other."""
    events = Events()
    for serial in range(1, requests + 1):
        events.ensemble(serial - 3, 2 * requests - serial)
    for parent, child in steps:
        events.step(parent, child)
    return Recording(events.events)


@pytest.mark.parametrize("steps", [[(3, 3)], [(2, 3), (3, 2)], [(2, 3), (4, 5), (5, 4)], [(2, 3), (3, 4), (4, 2)]])
def test_walks_end_if_requests_caused_themselves(steps: list[tuple[int, int]], tmp_path: Path) -> None:
    rec = nested(*steps, requests=5)
    assert len(from_its_begin(rec).events) <= len(rec.events)
    RecordedArrivals(rec).of_clients()
    rec.save(tmp_path / "rec")
    with pytest.raises(InvalidArgumentError, match="caused itself"):
        Recording.load(tmp_path / "rec")


def test_walks_end_in_requests_that_are_nested_deeply(tmp_path: Path) -> None:
    rec = nested(*((serial, serial + 1) for serial in range(2, 20_000)), requests=20_000)
    assert len(from_its_begin(rec).events) <= len(rec.events)
    RecordedArrivals(rec).of_clients()
    rec.save(tmp_path / "rec")
    with pytest.raises(InvalidArgumentError, match="expected at most 100 nested requests"):
        Recording.load(tmp_path / "rec")


def test_request_is_walked_once_however_many_requests_share_it() -> None:
    events = Events()
    batches = [events.execution(level, 200 - level, mates=2) for level in range(60)]
    for caller, called in itertools.pairwise(batches):
        events.step(caller, called, rule=BLS_REQUEST)
        events.step(caller, called + 1, rule=BLS_REQUEST)
    root, _ = events.requests()
    assert len(list(root.walk())) == 1 + 2 * 59
    assert len(step_paths(root)) == 1 + 2 * 59
    assert root.critical_path()[-1].end_ns == 200


def test_label_of_an_ensemble_is_read_once_in_each_of_its_ensembles() -> None:
    events = Events()
    ensembles = [events.ensemble(level, 200 - level) for level in range(60)]
    for outer, inner in itertools.pairwise(ensembles):
        events.step(outer, inner)
    serial = events.execution(60, 70)
    events.step(ensembles[-1], serial)
    events.events.insert(0, RequestArrived(60, "m", 1, serial, 1, 0, 0, "named", 0, 0, 0))
    assert events.requests()[0].label == "named"


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
