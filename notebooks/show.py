"""Run a notebook from top to bottom and print what it showed; figures go to files.

python notebooks/show.py notebooks/01_quickstart.ipynb
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config


def main() -> int:
    """Run the notebook named on the command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--figures", type=Path, default=Path("docs/figures"), help="where figures are saved")
    options = parser.parse_args()
    notebook = nbformat.read(options.notebook, as_version=4)
    begin_s = time.monotonic()
    try:
        for number, cell in enumerate(run(notebook, options.notebook.parent)):
            if cell.cell_type == "markdown":
                print(f"\n{cell.source}\n", flush=True)
            for output in cell.get("outputs", ()):
                show(output, options.figures / f"{options.notebook.stem}-{number}.png")
    except CellExecutionError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.notebook} took {time.monotonic() - begin_s:.0f} s")
    return 0


def run(notebook: nbformat.NotebookNode, directory: Path) -> Iterator[nbformat.NotebookNode]:
    """Run the cells in a new kernel, whose sockets are files: over TCP it warns that it does not encrypt.

    Yields
    ------
    nbformat.NotebookNode
        Each cell, when it has run.
    """
    with tempfile.TemporaryDirectory() as sockets:
        config = Config(KernelManager={"transport": "ipc", "ip": str(Path(sockets) / "kernel")})
        resources = {"metadata": {"path": directory}}
        client = NotebookClient(notebook, config=config, kernel_name="python3", timeout=120, resources=resources)
        with client.setup_kernel():
            for number, cell in enumerate(notebook.cells):
                yield client.execute_cell(cell, number)


def show(output: nbformat.NotebookNode, figure: Path) -> None:
    """Print one output of a cell, as text where there is text."""
    data = output.get("data", {})
    if "image/png" in data:
        figure.parent.mkdir(parents=True, exist_ok=True)
        figure.write_bytes(base64.b64decode(data["image/png"]))
        print(f"    [figure: {figure}]")
        return
    text = output.get("text") or data.get("text/markdown") or data.get("text/plain", "")
    print("\n".join(f"    {line}" for line in text.rstrip().splitlines()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
