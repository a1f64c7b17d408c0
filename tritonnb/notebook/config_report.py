"""What an editor tells of a configuration's text: problems, the form, what applying it would do, and what differs."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from google.protobuf import text_format

from tritonnb.core.problems import Problem
from tritonnb.model_config.diagnose import diagnose, problem_of
from tritonnb.model_config.diff import changed_fields, effect_of, replaced
from tritonnb.model_config.normalize import without_defaults
from tritonnb.model_config.text_edit import edit_text
from tritonnb.notebook.config_form import form_of

#: A configuration as it would be loaded; raises `TritonError` where it would be refused.
Check = Callable[[Any], Any]


def report_on(text: str, check: Check, running: Any, running_text: str, failure: tuple[str, str] | None) -> Any:
    """What is known of a text.

    Parameters
    ----------
    text : str
    check : callable
    running : ModelConfig or None
        None where nothing runs, because the model failed to load.
    running_text : str
        What ``running`` is as text; the file's where nothing runs.
    failure : tuple of str, optional
        A text, and why it could not be loaded although it is valid.

    Returns
    -------
    dict
        ``text``, ``problems``, ``form``, ``effect`` and ``diff``, as plain values.
    """
    found, problems = diagnose(text, check), []
    if found.parsed is not None and failure is not None and failure[0] == text:
        problems.append(problem_of(failure[1], text, found.parsed))
    effect = ""
    if found.checked is not None:
        effect = "loaded" if running is None else effect_of(running, found.checked)
    return {
        "text": text,
        "problems": [_plain(each) for each in found.problems or problems],
        "form": None if found.parsed is None else form_of(found.parsed.config),
        "effect": effect,
        "diff": _diff(running_text, text, "file" if running is None else "running"),
    }


def text_of(running: Any, file_text: str | None, check: Check) -> str:
    """What runs, as text: the file's own words where there is a file, changed where it says otherwise."""
    if running is None:
        return file_text or ""
    found = None if file_text is None else diagnose(file_text, check)
    if found is None or found.parsed is None or found.checked is None:
        return str(text_format.MessageToString(without_defaults(running), use_short_repeated_primitives=True))
    assert file_text is not None
    return edit_text(file_text, replaced(found.parsed.config, running, changed_fields(found.checked, running)))


def _plain(problem: Problem) -> dict[str, Any]:
    fix = None if problem.fix is None else {"label": problem.fix.label, "text": problem.fix.text}
    return {"message": problem.message, "line": problem.line, "column": problem.column, "fix": fix}


def _diff(before: str, after: str, name: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, "edited", lineterm="", n=2)
    return list(lines)
