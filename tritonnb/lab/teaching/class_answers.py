"""The answers of a class to one exercise, for its teacher: who is right, and which mistake is the most frequent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.html_table import html_report
from tritonnb.lab.teaching.worksheet import Answer, Grade, Worksheet
from tritonnb.scheduling.reasons import pluralize


@dataclass(frozen=True)
class ClassAnswers:
    """The grades of a class.

    Attributes
    ----------
    grades : dict of str to Grade
        By name; an answer that cannot be read has no correct batches.
    """

    grades: Mapping[str, Grade]

    @property
    def mistakes(self) -> list[tuple[str, int]]:
        """The mistakes, and how many answers have them; the most frequent first."""
        return Counter(grade.explanation for grade in self.grades.values() if not grade).most_common()

    @property
    def verdict(self) -> str:
        """How many answers are correct, in one sentence."""
        correct = sum(map(bool, self.grades.values()))
        return f"{correct} of {pluralize(len(self.grades), 'answer')} correct."

    def __repr__(self) -> str:
        width = max(map(len, self.grades))
        lines = [f"  {name:<{width}}  {grade!r}" for name, grade in self.grades.items()]
        return "\n".join(
            [self.verdict, *lines, "Mistakes:", *(f"  {self._times(*mistake)}" for mistake in self.mistakes)]
        )

    def _repr_html_(self) -> str:
        rows = [
            (name, f"{grade.correct} of {grade.total}", "✓" if grade else "✗", "" if grade else grade.explanation)
            for name, grade in self.grades.items()
        ]
        remarks = [self._times(*mistake) for mistake in self.mistakes]
        return html_report(self.verdict, ("name", "batches", "", "first mistake"), rows, remarks)

    @staticmethod
    def _times(mistake: str, count: int) -> str:
        return f"{count} x {mistake}"


@with_short_traceback
def grade_class(worksheet: Worksheet, answers: str | Mapping[str, Answer]) -> ClassAnswers:
    r"""Grade the answers of a class, as they were pasted from a chat, a form or a spreadsheet.

    Parameters
    ----------
    answers : str or mapping of str to Answer
        A line for each answer, with the name before a colon or a tab (``"Ada: A BC"``); or answers by name.

    Returns
    -------
    ClassAnswers

    Raises
    ------
    InvalidArgumentError
        If there is no answer, a line has no name, or a name has two answers.

    Examples
    --------
    >>> from tritonnb import worksheet
    >>> sheet = worksheet(seed=1)
    >>> right = " ".join("".join(batch) for batch in sheet.solution)
    >>> sheet.grade_class(f"Ada: {right}\nBen: ABC").verdict
    '1 of 2 answers correct.'
    """
    if not isinstance(answers, str | Mapping):
        raise InvalidArgumentError(f"answers expected text or a mapping, got {answers!r}")
    by_name = _read_lines(answers) if isinstance(answers, str) else answers
    if not by_name:
        raise InvalidArgumentError("answers expected a line for each answer, such as 'Ada: A BC', got none")
    return ClassAnswers({name: _grade(worksheet, answer) for name, answer in by_name.items()})


def _read_lines(text: str) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    for line in filter(str.strip, text.splitlines()):
        # Spreadsheets put other columns, such as the time of the answer, before the name.
        name, separator, answer = line.rpartition("\t") if "\t" in line else line.partition(":")
        name = name.rpartition("\t")[2].strip()
        if not separator or not name:
            raise InvalidArgumentError(f"answers expected a name before a colon or a tab, got {line.strip()!r}")
        if name in answers:
            raise InvalidArgumentError(f"answers expected one answer for each name, got two for {name!r}")
        answers[name] = answer
    return answers


def _grade(worksheet: Worksheet, answer: Answer) -> Grade:
    """Grade an answer; a typing error of one student must not hide the answers of the others."""
    try:
        return worksheet.check(answer)
    except TritonError as error:
        return Grade(0, len(worksheet.batches), f"Not readable: {error.message}.")
