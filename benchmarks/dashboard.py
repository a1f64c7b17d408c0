"""A live view under traffic for a long time: processor time and memory of the browser, and the messages to it.

``python -m benchmarks.dashboard --minutes 30`` opens a dashboard in Chromium at 200 requests per second. Every half
minute it prints the kernel's resident memory, the page's JavaScript heap after a garbage collection, its number of DOM
nodes, the processor time of all processes of Chromium as a share of one core, the rate of messages and bytes that the
browser received, the number and longest duration of the page's tasks above 50 ms, and the longest processor time of
one of them: on a busy machine, a task lasts longer because other threads run. ``--view watch`` opens a batch view
alone, ``--rate`` and ``--service-ms`` are of the traffic and of the model. Targets: at most 25 % of a core at 200
requests per second, memory that does not grow, and no task with a processor time above 50 ms.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser, BrowserContext, CDPSession, Page, ViewportSize, sync_playwright

from tests.notebook.browser import CHROMIUM, VIEWPORT, Lab, NotebookPage, write_notebook

SERVE = """
import time
import tritonnb as tnb
server = tnb.serve(port=0)

@server.model(max_batch_size=16, dynamic_batching=dict(max_queue_delay_microseconds={delay_us}))
def model(X: tnb.FP32[16]) -> tnb.FP32[16]:
    time.sleep({service_ms} / 1000)
    return X

traffic = tnb.load(server["model"], rate={rate}, arrivals="poisson", record=False)
"""
VIEWS = {"dashboard": "server.dashboard('model')", "watch": "server['model'].watch()"}
MEMORY = 'print(open("/proc/self/statm").read().split()[1], server["model"].stats()["inference_count"])'
#: After this time, JupyterLab has been loaded, and the view is drawn.
SETTLED_MS = 5000
#: Tasks that are counted take longer, in ms.
LONG_MS = 50


def main() -> None:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--view", choices=VIEWS, default="dashboard")
    parser.add_argument("--rate", type=int, default=200, help="requests per second")
    parser.add_argument("--service-ms", type=float, default=10, help="of an execution; the queue delay is as long")
    parser.add_argument("--interval", type=float, default=30, help="seconds between two rows")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        lab = Lab(Path(directory))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(viewport=ViewportSize(width=VIEWPORT["width"], height=VIEWPORT["height"]))
        received = ReceivedMessages(context)
        serve = SERVE.format(
            rate=options.rate, service_ms=options.service_ms, delay_us=round(1000 * options.service_ms)
        )
        page = NotebookPage(context, lab, write_notebook(lab, "view", serve, VIEWS[options.view]))
        page.open()
        page.run_all()
        page.output(1).locator(".tnb-batch-view").wait_for()
        page.browser_page.wait_for_timeout(SETTLED_MS)
        print("minute  kernel MB  heap MB  nodes  browser %  messages/s  kB/s  requests  tasks  longest  processor")
        measure(browser, page, received, options.minutes, options.interval)
        browser.close()
        lab.close()


class ReceivedMessages:
    """Counters of the messages from the WebSockets of the pages."""

    def __init__(self, context: BrowserContext) -> None:
        self.messages = self.bytes = 0
        context.on("page", self._count_messages)

    def _count_messages(self, page: Page) -> None:
        page.on("websocket", lambda socket: socket.on("framereceived", self._count))

    def _count(self, frame: str | bytes) -> None:
        self.messages += 1
        self.bytes += len(frame)


def measure(
    browser: Browser, page: NotebookPage, received: ReceivedMessages, minutes: float, interval_s: float
) -> None:
    """Print a row every ``interval_s`` seconds."""
    session = page.browser_page.context.new_cdp_session(page.browser_page)
    begin = time.monotonic()
    while time.monotonic() < begin + 60 * minutes:
        messages, size, used_s, last = received.messages, received.bytes, browser_cpu_s(), time.monotonic()
        browser.start_tracing(page=page.browser_page, categories=["toplevel"])
        page.browser_page.wait_for_timeout(1000 * interval_s)
        tasks = long_tasks(browser.stop_tracing())
        now = time.monotonic()
        used_s = browser_cpu_s() - used_s
        session.send("HeapProfiler.collectGarbage")
        counts = {metric["name"]: metric["value"] for metric in _metrics(session)}
        pages, requests = map(int, page.execute(MEMORY).split())
        row = [
            f"{(now - begin) / 60:6.1f}",
            f"{pages * 4096 / 1e6:9.1f}",
            f"{counts['JSHeapUsedSize'] / 1e6:7.1f}",
            f"{counts['Nodes']:5.0f}",
            f"{100 * used_s / (now - last):9.1f}",
            f"{(received.messages - messages) / (now - last):10.1f}",
            f"{(received.bytes - size) / (now - last) / 1e3:4.1f}",
            f"{requests:8}",
            f"{len(tasks):5}",
            f"{max((task for task, _ in tasks), default=0):7.0f}",
            f"{max((processor for _, processor in tasks), default=0):9.0f}",
        ]
        print("  ".join(row), flush=True)


def long_tasks(trace: bytes) -> list[tuple[float, float]]:
    """Return duration and processor time, in ms, of the long tasks of the page's main thread in a trace of Chromium."""
    events = json.loads(trace)["traceEvents"]
    main = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    return [
        (event["dur"] / 1000, event["tdur"] / 1000)
        for event in events
        if (event["pid"], event["tid"]) in main
        and event["name"].endswith("::RunTask")
        and event.get("dur", 0) > 1000 * LONG_MS
    ]


def browser_cpu_s() -> float:
    """Processor time of the processes of Chromium that this process started, in seconds."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended
            if "chrom" in process.name():
                seconds += sum(process.cpu_times()[:2])
    return seconds


def _metrics(session: CDPSession) -> list[dict[str, Any]]:
    session.send("Performance.enable")
    metrics: list[dict[str, Any]] = session.send("Performance.getMetrics")["metrics"]
    return metrics


if __name__ == "__main__":
    main()
