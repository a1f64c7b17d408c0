"""Which tests are skipped in every run of continuous integration: ``python -m tests.outcomes`` fails if there are any.

With the variable ``TEST_OUTCOMES``, each process of pytest writes there what it has run and what it has skipped.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

#: Reasons, as regular expressions, for which a test is skipped in each run: what continuous integration cannot have.
EXCEPTIONS = (
    "TRITON_PREFIX|needs a tritonserver",  # a real Triton server
    "TRITON_CLIENT_CHECKOUT|TRITONNB_PYTHON_BACKEND|TRITON_BACKENDS_CHECKOUT",  # NVIDIA's sources
    "Python 3.12 limits the recursion|this system|on this platform",  # other systems, and other versions of Python
    "hadolint is not installed|recordings of alsa-utils|axe-core",  # programs and files of other package managers
    "OpenVINO has the property|it is there",  # the refusal of what the installed version does not have
    "runs in JupyterLab",  # the same notebook, in a browser test
)


class Outcomes:
    """A plugin that writes which tests this process has run, and the reasons of those that it has skipped."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / f"{os.getpid()}-{time.time_ns()}.json"
        self._ran: list[str] = []
        self._skipped: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped:
            self._ran.append(report.nodeid)
        self.pytest_collectreport(report)

    def pytest_collectreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skipped[report.nodeid] = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else "")

    def pytest_sessionfinish(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps([self._ran, self._skipped]))


def never_run(files: Iterable[Path]) -> dict[str, str]:
    """The tests and modules that were skipped in all runs, with the reasons that are no exceptions."""
    ran: set[str] = set()
    skipped: dict[str, str] = {}
    for file in files:
        tests, reasons = json.loads(file.read_text())
        ran |= {part for test in tests for part in (test, test.partition("::")[0])}  # or the module, if it was skipped
        skipped |= reasons
    return {
        name: reason
        for name, reason in skipped.items()
        if name not in ran and not re.search("|".join(EXCEPTIONS), reason)
    }


if __name__ == "__main__":
    missing = never_run(Path(os.environ["TEST_OUTCOMES"]).glob("*.json"))
    sys.exit("\n".join(f"{name}: skipped in every run: {reason}" for name, reason in sorted(missing.items())) or 0)
