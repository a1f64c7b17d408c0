"""The dashboard in a real browser, live and after its kernel is gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.notebook.browser import ROOT, NotebookPage

SERVE = f"""
import threading
import numpy as np
import tritonnb as tnb
server = tnb.serve({str(ROOT / "model_repository")!r}, port=0, model_control_mode="explicit",
                   load_models=["add_sub", "identity_fp32", "digits"])
"""
ASK = """
import asyncio
image = np.zeros((1, 8, 8), np.float32)
for count in (1, 4, 16, 64):
    await asyncio.gather(*(server["digits"].infer_async(image=image) for _ in range(count)))
"""


@pytest.fixture(scope="module")
def page(notebook: Callable[..., NotebookPage]) -> NotebookPage:
    page = notebook(SERVE, "server.dashboard('digits')", "server", "server['digits']")
    page.run_all()
    page.output(1).locator(".tnb-dashboard").wait_for()
    return page


def test_it_is_updated_while_requests_arrive(page: NotebookPage) -> None:
    dashboard = page.output(1).locator(".tnb-dashboard")
    page.execute(ASK)
    page.screenshots("dashboard-batches", dashboard)
    dashboard.get_by_role("tab", name="Statistics").click()
    dashboard.get_by_text("85 rows of 85 requests").wait_for()
    page.screenshots("dashboard-statistics", dashboard)
    dashboard.get_by_role("tab", name="Configuration").click()
    page.screenshots("dashboard-configuration", dashboard)
    assert page.errors == []


def test_it_is_updated_while_a_cell_runs(page: NotebookPage) -> None:
    thread = "threading.Thread(target=lambda: [server['digits'](image=image) for _ in range(15)]).start()"
    with page.busy(f"image = np.zeros((1, 8, 8), np.float32)\n{thread}"):
        page.output(1).locator(".tnb-dashboard").get_by_text("100 rows of 100 requests").wait_for(state="attached")


def test_cards_are_tables(page: NotebookPage) -> None:
    page.output(2).get_by_role("cell", name="digits", exact=True).wait_for()
    page.screenshots("server-card", page.output(2))
    page.screenshots("model-card", page.output(3))


def test_without_its_kernel_the_notebook_shows_the_last_state(
    page: NotebookPage, notebook: Callable[..., NotebookPage]
) -> None:
    assert not page.output(1).locator(".tnb-last-state").is_visible()
    page.execute("server.stop()")
    page.output(1).get_by_text("The server has been stopped").first.wait_for()
    page.save()
    page.browser_page.evaluate("() => window.jupyterapp.shell.currentWidget.context.sessionContext.shutdown()")
    again = notebook(file=page.file)
    again.output(1).get_by_text("max_batch_size: 64").wait_for()
    for words in ("Error displaying widget", "Loading widget"):
        assert not again.output(1).get_by_text(words).is_visible()
    again.screenshots("dashboard-without-kernel", again.output(1))
