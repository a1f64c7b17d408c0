"""The answers of a class: pasted as text, graded, and counted by mistake."""

from __future__ import annotations

from typing import Any

import pytest

import tritonnb as tnb

SHEET = tnb.Worksheet("max_batch_size: 8 dynamic_batching { }", [tnb.Arrival(ms=ms) for ms in (0, 2, 4)], 10)


def test_pasted_answers_are_graded_and_mistakes_are_counted() -> None:
    answers = SHEET.grade_class("Ada: A BC\nBen: ABC\n\n2026-11-29 09:00\tCleo\tABC\nDan\tA B C\nEve: A BZ\nFay:\n")
    assert list(answers.grades) == ["Ada", "Ben", "Cleo", "Dan", "Eve", "Fay"]
    assert [bool(grade) for grade in answers.grades.values()] == [True, False, False, False, False, False]
    assert answers.verdict == "1 of 6 answers correct."
    assert answers.mistakes[0] == ("Batch 1 is not A, B and C. B arrives later, at 2 ms. C arrives later, at 4 ms.", 2)
    assert "Not readable: answer expected requests of A, B, C, got 'Z'." in repr(answers)


def test_names_are_escaped_in_a_notebook() -> None:
    assert "<b>Ada" not in SHEET.grade_class({"<b>Ada": ["A", "BC"]})._repr_html_()


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ("", "expected a line for each answer, such as 'Ada: A BC', got none"),
        ({}, "expected a line for each answer"),
        ("A BC", "expected a name before a colon or a tab, got 'A BC'"),
        (": A BC", "expected a name before a colon or a tab"),
        ("Ada: A\nAda: B", "expected one answer for each name, got two for 'Ada'"),
        (5, "answers expected text or a mapping, got 5"),
    ],
)
def test_answers_that_cannot_be_told_apart_are_refused(answers: Any, complaint: str) -> None:
    with pytest.raises(tnb.TritonError, match=complaint):
        SHEET.grade_class(answers)
