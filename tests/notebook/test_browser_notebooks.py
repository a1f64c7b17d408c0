"""Every notebook in a real JupyterLab: opened and run from top to bottom without errors or missing outputs.

The documentation site shows what JupyterLab saved.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.sitegen import notebooks
from tests.lessons import check_claims, check_outputs, require_packages
from tests.notebook.browser import ROOT, Lab, NotebookPage

NOTEBOOKS = notebooks.paths()
#: A view draws its last state on its own thread when its server has stopped.
WAIT_FOR_VIEWS = """
import threading
for thread in threading.enumerate():
    if thread.name.startswith("tritonnb view"):
        thread.join(20)
"""


@pytest.fixture(scope="module")
def lessons(lab: Lab) -> Path:
    """The notebooks and example models in the server's root; returns their directory."""
    folder = lab.root / "lessons"
    folder.mkdir(exist_ok=True)
    for path in NOTEBOOKS:
        shutil.copy(path, folder)
    (lab.root / "model_repository").symlink_to(ROOT / "model_repository")
    return folder


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_lesson_runs_from_top_to_bottom(path: Path, lessons: Path, notebook: Callable[..., NotebookPage]) -> None:
    require_packages(path)
    page: NotebookPage = notebook(file=f"{lessons.name}/{path.name}")
    page.run_all()
    page.wait_until_finished()
    assert page.cell_errors() == []
    assert page.errors == []
    assert page.execute(WAIT_FOR_VIEWS) == ""
    page.save()
    saved = notebooks.read(lessons / path.name)
    check_outputs(saved)
    check_claims(path, saved)
    notebooks.keep(path, saved)
