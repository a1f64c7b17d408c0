"""Lessons for a browser: what cannot run there is left out, with what depends on it, and says what it needs."""

from __future__ import annotations

import nbformat
import pytest

from docs.sitegen import lite, lite_lessons, notebooks
from docs.sitegen.lite_lessons import Cutter, for_browser


def needs(what: str) -> str:
    return f"# Needs {what}, which a browser does not have:\n"


SERVER = needs("a server (tnb.serve)")
START = "import tritonnb as tnb\nserver = tnb.serve()"
#: The cells after the start of a server, and what remains of the last cell; None if it runs as it is.
CELLS = {
    "use of a server": (["server.stop()"], SERVER + "# server.stop()"),
    "result of a use": (["x = server['m'](1)", "y = x + 1"], SERVER + "# y = x + 1"),
    "name that is defined again": (["x = server", "x = 1", "print(x)"], None),
    "function that uses a server": (["def f():\n    return server\n", "f()"], SERVER + "# f()"),
    "decorated function": (
        ["@server.model\ndef f(x):\n    return x\n\ny = 1"],
        SERVER + "# @server.model\n# def f(x):\n#     return x\n\ny = 1",
    ),
    "list that a loop would fill": (["xs = []\nfor x in server:\n    xs.append(x)", "xs[0]"], SERVER + "# xs[0]"),
    "parameter of the same name": (["f = lambda server: server + 1\nf(1)"], None),
    "variable of a comprehension": (["[server for server in range(3)]"], None),
    "string of several lines": (["text = '''\n a\n'''\nserver.stop()"],
                                "text = '''\n a\n'''\n" + SERVER + "# server.stop()"),
    "asynchronous call": (["await server.stop()"], SERVER + "# await server.stop()"),
    "package": (["import torch.nn as nn"], needs("the package torch.nn") + "# import torch.nn as nn"),
    "name of a package": (["from torch import nn", "nn.Linear()"], needs("the package torch") + "# nn.Linear()"),
    "figure": (["rec = tnb.simulate()", "rec.plot.timeline(start_ms=1)"], f"rec.view(){lite_lessons._VIEW}"),
    "overview": (["rec = tnb.simulate()\nrec.plot()"], f"rec = tnb.simulate()\nrec.view(){lite_lessons._VIEW}"),
    "figure in the middle": (["rec = tnb.simulate()\nrec.plot().savefig('x')"],
                             "rec = tnb.simulate()\n" + needs("Matplotlib") + "# rec.plot().savefig('x')"),
    "simulation": (["rec = tnb.simulate('', [0], tnb.fixed(1))\nrec.debug()"], None),
    "nothing but a comment": (["# Try it."], None),
    "module of Python": (["import math\nfrom pathlib import Path\nmath.pi"], None),
}  # fmt: skip


@pytest.mark.parametrize("case", CELLS)
def test_statement_that_depends_on_what_is_missing_is_a_comment(case: str) -> None:
    cells, expected = CELLS[case]
    cutter = Cutter(frozenset({"serve"}))
    cutter.cut(START)
    assert [cutter.cut(cell).text for cell in cells][-1] == (cells[-1] if expected is None else expected)


def test_cell_that_cannot_run_is_a_text_with_its_output() -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in (START, "names = []\nserver['m'](names)", "tnb.fixed(1)")]
    executed = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.source, id=cell.id) for cell in cells])
    data = {"image/png": "aGVsbG8=", "text/plain": "<Figure>"}
    executed.cells[1].outputs = [
        nbformat.v4.new_output("stream", text="printed\n"),
        nbformat.v4.new_output("display_data", data=data),
    ]
    start, text, last = for_browser(nbformat.v4.new_notebook(cells=cells), {"serve"}, executed).cells
    assert (start.cell_type, last.cell_type, last.source) == ("code", "code", "tnb.fixed(1)")
    assert text.source.startswith("**Needs a server (tnb.serve), which a browser does not have.**")
    assert "```text\nprinted\n```" in text.source
    assert "<Figure>" not in text.source
    assert text.attachments == {"output-1": {"image/png": "aGVsbG8="}}


def test_each_lesson_keeps_its_simulations_and_says_what_needs_a_server() -> None:
    missing = lite_lessons.missing_names()
    assert {"serve", "load", "connect", "FP32"} <= missing
    assert not missing & {"simulate", "worksheet", "explain", "poisson", "Recording"}
    for name in lite.LESSONS:
        lesson = notebooks.read(notebooks.SOURCES / f"{name}.ipynb")
        cells = for_browser(lesson, missing).cells
        assert [cell.id for cell in cells] == [cell.id for cell in lesson.cells]
        kept = [cell.source for cell in cells if cell.cell_type == "code"]
        assert sum("tnb.simulate" in text for text in kept) >= 2
        assert any("Needs a server" in cell.source for cell in cells if cell.cell_type == "markdown")


def test_site_without_the_runtime_says_that_the_lessons_are_missing(tmp_path: object) -> None:
    lite.write_lite(tmp_path, None)  # type: ignore[arg-type]
    assert "built without the lessons" in (tmp_path / "lite" / "lessons.html").read_text()  # type: ignore[operator]
