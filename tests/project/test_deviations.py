"""Every deviation from Triton is shown by a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_deviation_names_its_reason_and_a_test() -> None:
    rows = [line for line in (ROOT / "docs/deviations.md").read_text("utf-8").splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith(("| Triton", "| ---"))]
    assert len(rows) > 80
    for row in rows:
        assert len(re.findall(r"(?<!\\)\|", row)) == 5, row
        match = re.search(r"`([\w/]+)::(\w+)` \|$", row)
        assert match, row
        assert f"def test_{match[2]}(" in (ROOT / f"tests/{match[1]}.py").read_text("utf-8"), row
