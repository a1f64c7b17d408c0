"""The batches of the steps of an ensemble in Chromium: a request that is selected lights up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.notebook.accessibility import serious_violations, unreached_controls
from tests.notebook.test_step_batches import picture
from tritonnb.notebook.step_batches import StepBatches
from tritonnb.notebook.widget_files import stylesheet

OPEN = """async ([source, picture]) => {
  const { default: widget } = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  window.state = { picture };
  const listeners = {};
  window.change = (next) => { window.state.picture = next; listeners["change:picture"](); };
  const model = { get: (name) => window.state[name], set: (name, value) => { window.state[name] = value; },
    on: (event, listener) => { listeners[event] = listener; }, off: () => {}, save_changes: () => {}, send: () => {} };
  widget.render({ model, el: document.getElementById("root") });
}"""
LIT = "[...document.querySelectorAll('.tnb-batch.tnb-lit')].map(({ dataset }) => Number(dataset.batch))"


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1000, "height": 600})
    page.set_content(f"<style>{stylesheet('dashboard')}</style><div class='tnb-dashboard' id='root'></div>")
    page.evaluate(OPEN, [str(StepBatches._esm), picture()])
    yield page
    page.close()


def test_selected_request_lights_up_and_holds_the_picture(page: Any) -> None:
    button = page.get_by_role("button").first
    button.click()
    shown = page.evaluate("window.state.picture")
    slowest = max(shown["requests"], key=lambda request: request["end"] - request["begin"])
    assert page.evaluate(LIT) == sorted(step["batch"] for step in slowest["steps"])
    assert page.evaluate("Object.keys(window.state.lit.steps)") == ["a", "b"]
    assert page.locator(".tnb-way").inner_text().startswith(f"Request {slowest['label']}: ")
    page.evaluate("(next) => window.change(next)", picture(25))
    assert page.get_by_role("button").first.get_attribute("aria-pressed") == "true"
    page.get_by_role("button").first.click()
    assert page.evaluate(LIT) == []
    assert page.evaluate("window.state.lit.steps") == {}


def test_batch_selects_one_of_its_requests_after_the_other(page: Any) -> None:
    batches = page.evaluate("window.state.picture.batches")
    index, batch = max(enumerate(batches), key=lambda entry: len(entry[1]["requests"]))
    texts = set()
    for _ in batch["requests"]:
        page.locator(f"[data-batch='{index}']").click()
        assert index in page.evaluate(LIT)
        texts.add(page.locator(".tnb-way").inner_text())
    assert len(texts) == len(batch["requests"])


def test_axe_reports_no_serious_violation(page: Any, axe: str) -> None:
    assert serious_violations(page, axe, "#root") == []
    assert unreached_controls(page, "#root") == []
