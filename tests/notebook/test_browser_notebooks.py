"""Every notebook in a real JupyterLab: opened and run from top to bottom without errors or missing outputs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.notebook.browser import ROOT, Lab, NotebookPage

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def lessons(lab: Lab) -> str:
    """The notebooks and example models in the server's root; returns the directory's name."""
    folder = lab.root / "lessons"
    folder.mkdir(exist_ok=True)
    for path in NOTEBOOKS:
        shutil.copy(path, folder)
    (lab.root / "model_repository").symlink_to(ROOT / "model_repository")
    return folder.name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_in_the_browser(path: Path, lessons: str, notebook: Callable[..., NotebookPage]) -> None:
    page: NotebookPage = notebook(file=f"{lessons}/{path.name}")
    page.run_all()
    page.wait_until_finished()
    assert page.cell_errors() == []
    assert page.errors == []
    page.browser_page.evaluate("() => window.jupyterapp.shell.currentWidget.context.sessionContext.shutdown()")
