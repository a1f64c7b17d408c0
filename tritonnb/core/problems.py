"""Problems of a configuration: message, position and suggested fix."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fix:
    """A change of the configuration that fixes a problem.

    Attributes
    ----------
    label : str
        The change in a few words, such as ``FP32 → TYPE_FP32``.
    text : str
        The complete *config.pbtxt* after the change.
    hint : str
        The change as the end of an error message, such as ``did you mean 'TYPE_FP32'?``.
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
        Triton's text.
    line, column : int
        From 1; 0 if the problem has no position in the text.
    fix : Fix or None
        A change of the text that fixes it.
    hint : str
        How to fix it, as the end of an error message; that of ``fix`` if there is one. May be empty.
    """

    message: str
    line: int = 0
    column: int = 0
    fix: Fix | None = None
    hint: str = ""
