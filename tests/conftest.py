"""Settings of all tests: which examples laws try, and tests are marked.

Browser tests run last, and share one browser: Playwright occupies the event loop of the thread.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from tests import laws, signal_stack
from tests.notebook.browser import browser, browser_context, lab, notebook
from tests.nvidia_clients import nvidia_clients, pytest_collection_finish
from tests.outcomes import Outcomes

__all__ = ["browser", "browser_context", "lab", "notebook", "nvidia_clients", "pytest_collection_finish"]


@pytest.fixture(scope="session")
def node() -> str:
    """The program of Node.js."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("needs Node.js: apt-get install nodejs")
    return program


class Records(logging.Handler):
    """The records of a logger."""

    def __init__(self, logger: str) -> None:
        super().__init__()
        self.messages: list[str] = []
        logging.getLogger(logger).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


_answered_twice = Records("tritonnb.core.messages")

signal_stack.install()
laws.register()

#: A test that uses the fixture has the marker.
MARKER_OF_FIXTURE = {"browser": "browser", "lab": "browser", "kernel": "kernel", "shared": "kernel", "wheel": "build"}


def pytest_configure(config: pytest.Config) -> None:
    """Name failures at once, and write the outcomes if continuous integration asks for them (`tests.outcomes`)."""
    config.pluginmanager.register(Failures(config.pluginmanager))
    if directory := os.environ.get("TEST_OUTCOMES"):
        config.pluginmanager.register(Outcomes(Path(directory)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from searching the 800,000 objects of imported modules and collected tests.

    It would take a tenth of the time to collect, and a quarter of the time of tests that simulate or draw: each new
    object counts towards the next search, and there are so many at once that it finds little.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Whatever a test loads, the main thread keeps its stack for signal handlers."""
    with signal_stack.restored():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape what a test has logged: the report goes to another process, which takes no lone surrogates."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Limit the time of the fixtures of a test that has failed: pytest has just cancelled the limit."""
    stderr = node.config.stash[fault_handler_stderr_fd_key]
    limit = float(node.config.getini("faulthandler_timeout"))
    if limit > 0:
        faulthandler.dump_traceback_later(limit, file=stderr, exit=True)


class Failures:
    """A plugin that names each test as soon as it fails: a run that is ended from outside shows no summary."""

    def __init__(self, plugins: pytest.PytestPluginManager) -> None:
        self._plugins = plugins

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._plugins.get_plugin("terminalreporter")
        if report.failed and terminal is not None:  # the processes of xdist have none
            last_line = report.longreprtext.strip().rpartition("\n")[2]
            terminal.write_line(f"\n{report.nodeid} failed ({report.when}): {last_line}")


@pytest.fixture(autouse=True)
def answered_twice() -> Iterator[list[str]]:
    """Fail if a request was answered twice (`InferRequest.answer`), on whatever thread."""
    _answered_twice.messages.clear()
    yield _answered_twice.messages
    assert _answered_twice.messages == []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their fixtures and parameters; state machines, and tests with a longer time limit, are slow.

    Files with slow tests or kernels come first, so that no process waits for the last of them; tests in a browser
    come last.
    """
    limit = float(config.getini("timeout"))
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        for marker in sorted({MARKER_OF_FIXTURE[name] for name in fixtures if name in MARKER_OF_FIXTURE}):
            item.add_marker(marker)
        callspec = getattr(item, "callspec", None)
        if callspec is not None and "isolated" in callspec.id.split("-"):
            item.add_marker("isolated")
        timeout = item.get_closest_marker("timeout")
        is_state_machine = item.name == "runTest"
        if is_state_machine or (timeout is not None and timeout.args[0] > limit):
            item.add_marker("slow")
    lengthy = {item.path for item in items if any(map(item.get_closest_marker, ("slow", "kernel")))}
    items.sort(key=lambda item: (item.get_closest_marker("browser") is not None, item.path not in lengthy))
    for item in items:
        if item.get_closest_marker("browser") and not item.path.match("test_browser_*.py"):
            raise pytest.UsageError(f"{item.nodeid} uses a browser: expected it in a module test_browser_*.py")
