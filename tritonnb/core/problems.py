"""Problems of a configuration: what is wrong, where, and the fix."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fix:
    """A change that corrects a problem.

    Attributes
    ----------
    label : str
        The change in a few words, such as ``FP32 → TYPE_FP32``.
    text : str
        The whole text of the configuration after the change.
    hint : str
        The change as the end of an error's text, such as ``did you mean 'TYPE_FP32'?``.
    """

    label: str
    text: str
    hint: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration.

    Attributes
    ----------
    message : str
        In Triton's words.
    line, column : int
        From 1; ``line`` is 0 where the text has no place for it.
    fix : Fix or None
        A change of the text that corrects it.
    hint : str
        The remedy as the end of an error's text; that of ``fix`` where there is one. May be empty.
    """

    message: str
    line: int = 0
    column: int = 0
    fix: Fix | None = None
    hint: str = ""
