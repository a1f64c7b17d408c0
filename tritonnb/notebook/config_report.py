"""The running configuration of a model and its file, and the report on an edited text of it.

The report has the problems, the form, the effect of applying the text, and the difference from the running one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from difflib import unified_diff
from pathlib import Path
from typing import Any

from tritonnb.client.model import Model
from tritonnb.core.json_types import Json
from tritonnb.model_config.diagnose import diagnose, problem_of
from tritonnb.model_config.diff import changed_fields, effect_of, replaced
from tritonnb.model_config.read import config_text
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
    before = "file" if running is None else "running"
    return {
        "text": text,
        "problems": [asdict(problem) for problem in diagnosis.problems or problems],
        "form": None if diagnosis.parsed is None else form_of(diagnosis.parsed.config),
        "effect": effect,
        "diff": list(unified_diff(running_text.splitlines(), text.splitlines(), before, "edited", lineterm="", n=2)),
    }


def text_of(running: Any, file_text: str | None, check: Check) -> str:
    """Return the running configuration as text: that of the file, edited where the running configuration differs."""
    if running is None:
        return file_text or ""
    diagnosis = None if file_text is None else diagnose(file_text, check)
    if diagnosis is None or diagnosis.parsed is None or diagnosis.checked is None:
        return config_text(running)
    assert file_text is not None
    return edit_text(file_text, replaced(diagnosis.parsed.config, running, changed_fields(diagnosis.checked, running)))


class ServedConfig:
    """The running configuration of a model when it was last read, as text, and the text that could not be loaded.

    Parameters
    ----------
    model : Model
    path : pathlib.Path or None
        Its *config.pbtxt*.

    Attributes
    ----------
    config : ModelConfig or None
        None if the model failed to load.
    text : str
        ``config`` in the form of the file; the text of the file if the model failed to load.
    file_text : str or None
        The text of the file when it was last read; None if it could not be read.
    """

    def __init__(self, model: Model, path: Path | None) -> None:
        self.path = path
        self.file_text: str | None = None
        self._written: tuple[int, int] | None = None  # when the file was written, and its size
        self.read_file()
        self._take(model, *_running(model))

    def update(self, model: Model) -> bool:
        """Read the running configuration; return whether it is another one."""
        config, failure = _running(model)
        if config == self.config:
            return False
        self._take(model, config, failure)
        return True

    def _take(self, model: Model, config: Any, failure: str) -> None:
        self.config = config
        self.text = text_of(config, self.file_text, model.check_config)
        self._failure = (self.file_text or "", failure) if failure else None

    def applied(self, model: Model, text: str) -> None:
        """Take a text that was applied."""
        self.config, self.text, self._failure = model.running_config(), text, None

    def rejected(self, text: str, reason: str) -> None:
        """Remember a text that could not be loaded, and the reason."""
        self._failure = text, reason

    def read_file(self) -> bool:
        """Read the file again; return whether it was written."""
        known, self._written, self.file_text = self._written, None, None
        if self.path is not None:
            with suppress(OSError):
                status = self.path.stat()
                self.file_text = self.path.read_text("utf-8", "replace")  # universal newlines, as in a browser
                self._written = status.st_mtime_ns, status.st_size
        return self._written != known

    def report(self, model: Model, text: str) -> Json:
        """Check a text: see `report_on`."""
        return report_on(text, model.check_config, model.name, self.config, self.text, self._failure)


def _running(model: Model) -> tuple[Any, str]:
    """Return the running configuration and no reason, or None and the reason why the model failed to load."""
    failure = model.load_failure()
    return (None, failure) if failure else (model.running_config(), "")
