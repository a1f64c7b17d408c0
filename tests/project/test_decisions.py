"""Each decision record has the same form, and the index lists it by its title."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DECISIONS = Path(__file__).parents[2] / "docs" / "decisions"
RECORDS = sorted(DECISIONS.glob("0*.md"))
HEAD = re.compile(
    r"# (?P<number>\d+)\. .+\n\n"
    r"- Status: (?:accepted|superseded by \d+)\n"
    r"- Date: \d{4}-\d\d-\d\d(?:, changed \d{4}-\d\d-\d\d)?\n\n"
)
SECTIONS = ["Context", "Decision", "Alternatives considered", "Consequences"]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_record_has_a_status_a_date_and_the_same_sections(record: Path) -> None:
    text = record.read_text("utf-8")
    head = HEAD.match(text)
    assert head is not None
    assert int(head["number"]) == int(record.name[:4])
    assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == SECTIONS


def test_index_lists_each_record_once_by_its_title() -> None:
    listed = re.findall(r"^- \[(.+)\]\((.+)\)$", (DECISIONS / "index.md").read_text("utf-8"), flags=re.MULTILINE)
    titles = [(record.read_text("utf-8").partition("\n")[0].removeprefix("# "), record.name) for record in RECORDS]
    assert sorted(listed) == sorted(titles)
