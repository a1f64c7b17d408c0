"""The page's Python forms the same batches, for the same reasons, as the Python of the server."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.playground.random_scenarios import answers_of_cpython, answers_of_pyodide, messages

pytestmark = pytest.mark.slow


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js, which runs Pyodide")
def test_random_scenarios_have_the_same_batches_and_reasons_byte_for_byte(runtime: Path) -> None:
    asked = messages(40, seed=7)
    here = answers_of_cpython(asked)
    assert sum('"error"' not in answer for answer in here) > 20
    assert answers_of_pyodide(asked, runtime) == here
