"""Each view in the real hosts: it is painted, updated from the kernel, and the kernel answers a click.

The hosts and views are those of `docs/sitegen/hosts.py`, which makes a table of them. The hosts have their own
environment: `make test-hosts`.
"""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import tritonnb as tnb
from docs.sitegen.hosts import LIVE_HOSTS, PRELUDE, READ_ONLY, RECORDING, VIEWS
from tests.notebook.browser import ROOT, VIEWPORT, Lab, NotebookPage, write_notebook
from tests.notebook.test_dashboard import ensemble_repository

for package in set(LIVE_HOSTS.values()):
    pytest.importorskip(package, reason=f"needs the package {package}: make test-hosts")

#: Seconds until a view must have reacted.
PATIENCE_S = 30
#: Messages of the hosts themselves: Voila loads icons from a network, and extensions of Notebook that do not fit.
IGNORED = ("favicon", "/api/kernels?", "fontawesome", "@jupyter-notebook/lab-extension")
#: Whether a canvas in an element has a pixel that is not transparent.
HAS_PAINTED_CANVAS = """(root) => [...root.querySelectorAll("canvas")].some((canvas) => {
  if (!canvas.width || !canvas.height) return false;
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return data.some((value, index) => index % 4 === 3 && value > 0);
})"""


class Host:
    """A notebook of all views in a host: one output for each view."""

    def __init__(self, page: Any, server: tnb.Remote, outputs: str, messages: list[str]) -> None:
        self.page = page
        self.server = server
        self._outputs = outputs
        self.messages = messages

    def output(self, name: str) -> Any:
        """The output of a view, scrolled into sight."""
        number = list(VIEWS).index(name)
        found = self.page.locator(self._outputs.format(number, number + 1))
        found.scroll_into_view_if_needed()
        return found

    @property
    def errors(self) -> list[str]:
        """The errors in the console."""
        return [text for text in self.messages if not any(words in text for words in IGNORED)]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository with an ensemble."""
    return ensemble_repository(tmp_path_factory.mktemp("models"))


def cells(repository: Path, port: int) -> list[str]:
    return [PRELUDE.format(port=port, repository=str(repository)) + RECORDING, *VIEWS.values()]


def listen(page: Any) -> list[str]:
    messages: list[str] = []

    def note(message: Any) -> None:
        if message.type == "error":
            messages.append(f"{message.text} {message.location}")

    page.on("console", note)
    page.on("pageerror", lambda error: messages.append(str(error.stack or error)))
    return messages


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(log.read_text())


#: The page of all views in a host, the selector of an output by its number from 0 and from 1, and the errors in the
#: console.
Opened = tuple[Any, str, list[str]]


@contextmanager
def open_jupyter(name: str, directory: Path, context: Any, code: list[str]) -> Iterator[Opened]:
    settings = {"@jupyterlab/notebook-extension:tracker": {"windowingMode": "full"}} if "full" in name else {}
    lab = Lab(directory, LIVE_HOSTS[name], settings)
    try:
        page = NotebookPage(context, lab, write_notebook(lab, "views", *code))
        page.open()
        messages = listen(page.browser_page)
        page.run_all()
        page.wait_until_finished()  # it scrolls to the last cell
        yield page.browser_page, ".jp-Notebook .jp-Cell[data-windowed-list-index='{1}'] .jp-Cell-outputArea", messages
    finally:
        lab.close()


@contextmanager
def open_program(directory: Path, context: Any, program: str, *options: str) -> Iterator[tuple[Any, list[str]]]:
    """Start a host as its own program, and open its page."""
    port, log = free_port(), directory / "log"
    command = [sys.executable, "-m", program, *options, f"--port={port}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        wait_for_port(port, process, log)
        page = context.new_page()
        messages = listen(page)
        page.goto(f"http://127.0.0.1:{port}/")
        yield page, messages
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def open_voila(name: str, directory: Path, context: Any, code: list[str]) -> Iterator[Opened]:
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in code])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, directory / "views.ipynb")
    with open_program(directory, context, "voila", "views.ipynb", "--no-browser") as (page, messages):
        yield page, ".jp-CodeCell >> nth={1}", messages


@contextmanager
def open_marimo(name: str, directory: Path, context: Any, code: list[str]) -> Iterator[Opened]:
    (directory / "views.py").write_text(as_marimo(code))
    with open_program(directory, context, "marimo", "run", "views.py", "--headless", "--no-token") as (page, messages):
        yield page, ".output-area >> nth={0}", messages


def as_marimo(code: list[str]) -> str:
    """Return cells as a notebook of marimo: functions, with the names that they use as parameters."""
    defined = ("rec", "remote", "server", "tnb")
    parts = ["import marimo", "app = marimo.App(width='full')"]
    for number, cell in enumerate(code):
        used = {node.id for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.Name)}
        parameters = ", ".join(name for name in defined if name in used and number)
        body = "\n".join(f"    {line}" for line in cell.strip().splitlines())
        returned = ", ".join(defined) if not number else ""
        parts.append(f"@app.cell\ndef _({parameters}):\n{body}\n    return {returned}")
    return "\n\n".join(parts)


OPEN: dict[str, Callable[..., AbstractContextManager[Opened]]] = {
    "jupyterlab": open_jupyter, "notebook": open_jupyter, "voila": open_voila, "marimo": open_marimo,
}  # fmt: skip


@pytest.fixture(scope="module", params=LIVE_HOSTS)
def host(
    request: pytest.FixtureRequest, browser: Any, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    """The views in a host."""
    name, port = request.param, free_port()
    context = browser.new_context(viewport=VIEWPORT)
    context.set_default_timeout(PATIENCE_S * 1000)
    directory = tmp_path_factory.mktemp("host")
    with OPEN[LIVE_HOSTS[name]](name, directory, context, cells(repository, port)) as opened:
        page, outputs, messages = opened
        last = page.locator(outputs.format(len(VIEWS) - 1, len(VIEWS)))
        last.locator(".tnb-tile").first.wait_for()  # the cells have run
        with tnb.connect(f"http://127.0.0.1:{port}") as server:
            yield Host(page, server, outputs, messages)
    context.close()


# --- what a user sees and does in each view ----------------------------------------------------------------


def text_of(element: Any) -> str:
    return str(element.evaluate("(root) => root.textContent"))


def see_requests(host: Host, name: str) -> None:
    """Send requests until the number of a view has changed."""
    count = host.output(name).locator(".tnb-fact").first
    count.wait_for()
    before = text_of(count)
    host.server["double"](X=[[1.0]])
    count.filter(has_not_text=re.compile(f"^{re.escape(before)}$")).wait_for()


def ask_for_causes(host: Host, name: str) -> None:
    view = host.output(name).locator(".tnb-batch-view").first
    view.get_by_role("button", name=re.compile(r"\d ms\)")).first.click()
    view.locator(".tnb-blame-result table").wait_for()


def ask_a_live_view(host: Host, name: str) -> None:
    host.output(name).get_by_role("button", name="pause").click()
    ask_for_causes(host, name)


def select_model(host: Host, name: str, model: str) -> None:
    host.output(name).get_by_role("option", name=re.compile(f"^{model},")).click()


def select_in_dashboard(host: Host, name: str) -> None:
    select_model(host, name, "add_sub")
    host.output(name).get_by_role("group", name="Traffic on add_sub").wait_for()
    host.output(name).get_by_role("tab", name="Configuration").click()
    host.output(name).get_by_label("config.pbtxt of add_sub").wait_for()


def select_in_remote_dashboard(host: Host, name: str) -> None:
    select_model(host, name, "double")
    host.output(name).get_by_role("cell", name="OUTPUT", exact=True).wait_for()


def start_traffic(host: Host, name: str) -> None:
    host.output(name).get_by_role("button", name="Send").click()
    host.output(name).get_by_text("responses/s").wait_for()


def stop_traffic(host: Host, name: str) -> None:
    host.output(name).get_by_role("button", name="Stop").click()
    host.output(name).locator(".tnb-traffic").get_by_text("Last: 'double'").wait_for()


def see_another_configuration(host: Host, name: str) -> None:
    field = host.output(name).locator("[data-path=max_batch_size]")
    field.fill("-1")
    field.press("Enter")


def see_problem(host: Host, name: str) -> None:
    host.output(name).locator(".tnb-problems li").first.wait_for()


def step(host: Host, name: str) -> None:
    host.output(name).locator(".tnb-debugger").get_by_role("button", name="next event").click()
    host.output(name).locator(".tnb-debugger").get_by_text(re.compile("^event [2-9] of")).wait_for()


def see_picture_of_step(host: Host, name: str) -> None:
    host.output(name).locator(".tnb-fact").first.wait_for()


def ask_for_a_hint(host: Host, name: str) -> None:
    host.output(name).get_by_role("button", name="Hint").click()
    host.output(name).locator(".tnb-result").filter(has_text=re.compile(".")).wait_for()


def see_ensemble(host: Host, name: str) -> None:
    host.server["twice"](A=[[1.0, 2, 3, 4]], B=[[1.0, 1, 1, 1]])
    host.output(name).locator(".tnb-lanes svg").wait_for()


def select_step(host: Host, name: str) -> None:
    host.output(name).locator(".tnb-graph [data-name=add_sub]").first.click()
    host.output(name).locator(".tnb-batch-view").wait_for()


def see_statistics(host: Host, name: str) -> None:
    host.server["double"](X=[[1.0]])
    host.server["add_sub"](INPUT0=[[1.0] * 4], INPUT1=[[1.0] * 4])
    host.output(name).locator("rect.tnb-execution").first.wait_for()


def nothing(host: Host, name: str) -> None:
    """A recording does not change; nor does a worksheet before it is answered."""


#: By view: what is painted, how the kernel changes it, and how the kernel answers a click.
Check = Callable[[Host, str], None]
CHECKS: dict[str, tuple[str, Check, Check]] = {
    "live view": ("canvas", see_requests, ask_a_live_view),
    "dashboard": ("canvas", see_requests, select_in_dashboard),
    "traffic panel": (".tnb-traffic", start_traffic, stop_traffic),
    "configuration editor": (".tnb-config-editor .tnb-shown", see_another_configuration, see_problem),
    "view of a recording": ("canvas", nothing, ask_for_causes),
    "comparison": ("canvas", nothing, ask_for_causes),
    "debugger": ("canvas", see_picture_of_step, step),
    "worksheet": (".tnb-worksheet .tnb-chip", nothing, ask_for_a_hint),
    "ensemble": (".tnb-graph svg", see_ensemble, select_step),
    "model of another server": (".tnb-markup table", see_statistics, nothing),
    "dashboard of another server": (".tnb-tile", see_statistics, select_in_remote_dashboard),
}


def farthest_from(name: str) -> str:
    """Return the first or the last view."""
    names = list(VIEWS)
    return names[0] if names.index(name) > len(names) / 2 else names[-1]


def wait_until_painted(host: Host, name: str, selector: str) -> None:
    """Wait until a part of a view is visible, which Playwright says of no empty element, and a canvas has pixels."""
    host.output(name).locator(selector).first.wait_for()
    if selector == "canvas":
        root = host.output(name).locator(".tnb-batch-view").first
        host.page.wait_for_function(HAS_PAINTED_CANVAS, arg=root.element_handle())


@pytest.mark.parametrize("name", VIEWS)
def test_view_is_painted_updated_and_answers(host: Host, name: str) -> None:
    selector, update, click = CHECKS[name]
    wait_until_painted(host, name, selector)
    host.output(farthest_from(name))  # JupyterLab may detach what is out of sight
    wait_until_painted(host, name, selector)
    update(host, name)
    click(host, name)
    assert (click is nothing) == (name in READ_ONLY)
    assert host.errors == []
    assert host.page.locator(".tnb-last-state:visible").count() == 0
