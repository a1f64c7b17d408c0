"""A worksheet in the browser: predict by dragging or with the keyboard, check, hint, reveal."""

from __future__ import annotations

from typing import Any

import pytest

from tests.notebook.accessibility import check_accessibility
from tests.notebook.browser import NotebookPage

SHEET = """
import tritonnb as tnb
sheet = tnb.Worksheet("max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }",
                      [tnb.Arrival(ms=ms, rows=rows) for ms, rows in [(0, 4), (1, 2), (17, 2), (33, 6), (34, 2)]], 50)
view = sheet.view()
view
"""
RECORDED = """
rec = tnb.simulate("max_batch_size: 4 dynamic_batching { }", tnb.poisson(200, 1, seed=1), tnb.linear(1, 5))
rec.worksheet(requests=5)
"""


@pytest.fixture(scope="module")
def page(notebook: Any) -> NotebookPage:
    page: NotebookPage = notebook(SHEET, RECORDED)
    page.browser_page.set_default_timeout(20_000)
    page.run_all()
    page.output(1).locator(".tnb-worksheet").wait_for()
    return page


@pytest.fixture
def sheet(page: NotebookPage) -> Any:
    page.execute("view.answer, view.result = [], {}")
    root = page.output(0).locator(".tnb-worksheet")
    root.locator(".tnb-pool .tnb-chip").nth(4).wait_for()
    return root


def test_requests_are_dragged_into_batches_and_the_answer_is_graded(page: NotebookPage, sheet: Any) -> None:
    for name, batch in zip("ABC", (0, 0, 0), strict=True):
        sheet.locator(f"[data-name={name}]").drag_to(sheet.locator(".tnb-batch").nth(batch))
    for name in "DE":
        sheet.locator(f"[data-name={name}]").drag_to(sheet.locator(".tnb-batch").nth(1))
    sheet.get_by_role("button", name="Check").click()
    sheet.get_by_text("2 of 2 batches correct. All batches are as the scheduler forms them.").wait_for()
    assert sheet.locator(".tnb-right").count() == 2
    assert page.execute("print(view.answer)").strip() == "[['A', 'B', 'C'], ['D', 'E']]"


def test_page_works_with_the_keyboard_alone(page: NotebookPage, sheet: Any) -> None:
    keyboard = page.browser_page.keyboard
    for name, key in (("A", "1"), ("B", "ArrowRight"), ("C", "1"), ("D", "2"), ("E", "2"), ("A", "Delete"), ("A", "1")):
        sheet.locator(f"[data-name={name}]").focus()
        keyboard.press(key)
    assert page.browser_page.evaluate("() => document.activeElement.dataset.name") == "A"
    sheet.get_by_role("button", name="Check").focus()
    keyboard.press("Enter")
    sheet.get_by_text("2 of 2 batches correct").wait_for()


def test_first_divergence_is_marked_without_the_solution(page: NotebookPage, sheet: Any) -> None:
    page.execute("view.answer = [['A', 'B'], ['C']]")
    sheet.locator(".tnb-batch").nth(1).locator("[data-name=C]").wait_for()
    sheet.get_by_role("button", name="Check").click()
    sheet.get_by_text("Batch 1 is not A and B. The scheduler sends more than that.").wait_for()
    assert sheet.locator(".tnb-batch").nth(0).get_attribute("class") == "tnb-batch tnb-wrong"
    assert "A, B and C" not in sheet.inner_text()
    assert sheet.locator(".tnb-box").count() == 0
    assert sheet.locator(".tnb-next").count() == 1
    sheet.get_by_role("button", name="Hint").click()
    sheet.get_by_text("Batch 1 is sent at 17 ms, when C arrives.").wait_for()
    sheet.get_by_role("button", name="Reveal").click()
    sheet.get_by_text("Batch 1 is A, B and C, sent at 17 ms, not A and B.").wait_for()
    assert sheet.locator(".tnb-box").count() == 1
    page.screenshots("worksheet", sheet)


def test_axe_reports_no_serious_violation(page: NotebookPage, sheet: Any, axe: str) -> None:
    page.execute("view.answer = [['A', 'B'], ['C']]")
    sheet.get_by_role("button", name="Reveal").click()
    sheet.locator(".tnb-wrong").wait_for()
    check_accessibility(page, axe, ".tnb-worksheet")


def test_recording_can_be_predicted(page: NotebookPage) -> None:
    root = page.output(1).locator(".tnb-worksheet")
    assert root.locator(".tnb-chip").count() == 5
    assert "An execution takes" in root.inner_text()
    assert page.errors == []
