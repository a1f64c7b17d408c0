"""Exercises on paper, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import tritonnb as tnb
from tritonnb.cli.main import main


def test_page_has_every_sheet_and_its_solution_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worksheets", str(tmp_path / "sheets.html"), "--seeds", "4-5"]) == 0
    assert "2 sheets, with solutions at the end" in capsys.readouterr().out
    questions, _, solutions = (tmp_path / "sheets.html").read_text("utf-8").partition("Solutions")
    for seed in (4, 5):
        sheet = tnb.worksheet(seed=seed)
        assert f"sheet {seed} (dynamic, level 1)" in questions
        assert sheet.why(0) not in questions
        assert sheet.why(0).replace(">=", "&gt;=").replace("'", "&#x27;") in solutions


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--seeds", "5-3"], "--seeds expected a number or a range such as 1-10, got '5-3'"),
        (["--seeds", "x"], "--seeds expected a number or a range"),
        (["--seeds", "1-100000"], "--seeds expected at most 200 seeds, got 100000"),
        (["--requests", "2"], "requests expected a number from 3 to 26, got 2"),
    ],
)
def test_impossible_sheets_are_refused(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worksheets", str(tmp_path / "sheets.html"), *arguments]) != 0
    assert complaint in capsys.readouterr().err
