"""Takes the README's picture of the dashboard: ``python -m docs.dashboard`` (needs Chromium)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.notebook.browser import CHROMIUM, Lab, NotebookPage, write_notebook

SERVE = """
import time
import tritonnb as tnb
server = tnb.serve(port=0)

@server.model(
    name="classifier",
    max_batch_size=8,
    dynamic_batching={"max_queue_delay_microseconds": 20000},
    instance_group=[{"count": 2, "kind": "KIND_CPU"}],
)
def classifier(image: tnb.FP32[8, 8]) -> tnb.FP32[10]:
    time.sleep(0.04 + 0.004 * len(image))
    return image[:, :1].repeat(2, axis=2)[:, 0, :10]
"""
TRAFFIC = """
panel = server["classifier"].traffic()
panel.change(rate=130.0)
panel.sending = True
"""
#: A window full of them.
BATCHES = 260
DRAWN = """(batches) => {
    const words = document.querySelector(".tnb-batch-view .tnb-picture canvas")?.getAttribute("aria-label") ?? "";
    return Number(/ (\\d+) batches/.exec(words)?.[1] ?? 0) >= batches;
}"""


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        lab = Lab(Path(directory))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(viewport={"width": 1240, "height": 1400}, device_scale_factor=1.5)
        name = write_notebook(lab, "dashboard", SERVE, "server.dashboard('classifier')")
        page = NotebookPage(context.new_page(), lab, name)
        page.run_all()
        dashboard = page.output(1).locator(".tnb-dashboard")
        dashboard.wait_for()
        page.execute(TRAFFIC)
        page.browser_page.wait_for_function(DRAWN, arg=BATCHES)
        dashboard.screenshot(path=Path(__file__).parent / "dashboard.png", animations="disabled")
        browser.close()
        lab.close()


if __name__ == "__main__":
    main()
