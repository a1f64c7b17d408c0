"""A live dashboard under traffic for a long time: memory of browser and kernel, and the messages between them.

``python -m benchmarks.dashboard --minutes 30`` opens a dashboard in Chromium at 200 requests per second. Every half
minute it prints the kernel's resident memory, the page's JavaScript heap after a garbage collection, its number of DOM
nodes, and the rate of messages and bytes that the browser received.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import CDPSession, Page, ViewportSize, sync_playwright

from tests.notebook.browser import CHROMIUM, VIEWPORT, Lab, NotebookPage, write_notebook

SERVE = """
import time
import tritonnb as tnb
server = tnb.serve(port=0)

@server.model(max_batch_size=16, dynamic_batching={"max_queue_delay_microseconds": 10000})
def model(X: tnb.FP32[16]) -> tnb.FP32[16]:
    time.sleep(0.01)
    return X

traffic = tnb.load(server["model"], rate=200, arrivals="poisson", record=False)
"""
MEMORY = 'print(open("/proc/self/statm").read().split()[1], server["model"].stats()["inference_count"])'
INTERVAL_S = 30


def main() -> None:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        lab = Lab(Path(directory))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        browser_page = browser.new_context(
            viewport=ViewportSize(width=VIEWPORT["width"], height=VIEWPORT["height"])
        ).new_page()
        received = ReceivedMessages(browser_page)
        page = NotebookPage(browser_page, lab, write_notebook(lab, "dashboard", SERVE, "server.dashboard('model')"))
        page.run_all()
        page.output(1).locator(".tnb-dashboard").wait_for()
        print("minute  kernel MB  heap MB  nodes  messages/s  kB/s  requests", flush=True)
        measure(page, received, options.minutes)
        browser.close()
        lab.close()


class ReceivedMessages:
    """Counts the messages from the page's WebSockets."""

    def __init__(self, page: Page) -> None:
        self.messages = self.bytes = 0
        page.on("websocket", lambda socket: socket.on("framereceived", self._count))

    def _count(self, frame: str | bytes) -> None:
        self.messages += 1
        self.bytes += len(frame)


def measure(page: NotebookPage, received: ReceivedMessages, minutes: float) -> None:
    """Print a row every half minute."""
    session = page.browser_page.context.new_cdp_session(page.browser_page)
    begin = last = time.monotonic()
    while time.monotonic() < begin + 60 * minutes:
        messages, size = received.messages, received.bytes
        page.browser_page.wait_for_timeout(1000 * INTERVAL_S)
        now = time.monotonic()
        session.send("HeapProfiler.collectGarbage")
        counts = {metric["name"]: metric["value"] for metric in _metrics(session)}
        pages, requests = map(int, page.execute(MEMORY).split())
        row = [
            f"{(now - begin) / 60:6.1f}",
            f"{pages * 4096 / 1e6:9.1f}",
            f"{counts['JSHeapUsedSize'] / 1e6:7.1f}",
            f"{counts['Nodes']:5.0f}",
            f"{(received.messages - messages) / (now - last):10.1f}",
            f"{(received.bytes - size) / (now - last) / 1e3:4.1f}",
            f"{requests:8}",
        ]
        print("  ".join(row), flush=True)
        last = now


def _metrics(session: CDPSession) -> list[dict[str, Any]]:
    session.send("Performance.enable")
    metrics: list[dict[str, Any]] = session.send("Performance.getMetrics")["metrics"]
    return metrics


if __name__ == "__main__":
    main()
