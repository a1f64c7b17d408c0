"""A notebook that is executed without a browser keeps the last state of its widgets."""

from __future__ import annotations

import re
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

Outputs = dict[str, list[dict[str, Any]]]
SERVE = """import tritonnb as tnb
server = tnb.serve(port=0)
@server.model(max_batch_size=8, dynamic_batching={})
def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    return X * 2"""
TRAFFIC = 'rec = tnb.load(server["double"], clients=4, requests=100).wait().recording; len(rec.batches)'


def execute(*sources: str) -> list[list[dict[str, Any]]]:
    """Return the outputs of each cell by MIME type."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(notebook, timeout=110, kernel_name="python3").execute()
    return [[output["data"] for output in cell.outputs if "data" in output] for cell in notebook.cells]


@pytest.fixture(scope="module")
def outputs() -> Outputs:
    cells = {
        "serve": SERVE,
        "watch": 'server["double"].watch()',
        "dashboard": "server.dashboard()",
        "traffic": TRAFFIC,
        "view": "rec.view()",
        "what_if": "rec.what_if(max_batch_size=4).view()",
    }
    return dict(zip(cells, execute(*cells.values()), strict=True))


@pytest.mark.slow
def test_live_view_shows_the_batches_that_ran_after_it_was_opened(outputs: Outputs) -> None:
    widget, still = outputs["watch"]
    assert "application/vnd.jupyter.widget-view+json" in widget
    assert "100 requests ran in" in still["text/plain"]
    assert "100 requests ran in" in still["text/html"]
    assert still["image/png"]


@pytest.mark.slow
def test_dashboard_shows_statistics_since_it_was_opened(outputs: Outputs) -> None:
    _, still = outputs["dashboard"]
    assert "100" in still["text/plain"]
    assert "no batch was seen yet" not in still["text/html"]


@pytest.mark.parametrize("name", ["view", "what_if"])
def test_view_of_a_recording_is_followed_by_a_figure_for_exports(outputs: Outputs, name: str) -> None:
    _, still = outputs[name]
    assert still["image/png"]
    assert 'src="data:image/svg+xml' in still["text/html"]


def test_saved_comparison_has_its_table(outputs: Outputs) -> None:
    _, still = outputs["what_if"]
    assert re.search(">before</th><th[^>]*>after</th>", still["text/html"])


@pytest.mark.parametrize("name", ["watch", "dashboard", "view", "what_if"])
def test_saved_state_begins_with_its_time(outputs: Outputs, name: str) -> None:
    _, still = outputs[name]
    body = still["text/html"].partition("<div class='tnb-last-state")[2].partition(">")[2]
    assert re.match(r"<p class='tnb-saved'><b>Picture saved at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.</b> Run the cell", body)


def test_dashboard_has_a_picture_of_the_batches(outputs: Outputs) -> None:
    _, still = outputs["dashboard"]
    assert 'src="data:image/svg+xml' in still["text/html"]


def test_no_output_has_an_object_address_or_class_name_as_its_text(outputs: Outputs) -> None:
    texts = [data["text/plain"] for cell in outputs.values() for data in cell]
    assert [text for text in texts if "IPython.core.display" in text or "object at 0x" in text] == []


@pytest.fixture(scope="module")
def outputs_until_the_stop() -> Outputs:
    sweep = 'tnb.sweep(server["double"], max_batch_size=[2, 4], clients=4)'
    cells = {
        "serve": SERVE,
        "sweep": f"sweep = {sweep}; sweep",
        "end": "sweep.wait(); None",
        "wait": f"{sweep}.wait()",
        "watch": 'server["double"].watch()',
        "stop": f"{TRAFFIC}; server.stop()",
    }
    return dict(zip(cells, execute(*cells.values()), strict=True))


@pytest.mark.slow
def test_progress_line_of_a_long_call_is_empty_at_its_end(outputs_until_the_stop: Outputs) -> None:
    *lines, _ = outputs_until_the_stop["wait"]
    assert [(line["text/plain"], line["text/html"]) for line in lines] in ([], [("", "")])


@pytest.mark.slow
def test_displayed_running_sweep_shows_its_result_at_the_end(outputs_until_the_stop: Outputs) -> None:
    (shown,) = outputs_until_the_stop["sweep"]
    assert "configurations tried" not in shown["text/html"]
    assert "<table" in shown["text/html"]


@pytest.mark.slow
def test_live_view_shows_batches_of_the_cell_that_stopped_the_server(outputs_until_the_stop: Outputs) -> None:
    _, still = outputs_until_the_stop["watch"]
    assert "100 requests ran in" in still["text/plain"]
