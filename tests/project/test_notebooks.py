"""Every notebook runs from top to bottom without a browser, and is committed without outputs."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from PIL import Image

from docs.sitegen import notebooks
from tests import lessons
from tests.notebook.browser import CHROMIUM

NOTEBOOKS = notebooks.paths()
ROOT = Path(__file__).parents[2]


@pytest.mark.kernel
@pytest.mark.skipif(CHROMIUM is not None, reason="runs in JupyterLab: notebook/test_browser_notebooks.py")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_lesson_runs_from_top_to_bottom(path: Path) -> None:
    lessons.require_packages(path)
    notebook = notebooks.execute(path)
    lessons.check_outputs(notebook)
    lessons.check_claims(path, notebook)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert [cell.id for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_text_of_a_lesson_names_no_colour(path: Path) -> None:
    """Themes and figures change colours; the legend of a figure names what is drawn."""
    texts = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    assert re.findall(r"\b(?:orange|blue|green|red|gr[ea]y|yellow|purple|brown)\b", "\n".join(texts)) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_widget_appears_in_each_lesson(path: Path) -> None:
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    last_lines = [source.splitlines()[-1] for source in cells]
    assert any(re.search(r"\.(watch|view|dashboard)\(.*\)$", line) for line in last_lines)


def test_readme_clip_is_animated_and_small() -> None:
    clip = ROOT / "docs" / "live-view.webp"
    assert "(docs/live-view.webp)" in (ROOT / "README.md").read_text("utf-8")
    with Image.open(clip) as image:
        assert image.info["loop"] == 0  # endless
        assert getattr(image, "n_frames", 1) > 10
    assert clip.stat().st_size < 500 * 1024
