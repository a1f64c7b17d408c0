"""The lanes of iterative sequences in Chromium: a cell for each step, and who waits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.notebook.test_iterative_requests import record
from tests.notebook.view_page import ViewPage, deliveries


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
