"""Record the README's clip of the live view: ``python -m tools.live_view_clip`` (needs Chromium).

A browser shows the view of a model under Poisson traffic; the pictures on its canvas become a looping animation. They
are as far apart in the clip as they were when they were drawn.
"""

from __future__ import annotations

import argparse
import base64
import io
import itertools
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, sync_playwright

from tests.notebook.browser import CHROMIUM, Lab, NotebookPage, write_notebook

CLIP = Path(__file__).parents[1] / "docs" / "live-view.webp"
SERVE = """
import time
import tritonnb as tnb
server = tnb.serve(port=0)

@server.model(name="classifier", max_batch_size=8, dynamic_batching={"max_queue_delay_microseconds": 20000},
              instance_group=[{"count": 2, "kind": "KIND_CPU"}])
def classifier(image: tnb.FP32[8, 8]) -> tnb.FP32[10]:
    time.sleep(0.06 + 0.005 * len(image))
    return image[:, :1].repeat(2, axis=2)[:, 0, :10]

server["classifier"].watch()
"""
TRAFFIC = """load = tnb.load(server["classifier"], rate=60, arrivals="poisson", duration=60, seed=4)"""
TAKE = """async (canvas, [length, interval]) => {
    const taken = [];
    const end = performance.now() + length;
    while (performance.now() < end) {
        await new Promise(requestAnimationFrame);
        taken.push([performance.now(), canvas.toDataURL("image/png")]);
        await new Promise((resolve) => setTimeout(resolve, interval));
    }
    return taken;
}"""
#: Pictures are taken when the view is full of batches.
WARM_UP_S = 4.0
WIDTH = 680


def main() -> None:
    """Record the clip."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of the clip")
    parser.add_argument("--rate", type=float, default=8.0, help="pictures per second, at most")
    parser.add_argument("--quality", type=int, default=25, help="of WebP, 0 to 100")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        lab = Lab(Path(directory))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(viewport={"width": 1000, "height": 900})
        page = NotebookPage(context, lab, write_notebook(lab, "clip", SERVE))
        page.open()
        page.run_all()
        view = page.output(0).locator(".tnb-batch-view")
        view.wait_for()
        page.execute(TRAFFIC)
        time.sleep(WARM_UP_S)
        images, durations_ms = record(view.locator("canvas").last, options.seconds, options.rate)
        browser.close()
        lab.close()
    images[0].save(
        CLIP, save_all=True, append_images=images[1:], duration=durations_ms, loop=0, quality=options.quality, method=6
    )
    print(f"{CLIP.name}: {len(images)} pictures, {sum(durations_ms) / 1000:.1f} s, {CLIP.stat().st_size // 1024} KiB")


def record(canvas: Locator, seconds: float, rate: float) -> tuple[list[Image.Image], list[int]]:
    """Take the pictures of a canvas; return them with the times until the next one, in ms."""
    taken: list[tuple[float, str]] = canvas.evaluate(TAKE, [seconds * 1000, 1000 / rate])
    decoded = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB") for _, url in taken]
    smallest = min(image.height for image in decoded)
    size = (WIDTH, round(smallest * WIDTH / decoded[0].width))
    images = [image.crop((0, 0, image.width, smallest)).resize(size) for image in decoded]
    times = [time_ms for time_ms, _ in taken]
    durations = [round(after - before) for before, after in itertools.pairwise(times)]
    return images, [*durations, round(1000 / rate)]


if __name__ == "__main__":
    main()
