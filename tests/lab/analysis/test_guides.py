"""The guides list what the code defines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tritonnb.lab.analysis.debugger import QUANTITIES
from tritonnb.lab.analysis.latency_split import CAUSES

GUIDES = Path(__file__).parents[3] / "docs" / "how-to"


@pytest.mark.parametrize(
    ("guide", "names"),
    [("find-the-cause-of-a-latency.md", CAUSES), ("step-through-a-recording.md", QUANTITIES)],
)
def test_table_of_a_guide_has_every_name(guide: str, names: Iterable[str]) -> None:
    rows = re.findall(r"^\| (`[^|]*`) \|", (GUIDES / guide).read_text("utf-8"), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert [name for name in listed if name in names] == list(names)
