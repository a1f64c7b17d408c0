"""Helpers of the tests that run the notebooks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from nbformat import NotebookNode

#: What `make` installs beside what `pip install "tritonnb[all]"` does.
NEEDED = {"07_ensembles_and_bls": "rapidocr_onnxruntime"}


def require_packages(path: Path) -> None:
    """Skip the test of a notebook whose packages are not installed."""
    needed = NEEDED.get(path.stem)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")


def check_outputs(notebook: NotebookNode) -> None:
    """Every cell has run without an error or a warning, and there is a figure."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.id for cell in cells if cell.execution_count is None] == []
    shown = [output for cell in cells for output in cell.outputs]
    assert [output for output in shown if output.output_type == "error" or output.get("name") == "stderr"] == []
    assert any("image/png" in output.get("data", {}) for output in shown)
