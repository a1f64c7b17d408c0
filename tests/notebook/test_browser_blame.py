"""The latency of a request, split by the kernel, in a recorded and in a live view."""

from __future__ import annotations

from typing import Any

import pytest

from tests.notebook.accessibility import check_accessibility
from tests.notebook.browser import NotebookPage

RECORDED = """
import tritonnb as tnb
rec = tnb.simulate("max_batch_size: 8 dynamic_batching { }", [(0, 1), (2000, 8), (3000, 1)], tnb.fixed(5))
rec.view()
"""
LIVE = """
import time
server = tnb.serve(port=0)
@server.model(max_batch_size=8, dynamic_batching={})
def slow(X: tnb.FP32[1]) -> tnb.FP32[1]:
    time.sleep(0.02)
    return X * 2
server["slow"].watch()
"""
TRAFFIC = """tnb.load(server["slow"], rate=100, requests=20).wait()"""


@pytest.fixture(scope="module")
def page(notebook: Any) -> NotebookPage:
    page: NotebookPage = notebook(RECORDED, LIVE, TRAFFIC)
    page.run_all()
    page.output(2).get_by_text("requests").first.wait_for()
    return page


def ask_for_the_last_request(page: NotebookPage, output: int) -> Any:
    """Select the last batch with the keyboard, and ask for its first request; return the panel."""
    view = page.output(output).locator(".tnb-batch-view")
    view.locator("canvas").last.focus()
    button = view.locator(".tnb-blame-choice button").first
    for _ in range(4):
        page.browser_page.keyboard.press("ArrowLeft")
        if button.count():
            break
    button.focus()
    page.browser_page.keyboard.press("Enter")
    return view.locator(".tnb-blame-result")


def test_recorded_request_shows_its_parts_and_remedies(page: NotebookPage) -> None:
    panel = ask_for_the_last_request(page, 0)
    panel.get_by_text("max_batch_size: 9 removes it").wait_for()
    panel.get_by_text("Request 3: 12.000 ms from reception to response").wait_for()
    page.screenshots("blame", page.output(0).locator(".tnb-batch-view"))
    assert page.errors == []


def test_axe_reports_no_serious_violation(page: NotebookPage, axe: str) -> None:
    ask_for_the_last_request(page, 0).locator("table").wait_for()
    check_accessibility(page, axe, ".tnb-batch-view")


def test_request_of_a_live_view_shows_its_parts(page: NotebookPage) -> None:
    panel = ask_for_the_last_request(page, 1)
    panel.get_by_text("compute infer").wait_for()
    assert page.errors == []
