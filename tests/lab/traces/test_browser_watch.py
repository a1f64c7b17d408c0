"""``remote["m"].watch()`` in JupyterLab: batches from traces, and differences of the statistics."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.notebook.browser import SCREENSHOTS, NotebookPage

START = """
import tempfile
from pathlib import Path

import tritonnb as tnb
from tests.client.servers import start, write_model
from tests.lab.traces.traffic import send

folder = Path(tempfile.mkdtemp())
write_model(folder / "repository", "delay", delay_us=2000)
receiver = tnb.otlp_receiver(port=0)
trace = ["mode=opentelemetry", f"opentelemetry,url={receiver.url}", "opentelemetry,bsp_schedule_delay=200"]
context = start(folder / "repository", trace=trace)
server = context.__enter__()
remote = tnb.connect(server.grpc)
view = remote["delay"].watch(receiver)
statistics = remote["delay"].watch()
"""
SEND = """
import time

send(server.grpc, "delay", 300, rate=150)
while len(view.recording().requests) < 300:
    time.sleep(0.05)
time.sleep(1.5)
"""


@pytest.mark.timeout(240)
def test_batches_of_another_server_are_drawn_as_their_traces_come(notebook: Callable[..., NotebookPage]) -> None:
    page = notebook(START, "view", "statistics", SEND)
    page.run_all()
    page.output(1).get_by_text("from traces (OTLP): 300 requests received").first.wait_for(timeout=120_000)
    page.output(1).locator(".tnb-fact", has_text="300 requests").wait_for()
    page.output(2).get_by_text("from differences of the statistics, without traces").first.wait_for()
    page.output(2).get_by_text("300 rows of 300 requests").first.wait_for()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.browser_page.screenshot(path=SCREENSHOTS / "remote_watch.png", full_page=True)
    page.execute(
        "view.close(); statistics.close(); remote.close(); receiver.close(); context.__exit__(None, None, None)"
    )
