"""Every notebook runs from top to bottom, and is committed without outputs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import nbformat
import pytest

from docs.sitegen import notebooks

NOTEBOOKS = notebooks.paths()
#: What `make` installs beside what `pip install "tritonnb[all]"` does.
NEEDED = {"07_ensembles_and_bls": "rapidocr_onnxruntime"}


@pytest.mark.kernel
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_from_top_to_bottom(path: Path) -> None:
    needed = NEEDED.get(path.stem)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    notebook = notebooks.execute(path)  # the documentation site shows this copy
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert [output for output in shown if output.get("name") == "stderr"] == []
    assert any("image/png" in output.get("data", {}) for output in shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_committed_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert [cell.id for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")] == []
