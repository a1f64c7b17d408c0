"""The graph of an ensemble in Chromium: it fits the width that there is, and its text stays legible."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from google.protobuf import text_format

from tests.notebook.accessibility import serious_violations, unreached_controls
from tests.notebook.browser import ROOT
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.notebook.ensemble_view import Graph
from tritonnb.notebook.widget_files import stylesheet
from tritonnb.recording.ensemble_graph import ensemble_graph

OPEN = """async ([source, graph]) => {
  const { default: widget } = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  window.messages = [];
  const send = (message) => window.messages.push(message);
  const model = { get: () => graph, set: () => {}, on: () => {}, off: () => {}, send };
  widget.render({ model, el: document.getElementById("root") });
}"""
RECTANGLES = """() => [...document.querySelectorAll(".tnb-box")].map((node) => {
  const { left, top, right, bottom } = node.getBoundingClientRect();
  return [left, top, right, bottom];
})"""


def graph_of(name: str) -> dict[str, Any]:
    """The graph of an ensemble of the repository, as its widget gets it."""
    config = text_format.Parse((ROOT / "model_repository" / name / "config.pbtxt").read_text(), pb.ModelConfig())
    graph = ensemble_graph(config)
    texts = ["queue 12,345 ms", "1,234 waiting", "compute 12,345 ms"]
    nodes = [
        {"label": node.label, "step": node.step, "layer": node.layer, "place": node.place,
         "shares": [0.2, 0.3] if node.step >= 0 else [0, 0], "texts": texts if node.step >= 0 else []}
        for node in graph.nodes
    ]  # fmt: skip
    edges = [{"source": edge.source, "target": edge.target, "label": ", ".join(edge.tensors)} for edge in graph.edges]
    return {
        "nodes": nodes,
        "edges": edges,
        "layers": graph.layers,
        "places": graph.places,
        "description": "ocr",
        "total": "From request to response, last 5 s: 20 requests/s",
        "problem": "the queue grows",
    }


@pytest.mark.parametrize("width", [1300, 1000, 960, 900, 700, 400])
def test_graph_fits_its_width_with_text_of_full_size(browser: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_content(f"<style>{stylesheet('dashboard')}</style><div class='tnb-dashboard' id='root'></div>")
    page.evaluate(OPEN, [str(Graph._esm), graph_of("ocr")])
    region = page.locator(".tnb-graph")
    assert region.evaluate("(node) => node.scrollWidth <= node.clientWidth")
    assert page.locator(".tnb-name").first.evaluate("(node) => node.getScreenCTM().a") == pytest.approx(1)
    for one, other in combinations(page.evaluate(RECTANGLES), 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    drawn = page.evaluate("document.querySelector('.tnb-graph svg').getBoundingClientRect().height")
    inner = page.locator(".tnb-graph svg g text").evaluate_all(
        """(nodes) => nodes.every((node) => {
          const [text, box] = [node, node.parentNode.querySelector(".tnb-box")].map((n) => n.getBoundingClientRect());
          return text.left >= box.left && text.right <= box.right && text.top >= box.top && text.bottom <= box.bottom;
        })"""
    )
    assert inner
    labels = page.locator(".tnb-graph svg > text").evaluate_all(
        """(nodes) => nodes.map((node) => node.getBoundingClientRect())
          .map(({ left, top, right, bottom }) => [left, top, right, bottom])"""
    )
    for left, top, right, bottom in labels:  # the names of tensors are beside the boxes
        for one in page.evaluate(RECTANGLES):
            assert right <= one[0] or one[2] <= left or bottom <= one[1] or one[3] <= top
    assert drawn <= 500
    page.close()


def test_graph_fits_the_width_of_the_page(browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    page.set_content(f"<style>{stylesheet('dashboard')}</style><div class='tnb-dashboard' id='root'></div>")
    page.evaluate(OPEN, [str(Graph._esm), graph_of("ocr")])
    page.set_viewport_size({"width": 500, "height": 900})
    page.wait_for_function("document.querySelector('.tnb-graph svg').getBoundingClientRect().width < 500")
    page.set_viewport_size({"width": 1300, "height": 900})
    page.wait_for_function("document.querySelector('.tnb-graph svg').getBoundingClientRect().width > 900")
    page.close()


def test_step_can_be_selected_by_click_and_keyboard(browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    page.set_content(f"<style>{stylesheet('dashboard')}</style><div class='tnb-dashboard' id='root'></div>")
    page.evaluate(OPEN, [str(Graph._esm), graph_of("ocr")])
    names = page.get_by_role("button").evaluate_all("(nodes) => nodes.map(({ dataset }) => dataset.name)")
    page.get_by_role("button").nth(0).click()
    page.get_by_role("button").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.evaluate("window.messages") == [{"select": name} for name in names[:2]]
    page.close()


def test_axe_reports_no_serious_violation(browser: Any, axe: str) -> None:
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    page.set_content(f"<style>{stylesheet('dashboard')}</style><div class='tnb-dashboard' id='root'></div>")
    page.evaluate(OPEN, [str(Graph._esm), graph_of("ocr")])
    assert serious_violations(page, axe, "#root") == []
    assert unreached_controls(page, "#root") == []
    page.close()
