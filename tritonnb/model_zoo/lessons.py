"""The lessons: notebooks that come with this package."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tritonnb.model_zoo.sources import bundled_repository

#: The directories of the lessons and of their models in a copy; lessons find their models by a relative path.
LESSONS, MODELS = "notebooks", "model_repository"


@dataclass(frozen=True, slots=True)
class Lesson:
    """A lesson.

    Attributes
    ----------
    path : pathlib.Path
        The notebook in this package.
    title : str
    runtime : str
        How long it runs, and what it needs.
    """

    path: Path
    title: str
    runtime: str


def lessons() -> list[Lesson]:
    """Return all lessons, in order."""
    directory = bundled_repository().parent / LESSONS  # in the installed package, or in the checkout
    return [_read_lesson(path) for path in sorted(directory.glob("[0-9][0-9]_*.ipynb"))]


def copy_lessons(directory: Path) -> list[str]:
    """Copy the lessons, and keep the files that are there already.

    Parameters
    ----------
    directory : pathlib.Path
        Gets the subdirectories *notebooks* and *model_repository*. The lessons create their models in the second.

    Returns
    -------
    list of str
        A line for each lesson that was copied, and for each that was kept because it is different.
    """
    target = directory / LESSONS
    target.mkdir(parents=True, exist_ok=True)
    (directory / MODELS).mkdir(exist_ok=True)
    lines = []
    for lesson in lessons():
        copy = target / lesson.path.name
        if not copy.exists():
            shutil.copyfile(lesson.path, copy)
            lines.append(f"{copy}: created")
        elif copy.read_bytes() != lesson.path.read_bytes():
            lines.append(f"{copy}: kept, since it differs from the lesson of this version")
    return lines


def _read_lesson(path: Path) -> Lesson:
    first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]
    text = " ".join("".join(first).split())
    title = "".join(first).splitlines()[0].removeprefix("# ")
    runtime = re.search(r"Runs in [^.]*(\.\d[^.]*)*\.", text)
    return Lesson(path, title, runtime.group() if runtime else "")
