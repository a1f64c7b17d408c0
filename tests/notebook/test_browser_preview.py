"""A draft in the configuration editor is previewed there and in the live view, before it is applied."""

from __future__ import annotations

from typing import Any

from tests.notebook.browser import NotebookPage

SERVE = """
import time
import tritonnb as tnb
server = tnb.serve(port=0)
@server.model(max_batch_size=8, dynamic_batching={})
def slow(X: tnb.FP32[1]) -> tnb.FP32[1]:
    time.sleep(0.02)
    return X
server["slow"].watch()
"""
EDIT = """editor = server["slow"].edit()
editor"""
TRAFFIC = """tnb.load(server["slow"], rate=60, requests=60).wait()"""
GREY = """(canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let grey = 0;
    for (let at = 0; at < data.length; at += 4) {
        if (data[at] === data[at + 1] && data[at] === data[at + 2] && data[at] < 235 && data[at] > 90) grey += 1;
    }
    return grey;
}"""


def test_draft_is_previewed_in_editor_and_live_view(notebook: Any) -> None:
    page: NotebookPage = notebook(SERVE, EDIT, TRAFFIC)
    page.browser_page.set_default_timeout(30_000)
    page.run_all()
    view = page.output(0).locator(".tnb-batch-view")
    view.locator(".tnb-fact", has_text="60 requests").wait_for()
    view.get_by_title("pause, or follow again").click()
    canvas = view.locator("canvas").last.element_handle()
    before = canvas.evaluate(GREY)
    page.execute('editor.set_field("dynamic_batching.max_queue_delay_microseconds", 100_000)')
    preview = page.output(1).get_by_text("requests under this draft: mean batch")
    preview.wait_for()
    text = preview.inner_text()
    assert "The last 60 requests under this draft" in text  # on a loaded machine, behind how far the simulation is off
    view.get_by_text(f"Dashed: {text}").wait_for()
    # The boxes of the draft, which are drawn after the text is there.
    page.browser_page.wait_for_function(f"([canvas, least]) => ({GREY})(canvas) > least", arg=[canvas, before + 500])
    page.screenshots("preview", view)
    page.execute("editor.revert()")
    preview.wait_for(state="detached")
    assert view.locator(".tnb-ghost").inner_text() == ""
    assert page.errors == []
