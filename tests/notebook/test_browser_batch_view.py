"""The batch view in a real browser: live while a cell runs, paused, stepped through, explained, exported."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.notebook.accessibility import check_accessibility
from tests.notebook.browser import NotebookPage

SERVE = """
import time
import tritonnb as tnb
server = tnb.serve(port=0)
@server.model(max_batch_size=8, instance_group=[dict(count=2)],
              dynamic_batching=dict(max_queue_delay_microseconds=5000, preferred_batch_size=[4], priority_levels=2,
                                    default_priority_level=2))
def slow(X: tnb.FP32[1]) -> tnb.FP32[1]:
    time.sleep(0.003)
    return X * 2
view = server["slow"].watch()
"""
TRAFFIC = """
load = tnb.load(server["slow"], rate=300, arrivals="poisson", duration=3, seed=1)
load.wait()
"""
SEQUENCES = """
config = 'name: "m" max_batch_size: 2 instance_group { count: 2 } sequence_batching { direct { } }'
tnb.simulate(config, tnb.sequences([3] * 6, every_ms=60, stagger_ms=10), tnb.fixed(9)).view()
"""
STATEFUL = """
import threading
@server.model(max_batch_size=2, instance_group=[dict(count=2)],
              sequence_batching=dict(direct={}, max_sequence_idle_microseconds=60_000_000))
def remembers(X: tnb.FP32[1]) -> tnb.FP32[1]:
    return X
server["remembers"].watch()
"""
FIVE_SEQUENCES = """
for step in range(3):
    for name in "abcd":
        server["remembers"](X=[[1.0]], sequence_id=name, sequence_start=step == 0)
last = dict(X=[[1.0]], sequence_id="e", sequence_start=True, sequence_end=True)
threading.Thread(target=lambda: server["remembers"](**last)).start()
"""
COMPARISON = """
config = 'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }'
arrivals = [(0, 4), (50_000 / 3, 2), (0, 2), (100_000 / 3, 6), (100_000 / 3, 2)]
tnb.simulate(config, arrivals, tnb.fixed(50)).what_if(max_queue_delay_microseconds=0).view()
"""
#: While the machine stalls, many requests arrive between two batches.
_MOST_STEPS = 200


class View:
    """The view as a user sees it."""

    def __init__(self, page: NotebookPage, output: int) -> None:
        self.page = page
        self.root = page.output(output).locator(".tnb-batch-view")
        self.root.wait_for()
        self.canvas = self.root.locator(".tnb-picture canvas")

    def fact(self, words: str) -> float:
        text = self.root.locator(".tnb-fact", has_text=words).first.locator("b").inner_text()
        return float(text.rstrip(" %"))

    def click(self, title: str) -> None:
        self.root.get_by_title(title, exact=False).click()

    def step_back_to_a_batch(self) -> None:
        self.canvas.focus()
        for _ in range(_MOST_STEPS):
            self.page.browser_page.keyboard.press("ArrowLeft")
            if self.root.locator(".tnb-why").count():
                return
        pytest.fail(f"expected an event of a batch, got none in {_MOST_STEPS} events")

    def shows(self, text: str) -> None:
        self.root.get_by_text(text, exact=False).first.wait_for()

    def saved(self, button: str) -> str:
        with self.page.browser_page.expect_download() as download:
            self.root.get_by_role("button", name=button).click()
        return str(download.value.path().read_bytes().decode("latin-1"))


def milliseconds(description: str) -> float:
    """The time with which the description of an event begins."""
    number, unit = description.split(":")[0].split()
    return float(number) * {"ms": 1, "s": 1000}[unit]


@pytest.fixture(scope="module")
def page(notebook: Callable[..., NotebookPage]) -> Any:
    page = notebook(SERVE, "view", TRAFFIC, SEQUENCES, STATEFUL, COMPARISON)
    page.run_all()
    page.output(5).locator(".tnb-batch-view").nth(1).wait_for()
    return page


@pytest.fixture
def live(page: NotebookPage) -> View:
    return View(page, 1)


@pytest.fixture
def slots(page: NotebookPage) -> View:
    return View(page, 3)


def test_every_request_of_the_cell_is_counted(page: NotebookPage, live: View) -> None:
    sent = page.execute("print(server['slow'].stats()['inference_count'])")
    live.root.locator(".tnb-fact", has_text=f"{sent.strip()} requests").wait_for()
    assert live.fact("batches") < int(sent)
    assert live.fact("rows in a batch") > 1
    assert "slow:" in live.canvas.get_attribute("aria-label")
    page.screenshots("batch-view-live", live.root)


def test_view_is_updated_while_a_cell_runs(page: NotebookPage, live: View) -> None:
    before = live.fact("requests")
    with page.busy(TRAFFIC.replace("load.wait()", "")):
        page.browser_page.wait_for_function(
            "([root, before]) => Number(root.querySelector('.tnb-fact b').innerText) > before",
            arg=[live.root.element_handle(), before],
        )
    page.execute("load.wait()")


def test_paused_view_steps_through_events_and_describes_them(page: NotebookPage, live: View) -> None:
    live.click("pause, or follow again")
    live.canvas.focus()
    descriptions: list[str] = []
    missing = {"arrives", "sent to slow_0_", "is done on"}
    while missing and len(descriptions) < _MOST_STEPS:
        page.browser_page.keyboard.press("ArrowLeft")
        descriptions.append(live.root.locator(".tnb-event").inner_text())
        missing = {kind for kind in missing if kind not in descriptions[-1]}
    assert not missing
    times = [milliseconds(description) for description in descriptions]
    assert times == sorted(times, reverse=True)


def test_selected_batch_shows_why_it_was_sent(page: NotebookPage, live: View) -> None:
    live.step_back_to_a_batch()
    live.shows("Why now?")
    live.shows("left waiting")
    assert live.root.locator("table tbody tr").count() >= 1
    page.screenshots("batch-view-why", live.root)


def test_picture_and_the_trace_can_be_saved(live: View) -> None:
    svg = ElementTree.fromstring(live.saved("SVG").encode("latin-1"))
    assert svg.get("role") == "img"
    assert "batches" in svg.find("{http://www.w3.org/2000/svg}title").text  # type: ignore[operator]
    assert live.saved("PNG").startswith("\x89PNG")
    trace = json.loads(live.saved("Perfetto"))["traceEvents"]
    batches = [event for event in trace if event["ph"] == "X"]
    assert {batch["name"].split()[1] for batch in batches} == {"rows"}
    assert all(batch["dur"] > 0 and batch["args"]["why"] for batch in batches)


def test_slots_show_sequences_null_rows_and_controls(page: NotebookPage, slots: View) -> None:
    assert slots.fact("null rows") > 0
    slots.step_back_to_a_batch()
    for row in ("START", "END", "READY", "CORRID"):
        assert slots.root.locator("table td", has_text=row).count() == 1
    slots.shows("direct strategy")
    assert slots.root.locator(".tnb-cell").count() == 4
    page.screenshots("batch-view-slots", slots.root)


def test_stateful_model_shows_its_slots_and_its_backlog_live(page: NotebookPage) -> None:
    view = View(page, 4)
    page.execute(FIVE_SEQUENCES)
    view.shows("backlog: e")
    for name in "abcd":
        cell = view.root.locator(".tnb-held", has=page.browser_page.get_by_text(name, exact=True))
        cell.get_by_text("3 run").wait_for()
        cell.get_by_text("times out in").wait_for()
    page.screenshots("batch-view-stateful", view.root)
    page.execute("server['remembers'](X=[[1.0]], sequence_id='b', sequence_end=True)")
    view.shows("backlog: empty")
    view.root.locator(".tnb-note", has_text="free").wait_for()
    assert view.root.locator(".tnb-held").count() == 3


def test_views_of_a_comparison_show_the_same_time(page: NotebookPage) -> None:
    before, after = (page.output(5).locator(".tnb-batch-view").nth(number) for number in (0, 1))
    before.locator(".tnb-picture canvas").focus()
    for _ in range(5):
        page.browser_page.keyboard.press("ArrowRight")
    time = before.locator(".tnb-event").inner_text().split(" ms")[0]
    assert float(time) > 0
    after.locator(".tnb-event", has_text=f"{time} ms").wait_for()
    page.screenshots("batch-view-comparison", page.output(5))


def test_kernel_knows_whether_the_view_is_visible(page: NotebookPage, live: View) -> None:
    def until(in_sight: bool) -> None:
        while page.execute("print(any(view._in_sight.values()))").strip() != str(in_sight):
            page.browser_page.wait_for_timeout(50)

    live.root.scroll_into_view_if_needed()
    until(True)
    live.root.evaluate("(node) => { node.style.display = 'none'; }")
    until(False)
    live.root.evaluate("(node) => { node.style.display = ''; }")
    until(True)


def test_browser_reports_no_errors(page: NotebookPage) -> None:
    assert page.errors == []


@pytest.mark.parametrize("cell", [1, 3, 4, 5], ids=["live", "slots", "live slots", "comparison"])
def test_view_is_accessible(page: NotebookPage, axe: str, cell: int) -> None:
    page.cell(cell).evaluate("(element) => { element.id = 'checked'; }")
    check_accessibility(page, axe, "#checked .jp-Cell-outputArea")
    page.cell(cell).evaluate("(element) => { element.removeAttribute('id'); }")


def test_notebook_without_its_kernel_shows_the_last_state(
    page: NotebookPage, notebook: Callable[..., NotebookPage]
) -> None:
    page.execute("server.stop()")
    page.browser_page.wait_for_function(
        "() => document.querySelectorAll('.tnb-last-state img.tnb-on-light').length === 4"
    )
    assert not page.output(1).locator(".tnb-last-state").is_visible()
    page.save()
    again = notebook(file=page.file, new_page=True)
    # The picture of the comparison has no widget: it was an error once.
    for number, words in ((1, "Timeline of"), (3, "6 sequences in 4 slots of 2 instances"), (5, "Timeline")):
        picture = again.output(number).locator(".tnb-last-state img.tnb-on-light")
        picture.wait_for()
        assert words in picture.get_attribute("alt")
        failed = again.output(number).get_by_text("Error displaying widget")
        failed.wait_for(state="attached")  # and its error is not reported in the next notebook
        assert not failed.is_visible()
    again.screenshots("batch-view-without-kernel", again.output(3))


FAILS = """
import tritonnb as tnb
server = tnb.serve(port=0)
@server.model(max_batch_size=4)
def fails(X: tnb.FP32[1]) -> tnb.FP32[1]:
    raise ValueError("no luck")
view = server["fails"].watch()
view
"""


def test_failed_requests_are_shown(notebook: Callable[..., NotebookPage]) -> None:
    page = notebook(FAILS, "tnb.load(server['fails'], clients=1, requests=3).wait()")
    page.run_all()
    view = View(page, 0)
    view.root.locator(".tnb-fact", has_text="3 failed").wait_for()
    assert view.root.get_by_text("outline: requests failed").is_visible()
