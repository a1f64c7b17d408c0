"""The debugger in the browser: buttons and keys, the rule table, breakpoints, and a picture without the future."""

from __future__ import annotations

from typing import Any

import pytest

from tests.notebook.accessibility import check_accessibility
from tests.notebook.browser import NotebookPage

DEBUG = """
import tritonnb as tnb
config = "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 5000 preferred_batch_size: 2 }"
rec = tnb.simulate(config, [(0, 1), (1000, 1), (2000, 1), (3000, 4)], tnb.fixed(5))
rec.debug()
"""


@pytest.fixture(scope="module")
def page(notebook: Any) -> NotebookPage:
    page: NotebookPage = notebook(DEBUG)
    page.browser_page.set_default_timeout(20_000)
    page.run_all()
    return page


def test_keyboard_steps_through_the_events(page: NotebookPage) -> None:
    panel = page.output(0).locator(".tnb-debugger")
    view = page.output(0).locator(".tnb-batch-view")
    keyboard = page.browser_page.keyboard
    panel.get_by_text("0.000 ms: request 1 arrives (1 row)").wait_for()
    assert view.locator(".tnb-empty").is_hidden()
    panel.get_by_role("button", name="next event").focus()
    keyboard.press("Home")
    panel.get_by_text("Nothing has happened yet.").wait_for()
    keyboard.press("ArrowRight")
    panel.get_by_text("0.000 ms: request 1 arrives (1 row)").wait_for()
    assert panel.locator(".tnb-applies").all_inner_texts()[0].split("\t")[1:3] == ["wait", "1 row, another 5.000 ms"]

    panel.get_by_label("condition of a breakpoint").focus()
    keyboard.type("bach < 4")
    keyboard.press("Enter")
    panel.get_by_text("did you mean 'batch'").wait_for()
    keyboard.press("Control+a")
    keyboard.type("batch < 4 and event == 'sent'")
    keyboard.press("Enter")
    panel.locator(".tnb-breakpoints code").wait_for()

    panel.get_by_role("button", name="next event").focus()
    keyboard.press("F8")
    panel.get_by_text("1.000 ms: batch 1 of 2 rows sent to").wait_for()
    view.locator(".tnb-fact", has_text="1 batch").wait_for()
    assert view.locator(".tnb-fact").first.inner_text() == "2 requests"
    keyboard.press("ArrowLeft")
    panel.get_by_text("1.000 ms: request 2 arrives").wait_for()
    view.locator(".tnb-fact", has_text="0 batches").wait_for()  # the batch is the future again
    keyboard.press("F8")
    keyboard.press("ArrowRight")
    panel.get_by_text("2.000 ms: request 3 arrives").wait_for()
    panel.get_by_text("All instances are busy. The rules for the next batch:").wait_for()
    page.screenshots("debugger", page.output(0))
    panel.get_by_role("button", name="next event").focus()  # JupyterLab may have moved the focus with the theme
    keyboard.press("Shift+F8")
    panel.get_by_text("1.000 ms: batch 1 of 2 rows sent to").wait_for()
    panel.get_by_role("button", name="remove the breakpoint").focus()
    keyboard.press("Enter")
    panel.locator(".tnb-breakpoints code").wait_for(state="detached")
    panel.get_by_role("button", name="next event").focus()
    keyboard.press("Home")
    panel.get_by_text("Nothing has happened yet.").wait_for()
    assert page.errors == []


def test_axe_reports_no_serious_violation(page: NotebookPage, axe: str) -> None:
    panel = page.output(0).locator(".tnb-debugger")
    panel.get_by_role("button", name="next event").click()
    panel.locator(".tnb-applies").wait_for()
    check_accessibility(page, axe, ".tnb-debugger")
