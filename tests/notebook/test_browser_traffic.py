"""The traffic panel in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.notebook.browser import ROOT, NotebookPage

SERVE = f"""
import tritonnb as tnb
server = tnb.serve({str(ROOT / "model_repository")!r}, port=0, model_control_mode="explicit", load_models=["add_sub"])
"""
COUNT = "print(server['add_sub'].stats()['inference_count'])"


@pytest.fixture(scope="module")
def page(notebook: Callable[..., NotebookPage]) -> NotebookPage:
    page = notebook(SERVE, "server['add_sub'].traffic()", "server.dashboard('add_sub')")
    page.run_all()
    page.output(2).locator(".tnb-dashboard").wait_for()
    return page


def test_the_button_starts_and_stops_traffic_and_the_numbers_are_updated(page: NotebookPage) -> None:
    panel = page.output(1).locator(".tnb-traffic")
    panel.get_by_role("button", name="Send").click()
    panel.get_by_text(re.compile("responses/s")).wait_for()
    page.screenshots("traffic", panel)
    panel.get_by_role("button", name="closed loop").click()
    panel.get_by_text("clients").wait_for()
    panel.get_by_text(re.compile("responses/s")).wait_for()
    panel.get_by_role("button", name="Stop").click()
    panel.get_by_text(re.compile("Last: 'add_sub', closed loop, 8 clients")).wait_for()
    assert int(page.execute(COUNT)) > 0
    assert page.errors == []


def test_the_numbers_are_updated_while_a_cell_runs(page: NotebookPage) -> None:
    panel = page.output(1).locator(".tnb-traffic")
    panel.get_by_role("button", name="Send").click()
    panel.get_by_text(re.compile("responses/s")).wait_for()
    before = panel.locator(".widget-html-content").inner_text()
    with page.busy():
        page.browser_page.wait_for_function(
            "([node, before]) => node.innerText !== before",
            arg=[panel.locator(".widget-html-content").element_handle(), before],
        )
    panel.get_by_role("button", name="Stop").click()
    panel.get_by_text(re.compile("Last:")).wait_for()


def test_the_dashboard_has_the_same_panel(page: NotebookPage) -> None:
    dashboard = page.output(2).locator(".tnb-dashboard")
    dashboard.get_by_role("tab", name="Live").click()
    dashboard.get_by_text(re.compile("Last:")).wait_for()
    page.screenshots("dashboard-traffic", dashboard)
    assert page.errors == []
