"""Every widget by itself: in a narrow page, at a zoom of 400 %, with the keyboard, and as axe-core sees it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.notebook.accessibility import serious_violations, unreached_controls
from tests.notebook.test_browser_hosts import LISTED_MANY, WIDGETS, long_name, open_alone

#: Width and height of a page in CSS pixels: of a phone, and of a screen of 1,280 × 1,024 at a zoom of 400 %.
SIZES = {"320 px": (320, 640), "400 %": (320, 256)}
#: What reaches beyond the page: neither the page nor what is around it scrolls to it.
CUT = """() => {
  const scrolls = (node) => ["auto", "scroll"].includes(getComputedStyle(node).overflowX);
  const inScroller = (node) => {
    for (let at = node.parentElement; at; at = at.parentElement) if (scrolls(at)) return true;
    return false;
  };
  return [...window.shown.querySelectorAll("*")].filter((node) => node.checkVisibility({ visibilityProperty: true })
    && node.getBoundingClientRect().right > innerWidth + 1 && !inScroller(node))
    .map((node) => node.outerHTML.slice(0, 120));
}"""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", WIDGETS)
def test_narrow_page_does_not_scroll_sideways(shared_page: Any, name: str, size: str) -> None:
    width, height = SIZES[size]
    shared_page.set_viewport_size({"width": width, "height": height})
    errors = open_alone(shared_page, name, "a page without a style")
    assert shared_page.evaluate("() => document.documentElement.scrollWidth") <= width
    assert shared_page.evaluate(CUT) == []
    assert errors == []


@pytest.mark.parametrize("name", WIDGETS)
def test_widget_is_accessible(shared_page: Any, axe: str, name: str) -> None:
    shared_page.set_viewport_size({"width": 1000, "height": 800})
    open_alone(shared_page, name, "JupyterLab, light")
    if shared_page.evaluate("() => window.shown.querySelector('button, input, [tabindex]') !== null"):
        assert unreached_controls(shared_page, "#host") == []
    assert serious_violations(shared_page, axe, "#host") == []


def test_failing_models_are_the_first_of_a_list_that_can_be_filtered(shared_page: Any) -> None:
    shared_page.set_viewport_size({"width": 1000, "height": 800})
    open_alone(shared_page, "many models", "JupyterLab, light")
    assert shared_page.locator("li").count() == len(LISTED_MANY)
    first = shared_page.locator("li").evaluate_all("(items) => items.slice(0, 3).map((item) => item.dataset.name)")
    assert first == [long_name(12), long_name(40), long_name(53)]
    shared_page.get_by_label("filter the models").fill("_v7 language")
    assert shared_page.locator("li").evaluate_all("(items) => items.map((item) => item.dataset.name)") == [long_name(7)]
    shared_page.get_by_label("filter the models").fill("no such model")
    assert not shared_page.locator("ul").is_visible()


def test_end_of_a_long_name_is_in_sight(shared_page: Any) -> None:
    shared_page.set_viewport_size({"width": 220, "height": 800})
    open_alone(shared_page, "many models", "JupyterLab, light")
    tail = shared_page.locator("li .tnb-name :last-child").first
    edges = "(node) => [node.getBoundingClientRect().right, node.closest('li').getBoundingClientRect().right]"
    right, edge = tail.evaluate(edges)
    assert right < edge
    assert tail.inner_text().endswith("12")


#: The sizes of the texts outside of pictures.
FONTS = """() => [...window.shown.querySelectorAll("*")].filter((node) => !node.closest("svg")
  && [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()))
  .map((node) => parseFloat(getComputedStyle(node).fontSize))"""


@pytest.mark.parametrize("name", WIDGETS)
def test_text_has_the_font_size_of_the_host(shared_page: Any, name: str) -> None:
    open_alone(shared_page, name, "JupyterLab, light")
    before = shared_page.evaluate(FONTS)
    shared_page.evaluate("() => document.documentElement.style.setProperty('--jp-ui-font-size1', '26px')")
    assert shared_page.evaluate(FONTS) == pytest.approx([2 * size for size in before])
