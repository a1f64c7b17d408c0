"""A worksheet as plain values for its view: the exercise, and the result of checking an answer."""

from __future__ import annotations

from collections.abc import Sequence

from tritonnb.core.json_types import Json
from tritonnb.lab.teaching.worksheet import Worksheet
from tritonnb.scheduling.reasons import pluralize

#: What can be asked about an answer.
ACTIONS = ("check", "hint", "reveal")
_NULL = "-"


def describe_sheet(worksheet: Worksheet) -> Json:
    """Return the exercise.

    Returns
    -------
    dict
        ``question``, ``config``, ``detail`` (what is known about a request), ``requests``: name, arrival in ms and
        rows or flags of each; and ``end_ms``, when the last execution ends.
    """
    head, rows = worksheet.table()
    return {
        "question": worksheet.question,
        "config": worksheet.config,
        "detail": head[-1],
        "requests": [[name, float(ms), _detail(detail)] for name, ms, detail in rows],
        "end_ms": max(batch.exec_end_ns for batch in worksheet.batches) / 1e6,
    }


def grade(worksheet: Worksheet, action: str, answer: Sequence[Sequence[str]]) -> Json:
    """Check an answer, give a hint for its first mistake, or reveal the batch that it should be.

    Parameters
    ----------
    worksheet : Worksheet
    action : str
        One of `ACTIONS`.
    answer : sequence of sequence of str
        The names of the requests of each batch.

    Returns
    -------
    dict
        ``text``; ``done``, whether the answer is correct; ``total`` number of batches; the ``batches`` to draw; and
        ``next_ms``, when the next batch is sent, or None.

    Raises
    ------
    InvalidArgumentError
        If the answer names a request that does not exist.
    """
    result = worksheet.check(answer)
    shown = result.correct
    if action == "check":
        text = repr(result)
    elif action == "hint":
        text = worksheet.hint(answer)
    else:
        text, shown = worksheet.reveal(answer), min(result.correct + 1, result.total)
    batches = worksheet.batches
    return {
        "text": text,
        "done": bool(result),
        "total": len(batches),
        "batches": [_describe(worksheet, number) for number in range(shown)],
        "next_ms": batches[shown].sent_ns / 1e6 if shown < len(batches) else None,
    }


def _detail(text: str) -> str:
    """Return the rows of a request, or its flags, as its button shows them."""
    return pluralize(int(text), "row") if text.isdigit() else text


def _describe(worksheet: Worksheet, number: int) -> Json:
    batch = worksheet.batches[number]
    return {
        "names": [name for name in worksheet.solution[number] if name != _NULL],
        "instance": batch.instance,
        "begin_ms": batch.exec_start_ns / 1e6,
        "end_ms": batch.exec_end_ns / 1e6,
        "why": worksheet.why(number),
    }
