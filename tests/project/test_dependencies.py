"""The package and the lessons import exactly the dependencies that are declared."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docs.sitegen import notebooks
from tritonnb.backends.location import REQUIREMENTS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
_IMPORT = re.compile(r"^ *(?:from|import) (\w+)", flags=re.MULTILINE)


@cache
def installed_modules() -> Mapping[str, list[str]]:
    """The installed packages that provide a module."""
    return packages_distributions()


def imported(texts: Iterable[str]) -> set[frozenset[str]]:
    """For each module that is imported and that an installed package provides: the packages that provide it."""
    providers = installed_modules()
    modules = {module for text in texts for module in _IMPORT.findall(text)}
    return {frozenset(map(canonicalize_name, providers[module])) for module in modules & providers.keys()}


def closure(texts: Iterable[str]) -> set[str]:
    """The packages that requirements bring, with all that they depend on."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in texts]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name == "tritonnb":
            waiting += [Requirement(text) for extra in wanted.extras for text in EXTRAS[extra]]
        elif name not in found:
            found.add(name)
            waiting += [needed for needed in of_package(name) if applies(needed, wanted.extras)]
    return found


def of_package(name: str) -> list[Requirement]:
    try:
        return [Requirement(text) for text in requires(name) or ()]
    except PackageNotFoundError:  # of another platform
        return []


def applies(needed: Requirement, extras: set[str]) -> bool:
    return needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras or {""})


def test_every_dependency_of_the_package_is_imported() -> None:
    used = {
        name for names in imported(path.read_text() for path in (ROOT / "tritonnb").rglob("*.py")) for name in names
    }
    assert [text for text in PROJECT["dependencies"] if canonicalize_name(Requirement(text).name) not in used] == []


@pytest.mark.parametrize("target", ["lab", "demo", "test", "bench"])
def test_only_tests_and_benchmarks_wait_for_the_compiler_and_for_every_model(target: str, tmp_path: Path) -> None:
    command = [
        "make",
        "--dry-run",
        f"--file={ROOT / 'Makefile'}",
        f"VENV={tmp_path}",
        f"COMPILED={tmp_path / '.compiled'}",
        target,
    ]
    steps = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    waits = target in {"test", "bench"}
    assert ("hatch_build.py" in steps, "tritonnb models" in steps, "--group test" in steps) == (waits, waits, waits)


def cells_of(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def installed_with(extra: str) -> set[str]:
    return closure([*PROJECT["dependencies"], *EXTRAS[extra]]) | {"tritonnb"}


@pytest.mark.parametrize("path", notebooks.paths(), ids=lambda path: path.stem)
def test_lesson_imports_only_its_declared_packages(path: Path) -> None:
    available = installed_with("lab" if path.stem.startswith("01") else "lessons")
    assert [set(names) for names in imported(cells_of(path)) if not names & available] == []


@pytest.mark.parametrize("path", notebooks.paths(), ids=lambda path: path.stem)
def test_first_cell_of_a_lesson_fails_if_a_package_is_missing(path: Path) -> None:
    first, *others = cells_of(path)
    available = installed_with("lab").union(*imported([first]))
    backends = {package for name, (package, _) in REQUIREMENTS.items() if f'"{name}"' in "".join(others)}
    needed = imported([*others, *(f"import {package}" for package in backends)])
    assert [set(names) for names in needed if not names & available] == []
