"""The running configuration of a model and its file: an editor compares its text with them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from tritonnb.client.model import Model
from tritonnb.core.json_types import Json
from tritonnb.notebook.config_report import report_on, text_of


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
