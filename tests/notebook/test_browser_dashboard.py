"""The dashboard in a real browser, live and after its kernel is gone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.notebook.accessibility import check_accessibility
from tests.notebook.browser import ROOT, VIEWPORT, NotebookPage

SERVE = f"""
import threading
import numpy as np
import tritonnb as tnb
server = tnb.serve({str(ROOT / "model_repository")!r}, port=0, model_control_mode="explicit",
                   load_models=["add_sub", "identity_fp32", "digits"])
"""
SEND = """
import asyncio
image = np.zeros((1, 8, 8), np.float32)
for count in (1, 4, 16, 64):
    await asyncio.gather(*(server["digits"].infer_async(image=image) for _ in range(count)))
"""
#: A common laptop, and the part of the page that the status bar covers.
LAPTOP, STATUS_BAR = {"width": 1366, "height": 768}, 24

OpenNotebook = Callable[..., NotebookPage]


@pytest.fixture(scope="module")
def page(notebook: OpenNotebook) -> NotebookPage:
    page = notebook(SERVE, "server.dashboard('digits')", "server", "server['digits']")
    page.run_all()
    page.output(1).locator(".tnb-dashboard").wait_for()
    return page


@pytest.fixture
def dashboard(page: NotebookPage) -> Any:
    return page.output(1).locator(".tnb-dashboard")


def test_dashboard_is_updated_as_requests_arrive(page: NotebookPage, dashboard: Any) -> None:
    page.execute(SEND)
    dashboard.get_by_role("listitem").filter(has_text="mean batch").get_by_text("at most 64, last 5 s").wait_for()
    dashboard.get_by_text(re.compile(r"n = [1-9]")).first.wait_for()  # on a busy machine, some are older than 5 s
    page.screenshots("dashboard-batches", dashboard)
    dashboard.get_by_role("tab", name="Statistics").click()
    dashboard.get_by_text("85 rows of 85 requests").wait_for()
    page.screenshots("dashboard-statistics", dashboard)
    dashboard.get_by_role("tab", name="Configuration").click()
    page.screenshots("dashboard-configuration", dashboard)
    dashboard.get_by_role("tab", name="Live").click()
    assert page.errors == []


def test_picture_fits_a_laptop_without_scrolling(page: NotebookPage, dashboard: Any) -> None:
    page.browser_page.set_viewport_size(LAPTOP)
    page.cell(1).evaluate("(cell) => cell.scrollIntoView({ block: 'start' })")
    page.browser_page.wait_for_function(
        "(canvas) => canvas.getBoundingClientRect().height > 0",
        arg=dashboard.locator(".tnb-batch-view canvas").first.element_handle(),
    )
    lanes = dashboard.locator(".tnb-batch-view canvas").first.bounding_box()
    assert lanes["y"] + lanes["height"] < LAPTOP["height"] - STATUS_BAR
    for part in (".tnb-models", ".tnb-tiles", ".tnb-traffic"):
        assert dashboard.locator(part).bounding_box()["y"] < lanes["y"]
    assert dashboard.locator(".tnb-charts").bounding_box()["y"] > lanes["y"]
    page.browser_page.set_viewport_size(VIEWPORT)


def test_model_is_selected_with_the_keyboard_and_with_a_click(page: NotebookPage, dashboard: Any) -> None:
    models = dashboard.get_by_role("listbox", name="Models")
    models.focus()
    for key in ("Home", "ArrowDown", "ArrowDown", "Enter"):
        page.browser_page.keyboard.press(key)
    dashboard.get_by_role("group", name="Traffic on identity_fp32").wait_for()
    selected = models.get_by_role("option", selected=True)
    assert selected.get_attribute("data-name") == "identity_fp32"
    page.browser_page.keyboard.press("a")
    page.browser_page.keyboard.press("Space")
    dashboard.get_by_role("group", name="Traffic on add_sub").wait_for()
    models.get_by_role("option", name="digits").click()
    dashboard.get_by_role("group", name="Traffic on digits").wait_for()


def test_selection_during_a_cell_takes_effect_or_shows_a_busy_hint(page: NotebookPage, dashboard: Any) -> None:
    shown = dashboard.get_by_role("group", name="Traffic on add_sub")
    with page.busy():
        dashboard.get_by_role("option", name="add_sub").click()
        hint = dashboard.get_by_text("The kernel is busy: the model is shown when")
        hint.or_(shown).first.wait_for()  # JupyterLab may use a subshell
    shown.wait_for()
    dashboard.get_by_text("The kernel is busy").wait_for(state="detached")
    dashboard.get_by_role("option", name="digits").click()
    dashboard.get_by_role("group", name="Traffic on digits").wait_for()


def test_applied_configuration_is_marked_and_charts_are_read_with_the_keyboard(
    page: NotebookPage, dashboard: Any
) -> None:
    page.execute("c = server['digits'].config; c.dynamic_batching.max_queue_delay_microseconds = 900; c.apply()")
    dashboard.get_by_role("row").filter(has_text="max_queue_delay_microseconds: 500 → 900").wait_for()
    charts = dashboard.get_by_role("group", name="Charts over time")
    charts.focus()
    page.browser_page.keyboard.press("ArrowLeft")
    dashboard.locator(".tnb-pointer").first.wait_for(state="attached")
    page.browser_page.keyboard.press("Escape")
    dashboard.locator(".tnb-pointer").first.wait_for(state="detached")


@pytest.mark.parametrize("tab", ["Live", "Configuration", "Statistics", "Server"])
def test_dashboard_is_accessible(page: NotebookPage, dashboard: Any, tab: str, axe: str) -> None:
    dashboard.get_by_role("tab", name=tab).click()
    check_accessibility(page, axe, ".tnb-dashboard")
    dashboard.get_by_role("tab", name="Live").click()


def test_dashboard_is_updated_during_a_cell(page: NotebookPage, dashboard: Any) -> None:
    thread = "threading.Thread(target=lambda: [server['digits'](image=image) for _ in range(15)]).start()"
    with page.busy(f"image = np.zeros((1, 8, 8), np.float32)\n{thread}"):
        dashboard.get_by_text("100 rows of 100 requests").wait_for(state="attached")


def test_html_reprs_are_tables(page: NotebookPage) -> None:
    page.output(2).get_by_role("cell", name="digits", exact=True).wait_for()
    page.screenshots("server-card", page.output(2))
    page.screenshots("model-card", page.output(3))


def test_notebook_without_its_kernel_shows_the_last_state(page: NotebookPage, notebook: OpenNotebook) -> None:
    assert not page.output(1).locator(".tnb-last-state").is_visible()
    page.execute("server.stop()")
    page.output(1).get_by_text("The server has been stopped").first.wait_for()
    page.output(1).locator(".tnb-last-state img.tnb-on-light").wait_for(state="attached")  # drawn on another thread
    page.save()
    again = notebook(file=page.file, new_page=True)
    again.output(1).get_by_text("max_batch_size: 64").wait_for()
    failed = again.output(1).get_by_text("Error displaying widget")
    failed.wait_for(state="attached")  # and its error is not reported in the next notebook
    assert not failed.is_visible()
    saved = again.output(1).locator(".tnb-last-state > *")
    assert "Picture saved at" in saved.first.inner_text()
    assert again.output(1).locator(".tnb-last-state img.tnb-on-light").get_attribute("alt")
    again.screenshots("dashboard-without-kernel", again.output(1))
