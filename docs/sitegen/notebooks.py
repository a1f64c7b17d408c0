"""The notebooks with their outputs: executed once for each version of a notebook, and kept in ``build/notebooks``.

The notebook tests keep there what JupyterLab saved, so a documentation build after the tests executes none.
"""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "notebooks"
EXECUTED = ROOT / "build" / "notebooks"
TIMEOUT_S = 110
#: Widgets need a kernel, and their JavaScript would come from a CDN; each is followed by its state as plain HTML.
_WIDGET = "application/vnd.jupyter.widget-view+json"


def paths() -> list[Path]:
    """Return the notebooks, in order."""
    return sorted(SOURCES.glob("*.ipynb"))


def read(path: Path) -> NotebookNode:
    """Read a notebook file."""
    return nbformat.reads(path.read_text("utf-8"), as_version=4)  # type: ignore[no-any-return]


def execute(path: Path) -> NotebookNode:
    """Run a notebook from top to bottom in its own directory, and keep the result.

    Parameters
    ----------
    path : pathlib.Path
        A notebook without outputs.

    Returns
    -------
    NotebookNode
        The notebook with its outputs.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell fails.
    """
    notebook = read(path)
    resources = {"metadata": {"path": path.parent}}
    NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3", resources=resources).execute()
    keep(path, notebook)
    return notebook


def keep(path: Path, notebook: NotebookNode) -> None:
    """Keep a notebook that was executed, until its source ``path`` changes."""
    notebook.metadata["source_sha256"] = _digest(path)
    EXECUTED.mkdir(parents=True, exist_ok=True)
    _write(notebook, EXECUTED / path.name)


def executed(path: Path) -> NotebookNode:
    """Return the kept result if the notebook has not changed since, a new one otherwise."""
    kept = EXECUTED / path.name
    if kept.exists():
        notebook = read(kept)
        if notebook.metadata.get("source_sha256") == _digest(path):
            return notebook
    begin = time.monotonic()
    notebook = execute(path)
    print(f"executed {path.name} in {time.monotonic() - begin:.0f} s; it says: {stated_runtime(notebook)}", flush=True)
    return notebook


def stated_runtime(notebook: NotebookNode) -> str:
    """Return the sentence of a lesson about its runtime; a release compares it with what was measured."""
    return " ".join(re.findall(r"Runs in\s+about\s+[\w ]+", notebook.cells[0].source))


def write_pages(directory: Path) -> None:
    """Write every notebook with outputs that a static page can show."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in paths():
        notebook = executed(path)
        notebook.metadata.pop("widgets", None)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if _WIDGET not in output.get("data", {})]
        _write(notebook, directory / path.name)


def _write(notebook: NotebookNode, path: Path) -> None:
    nbformat.write(notebook, path)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
