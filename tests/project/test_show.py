"""`notebooks/show.py`, which `make demo` runs, prints what a notebook shows and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import nbformat
import pytest

ROOT = Path(__file__).parents[2]

CELLS = [
    "import tritonnb as tnb\nserver = tnb.serve(port=0)",
    "@server.model(max_batch_size=8)\ndef double(X: tnb.FP32[1]) -> tnb.FP32[1]:\n    return X * 2",
    'server["double"].watch()',
    'for value in range(200):\n    server["double"](X=[[value]])\nprint("sent 200 requests")',
]


def command(directory: Path, cells: list[str]) -> list[str]:
    path = directory / "lesson.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), path)
    return [sys.executable, str(ROOT / "notebooks" / "show.py"), str(path), "--figures", str(directory)]


def run(directory: Path, cells: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(directory, cells), capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.kernel
@pytest.mark.parametrize("last", ["server.stop()", "None"], ids=["the server is stopped", "the server runs at exit"])
def test_notebook_with_live_view_runs_without_messages_of_the_kernel(tmp_path: Path, last: str) -> None:
    process = run(tmp_path, [*CELLS, last])
    assert (process.returncode, process.stderr) == (0, "")
    assert "    sent 200 requests" in process.stdout.splitlines()


@pytest.mark.kernel
def test_cells_are_shown_as_they_complete_until_one_fails(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    cells = [
        "from IPython.display import Markdown\nMarkdown('| a | b |')",
        "import os\nos.mkfifo('fifo')\nprint('first')",
        "open('fifo').read()\nprint('second')",
        "1 / 0",
        "print('third')",
    ]
    with subprocess.Popen(command(tmp_path, cells), stdout=PIPE, stderr=PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = (line for line in process.stdout if line.strip())
        assert [next(lines), next(lines)] == ["    | a | b |\n", "    first\n"]
        fifo.write_text("the next cell may end")
        assert list(lines) == ["    second\n"]
        assert "ZeroDivisionError" in process.stderr.read()
    assert process.returncode == 1
