"""The walk of a request in the documentation is the one that a request takes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DESIGN = Path(__file__).parents[2] / "docs" / "design.md"
_ROW = re.compile(r"^\| `(tritonnb/[\w/.]+)` \| (.+?) \|", re.MULTILINE)


def documented_walk(title: str = "The path of a request") -> list[str]:
    """The functions of a walk, each as ``file function``."""
    section = DESIGN.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    return [
        f"{file} {function}"
        for file, functions in _ROW.findall(section)
        for function in re.findall(r"`([\w.]+)`", functions)
    ]


@pytest.mark.slow
def test_request_calls_the_functions_of_the_walk_in_this_order() -> None:
    command = [sys.executable, "-m", "tests.project.walk"]
    calls = iter(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines())
    assert documented_walk()
    missing = [step for step in documented_walk() if step not in calls]  # `in` goes on where the last step was found
    assert not missing


def test_files_of_the_walk_of_an_event_define_its_functions() -> None:
    walk = [step.split(" ") for step in documented_walk("The path of an event to the browser")]
    assert walk
    for file, function in walk:
        text = (DESIGN.parents[1] / file).read_text()
        name = function.rpartition(".")[2]
        definition = rf"^ *def {name}\(" if file.endswith(".py") else rf"^ *(?:function )?{name}\(.*\{{$"
        assert re.search(definition, text, re.MULTILINE), f"{file}: expected a definition of {function}, got none"
