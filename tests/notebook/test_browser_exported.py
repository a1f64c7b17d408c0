"""A notebook that was executed and exported by nbconvert: with the state of its widgets, and without it.

The page loads the widgets from a network, of which the test has copies from the npm registry.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anywidget
import nbformat
import pytest
from nbclient import NotebookClient

from docs.sitegen.hosts import PRELUDE, RECORDING, VIEWS
from tests.notebook.test_dashboard import ensemble_repository

#: The dashboard reads the counters several times after the last second with requests: the test waits for that.
IDLE = """
import time
tiles = lambda: {tile["label"]: tile["value"] for tile in dashboard._tiles.tiles}
while tiles()["throughput"] != "0" or not (dashboard._tiles.kept and dashboard._charts.kept):
    time.sleep(0.1)
"""
NAMES = [None, "dashboard", None, *(name for name in VIEWS if name != "dashboard"), None]
#: What the page loads from a network, by a part of its address: the npm package, and its file.
MANAGER, REQUIRE = "@jupyter-widgets/html-manager@1.0.15", "requirejs@2.3.8"
#: Buttons that need no kernel: those of the toolbar of a picture.
ALIVE = """(output) => [...output.querySelectorAll("button")].filter((button) => button.checkVisibility()
  && !button.closest("[inert], .tnb-tools")).map((button) => button.outerHTML)"""


def unpacked(directory: Path, package: str) -> Path:
    """Return the directory of an npm package; skip the test if npm cannot get it."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm")
    command = [npm, "pack", package, "--silent"]
    packed = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100, check=False)
    if packed.returncode:
        pytest.skip(f"needs {package} from the npm registry")
    archive = directory / packed.stdout.split()[-1]
    with tarfile.open(archive) as files:
        files.extractall(directory / archive.stem, filter="data")
    return directory / archive.stem / "package"


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> nbformat.NotebookNode:
    """The executed notebook; its server is alive when the kernel ends."""
    prelude = PRELUDE.format(port=0, repository=str(ensemble_repository(tmp_path_factory.mktemp("models"))))
    opened = "dashboard = server.dashboard('double'); dashboard"
    views = (code for name, code in VIEWS.items() if name != "dashboard")
    cells = map(nbformat.v4.new_code_cell, [prelude, opened, RECORDING, *views, IDLE])
    notebook = nbformat.v4.new_notebook(cells=list(cells))
    NotebookClient(notebook, timeout=110, kernel_name="python3").execute()
    return notebook


def write_page(notebook: nbformat.NotebookNode, path: Path) -> Path:
    exporter = pytest.importorskip("nbconvert", reason="needs the package nbconvert").HTMLExporter()
    path.write_text(exporter.from_notebook_node(notebook)[0], "utf-8")
    return path


@pytest.fixture(scope="module")
def page(browser: Any, executed: nbformat.NotebookNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The exported page with the state of its widgets."""
    directory = tmp_path_factory.mktemp("exported")
    manager, require = unpacked(directory, MANAGER) / "dist", unpacked(directory, REQUIRE) / "require.js"
    widget = Path(anywidget.__file__).parent / "nbextension" / "index.js"

    def answer(route: Any) -> None:
        url = route.request.url
        found = {"html-manager": manager / "embed-amd.js", "anywidget": widget, "require": require}
        path = next((path for part, path in found.items() if part in url), None)
        if path is None:
            route.abort()
        else:
            route.fulfill(path=path, content_type="text/javascript", headers={"access-control-allow-origin": "*"})

    opened = browser.new_page()
    opened.route(re.compile("^https?://"), answer)
    opened.goto(write_page(executed, directory / "page.html").as_uri())
    yield opened
    opened.close()


def output(page: Any, name: str) -> Any:
    return page.locator(".jp-CodeCell").nth(NAMES.index(name))


@pytest.mark.parametrize("name", VIEWS)
def test_widget_without_kernel_says_so_and_offers_only_what_works(page: Any, name: str) -> None:
    shown = output(page, name)
    shown.locator(".tnb-disconnected").first.wait_for()
    assert "this page has no kernel" in shown.locator(".tnb-disconnected").first.inner_text()
    assert shown.evaluate(ALIVE) == []


def test_dashboard_without_kernel_shows_the_last_seconds_with_requests(page: Any) -> None:
    tiles = output(page, "dashboard").locator(".tnb-tile")
    tiles.first.wait_for()
    assert "80 requests/s" in tiles.first.inner_text()
    assert "n = 400" in output(page, "dashboard").locator(".tnb-charts .tnb-note").inner_text()


def test_page_without_the_state_of_widgets_shows_their_last_states_only(
    browser: Any, executed: nbformat.NotebookNode, tmp_path: Path
) -> None:
    notebook = nbformat.from_dict({**executed, "metadata": {}})
    opened = browser.new_page()
    opened.goto(write_page(notebook, tmp_path / "page.html").as_uri())
    for name in VIEWS:
        saved = output(opened, name).locator(".tnb-last-state")
        assert "Picture saved at" in saved.inner_text(), name
        assert output(opened, name).locator("[data-mime-type='text/plain']:visible").count() == 0, name
    assert "throughput: 80 requests/s" in output(opened, "dashboard").inner_text()
    opened.close()
