"""Take pictures of every view in JupyterLab, to be looked at: ``python -m tools.view_pictures`` (needs Chromium).

The dashboard shows each of several models at each of several rates of requests; the other views and figures show a
simulation. Every picture is taken at both widths of the page and in both themes:
*build/view-pictures/NAME-WIDTH-THEME.png*.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.notebook.browser import CHROMIUM, ROOT, THEMES, Lab, NotebookPage, write_notebook

OpenPage = Callable[..., NotebookPage]

OUT = ROOT / "build" / "view-pictures"
MODELS = ("dense", "digits", "identity_fp32", "silero_vad", "ocr")
RATES = (5, 200, 2000)
WIDTHS = (1400, 900)
HEIGHT, TALL = 900, 2400

SERVE = f"""
import numpy as np
import tritonnb as tnb
from tritonnb.model_zoo import ocr
server = tnb.serve({str(ROOT / "model_repository")!r}, port=0, model_control_mode="explicit",
                   load_models={list(MODELS)!r})
config = server["ocr_detection"].config  # it is overloaded at most rates: requests are refused, not kept
config.dynamic_batching.default_queue_policy.max_queue_size = 32
config.apply()
special = {{"identity_fp32": {{"shapes": {{"INPUT0": [16]}}}}, "silero_vad": {{"sequences": 8}},
           "ocr": {{"inputs": {{"IMAGE": ocr.draw(["one line"])}}}}}}
"""
LOAD = """
load = tnb.load(server[{model!r}], rate={rate}, arrivals="poisson", seed=1, **special.get({model!r}, {{}}))
dashboard.show({model!r})
"""
#: Views and figures that need no traffic: the expression of each.
SIMULATED = """
config = ("max_batch_size: 8 instance_group { count: 2 } dynamic_batching { max_queue_delay_microseconds: 5000 "
          "preferred_batch_size: 4 priority_levels: 2 default_priority_level: 2 }")
arrivals = [tnb.Arrival(us=us, rows=rows, priority=1 if n % 5 == 0 else 2)
            for n, (us, rows) in enumerate((a.time_us, a.rows) for a in tnb.poisson(300, 4, seed=1))]
rec = tnb.simulate(config, arrivals, tnb.linear(0.5, 6))
direct = 'max_batch_size: 4 instance_group { count: 2 } sequence_batching { direct { } }'
slots = tnb.simulate(direct, tnb.sequences([6] * 14, every_ms=60, stagger_ms=25), tnb.fixed(15))
with server.record() as pages:
    for _ in range(3):
        server["ocr"](**special["ocr"]["inputs"])
sweep = tnb.sweep(server["dense"], max_queue_delay_microseconds=[0, 2000, 8000], max_batch_size=[8, 64],
                  constraint="p99 < 40 ms", requests=400, service=tnb.linear(0.5, 4)).wait()
"""
VIEWS = {
    "view": "rec.view()",
    "view-slots": "slots.view()",
    "comparison": "rec.what_if(max_queue_delay_microseconds=0, preferred_batch_size=[]).view()",
    "debugger": "debugger = rec.debug(); debugger.step(40); debugger",
    "worksheet": "tnb.worksheet(seed=4)",
    "blame": "rec.blame()",
    "editor": 'server["dense"].edit()',
    "traffic": 'server["digits"].traffic()',
    "server": "server",
    "model": 'server["silero_vad"]',
    "recording": "rec",
    "sweep": "sweep",
    **{f"figure-{name}": f"rec.plot.{name}()" for name in (
        "timeline", "batch_sizes", "latency", "latency_cdf", "queue")},
    "figure-parts": 'server["ocr_detection"].plot.parts()',
    "figure-slots": "slots.plot.slots()",
    "figure-steps": "pages.plot.steps()",
    "figure-graph": "pages.plot.graph()",
    "figure-pareto": "sweep.plot_pareto()",
    "figure-throughput_latency": "sweep.plot_throughput_latency()",
}  # fmt: skip


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=MODELS, help="models that the dashboard shows")
    parser.add_argument("--rates", nargs="*", type=int, default=RATES, help="requests per second")
    parser.add_argument("--views", nargs="*", default=list(VIEWS), help="the other views")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long requests are sent before the pictures")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    with _lab() as open_page:
        if options.models and options.rates:
            page = open_page(SERVE, "dashboard = server.dashboard(); dashboard")
            page.output(1).locator(".tnb-dashboard").wait_for()
            for model in options.models:
                for rate in options.rates:
                    _take_dashboard(page, model, rate, options.seconds)
        if options.views:
            page = open_page(SERVE, SIMULATED, *(VIEWS[name] for name in options.views))
            page.wait_until_finished()
            if errors := page.cell_errors():
                raise RuntimeError(f"cells of the views: expected no errors, got {', '.join(errors)}")
            for number, name in enumerate(options.views, 2):
                _take_view(page, number, name)


@contextmanager
def _lab() -> Iterator[OpenPage]:
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        lab = Lab(Path(directory))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])

        def open_page(*cells: str) -> NotebookPage:
            context = browser.new_context(viewport={"width": WIDTHS[0], "height": HEIGHT})
            context.set_default_timeout(120_000)
            page = NotebookPage(context, lab, write_notebook(lab, f"cells-{len(browser.contexts)}", *cells))
            page.open()
            page.run_all()
            return page

        try:
            yield open_page
        finally:
            browser.close()
            lab.close()


def _take_dashboard(page: NotebookPage, model: str, rate: int, seconds: float) -> None:
    if error := page.execute(LOAD.format(model=model, rate=rate)):
        raise RuntimeError(error)
    page.output(1).get_by_role("group", name=f"Traffic on {model}").wait_for()
    page.browser_page.wait_for_timeout(seconds * 1000)
    for name in _settings(page, f"dashboard-{model}-{rate}", HEIGHT):
        page.cell(1).evaluate("(cell) => cell.scrollIntoView({ block: 'start' })")
        page.browser_page.wait_for_timeout(1500)  # drawn with the new width and theme
        page.browser_page.screenshot(path=OUT / f"{name}.png")
    print(f"{model} at {rate}/s: {page.execute('load.stop(); print(load.wait(60).verdict())').strip()}", flush=True)


def _take_view(page: NotebookPage, number: int, name: str) -> None:
    for file in _settings(page, name, TALL):
        page.cell(number).evaluate("(cell) => cell.scrollIntoView({ block: 'start' })")
        page.browser_page.wait_for_timeout(500)
        page.output(number).screenshot(path=OUT / f"{file}.png", animations="disabled")
    print(name, flush=True)


def _settings(page: NotebookPage, name: str, height: int) -> Iterator[str]:
    """Select each width and theme, and yield the name of its picture."""
    for theme in THEMES:
        page.theme(theme)
        for width in WIDTHS:
            page.browser_page.set_viewport_size({"width": width, "height": height})
            yield f"{name}-{width}-{theme}"


if __name__ == "__main__":
    main()
