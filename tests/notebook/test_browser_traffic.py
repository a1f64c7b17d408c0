"""The traffic panel in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.notebook.accessibility import check_accessibility
from tests.notebook.browser import ROOT, NotebookPage

SERVE = f"""
import tritonnb as tnb
server = tnb.serve({str(ROOT / "model_repository")!r}, port=0, model_control_mode="explicit", load_models=["add_sub"])

@server.model(max_batch_size=4)
def words(X: tnb.FP32[-1]) -> tnb.FP32[-1]:
    return X
"""
COUNT = "print(server['add_sub'].stats()['inference_count'])"


@pytest.fixture(scope="module")
def page(notebook: Callable[..., NotebookPage]) -> NotebookPage:
    cells = ["server['add_sub'].traffic()", "server.dashboard('add_sub')", "server['words'].traffic()"]
    page = notebook(SERVE, *cells)
    page.run_all()
    page.output(3).locator(".tnb-traffic").wait_for()
    return page


@pytest.fixture
def panel(page: NotebookPage) -> Any:
    return page.output(1).locator(".tnb-traffic")


def test_button_starts_and_stops_traffic_and_the_numbers_are_updated(page: NotebookPage, panel: Any) -> None:
    panel.get_by_role("button", name="Send").click()
    panel.get_by_text("responses/s").wait_for()
    panel.get_by_role("img", name=re.compile("Latency of .* responses from .* p99")).wait_for()
    page.screenshots("traffic", panel)
    panel.get_by_role("button", name="closed loop").click()
    panel.get_by_label("clients").wait_for()
    panel.get_by_text("responses/s").wait_for()
    panel.get_by_role("button", name="Stop").click()
    panel.get_by_text(re.compile("Last: 'add_sub', closed loop, 8 clients")).wait_for()
    panel.get_by_role("button", name="open loop").click()
    assert int(page.execute(COUNT)) > 0
    assert page.errors == []


def test_slider_has_an_accessible_name_and_value_text(page: NotebookPage, panel: Any) -> None:
    slider = panel.get_by_role("slider", name="requests per second")
    assert slider.get_attribute("aria-valuetext") == "200 requests per second"
    slider.focus()
    page.browser_page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "224 requests per second"
    assert panel.get_by_role("spinbutton", name="requests per second").input_value() == "224"
    page.browser_page.keyboard.press("ArrowLeft")
    assert slider.get_attribute("aria-valuetext") == "200 requests per second"


def test_invalid_number_stays_and_nothing_is_sent(page: NotebookPage, panel: Any) -> None:
    rate = panel.get_by_role("spinbutton", name="requests per second")
    for text, got in (("-5", "-5"), ("999999", "999999"), ("0", "0"), ("", "none")):
        rate.fill(text)
        rate.press("Tab")
        panel.locator("[role=alert]", has_text=f"Expected a number from 1 to 10000, got {got}.").wait_for()
        panel.get_by_label("rows per request").fill("2")  # another setting changes
        panel.get_by_label("rows per request").press("Tab")
        panel.get_by_role("button", name="Send").click()
        assert rate.input_value() == text
        assert rate.evaluate("(field) => document.activeElement === field")
        assert panel.get_by_role("button", name="Send").is_visible()
    rate.fill("200")
    panel.get_by_label("rows per request").fill("1")
    panel.get_by_label("rows per request").press("Tab")
    assert panel.locator("[role=alert]").inner_text() == ""


def test_toggle_buttons_say_which_is_pressed(panel: Any) -> None:
    loops = panel.get_by_role("group", name="kind of load")
    assert loops.get_by_role("button", pressed=True).all_inner_texts() == ["open loop"]
    loops.get_by_role("button", name="closed loop").click()
    assert loops.get_by_role("button", pressed=True).all_inner_texts() == ["closed loop"]
    loops.get_by_role("button", name="open loop").click()


def test_shape_is_entered_for_variable_dimensions(page: NotebookPage) -> None:
    panel = page.output(3).locator(".tnb-traffic")
    panel.get_by_role("button", name="Send").click()
    panel.get_by_text("input 'X' has variable dimensions [-1]: expected 1 positive integers").wait_for()
    shape = panel.get_by_role("textbox", name="shape of X")
    page.browser_page.wait_for_function("(field) => document.activeElement === field", arg=shape.element_handle())
    shape.fill("16")
    shape.press("Enter")
    panel.get_by_role("button", name="Send").click()
    panel.get_by_text("responses/s").wait_for()
    panel.get_by_role("button", name="Stop").click()
    panel.get_by_text(re.compile("Last:")).wait_for()


def test_numbers_are_updated_while_a_cell_runs(page: NotebookPage, panel: Any) -> None:
    panel.get_by_role("button", name="Send").click()
    panel.get_by_text("responses/s").wait_for()
    measured = panel.locator(".tnb-measured")
    before = measured.inner_text()
    with page.busy():
        page.browser_page.wait_for_function(
            "([node, before]) => node.innerText !== before", arg=[measured.element_handle(), before]
        )
    panel.get_by_role("button", name="Stop").click()
    panel.get_by_text(re.compile("Last:")).wait_for()


def test_click_during_a_cell_takes_effect_or_shows_a_busy_hint(page: NotebookPage, panel: Any) -> None:
    hint = panel.get_by_text("The kernel is busy: this takes effect when the running cell ends.")
    with page.busy():
        panel.get_by_role("button", name="Send").click()
        hint.or_(panel.get_by_text("in flight")).first.wait_for()  # JupyterLab may use a subshell
    panel.get_by_text("responses/s").wait_for()
    panel.get_by_text("The kernel is busy").wait_for(state="detached")
    panel.get_by_role("button", name="Stop").click()
    panel.get_by_text(re.compile("Last:")).wait_for()


def test_panel_is_accessible(page: NotebookPage, axe: str) -> None:
    check_accessibility(page, axe, ".tnb-traffic")


def test_dashboard_has_the_same_panel(page: NotebookPage) -> None:
    dashboard = page.output(2).locator(".tnb-dashboard")
    dashboard.get_by_role("tab", name="Live").click()
    dashboard.get_by_text(re.compile("Last:")).wait_for()
    page.screenshots("dashboard-traffic", dashboard)
    assert page.errors == []
