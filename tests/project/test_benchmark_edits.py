"""Benchmarks that leave a part of the package out edit a copy of it: the edited text has to be there."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.costs import PARTS
from benchmarks.tricks import TRICKS, Part

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", [*PARTS.values(), *TRICKS.values()], ids=[*PARTS, *TRICKS])
def test_edited_text_occurs_once(part: Part) -> None:
    for file, text, _ in part.edits:
        assert (ROOT / file).read_text(encoding="utf-8").count(text) == 1, (file, text)
