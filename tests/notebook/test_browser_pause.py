"""Pause, slowest, why: every request that a paused view offers is explained, at any rate."""

from __future__ import annotations

from typing import Any

import pytest

from tests.notebook.browser import NotebookPage

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
    view.locator(".tnb-fact", has_text="batches").first.wait_for()
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
