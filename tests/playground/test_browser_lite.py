"""The lessons in JupyterLite, in Chromium that reaches nothing but the server of files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.sitegen.lite import LESSONS, Tools, write_lite
from docs.sitegen.playground import ROOT
from tests.notebook.browser import CELL_ERRORS, FINISHED
from tests.playground.conftest import served

pytestmark = pytest.mark.timeout(900)
#: Pyodide starts in 10 s on a quiet machine.
TIMEOUT_MS = 240_000
IDLE = "() => window.jupyterapp?.shell.currentWidget?.context?.sessionContext?.session?.kernel?.status === 'idle'"
#: Without windowing, all cells are in the page.
RUN_ALL = """() => {
    const { content } = window.jupyterapp.shell.currentWidget;
    content.notebookConfig = { ...content.notebookConfig, windowingMode: "none" };
    window.jupyterapp.commands.execute("notebook:run-all-cells");
}"""
EXECUTE = """async (code) => {
    const { kernel } = window.jupyterapp.shell.currentWidget.context.sessionContext.session;
    const future = kernel.requestExecute({ code, store_history: false });
    let text = "";
    future.onIOPub = ({ content }) => { text += content.text ?? content.evalue ?? ""; };
    await future.done;
    return text;
}"""


@pytest.fixture(scope="module")
def address(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a built site with the lessons."""
    try:
        tools = Tools(ROOT / "build")
    except RuntimeError as error:
        if "cannot get" in str(error):
            pytest.skip(str(error))
        raise
    root = tmp_path_factory.mktemp("lite")
    write_lite(Path(os.path.relpath(root / "some" / "path")), tools, outputs=False)  # relative, as in the Makefile
    with served(root) as url:
        yield f"{url}some/path/lite/"


class Lesson:
    """A lesson in a tab, executed from the first to the last cell."""

    def __init__(self, browser: Any, address: str, name: str) -> None:
        self.name = name
        self.context = browser.new_context(viewport={"width": 1400, "height": 1000})
        self.context.set_default_timeout(TIMEOUT_MS)
        self.foreign: list[str] = []
        self.context.route(lambda url: not url.startswith((address, "data:", "blob:")), self._refuse)
        self.tab = self.context.new_page()
        self.tab.goto(f"{address}lessons.html")
        self.tab.locator(f'a[href*="{name}"]').click()
        self.tab.wait_for_function(IDLE)
        self.tab.evaluate(RUN_ALL)
        self.tab.wait_for_function(FINISHED)

    def _refuse(self, route: Any) -> None:
        self.foreign.append(route.request.url)
        route.abort()


@pytest.fixture(scope="module", params=LESSONS)
def lesson(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Lesson]:
    lesson = Lesson(browser, address, request.param)
    yield lesson
    lesson.context.close()


def test_lesson_runs_without_an_error_and_without_a_network(lesson: Lesson) -> None:
    assert lesson.tab.evaluate(CELL_ERRORS) == []
    assert lesson.foreign == []
    assert lesson.tab.get_by_text("Needs a server (tnb.serve), which a browser does not have.").count() > 0
    view = lesson.tab.locator(".tnb-batch-view").first
    view.get_by_text("slow motion").wait_for()
    assert view.locator(".tnb-fact").first.inner_text().endswith("requests")


def test_views_debugger_and_worksheet_answer(lesson: Lesson) -> None:
    panels, sheets = lesson.tab.locator(".tnb-debugger"), lesson.tab.locator(".tnb-worksheet")
    assert [panels.count(), sheets.count()] == ([1, 1] if lesson.name == LESSONS[0] else [0, 0])
    view = lesson.tab.locator(".tnb-batch-view").first
    view.locator("canvas").last.focus()
    lesson.tab.keyboard.press("ArrowLeft")
    view.locator(".tnb-blame-choice button").first.click()
    view.locator(".tnb-blame-result table").wait_for()
    for panel in panels.all():
        event = panel.locator(".tnb-event").inner_text()
        panel.get_by_role("button", name="next event").click()
        panel.locator(".tnb-event", has_not_text=event).wait_for()
    for sheet in sheets.all():
        sheet.get_by_role("button", name="Reveal").click()
        sheet.get_by_text("Why:").first.wait_for()


def test_what_needs_a_server_or_a_package_says_so(lesson: Lesson) -> None:
    asked = {
        "tnb.serve()": "tnb.serve expected",
        "tnb.simulate('', [(0, 1)], tnb.fixed(1)).plot": "Recording.plot expected",
    }
    for code, begin in asked.items():
        text = lesson.tab.evaluate(EXECUTE, f"import tritonnb as tnb\n{code}")
        assert text.startswith(begin)
        assert "got Python in a browser, which has no sockets, no threads and few packages" in text
