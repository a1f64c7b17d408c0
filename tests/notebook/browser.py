"""A real JupyterLab and Debian's Chromium, to test what users see.

A browser test asks for the fixture ``notebook`` and opens cells with it::

    def test_a_cell_prints(notebook):
        page = notebook("print(6 * 7)")
        page.run_all()
        page.output(0).get_by_text("42").wait_for()

``page.browser_page`` is Playwright's page, for everything else. Playwright occupies the event loop of the thread, so
browser tests run after all others (*tests/conftest.py*), and live in their own modules (``test_browser_*.py``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}
FINISHED = """() => {
    const cells = window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells;
    const code = [...cells].filter((cell) => cell.cell_type === "code");
    const failed = code.some((cell) => cell.outputs.some((output) => output.output_type === "error"));
    return failed || code.every((cell) => cell.execution_count !== null && cell.executionState !== "running");
}"""
CELL_ERRORS = """() => {
    const cells = [...window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells];
    const outputs = cells.filter((cell) => cell.cell_type === "code").flatMap((cell) => cell.outputs);
    const errors = outputs.filter((output) => output.output_type === "error");
    return errors.map((error) => `${error.ename}: ${error.evalue}`);
}"""
#: Without waiting for the promise, which the browser may collect before it is fulfilled: `IS_OPEN` says when it is.
OPEN = """(path) => {
    window.jupyterapp.commands.execute("docmanager:open", { path, factory: "Notebook" });
}"""
IS_OPEN = """(path) => {
    const context = window.jupyterapp?.shell.currentWidget?.context;
    return context?.path === path && context.isReady && context.sessionContext.isReady;
}"""
#: No icon; and JupyterLab lists the kernels while one starts, which its server answers with status 500 if that kernel
#: has not been active yet.
_IGNORED = ("favicon", "/api/kernels?")
#: End the kernel and close the notebook; return whether JupyterLab has no notebook and no dialog then. Observers and
#: cancelled requests of the notebook raise their errors in the next frame: the next notebook must not report them.
CLOSE = """async () => {
    for (const widget of [...window.jupyterapp.shell.widgets("main")]) {
        await widget.context?.sessionContext?.shutdown();
        widget.dispose();
    }
    await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(resolve))));
    return document.querySelector(".jp-Notebook, .jp-Dialog") === null;
}"""
VIEWPORT = {"width": 1400, "height": 1000}
TIMEOUT = 60_000
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


class Lab:
    """A JupyterLab server with its own settings; kernels import this checkout.

    Parameters
    ----------
    directory : Path
    program : str
        ``jupyterlab``, or ``notebook``, which is made of the same parts.
    settings : dict
        By plugin, besides `SETTINGS`.
    """

    def __init__(self, directory: Path, program: str = "jupyterlab", settings: Mapping[str, Any] | None = None) -> None:
        self.root = directory / "root"
        self.root.mkdir()
        homes = {
            name: str(directory / name.lower())
            for name in (
                "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR",
                "JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR",
            )
        }  # fmt: skip
        for plugin, values in {**SETTINGS, **(settings or {})}.items():
            path = Path(homes["JUPYTERLAB_SETTINGS_DIR"]) / f"{plugin}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values))
        self.log = directory / "lab.log"
        options = {
            "ServerApp.port": 0, "ServerApp.open_browser": False, "ServerApp.root_dir": self.root,
            "IdentityProvider.token": "", "LabApp.expose_app_in_browser": True, "ServerApp.allow_root": True,
            "JupyterNotebookApp.expose_app_in_browser": True,
        }  # fmt: skip
        self.path = {"jupyterlab": "doc/tree", "notebook": "notebooks"}[program]
        command = [sys.executable, "-m", program, *(f"--{name}={value}" for name, value in options.items())]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # type: ignore[assignment]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **homes, "PYTHONPATH": path},  # type: ignore[arg-type]
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.url = self._wait_for_url(Path(homes["JUPYTER_RUNTIME_DIR"]))

    def _wait_for_url(self, runtime: Path) -> str:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            for info in runtime.glob("jpserver-*.json"):
                with suppress(json.JSONDecodeError):  # it is being written
                    return str(json.loads(info.read_text())["url"])
            time.sleep(0.05)
        self.process.kill()
        raise RuntimeError(self.log.read_text())

    def close(self) -> None:
        """Stop the server and its kernels."""
        self.process.terminate()
        self.process.wait(30)


class NotebookPage:
    """One notebook in the browser."""

    def __init__(self, browser_context: BrowserContext, lab: Lab, name: str) -> None:
        self._is_loaded = bool(browser_context.pages)
        self.browser_page: Any = browser_context.pages[0] if self._is_loaded else browser_context.new_page()
        self.file = name
        self._lab = lab
        self.messages: list[str] = []
        self._listeners: dict[str, Callable[[Any], None]] = {
            "console": lambda message: self.messages.append(_line(message)),
            "pageerror": lambda error: self.messages.append(f"error: {error.stack or error}"),
        }

    def open(self) -> None:
        """Open the notebook in the JupyterLab that is loaded, or load JupyterLab: 5 s of processor time."""
        for event, listener in self._listeners.items():
            self.browser_page.on(event, listener)
        if self._is_loaded:
            self.browser_page.evaluate(OPEN, self.file)
        else:
            self.browser_page.goto(f"{self._lab.url}{self._lab.path}/{self.file}")
        self.browser_page.wait_for_function(IS_OPEN, arg=self.file)

    def close(self) -> bool:
        """Close the notebook and end its kernel; return whether JupyterLab is as it was before."""
        has_errors = bool(self.errors)
        for event, listener in self._listeners.items():
            self.browser_page.remove_listener(event, listener)
        self.browser_page.set_default_timeout(TIMEOUT)
        self.browser_page.set_viewport_size(VIEWPORT)
        self.browser_page.mouse.move(0, 0)
        self.theme("light")
        return self.browser_page.evaluate(CLOSE) and not has_errors

    def run_all(self) -> None:
        """Run every cell, and return when the kernel is idle after the last of them."""
        self.browser_page.wait_for_function(
            "() => window.jupyterapp.shell.currentWidget.context.sessionContext.session?.kernel?.status === 'idle'",
            timeout=60_000,
        )
        self.browser_page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")

    def wait_until_finished(self) -> None:
        """Wait until every cell has run, or one has failed."""
        self.browser_page.wait_for_function(FINISHED, timeout=100_000)

    def cell_errors(self) -> list[str]:
        """The names and messages of the errors that cells have raised."""
        errors: list[str] = self.browser_page.evaluate(CELL_ERRORS)
        return errors

    def cell(self, number: int) -> Any:
        """A code or text cell."""
        return self.browser_page.locator(".jp-Notebook .jp-Cell").nth(number)

    def output(self, number: int) -> Any:
        """The output of a cell."""
        return self.cell(number).locator(".jp-Cell-outputArea")

    def execute(self, code: str) -> str:
        """Run code in the notebook's kernel, outside of its cells; return what it printed."""
        script = """async (code) => {
            const { kernel } = window.jupyterapp.shell.currentWidget.context.sessionContext.session;
            const future = kernel.requestExecute({ code, store_history: false });
            let text = "";
            future.onIOPub = (message) => {
                if (message.header.msg_type === "stream") text += message.content.text;
                if (message.header.msg_type === "error") text += message.content.traceback.join("\\n");
            };
            await future.done;
            return text;
        }"""
        return str(self.browser_page.evaluate(script, code))

    @contextmanager
    def busy(self, code: str = "") -> Iterator[None]:
        """Keep Python busy in a cell, after it has run some code."""
        over = self._lab.root / f"{self.file}.over"
        over.unlink(missing_ok=True)
        busy = f"print('busy', flush=True)\nfrom pathlib import Path\nwhile not Path({str(over)!r}).exists(): pass"
        script = """async (code) => {
            const { kernel } = window.jupyterapp.shell.currentWidget.context.sessionContext.session;
            const future = kernel.requestExecute({ code, store_history: false });
            await new Promise((resolve) => {
                future.onIOPub = (message) => { if (message.header.msg_type === "stream") resolve(); };
            });
        }"""
        try:
            self.browser_page.evaluate(script, f"{code}\n{busy}")
            yield
        finally:
            over.touch()

    def interrupt(self, code: str) -> str:
        """Run code that prints something and then blocks, and interrupt it; return the name of the error."""
        script = """async (code) => {
            const { kernel } = window.jupyterapp.shell.currentWidget.context.sessionContext.session;
            const future = kernel.requestExecute({ code, store_history: false });
            const printed = new Promise((resolve) => {
                future.onIOPub = (message) => { if (message.header.msg_type === "stream") resolve(); };
            });
            await printed;
            await kernel.interrupt();
            const reply = await future.done;
            return reply.content.ename;
        }"""
        return str(self.browser_page.evaluate(script, code))

    def theme(self, name: str) -> None:
        """Select the theme ``light`` or ``dark``."""
        self.browser_page.evaluate(
            "(theme) => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", THEMES[name]
        )
        self.browser_page.wait_for_function(
            "(light) => document.body.dataset.jpThemeLight === light", arg=str(name == "light").lower()
        )
        # JupyterLab stumbles over its own splash screen when the theme changes again before that has gone.
        self.browser_page.locator("#jupyterlab-splash").wait_for(state="detached")

    def save(self) -> None:
        """Save the notebook, outputs included."""
        self.browser_page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")

    def screenshots(self, name: str, locator: Any) -> None:
        """Save pictures of a part of the page in both themes in *build/screenshots*; continuous integration keeps them.

        Elsewhere (without the environment variable ``CI``), nothing is saved: changing the theme takes a second.
        """
        if "CI" not in os.environ:
            return
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.browser_page.set_viewport_size({"width": 1400, "height": 2000})  # tall outputs scroll
        for theme in THEMES:
            self.theme(theme)
            locator.screenshot(path=SCREENSHOTS / f"{name}-{theme}.png", animations="disabled")
        self.theme("light")
        self.browser_page.set_viewport_size(VIEWPORT)

    @property
    def errors(self) -> list[str]:
        """The errors in the browser's console."""
        return [
            message
            for message in self.messages
            if message.startswith("error") and not any(words in message for words in _IGNORED)
        ]


def _line(message: Any) -> str:
    return f"{message.type}: {message.text} {message.location.get('url', '')}".rstrip()


def write_notebook(lab: Lab, name: str, *cells: str) -> str:
    """Write a notebook of code cells into the server's root; return its file name."""
    import nbformat  # environments without Jupyter import this module, too

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, lab.root / f"{name}.ipynb")
    return f"{name}.ipynb"


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A JupyterLab."""
    pytest.importorskip("jupyterlab", reason="needs the package jupyterlab")
    lab = Lab(tmp_path_factory.mktemp("lab"))
    yield lab
    lab.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def browser_context(browser: Any) -> Iterator[Any]:
    """The context of all notebooks: JupyterLab's files are read and compiled once."""
    context = browser.new_context(viewport=VIEWPORT)
    context.set_default_timeout(TIMEOUT)
    yield context
    context.close()


@pytest.fixture(scope="module")
def notebook(lab: Lab, browser_context: Any, request: pytest.FixtureRequest) -> Iterator[Callable[..., NotebookPage]]:
    """Open cells, or a notebook file that lies in the server's root, in the browser.

    This closes the notebook that the module has opened before. A kernel takes a second to start: tests that can share a
    notebook should. JupyterLab is loaded for the first notebook, for a `new_page`, and after a test that failed.
    """

    def release(page: NotebookPage, failed: int) -> None:
        is_clean = False
        try:
            is_clean = page.close() and request.session.testsfailed == failed
        finally:
            if not is_clean:
                page.browser_page.close()

    with ExitStack() as opened:

        def open_notebook(*cells: str, file: str = "", new_page: bool = False) -> NotebookPage:
            opened.close()
            if new_page:
                for browser_page in browser_context.pages:
                    browser_page.close()
            if not file:
                file = write_notebook(lab, f"test-{time.monotonic_ns()}", *cells)
            page = NotebookPage(browser_context, lab, file)
            opened.callback(release, page, request.session.testsfailed)
            page.open()
            return page

        yield open_notebook
