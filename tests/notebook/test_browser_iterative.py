"""Generations in Chromium: the lanes of iterative sequences, and the idle rows of static batches."""

from __future__ import annotations

from typing import Any

import pytest

from tests.notebook.test_iterative_requests import record, record_static
from tests.notebook.view_page import ViewPage, deliveries
from tritonnb.notebook.view_session import recorded_history

#: The share of the pixels of a rectangle that have the colour of the hatching.
HATCHED = """([x, y, width, height, colour]) => {
  const { canvas } = window.view;
  const ratio = canvas.width / canvas.clientWidth;
  const image = canvas.getContext("2d").getImageData(...[x, y, width, height].map((side) => Math.round(side * ratio)));
  const wanted = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  let count = 0;
  for (let at = 0; at < image.data.length; at += 4) {
    count += wanted.every((value, channel) => Math.abs(image.data[at + channel] - value) < 48);
  }
  return count / (image.width * image.height);
}"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_each_step_has_a_cell_with_its_number(browser: Any, dark: bool) -> None:
    page = browser.new_page()
    view = ViewPage(page)
    history, sent = deliveries(record())
    view.open(history, dark=dark)
    view.receive(sent)
    view.do("all")
    view.settle()
    labels = [text for text, _, _ in view.labels()]
    assert [labels.count(name) for name in ("#1", "#2")] == [1, 1]  # in the first cell of each
    assert labels.count("#3") == 2  # it waited, too
    assert labels.count("2") >= 3
    assert "the last token frees the slot" in view.text("legend")
    assert view.errors == []
    page.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_row_of_a_generation_that_has_ended_is_hatched_until_the_end_of_its_batch(browser: Any, dark: bool) -> None:
    page = browser.new_page()
    view = ViewPage(page)
    view.open(recorded_history(record_static()), live=False, dark=dark)
    view.settle()
    [idle] = view.run("""view.frame.targets.filter(({ kind }) => kind === "idle").map(
      ({ x, y, width, height, request }) => ({ x, y, width, height, label: request.label,
        begin: view.timeAt(x), end: view.timeAt(x + width) }))""")
    assert (idle["label"], round(idle["begin"] / 10), round(idle["end"] / 10)) == ("2", 30, 35)  # in 10 ms
    colour = view.run("view.theme.null")
    inside = [idle["x"] + 3, idle["y"] + 2, idle["width"] - 6, idle["height"] - 4]
    before = [inside[0] - idle["width"], *inside[1:]]
    hatched, computed = (page.evaluate(HATCHED, [*box, colour]) for box in (inside, before))
    assert hatched > 0.08 > 0.01 >= computed
    assert "its row is idle until the longest of the batch ends" in view.text("legend")
    page.locator("canvas").last.hover(position={"x": idle["x"] + idle["width"] / 2, "y": idle["y"] + 4})
    assert "idle: request 2 ended after 2 tokens" in view.text("tip")
    assert "is idle for 50.0 ms" in view.text("tip")
    page.close()
