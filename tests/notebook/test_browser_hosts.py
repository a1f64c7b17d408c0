"""Views in pages of other hosts than JupyterLab: their text can be read on the background that is painted."""

from __future__ import annotations

import pytest

import tritonnb as tnb
from tests.notebook.test_browser_view_truth import DELAYED
from tests.notebook.view_page import ViewPage, deliveries

#: The least contrast of text with the background that is painted behind it.
CONTRAST = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (colour) => {
    const [red, green, blue] = channels(colour).slice(0, 3).map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const background = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (channels(colour)[3] !== 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const hasText = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  const shown = [...document.querySelectorAll("#root *")].filter((node) => hasText(node) && node.checkVisibility());
  return Math.min(...shown.map((node) => {
    const [one, other] = [luminance(getComputedStyle(node).color), luminance(background(node))];
    return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  }));
}"""


@pytest.mark.parametrize("theme", ["vscode-dark", "vscode-light"])
def test_text_is_readable_in_visual_studio_code(view: ViewPage, theme: str) -> None:
    history, sent = deliveries(tnb.simulate(DELAYED, tnb.poisson(rate=80, duration=2, seed=4), tnb.fixed(30)))
    view.open(history)
    view.page.evaluate(
        "(theme) => { document.body.className = theme; delete document.body.dataset.jpThemeLight; }", theme
    )
    view.receive(sent)
    view.do("pause")
    view.settle()
    assert view.page.evaluate(CONTRAST) >= 4.5
    paper = view.run("getComputedStyle(view.root).backgroundColor")
    assert paper == ("rgb(17, 17, 17)" if theme == "vscode-dark" else "rgb(255, 255, 255)")
    assert view.run("view.theme.compute") == tnb_colour(view, theme)
    assert view.errors == []


def tnb_colour(view: ViewPage, theme: str) -> str:
    """The colour of executions on a dark or a light page."""
    name = "dark" if theme == "vscode-dark" else "light"
    return str(view.run(f'view.received.meta.themes["{name}"].compute'))
