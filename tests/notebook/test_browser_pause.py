"""Pause, slowest, why: every request that a paused view offers is explained, at any rate."""

from __future__ import annotations

import re
from typing import Any

import pytest

import tritonnb as tnb
from tests.notebook.browser import NotebookPage
from tests.notebook.test_browser_view_truth import DELAYED, DIRECT
from tests.notebook.view_page import ViewPage, deliveries
from tritonnb.notebook.batch_view import BatchView
from tritonnb.notebook.view_session import recorded_history

SERVE = """
import time
import tritonnb as tnb
server = tnb.serve(port=0)
@server.model(max_batch_size=64, dynamic_batching={}, instance_group=[{"count": 2}])
def slow(X: tnb.FP32[1]) -> tnb.FP32[1]:
    time.sleep(0.01)
    return X * 2
server["slow"].watch()
"""
TRAFFIC = """running = tnb.load(server["slow"], rate={rate}, duration=4)"""


@pytest.mark.parametrize("rate", [50, 1000, 5000])
def test_every_offered_request_is_explained(notebook: Any, rate: int) -> None:
    page: NotebookPage = notebook(SERVE, TRAFFIC.format(rate=rate))
    page.run_all()
    view = page.output(0).locator(".tnb-batch-view")
    view.locator(".tnb-fact", has_text=re.compile("[1-9][0-9]+ batches")).first.wait_for()
    view.locator('[data-do="pause"]').click()
    slowest = view.locator(".tnb-blame-choice button")
    slowest.first.wait_for()
    labels = slowest.all_inner_texts()
    assert labels
    for label in labels:
        view.locator("canvas").last.focus()
        page.browser_page.keyboard.press("Escape")
        view.get_by_role("button", name=label, exact=True).click()
        name = label.split(" (")[0]
        view.locator(".tnb-blame-result").get_by_text(f"Request {name}:").get_by_text("ms from reception").wait_for()
        assert view.locator(".tnb-blame-result table").count() == 1
    assert page.errors == []


#: Click the middle of every n-th thing that is drawn, and return what was selected, offered, said and asked.
CLICK_ALL = """(most) => {
  const { view } = window;
  const targets = [...view.frame.targets];
  const step = Math.max(1, Math.floor(targets.length / most));
  return targets.filter((_, index) => index % step === 0).map(({ x, y, width, height }) => {
    view.perform("none");
    window.messages.length = 0;
    view.click({ x: x + width / 2, y: y + height / 2 });
    const text = (part) => view.part(part).textContent;
    const asked = window.messages.filter(({ blame }) => blame).map(({ blame }) => blame);
    const offered = view.root.querySelectorAll(".tnb-blame-choice button").length;
    return { selected: view.selected, card: text("details"), event: text("event"), choice: text("blame-choice"),
      offered, asked };
  });
}"""


@pytest.mark.parametrize("rate", [50, 1000, 5000])
@pytest.mark.parametrize("config", [DELAYED, DIRECT], ids=["batches", "slots"])
def test_every_click_on_a_paused_picture_has_an_answer(view: ViewPage, rate: int, config: str) -> None:
    duration = min(2, 1000 / rate)
    sequences = tnb.sequences([8] * int(rate * duration / 8), every_ms=20, stagger_ms=8000 / rate)
    arrivals = sequences if config == DIRECT else tnb.poisson(rate=rate, duration=duration, seed=1)
    rec = tnb.simulate(config, arrivals, tnb.linear(0.05, 1))
    history, sent = deliveries(rec)
    view.open(history)
    view.receive(sent[: max(3, len(sent) // 2)])  # in the middle: batches run, and requests wait
    view.settle()
    view.do("pause")
    view.page.evaluate("(name) => window.receive({ held: { view: name, from: 0 } })", view.run("view.name"))
    clicks = view.page.evaluate(CLICK_ALL, 60)
    executed = {(request.batch, request.label) for request in rec.requests}  # the kernel can explain these
    assert any(click["asked"] for click in clicks)
    for click in clicks:
        if click["selected"] is None:
            assert click["event"], click
            continue
        assert click["card"], click
        assert click["offered"] or "has not ended yet" in click["choice"], click
        for asked in click["asked"]:
            assert (asked["batch"], asked["request"]) in executed
    assert view.errors == []


def test_batch_whose_end_was_not_received_has_ended(view: ViewPage) -> None:
    rec = tnb.simulate(DELAYED, tnb.poisson(rate=150, duration=3, seed=4), tnb.fixed(20))
    history, sent = deliveries(rec)
    open_batches = "[...view.received.batches.values()].filter(({ end }) => end === null).length"
    lost = 0
    for first in range(0, len(sent) - 4, 5):
        view.open(history)
        view.receive(sent[: first + 1])
        running = view.run(open_batches)
        view.receive(sent[first + 4 :])
        lost += running
        assert view.run(open_batches) <= view.run("view.received.running.length")
    assert lost
    assert view.errors == []


def test_recorded_view_opens_on_batches_around_the_slowest_request(view: ViewPage) -> None:
    rec = tnb.simulate(DELAYED, tnb.poisson(rate=150, duration=6, seed=4), tnb.fixed(20))
    view.open(recorded_history(rec), live=False)
    view.settle()
    assert view.run("view.received.batches.size") > 70
    assert view.run("view.frame.columns") is None
    slowest = view.run("view.timeline.batches.get(view.timeline.slowest[0].batch).sent")
    assert view.run("view.window.from") <= slowest <= view.run("view.window.to")
    assert view.errors == []


def test_shorter_run_of_a_comparison_is_known_until_the_end_of_the_longer_one() -> None:
    arrivals = [(0, 4), (0, 2), (17_000, 2), (33_000, 6), (33_000, 2)]
    before = tnb.simulate("max_batch_size: 8 dynamic_batching { }", arrivals, tnb.fixed(50))
    comparison = before.what_if(max_queue_delay_microseconds=20_000).view()
    histories = [child.history for child in comparison.children if isinstance(child, BatchView)]
    assert [history["spans"][-1][1] for history in histories] == [history["now"] for history in histories]
    assert len({history["now"] for history in histories}) == 1


def test_only_the_last_paused_outputs_keep_their_events(monkeypatch: pytest.MonkeyPatch) -> None:
    with tnb.Server(port=0) as server:

        @server.model(max_batch_size=8)
        def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X * 2

        view = server["double"].watch()
        sent: list[Any] = []
        monkeypatch.setattr(view, "send", sent.append)
        for number in range(10):
            view._hold(str(number), True)
        view._hold("9", True)
        assert list(view._held) == [str(number) for number in (2, 3, 4, 5, 6, 7, 8, 9)]
        released = [message["held"]["view"] for message in sent if message.get("held", {}).get("from")]
        assert released == ["0", "1"]
        view.close()
