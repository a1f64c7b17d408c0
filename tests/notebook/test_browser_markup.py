"""Names, texts and identifiers with markup in the views of a notebook: no script of theirs runs in the browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.notebook.browser import NotebookPage

#: Runs in a browser wherever it is taken for markup.
ATTACK = "'\">`--><img src=x onerror=window.attacked=1><svg onload=window.attacked=1>"
SERVE = f"""
import pathlib, tempfile
import numpy as np
import tritonnb as tnb
ATTACK = {ATTACK!r}
repository = pathlib.Path(tempfile.mkdtemp())
escaped = ATTACK.replace('"', chr(92) + '"')
CODE = '''
import triton_python_backend_utils as pb
class TritonPythonModel:
    def initialize(self, args):
        if "broken" in args["model_name"]:
            raise RuntimeError(ATTACK)
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor(ATTACK, pb.get_input_tensor_by_name(r, ATTACK).as_numpy())])
                for r in requests]
'''
for name in (ATTACK, "broken " + ATTACK):
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(f"ATTACK = {{ATTACK!r}}" + CODE)
    tensors = f'[ {{{{ name: "{{escaped}}" data_type: TYPE_STRING dims: [ 1 ] }}}} ]'
    (repository / name / "config.pbtxt").write_text(
        f'backend: "python" max_batch_size: 4 input {{tensors}} output {{tensors}} # {{ATTACK}}\\n'
        f'instance_group [ {{{{ name: "{{escaped}}" kind: KIND_CPU }}}} ] sequence_batching {{{{ }}}}'
    )
server = tnb.serve(repository, port=0)
model = server[ATTACK]
def send():
    for number in range(8):
        model(**{{ATTACK: np.array([[ATTACK]], object)}}, id=ATTACK, sequence_id=ATTACK[:100], sequence_start=True,
              sequence_end=number % 2 == 0)
with server.record() as recording:
    send()
"""
CELLS = (
    "server", "model", "server['broken ' + ATTACK]", "server.dashboard(ATTACK)", "model.edit()", "model.watch()",
    "recording", "recording.view()", "recording.blame()", "recording.plot.timeline()", "tnb.connect(server.url)",
    "model.traffic()",
)  # fmt: skip


@pytest.fixture(scope="module")
def page(notebook: Callable[..., NotebookPage]) -> NotebookPage:
    page = notebook(SERVE, *CELLS)
    page.run_all()
    return page


def test_no_script_of_a_name_or_text_runs(page: NotebookPage) -> None:
    page.output(4).locator(".tnb-dashboard").wait_for()
    page.execute("send()")
    for tab in ("Statistics", "Configuration", "Live"):
        page.output(4).get_by_role("tab", name=tab).click()
    # The image of an attack would report its error before this image does.
    page.browser_page.evaluate(
        "() => new Promise((done) => { const own = new Image(); own.onerror = done; own.src = 'x'; })"
    )
    page.output(6).locator("canvas").first.hover()
    assert page.cell_errors() == []
    assert page.browser_page.evaluate("() => window.attacked") is None
    assert page.browser_page.locator("img[src='x']").count() == 0
    assert page.errors == []
