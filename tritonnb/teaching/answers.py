"""The forms in which an answer to a worksheet may be written."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tritonnb.core.errors import InvalidArgumentError

#: An answer: batches in order, each ``"AB"``, ``"A1 B1"`` or a list of names; or one string of words or lines.
Answer = str | Sequence[str | Sequence[str]]


def batches_in(answer: Answer) -> Sequence[str | Sequence[str]]:
    """Return the batches of an answer: the elements of a list, the lines of a string, or the words of its only line."""
    if isinstance(answer, str):
        lines = [line for line in answer.splitlines() if line.strip()]
        return lines if len(lines) > 1 else re.split(r"[\s,;]+", answer.strip())
    if not isinstance(answer, list | tuple):
        raise _invalid_answer(answer)
    return answer


def names_in(batch: str | Sequence[str]) -> Sequence[str]:
    """Return the names of the requests of one batch of an answer."""
    if isinstance(batch, str):
        return re.findall(r"[A-Za-z]\d*|\S", batch)
    if not isinstance(batch, list | tuple):
        raise _invalid_answer(batch)
    return batch


def _invalid_answer(answer: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"answer expected a string such as 'A BC' or a list such as ['A', 'BC'] or [['A'], ['B', 'C']], got {answer!r}"
    )
