"""The words and the look of a view that is paused, closed, ended with its server, or disconnected from its kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.notebook.browser import NotebookPage

SERVE = """
import tritonnb as tnb
server = tnb.serve(port=0)
@server.model(max_batch_size=8)
def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    return X * 2
@server.model(max_batch_size=8)
def other(X: tnb.FP32[1]) -> tnb.FP32[1]:
    return X
for model in ("double", "other"):
    server[model](X=[[1.0]])
"""
RESTART = "() => window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel.restart()"


@pytest.fixture(scope="module")
def page(notebook: Callable[..., NotebookPage]) -> Any:
    page = notebook(
        SERVE, 'view = server["double"].watch()\nview', 'server["other"].watch()', 'server["other"].traffic()'
    )
    page.run_all()
    page.output(2).locator(".tnb-batch-view").wait_for()
    return page


def test_paused_view_is_labelled(page: NotebookPage) -> None:
    view = page.output(1)
    view.get_by_title("pause, or follow again").click()
    view.locator(".tnb-life", has_text="paused at").wait_for()
    view.get_by_title("pause, or follow again").click()
    view.locator(".tnb-life").wait_for(state="detached")


def test_closed_view_shows_its_last_state_and_a_note(page: NotebookPage) -> None:
    page.execute("view.close()")
    page.output(1).get_by_text("Closed at").wait_for()
    assert not page.output(1).get_by_text("kernel").is_visible()


def test_stopped_server_ends_its_views(page: NotebookPage) -> None:
    page.execute("server.stop()")
    page.output(2).locator(".tnb-life", has_text="the server was stopped").wait_for()


def test_view_without_kernel_can_be_read_but_cannot_send(page: NotebookPage) -> None:
    page.browser_page.evaluate(RESTART)
    for output in (2, 3):
        page.output(output).get_by_text("Disconnected: the kernel was restarted or has ended").wait_for()
    view, traffic = page.output(2), page.output(3)
    view.get_by_title("show the whole time").click()
    assert traffic.get_by_role("button", name="Send").evaluate("(node) => node.closest('[inert]') !== null")
