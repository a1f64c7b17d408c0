"""The widget of a debugger, without a browser."""

from __future__ import annotations

import pytest

import tritonnb as tnb
from tritonnb.notebook.debugger_view import DebuggerView

CONFIG = "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 5000 preferred_batch_size: 2 }"


@pytest.fixture
def view() -> DebuggerView:
    view: DebuggerView = tnb.simulate(CONFIG, [(0, 1), (1000, 1), (2000, 1), (3000, 4)], tnb.fixed(5)).debug().view()
    view.perform({"action": "restart"})
    return view


@pytest.mark.parametrize(
    ("config", "arrivals"),
    [
        (CONFIG, [(0, 1), (1000, 1)]),
        ("max_batch_size: 4", [(0, 1), (100, 1), (200, 1)]),
        ("max_batch_size: 4 dynamic_batching { }", [(0, 4), (1000, 2)]),
    ],
)
def test_debugger_opens_where_its_rules_have_a_choice(config: str, arrivals: list[tuple[float, int]]) -> None:
    debugger = tnb.simulate(config, arrivals, tnb.fixed(5)).debug()
    view = debugger.view()
    assert debugger.position
    assert view.panel.state["rules"]
    assert view.picture.history["counts"]["requests"]
    before = debugger.position
    debugger.restart()
    for _ in range(before - 1):
        debugger.step()
        assert not debugger.state.rules


def test_picture_says_that_the_events_are_simulated(view: DebuggerView) -> None:
    assert view.picture.history["meta"]["simulated"] is True


def test_browser_receives_only_past_events(view: DebuggerView) -> None:
    assert view.picture.history["batches"] == {}
    for _ in range(3):
        view.perform({"action": "step"})
    assert view.picture.history["counts"]["requests"] == 2
    assert view.picture.history["batches"]["end"] == [None]  # it is running
    assert view.picture.history["now"] == 10_000
    assert view.picture.moment["cursor"] == 1
    view.perform({"action": "back"})
    assert view.picture.history["batches"] == {}
    assert view.picture.history["reset"]


def test_rules_and_the_quantities_are_shown(view: DebuggerView) -> None:
    view.perform({"action": "step"})
    state = view.panel.state
    assert (state["position"], state["total"]) == (1, 10)
    assert state["description"] == "0.000 ms: request 1 arrives (1 row)"
    assert [rule for rule, _, _, applies in state["rules"] if applies] == ["wait"]
    assert ["queue", 1, "requests that wait"] in state["quantities"]
    assert "&gt; wait" in view.last_state()


def test_breakpoints_are_added_reached_and_removed(view: DebuggerView) -> None:
    view.perform({"action": "add", "condition": "batch < 4 and rule == 'preferred_size'"})
    assert view.panel.breakpoints == ["batch < 4 and rule == 'preferred_size'"]
    view.perform({"action": "resume"})
    assert view.panel.state["position"] == 3
    assert view.panel.state["message"] == "Stopped at breakpoint 1: batch < 4 and rule == 'preferred_size'"
    view.perform({"action": "remove", "condition": view.panel.breakpoints[0]})
    view.perform({"action": "resume"})
    assert view.panel.state["message"] == "No breakpoint was reached: this is the end."
    view.perform({"action": "restart"})
    view.perform({"action": "back"})
    assert view.panel.state["message"] == "This is the beginning."


def test_picture_has_the_lanes_of_all_instances_from_the_start() -> None:
    rec = tnb.simulate("max_batch_size: 2 instance_group { count: 2 }", [(0, 2), (1, 2), (2, 2)], tnb.fixed(10))
    view = rec.debug().view()
    names = sorted(rec.instances)
    assert len(names) == 2
    view.perform({"action": "restart"})
    for _ in range(8):
        assert view.picture.history["instances"] == names
        view.perform({"action": "step"})
    view.close()


def test_invalid_condition_is_a_message(view: DebuggerView) -> None:
    view.panel._handle_custom_msg({"action": "add", "condition": "bach < 4"}, [])
    assert "got 'bach'; did you mean 'batch'?" in view.panel.state["message"]
    assert view.panel.state["error"]
    assert view.panel.breakpoints == []
    before = view.panel.state
    view.perform({"action": "unknown"})
    assert view.panel.state == before


def test_debugger_is_closed_when_its_last_output_is_removed(view: DebuggerView) -> None:
    for action in ("shown", "shown", "removed"):
        view.perform({"action": action})
    assert view.comm is not None
    view.perform({"action": "removed"})
    assert [widget.comm for widget in (view, view.panel, view.picture)] == [None, None, None]
