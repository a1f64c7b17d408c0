"""``server["digits"].edit()``: *config.pbtxt* as text and as a form, checked during typing, applied live.

The kernel's main thread receives the browser's messages and only passes them on: one worker thread per editor asks
the server, reads and writes the file, and sets what the browser shows. Once a second the worker also checks whether
the file or the running configuration was changed elsewhere.
"""

from __future__ import annotations

import contextlib
import html
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import anywidget
import traitlets

from tritonnb.client.model import Model
from tritonnb.core.errors import TritonError, UnavailableError
from tritonnb.core.json_types import Json
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.parse import ConfigSyntaxError, parse_text
from tritonnb.model_config.text_edit import edit_text
from tritonnb.model_config.write import write_text
from tritonnb.notebook.config_report import ServedConfig, set_field
from tritonnb.notebook.draft_preview import DraftPreview
from tritonnb.notebook.field_help import schema
from tritonnb.notebook.views import StaticFallback, close_disconnected, forget_view, open_view
from tritonnb.notebook.widget_files import javascript, stylesheet
from tritonnb.notebook.worker import Job, Worker
from tritonnb.server.model_handle import ModelHandle

T = TypeVar("T")
_POLL_S = 1.0
#: What the buttons of the browser do, apart from changes of fields.
_ACTIONS = ("apply", "revert", "save", "take_file")

_APPLIED = {
    "unchanged": "Nothing to apply: this is the running configuration.",
    "in place": "Applied in place: only the scheduling changed, so the model was not loaded again.",
    "reloaded": "Reloaded: a new copy serves new requests; the old one completed those that it had accepted.",
    "loaded": "Loaded: the model is served now.",
}

_COMPLETED = "Nothing to apply: without a batcher in the text, the model or its backend enables dynamic_batching."
_FAILED = "The model failed to load and is not served: correct its configuration and apply it."
_UNLOADED = "The model has been unloaded: this is its last configuration. Load the model again to apply another one."


def edit_config(model: ModelHandle) -> ConfigEditor:
    """Open a live editor of the configuration, as text and form, validated while you type.

    Returns
    -------
    ConfigEditor
        A widget. Every call returns the same widget until it is closed.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8, dynamic_batching={})
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     editor = server["double"].edit()
    ...     editor.set_field("dynamic_batching.max_queue_delay_microseconds", 500)
    ...     editor.apply()
    'in place'
    """
    return open_view(ConfigEditor, model.server, model.name, lambda: ConfigEditor(model))


class ConfigEditor(StaticFallback, anywidget.AnyWidget):
    """A widget that edits, checks, applies and saves the configuration of one model.

    Parameters
    ----------
    model : Model

    Attributes
    ----------
    text : str
        The edited text; setting it is like typing.
    report : dict
        The check of ``text``: ``problems``, ``form``, ``effect`` of applying it, ``diff`` to the running configuration.
    status : dict
        ``busy``, ``outcome`` and its ``level``; ``file`` and whether it was changed ``outside`` of the editor; whether
        the model is ``loaded``; ``ended``.
    preview : dict
        What the latest requests would have experienced under the text: ``text`` and ``figures``; empty without a draft.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> from tritonnb.model_zoo.materialize import materialize
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as directory:
    ...     _ = materialize(directory, ["identity_fp32"])
    ...     with tnb.Server(directory, port=0) as server:
    ...         editor = server["identity_fp32"].edit()
    ...         editor.set_field("max_batch_size", 4)
    ...         editor.settle()
    ...         print(editor.report["problems"], editor.apply(), server["identity_fp32"].config.max_batch_size)
    ...         editor.save()
    ...         editor.text = ""
    ...         editor.take_file()
    ...         print("max_batch_size: 4" in editor.text)
    ...         editor.revert()
    ...         editor.close()
    [] reloaded 4
    True
    """

    _esm = javascript("config_editor")
    _css = stylesheet("config_editor")
    model = traitlets.Unicode().tag(sync=True)
    text = traitlets.Unicode().tag(sync=True)
    report = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict().tag(sync=True)
    schema = traitlets.Dict().tag(sync=True)
    preview = traitlets.Dict().tag(sync=True)

    def __init__(self, model: Model) -> None:
        self._handle: Model | None = model
        path: Path | None = None  # of its config.pbtxt, which need not exist, if it is from a repository of this server
        if isinstance(model, ModelHandle):
            path = model.server.run(model.server.engine.reconfiguration.config_path(model.name))
        self._served = ServedConfig(model, path)
        self._not_saved: str | None = None
        self._error = ""  # of the last action that failed
        status = {"busy": "", "outcome": "", "level": "", "outside": False, "loaded": True, "ended": False}
        super().__init__(
            model=model.name,
            text=self._served.text,
            schema=schema(),
            status={**status, "file": "" if path is None else str(path)},
        )
        self.report = self._report(self.text)
        self._drafts = DraftPreview(self, model)
        self.observe(lambda change: self._drafts.update(self._draft()), "report")
        if self._served.config is None:
            self._show_outcome("error", _FAILED)
        self._worker = Worker(f"tritonnb editor {model.name}", self._run, self._poll, _POLL_S)
        self.observe(lambda change: self._submit(self._check), "text")
        self.on_msg(_on_message)
        self._worker.start()

    # --- public interface -----------------------------------------------------------------------

    def apply(self) -> str:
        """Apply the text to the model.

        Returns
        -------
        str
            ``"unchanged"``, ``"in place"``, ``"reloaded"``, or ``"loaded"`` if it had failed to load.

        Raises
        ------
        TritonError
            If it is rejected; the model is unchanged.
        """
        return self._submit(self._apply).result()

    def revert(self) -> None:
        """Reset the text to the running configuration, or to the file if the model is not served."""
        self._submit(self._revert).result()

    def save(self) -> None:
        """Write the text to the file atomically; the previous text remains in *config.pbtxt.bak*.

        Raises
        ------
        RuntimeError
            If the text has problems, or the file was changed elsewhere; saving again writes it nevertheless.
        OSError
            If it cannot be written.
        """
        self._submit(self._save).result()

    def take_file(self) -> None:
        """Replace the text by the current content of the file."""
        self._submit(self._take_file).result()

    def set_field(self, path: str, value: Any) -> None:
        """Change one field as the form does: ``set_field("dynamic_batching.max_queue_delay_microseconds", 500)``.

        Parameters
        ----------
        path : str
            Of the field, with dots.
        value : object
            In its JSON form.

        Raises
        ------
        ConfigSyntaxError
            If the text cannot be parsed.
        """
        config = parse_text(self.text).config
        set_field(config, path, value)
        self.text = edit_text(self.text, config)

    def last_state(self) -> str:
        """Return the last text as HTML."""
        return f"<p><b>{html.escape(self.model)}</b></p><pre>{html.escape(self.text)}</pre>"

    def settle(self) -> None:
        """Wait until everything requested so far is done and shown."""
        self._submit(lambda: None).result()
        self._drafts.join()

    def close(self) -> None:
        """Close the editor; the model is not affected."""
        self._detach()
        super().close()

    @traitlets.validate("text")
    def _with_plain_lines(self, proposal: Json) -> str:
        """Return the text with the line ends of a browser."""
        text: str = proposal["value"]
        return text.replace("\r\n", "\n").replace("\r", "\n")

    # --- on the worker thread -------------------------------------------------------------------

    def _submit(self, job: Callable[[], T]) -> Future[T]:
        """Run a job on the worker thread."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(job())
            except Exception as error:
                self._show_error(error)
                future.set_exception(error)

        if not self._worker.submit(run):
            future.set_exception(RuntimeError("the editor is closed"))
        return future

    def _run(self, job: Job) -> None:
        close_disconnected(self)  # whoever waits for the job gets its result nevertheless
        handle = self._handle
        if handle is not None and not handle.server.alive:
            self._end()
        with contextlib.suppress(UnavailableError, RuntimeError):  # server stopped or editor closed in the meantime
            job()
        self.keep_last_state()

    def _end(self) -> None:
        """Release the stopped server, and keep showing the last state."""
        self._detach()
        self.status = {**self.status, "ended": True, "busy": ""}
        self._show_outcome("", "The server has been stopped; this is the last state.")

    def _detach(self) -> None:
        """Accept no more jobs, and release the server."""
        self._worker.stop()
        self._drafts.close()
        handle, self._handle = self._handle, None
        if handle is not None:
            forget_view(handle.server, self)

    def _check(self) -> None:
        text = self.text
        if self.report.get("text") != text:
            self.report = self._report(text)
            if self.status["outcome"] == self._error:  # it was about the text before
                self._show_outcome("", "")

    def _draft(self) -> pb.ModelConfig | None:
        """Return the edited configuration if it could be applied and differs from the running one."""
        if self.report["effect"] not in ("in place", "reloaded"):
            return None
        return self._model().check_config(parse_text(self.report["text"]).config)

    def _poll(self) -> None:
        """Detect changes of the file and of the running configuration that were made elsewhere."""
        self._drafts.refresh()
        served, text_of_file, running_text = self._served, self._served.file_text, self._served.text
        if served.read_file():
            self.status = {**self.status, "outside": served.file_text not in (text_of_file, self.text)}
        try:
            is_changed = served.update(self._model())
        except TritonError:
            if self.status["loaded"]:
                self.status = {**self.status, "loaded": False, "outcome": _UNLOADED, "level": "error"}
            return
        if not self.status["loaded"]:
            self.status = {**self.status, "loaded": True, "outcome": "The model is loaded again.", "level": ""}
            self.report = self._report(self.text)
        if is_changed:
            if self.text == running_text:
                self.text = served.text
            else:
                self.report = self._report(self.text)
            if served.config is None:
                self._show_outcome("error", _FAILED)
            else:
                self._show_outcome("", "The running configuration was changed elsewhere.")

    def _apply(self) -> str:
        text, model = self.text, self._model()
        self.status = {**self.status, "busy": "Applying …", "outcome": "", "level": ""}
        try:
            config = model.config
            config.text = text
            effect: str = config.apply()
        except TritonError as error:
            self._served.failure = text, error.message
            self.report = self._report(self.text)
            raise
        finally:
            self.status = {**self.status, "busy": ""}
        self._served.applied(model, text)
        self.report = self._report(self.text)
        scheduling = config.WhichOneof("scheduling_choice")
        added = effect == "unchanged" and scheduling != self._served.config.WhichOneof("scheduling_choice")
        self._show_outcome("good", _COMPLETED if added else _APPLIED[effect])
        return effect

    def _revert(self) -> None:
        self.text = self._served.text
        source = "file" if self._served.config is None else "running configuration"
        self._show_outcome("", f"Reset to the {source}.")

    def _save(self) -> None:
        text, path = self.text, self._served.path
        assert path is not None
        if self.status["outside"]:
            self.status = {**self.status, "outside": False}
            raise RuntimeError("The file was changed elsewhere and has not been written. Save again to replace it.")
        self._check()
        problems = self.report["problems"]
        if problems and text != self._not_saved:
            self._not_saved = text
            problem = problems[0]["message"].rstrip(". ")
            raise RuntimeError(
                f"The file has not been written, since the server would reject it: {problem}. Save again to write it "
                "nevertheless."
            )
        backup = write_text(path, text)
        self._served.read_file()
        previous = "" if backup is None else f" The previous text is in {backup.name}."
        self._show_outcome("good", f"Saved to {path.name}.{previous}")

    def _take_file(self) -> None:
        self._served.read_file()
        self.status = {**self.status, "outside": False}
        if self._served.file_text is not None:
            self.text = self._served.file_text
            self._show_outcome("", "This is the file's text; it is not applied yet.")

    # --- display --------------------------------------------------------------------------------

    def _show_outcome(self, level: str, outcome: str) -> None:
        self.status = {**self.status, "outcome": outcome, "level": level}

    def _show_error(self, error: Exception) -> None:
        self._error = str(error)
        self._show_outcome("error", self._error)

    def _report(self, text: str) -> Json:
        return self._served.report(self._model(), text)

    def _model(self) -> Model:
        if self._handle is None:
            raise RuntimeError("the editor is closed")
        return self._handle


def _on_message(editor: ConfigEditor, content: Json, buffers: Any) -> None:
    """Handle a button or a field of the form, without blocking the main thread."""
    action = content.get("action")
    if action == "set":
        try:
            editor.set_field(content["path"], content["value"])
        except (ConfigSyntaxError, TypeError, ValueError, KeyError) as error:
            editor._show_error(error)
    elif action in _ACTIONS:
        editor._submit(getattr(editor, f"_{action}"))
