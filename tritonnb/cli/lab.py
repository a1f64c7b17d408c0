"""``tritonnb lessons`` lists the lessons; ``tritonnb lab`` copies them into a directory and opens JupyterLab."""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

from tritonnb.core.version import installed_version
from tritonnb.model_zoo.lessons import LESSONS, MODELS, copy_lessons, lessons
from tritonnb.model_zoo.materialize import materialize

#: The models of the first lesson, which are created in a second or two.
_FIRST_MODELS = ("digits", "magika", "dense")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tritonnb lab``."""
    parser.add_argument(
        "directory",
        nargs="?",
        default="tritonnb-lessons",
        type=Path,
        help="where the lessons and their models are copied; existing files are kept (default %(default)s)",
    )
    parser.add_argument("options", nargs="*", metavar="-- OPTION", help="options of JupyterLab, such as --no-browser")


def print_lessons() -> int:
    """Print a line for each lesson and one for its runtime; return the exit status."""
    for lesson in lessons():
        print(f"{lesson.path.stem:<26} {lesson.title}\n{'':<26} {lesson.runtime}")
    return 0


def run(options: argparse.Namespace) -> int:
    """Copy the lessons and open the first one in JupyterLab; return the exit status."""
    for line in copy_lessons(options.directory):
        print(line)
    missing = _missing_packages()
    if missing:
        text = f'the lessons need packages that are not installed ({", ".join(missing)}): pip install "tritonnb[lab]"'
        print(text, file=sys.stderr)
    else:
        materialize(options.directory / MODELS, _FIRST_MODELS)
    if "jupyterlab" in missing:
        return 1
    first = f"/lab/tree/{LESSONS}/{lessons()[0].path.name}"
    here = [f"--ServerApp.root_dir={options.directory.resolve()}", f"--LabApp.default_url={first}"]
    return subprocess.call([sys.executable, "-m", "jupyterlab", *here, *options.options])


def _missing_packages() -> list[str]:
    """Return the packages of the extra ``lab`` that are not installed."""
    missing = []
    for requirement in importlib.metadata.requires("tritonnb") or ():
        match = re.fullmatch(r"([\w.-]+).*; extra == ['\"]lab['\"]", requirement)
        if match is not None and not installed_version(match[1]):
            missing.append(match[1])
    return missing
