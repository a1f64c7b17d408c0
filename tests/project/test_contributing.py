"""CONTRIBUTING.md names files that exist, and commands that the Makefile has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
FILES = sorted(set(re.findall(r"`((?:tritonnb|tests|docs|\.ci)/[\w./-]*)`", TEXT)))
TARGETS = sorted(set(re.findall(r"`make ([\w-]+)`", TEXT)))


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_it_names_exists(name: str):
    assert (ROOT / name).exists()


def test_it_names_files_of_every_kind_of_addition():
    sections = re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]
    assert [section.splitlines()[0] for section in sections if not re.search(r"`tritonnb/[\w/]+\.py`", section)] == []


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_that_it_names_exists(target: str):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE)
