"""The lessons that come with the package: `tritonnb lessons` and `tritonnb lab`."""

from __future__ import annotations

import importlib.metadata
import subprocess
from pathlib import Path

import pytest

from docs.sitegen import notebooks
from tritonnb.cli.main import main
from tritonnb.model_zoo.lessons import copy_lessons, lessons


def test_every_notebook_is_a_lesson_with_title_and_runtime() -> None:
    assert [lesson.path for lesson in lessons()] == notebooks.paths()
    assert all(lesson.title and lesson.runtime.startswith("Runs in about ") for lesson in lessons())


def test_lessons_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lessons"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "01_quickstart              Quickstart: a model server inside this kernel"
    assert len(lines) == 2 * len(lessons())


def test_changed_lesson_is_kept_and_missing_one_is_copied(tmp_path: Path) -> None:
    assert len(copy_lessons(tmp_path)) == len(lessons())
    assert copy_lessons(tmp_path) == []
    changed, missing = (tmp_path / "notebooks" / lesson.path.name for lesson in lessons()[:2])
    changed.write_text("my own")
    missing.unlink()
    assert copy_lessons(tmp_path) == [
        f"{changed}: kept, since it differs from the lesson of this version",
        f"{missing}: created",
    ]
    assert changed.read_text() == "my own"


def test_lab_opens_the_first_lesson_with_the_given_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def call(command: list[str]) -> int:
        commands.append(command)
        return 0

    monkeypatch.setattr(subprocess, "call", call)
    assert main(["lab", str(tmp_path), "--", "--no-browser"]) == 0
    first = "/lab/tree/notebooks/01_quickstart.ipynb"  # the address that JupyterLab prints where there is no browser
    here = [f"--ServerApp.root_dir={tmp_path}", f"--LabApp.default_url={first}"]
    assert commands[0][1:] == ["-m", "jupyterlab", *here, "--no-browser"]
    assert (tmp_path / "model_repository" / "dense" / "1" / "model.onnx").is_file()


@pytest.mark.parametrize("missing", [["jupyterlab", "magika"], ["magika"]], ids=",".join)
def test_lab_names_missing_packages_and_opens_jupyterlab_if_installed(
    missing: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version = importlib.metadata.version

    def version_unless_missing(name: str) -> str:
        if name in missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", version_unless_missing)
    monkeypatch.setattr(subprocess, "call", lambda command: 0)
    assert main(["lab", str(tmp_path)]) == ("jupyterlab" in missing)
    assert capsys.readouterr().err == (
        f'the lessons need packages that are not installed ({", ".join(missing)}): pip install "tritonnb[lab]"\n'
    )
    assert (tmp_path / "notebooks" / "01_quickstart.ipynb").is_file()
