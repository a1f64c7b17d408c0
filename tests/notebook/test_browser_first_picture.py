"""The first picture: what a view shows in its first second fills the plot, or says what to do next."""

from __future__ import annotations

import pytest

import tritonnb as tnb
from tests.notebook.test_browser_view_truth import DELAYED, DENSE, DIRECT
from tests.notebook.view_page import ViewPage, deliveries
from tritonnb.core.packed_events import pack
from tritonnb.notebook.view_session import ViewSession
from tritonnb.recording.recording import Recording

#: From the first arrival to the last end that is drawn, as a share of the width of the plot.
FILLED = """() => {
  const { frame, timeline } = window.view;
  const ends = frame.batches.map((batch) => batch.end ?? frame.end);
  const [from, to] = [Math.min(...frame.batches.map(({ oldest }) => oldest)), Math.max(...ends)];
  return (Math.min(to, frame.from + frame.span) - Math.max(from, frame.from)) / frame.span;
}"""
TRAFFIC = {
    "one request": tnb.simulate(DELAYED, [(0, 1)], tnb.fixed(1)),
    "five requests": tnb.simulate(DELAYED, [(6000 * at, 1) for at in range(5)], tnb.fixed(0.2)),
    "five requests after a minute": tnb.simulate(DELAYED, [(6e7 + 6000 * at, 1) for at in range(5)], tnb.fixed(0.2)),
    "four a second": tnb.simulate(DENSE, tnb.poisson(rate=4, duration=6, seed=1), tnb.fixed(70)),
    "200 a second": tnb.simulate(DENSE, tnb.poisson(rate=200, duration=4, seed=1), tnb.linear(0.02, 0.3)),
    "more than can be executed": tnb.simulate(DENSE, tnb.poisson(rate=3000, duration=1, seed=1), tnb.fixed(40)),
    "sequences": tnb.simulate(DIRECT, tnb.sequences([6] * 8, every_ms=60, stagger_ms=30), tnb.fixed(9)),
}


def remembered(rec: Recording) -> ViewSession:
    """A view that is opened after the traffic of a recording."""
    ((name, config),) = rec.configs.items()
    session = ViewSession(name, config, rec.span_ns[0])
    session.replay(list(map(pack, rec.events)))
    return session


@pytest.mark.parametrize("name", TRAFFIC)
@pytest.mark.parametrize("opened", ["before the traffic", "after it"])
def test_data_fill_at_least_half_of_the_plot(view: ViewPage, name: str, opened: str) -> None:
    rec = TRAFFIC[name]
    if opened == "after it":
        session = remembered(rec)
        view.open(session.history())
        view.run("view.draw()")
    else:
        history, sent = deliveries(rec)
        view.open(history)
        view.receive(sent)
        view.settle()
    assert view.run("view.window.batches")
    assert view.page.evaluate(FILLED) >= 0.5


def test_view_without_requests_has_instructions_and_can_send_some(view: ViewPage) -> None:
    history, sent = deliveries(TRAFFIC["five requests"])
    view.open(history)
    empty = view.page.locator(".tnb-empty")
    assert 'No request yet. Call server["m"](…)' in empty.inner_text()
    empty.get_by_role("button").click()
    assert view.page.evaluate("() => window.messages").count({"try": True}) == 1
    assert "column" not in view.text("legend")
    view.receive(sent)
    view.settle()
    assert empty.is_hidden()
