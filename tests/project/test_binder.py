"""The environment on Binder agrees with the package's requirements, and fits a machine without a GPU."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
BINDER = ROOT / "binder"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
PINS = {
    canonicalize_name(name): Version(version)
    for name, version in (line.split("==") for line in (BINDER / "constraints.txt").read_text().split())
}


def asked_for() -> list[str]:
    return [
        *PROJECT["dependencies"],
        *(package for name in ("nested", "lab", "lessons") for package in EXTRAS[name]),
        *(text for group in PYPROJECT["dependency-groups"].values() for text in group if isinstance(text, str)),
    ]


def is_pinned_here(text: str) -> bool:
    """Whether the constraints have to pin a package: an extra of our own, or one with its version, has no pin there."""
    return not text.startswith("tritonnb[") and "==" not in text


@pytest.mark.parametrize("text", [*filter(is_pinned_here, asked_for())])
def test_pinned_versions_satisfy_the_package_requirements(text: str) -> None:
    wanted = Requirement(text)
    assert PINS[canonicalize_name(wanted.name)] in wanted.specifier


def conda_packages() -> dict[str, str]:
    """The packages and versions in *environment.yml*."""
    lines = (BINDER / "environment.yml").read_text().splitlines()
    return dict(line.removeprefix("  - ").partition("=")[::2] for line in lines if line.startswith("  - "))


def test_binder_installs_the_packages_of_the_lessons() -> None:
    command = 'python -m pip install --constraint binder/constraints.txt ".[lessons]"'
    assert command in (BINDER / "postBuild").read_text().splitlines()


def test_torch_is_the_build_for_cpus() -> None:
    assert Version(conda_packages()["pytorch-cpu"]) == PINS[canonicalize_name("torch")]
    assert not [name for name in PINS if name.startswith(("nvidia", "cuda", "triton-", "pytorch-triton"))]


def test_python_is_one_that_the_package_runs_on() -> None:
    assert Version(conda_packages()["python"]) in SpecifierSet(PROJECT["requires-python"])


def test_binder_build_creates_the_models() -> None:
    script = BINDER / "postBuild"
    assert os.access(script, os.X_OK)
    assert "python -m tritonnb models model_repository" in script.read_text()
    assert "rapidocr-onnxruntime" in PINS  # postBuild takes its version from there
