"""The page that explains files, in Chromium without a network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

import tritonnb as tnb
from tests.lab.explain.test_command import BUSY, CONFIG
from tests.notebook.accessibility import serious_violations, unnamed_controls
from tests.playground.test_browser_playground import DROP


class ExplainPage:
    """The page in a tab; after it has been loaded, the browser is offline."""

    def __init__(self, browser: Any, site: str) -> None:
        self.context = browser.new_context(viewport={"width": 1200, "height": 900})
        self.context.set_default_timeout(90_000)
        self.tab = self.browser_page = self.context.new_page()
        self.messages: list[str] = []
        self.tab.on("console", lambda message: self.messages.append(message.text))
        self.site = site
        self.open("")

    def open(self, fragment: str) -> None:
        self.context.set_offline(False)
        self.tab.goto("about:blank")
        self.tab.goto(f"{self.site}explain.html{fragment}")
        self.tab.wait_for_function("() => document.body.dataset.ready === 'true'")
        self.context.set_offline(True)

    def wait_for(self, count: int) -> None:
        """Wait for the answer about this number of texts."""
        self.tab.wait_for_function("(count) => document.body.dataset.explained === count", arg=str(count))

    @property
    def answer(self) -> str:
        return str(self.tab.locator("#answer").inner_text())


@pytest.fixture(scope="module")
def page(browser: Any, site: str) -> Iterator[ExplainPage]:
    opened = ExplainPage(browser, site)
    yield opened
    opened.context.close()


def test_dropped_and_pasted_texts_are_explained_copied_and_linked(page: ExplainPage, axe: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.tab.evaluate(DROP, {"config.pbtxt": CONFIG})
    page.wait_for(1)
    page.tab.locator("#pasted").fill(BUSY)
    page.tab.get_by_role("button", name="Add").click()
    page.wait_for(2)
    assert "the instances are at their capacity" in page.answer
    assert "twice as many instances" in page.answer
    assert unnamed_controls(page, "body") == []  # type: ignore[arg-type]
    assert serious_violations(page.tab, axe, "body") == []

    page.tab.get_by_role("button", name="Copy as Markdown").click()
    page.tab.get_by_text("Copied as Markdown.").wait_for()
    markdown = page.tab.evaluate("() => navigator.clipboard.readText()")
    expected = tnb.explain(CONFIG, BUSY).markdown()
    assert markdown == expected.replace("source 1", "config.pbtxt").replace("source 2", "text 2")

    before = page.answer
    page.tab.get_by_role("button", name="Copy link").click()
    page.tab.get_by_text("The link contains all texts.").wait_for()
    link = page.tab.evaluate("() => navigator.clipboard.readText()")
    page.open(f"#{urlsplit(link).fragment}")
    page.wait_for(2)
    assert page.answer == before


def test_text_of_a_stranger_is_shown_as_text(page: ExplainPage) -> None:
    page.tab.get_by_role("button", name="Remove all").click()
    page.wait_for(0)
    page.tab.evaluate(DROP, {"<img src=x onerror=alert(1)>.txt": "<script>alert(1)</script>"})
    page.wait_for(1)
    assert "<script>alert(1)</script>" in page.answer
    assert page.tab.locator("#answer script, #answer img").count() == 0
    page.tab.get_by_role("button", name="Remove <img").click()
    page.wait_for(0)
    assert page.answer == ""
    assert page.messages == []
