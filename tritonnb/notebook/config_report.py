"""The report on an edited configuration: problems, form, effect of applying it, and difference from the running one."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from google.protobuf import text_format

from tritonnb.core.errors import Problem
from tritonnb.core.json_types import Json
from tritonnb.model_config.diagnose import diagnose, problem_of
from tritonnb.model_config.diff import changed_fields, effect_of, replaced
from tritonnb.model_config.normalize import without_defaults
from tritonnb.model_config.text_edit import edit_text
from tritonnb.notebook.config_form import form_of

#: Returns a configuration as it would be loaded; raises `TritonError` if it would be rejected.
Check = Callable[[Any], Any]


def report_on(
    text: str, check: Check, name: str, running: Any, running_text: str, failure: tuple[str, str] | None
) -> Json:
    """Check the text of a configuration.

    Parameters
    ----------
    text : str
    check : callable
    name : str
        The name of the model.
    running : ModelConfig or None
        None if the model failed to load.
    running_text : str
        ``running`` as text; the text of the file if the model failed to load.
    failure : tuple of str, optional
        A valid text that could not be loaded, and the reason.

    Returns
    -------
    dict
        ``text``, ``problems``, ``form``, ``effect`` and ``diff``, as plain values.
    """
    diagnosis, problems = diagnose(text, check, name), []
    if diagnosis.parsed is not None and failure is not None and failure[0] == text:
        problems.append(problem_of(failure[1], text, diagnosis.parsed))
    effect = ""
    if diagnosis.checked is not None:
        effect = "loaded" if running is None else effect_of(running, diagnosis.checked)
    return {
        "text": text,
        "problems": [_as_dict(problem) for problem in diagnosis.problems or problems],
        "form": None if diagnosis.parsed is None else form_of(diagnosis.parsed.config),
        "effect": effect,
        "diff": _diff(running_text, text, "file" if running is None else "running"),
    }


def text_of(running: Any, file_text: str | None, check: Check) -> str:
    """Return the running configuration as text: that of the file, edited where the running configuration differs."""
    if running is None:
        return file_text or ""
    diagnosis = None if file_text is None else diagnose(file_text, check)
    if diagnosis is None or diagnosis.parsed is None or diagnosis.checked is None:
        return str(text_format.MessageToString(without_defaults(running), use_short_repeated_primitives=True))
    assert file_text is not None
    return edit_text(file_text, replaced(diagnosis.parsed.config, running, changed_fields(diagnosis.checked, running)))


def _as_dict(problem: Problem) -> Json:
    fix = None if problem.fix is None else {"label": problem.fix.label, "text": problem.fix.text}
    return {"message": problem.message, "line": problem.line, "column": problem.column, "fix": fix}


def _diff(before: str, after: str, name: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, "edited", lineterm="", n=2)
    return list(lines)
