"""CONTRIBUTING.md and the architecture pages name files that exist, and commands that the Makefile has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "docs/design.md", *sorted((ROOT / "docs/decisions").glob("*.md"))]
FILE = re.compile(r"`((?:tritonnb|tests|docs|benchmarks|\.ci)/[\w./-]*)`")
FILES = [(page.name, name) for page in PAGES for name in sorted(set(FILE.findall(page.read_text("utf-8"))))]
TARGETS = sorted(set(re.findall(r"`make ([\w-]+)`", TEXT)))


@pytest.mark.parametrize(("page", "name"), FILES)
def test_files_named_in_pages_exist(page: str, name: str) -> None:
    assert (ROOT / name).exists(), f"{page} names {name}"


def test_files_named_in_the_picture_of_the_architecture_exist() -> None:
    named = re.findall(r">([\w*]+/[\w*/.]+)<", (ROOT / "docs/architecture.svg").read_text("utf-8"))
    assert len(named) > 3
    assert [name for name in named if not list((ROOT / "tritonnb").glob(name))] == []


def test_contributing_names_files_of_every_kind_of_addition() -> None:
    sections = re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]
    assert [section.splitlines()[0] for section in sections if not re.search(r"`tritonnb/[\w/]+\.py`", section)] == []


@pytest.mark.parametrize("target", TARGETS)
def test_make_target_named_in_contributing_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE)
