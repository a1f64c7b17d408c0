"""Stepping through a recording with the future hidden: states, rules, breakpoints."""

from __future__ import annotations

import pytest

import tritonnb as tnb
from tritonnb.core.events import Event, RequestArrived, RequestCancelled
from tritonnb.lab.analysis.debugger import QUANTITIES, Debugger
from tritonnb.model_config.read import read_config
from tritonnb.recording.recording import Recording

CONFIG = "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 5000 preferred_batch_size: 2 }"
ARRIVALS = [(0, 1), (1000, 1), (2000, 1), (3000, 4)]


@pytest.fixture
def rec() -> Recording:
    return tnb.simulate(CONFIG, ARRIVALS, tnb.fixed(5))


@pytest.fixture
def debugger(rec: Recording) -> Debugger:
    return rec.debug()


def test_every_event_is_visited_in_both_directions(debugger: Debugger) -> None:
    descriptions = [debugger.description]
    while debugger.step():
        descriptions.append(debugger.description)
    assert descriptions[0] == "Nothing has happened yet."
    assert descriptions[1] == "0.000 ms: request 1 arrives (1 row)"
    assert descriptions[3].startswith(
        "1.000 ms: batch 1 of 2 rows sent to simulated_0_0: 2 requests, 2 rows: preferred"
    )
    assert descriptions[-1] == "16.000 ms: batch 3 executed on simulated_0_0 in 5.000 ms"
    backwards = [debugger.description]
    while debugger.step(-1):
        backwards.append(debugger.description)
    assert backwards == descriptions[::-1]


def test_debugger_does_not_show_later_events(rec: Recording, debugger: Debugger) -> None:
    for position, event in enumerate(rec.events, 1):
        debugger.step()
        assert debugger.past.events == rec.events[:position]
        known = {known.serial for known in debugger.past.events if isinstance(known, RequestArrived)}
        state = debugger.state
        assert {request.serial for request in state.waiting} <= known
        assert all(request.time_ns <= event.time_ns for request in state.waiting)


@pytest.mark.parametrize(
    ("position", "quantities"),
    [
        (1, {"event": "arrived", "queue": 1, "rows": 1, "oldest_ms": 0, "idle": 1, "busy": 0, "batch": None}),
        (3, {"event": "sent", "queue": 0, "rows": 0, "oldest_ms": None, "idle": 0, "busy": 1, "batch": 2}),
        (5, {"event": "arrived", "queue": 2, "rows": 5, "oldest_ms": 1, "rule": None}),
        (6, {"event": "executed", "queue": 2, "batch": 2, "requests": 2, "rule": "preferred_size", "waited_ms": 1}),
        (10, {"time_ms": 16, "queue": 0, "refused": 0}),
    ],
)
def test_debugger_shows_the_quantities_of_an_event(
    debugger: Debugger, position: int, quantities: dict[str, object]
) -> None:
    debugger.step(position)
    known = debugger.state.quantities
    assert {name: known[name] for name in quantities} == quantities
    assert known.keys() == QUANTITIES.keys()


def test_breakpoints_stop_in_both_directions(debugger: Debugger) -> None:
    debugger.add_breakpoint("batch < 4 and event == 'sent'")
    debugger.add_breakpoint("rows > 4")
    visited = []
    while debugger.resume():
        visited.append(debugger.position)
    assert visited == [3, 5, 6, 7]
    assert debugger.position == len(debugger.events)
    backwards = []
    while debugger.reverse():
        backwards.append(debugger.position)
    assert backwards == visited[::-1]
    assert debugger.position == 0
    debugger.remove_breakpoint("rows > 4")
    assert debugger.breakpoints == ["batch < 4 and event == 'sent'"]
    assert debugger.resume("queue == 2 and rows > 2")
    assert debugger.position == 5


@pytest.mark.parametrize(
    ("condition", "complaint"),
    [
        ("bach < 4", "got 'bach'; did you mean 'batch'"),
        ("rule == 'delay_exceded'", "rule expected one of .*, got 'delay_exceded'; did you mean 'delay_exceeded'?"),
        ("queue > 1 and 'snt' == event", "event expected one of 'arrived', .*, got 'snt'; did you mean 'sent'?"),
        ("rule == 3", "rule expected one of .*, got 3"),
        ("queue == 'two'", "queue expected a number to compare it with, got 'two'"),
    ],
)
def test_invalid_breakpoint_is_an_error(debugger: Debugger, condition: str, complaint: str) -> None:
    for use in (debugger.add_breakpoint, debugger.resume, debugger.reverse):
        with pytest.raises(tnb.TritonError, match=complaint):
            use(condition)
    assert not debugger.breakpoints


def test_refusals_and_priorities_are_described() -> None:
    config = "max_batch_size: 1 dynamic_batching { priority_levels: 2 default_priority_level: 2 " \
             "default_queue_policy { max_queue_size: 1 } }"  # fmt: skip
    arrivals = [tnb.Arrival(ms=at, priority=1) for at in range(3)]
    debugger = tnb.simulate(config, arrivals, tnb.fixed(5)).debug()
    assert debugger.resume("event == 'refused'")
    assert debugger.description == "2.000 ms: request 3 refused: [request id: 3] Exceeds maximum queue size"
    assert debugger.state.quantities["refused"] == 1
    assert debugger.state.quantities["queue"] == 1
    assert debugger.reverse("event == 'arrived'")
    assert debugger.description == "2.000 ms: request 3 arrives (1 row, priority 1)"


@pytest.mark.parametrize(
    ("config", "arrivals", "now_ms", "rule", "numbers"),
    [
        (CONFIG, [(0, 1)], 3.1, "wait", "1 row, another 1.900 ms"),
        (CONFIG, [(0, 1)], 5, "delay_exceeded", "5.000 of 5.000 ms"),
        (CONFIG, [(0, 1), (0, 1)], 0, "preferred_size", "2 of exactly 2 rows"),
        (CONFIG, [(0, 1), (1, 4)], 1, "does_not_fit", "1 + 4 of 4 rows"),
        (CONFIG, [(0, 1), (1, 2)], 1, "overshoots_preferred", "1 + 2 of 2 rows"),
        ("max_batch_size: 4 dynamic_batching { }", [(0, 1)], 0, "no_delay", "0 ms"),
        ("max_batch_size: 4 dynamic_batching { }", [(0, 4)], 0, "preferred_size", "4 of exactly 4 rows"),
        ("max_batch_size: 4", [(0, 2)], 0, "one_request", "2 rows of the first request"),
    ],
)
def test_debugger_names_the_applicable_rule(
    config: str, arrivals: list[tuple[float, int]], now_ms: float, rule: str, numbers: str
) -> None:
    waiting = [
        RequestArrived(round(at * 1e6), "m", 1, serial, rows, 0, 0, "", 0, 0, 0)
        for serial, (at, rows) in enumerate(arrivals, 1)
    ]
    later = RequestCancelled(round(now_ms * 1e6), "m", 1, serial=99)
    events: list[Event] = [*waiting, later]
    debugger = Recording(events, {"m": read_config(config)}).debug()
    debugger.step(len(events))
    assert [(row.rule, row.numbers) for row in debugger.state.rules if row.applies] == [(rule, numbers)]


@pytest.mark.parametrize(
    ("size", "strategy", "waiting", "rule"),
    [
        (4, "", 1, "no_slot_wait"),
        (4, "direct { max_queue_delay_microseconds: 4000 minimum_slot_utilization: 0.5 }", 1, "wait"),
        (4, "direct { max_queue_delay_microseconds: 4000 minimum_slot_utilization: 0.5 }", 2, "slot_utilization"),
        (10, "direct { max_queue_delay_microseconds: 4000 minimum_slot_utilization: 0.3 }", 3, "slot_utilization"),
        (4, "oldest { max_queue_delay_microseconds: 4000 }", 2, "wait"),
        (4, "oldest { max_queue_delay_microseconds: 4000 preferred_batch_size: 2 }", 2, "preferred_size"),
        (4, "oldest { max_candidate_sequences: 1 max_queue_delay_microseconds: 4000 }", 2, "wait"),
    ],
)
def test_reason_names_the_rule_of_a_sequence_batcher(size: int, strategy: str, waiting: int, rule: str) -> None:
    config = read_config(f"max_batch_size: {size} sequence_batching {{ {strategy} }}")
    requests = [RequestArrived(0, "m", 1, serial, 1, 0, 0, "", serial, 1, 0) for serial in range(1, waiting + 1)]
    debugger = Recording(requests, {"m": config}).debug()
    debugger.step(waiting)
    assert [row.rule for row in debugger.state.rules if row.applies] == [rule]


@pytest.mark.parametrize("recording", [Recording(), Recording(tnb.simulate(CONFIG, ARRIVALS, tnb.fixed(5)).events)])
def test_recording_without_a_model_is_an_error(recording: Recording) -> None:
    with pytest.raises(tnb.TritonError, match="debug expected a recording of one model with its configuration"):
        recording.debug()
