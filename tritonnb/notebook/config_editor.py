"""``server["digits"].edit()``: *config.pbtxt* as text and as a form, checked while one types, applied live.

The browser's messages are taken by the kernel's main thread, which only hands them on: one worker thread
for each editor asks the server, reads and writes the file, and sets what the browser shows. The worker
also looks, once a second, whether the file or the running configuration was changed by somebody else.
"""

from __future__ import annotations

import contextlib
import html
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anywidget
import traitlets

from tritonnb.core.errors import TritonError, UnavailableError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.parse import ConfigSyntaxError, parse_text
from tritonnb.model_config.text_edit import edit_text
from tritonnb.model_config.write import write_text
from tritonnb.notebook.config_form import set_field
from tritonnb.notebook.config_report import report_on, text_of
from tritonnb.notebook.field_help import schema
from tritonnb.notebook.static_fallback import StaticFallback

if TYPE_CHECKING:
    from tritonnb.server.model_handle import ModelHandle

T = TypeVar("T")
_STATIC = Path(__file__).parent / "static"
_LOOK_S = 1.0

_APPLIED = {
    "unchanged": "Nothing to apply: this is what runs.",
    "in place": "Applied in place: only the scheduling changed, so the model was not loaded again.",
    "reloaded": "Reloaded: a new copy took over; the old one answered the requests that it had accepted.",
    "loaded": "Loaded: the model is served now.",
}

_COMPLETED = "Nothing to apply: where no batcher is written, the model or its backend asks for dynamic_batching."

_FAILED = "The model failed to load and is not served: mend its configuration and apply it."

_UNLOADED = "The model has been unloaded: this is its last configuration. Load it again to apply another one."

#: The editors that are open, by server and model: showing one twice shows the same.
_open: weakref.WeakKeyDictionary[Any, dict[str, ConfigEditor]] = weakref.WeakKeyDictionary()


def edit_config(model: ModelHandle) -> ConfigEditor:
    """The editor of a model's configuration; the same one as long as it is not closed."""
    editors = _open.setdefault(model.server, {})
    if model.name not in editors:
        editors[model.name] = ConfigEditor(model, model.server.call(model.server.engine.config_path, model.name))
    return editors[model.name]


def is_open(model: ModelHandle) -> bool:
    """Whether the model's configuration is being edited."""
    return model.name in _open.get(model.server, {})


@dataclass(frozen=True, slots=True)
class _FileSnapshot:
    """What a file held when it was last looked at."""

    text: str | None
    stamp: tuple[int, int] | None

    @classmethod
    def of(cls, path: Path | None) -> _FileSnapshot:
        try:
            assert path is not None
            status = path.stat()
            text = path.read_text("utf-8", "replace")  # lines end as a browser ends them
            return cls(text, (status.st_mtime_ns, status.st_size))
        except (OSError, AssertionError):
            return cls(None, None)


class ConfigEditor(StaticFallback, anywidget.AnyWidget):
    """A widget that edits, checks, applies and saves the configuration of one model.

    Parameters
    ----------
    model : ModelHandle
    path : pathlib.Path or None
        Its *config.pbtxt*, whether it exists or not; None if it comes from no repository.

    Attributes
    ----------
    text : str
        The text as it is edited; setting it is like typing.
    report : dict
        What is known of ``text``: ``problems``, ``form``, ``effect`` of applying it, ``diff`` to what runs.
    status : dict
        ``busy``, ``outcome`` and its ``level``; ``file`` and whether it was changed ``outside``; whether the model is
        ``loaded``; ``ended``.
    """

    _esm = _STATIC / "config_editor.js"
    _css = _STATIC / "config_editor.css"
    model = traitlets.Unicode().tag(sync=True)
    text = traitlets.Unicode().tag(sync=True)
    report = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict().tag(sync=True)
    schema = traitlets.Dict().tag(sync=True)

    def __init__(self, model: ModelHandle, path: Path | None) -> None:
        self._handle: ModelHandle | None = model
        self._path = path
        self._file = _FileSnapshot.of(self._path)
        self._running = self._running_config()
        self._failure = self._failure_of_file()
        self._running_text = self._text_of(self._running)
        status = {"busy": "", "outcome": "", "level": "", "outside": False, "loaded": True, "ended": False}
        super().__init__(
            model=model.name,
            text=self._running_text,
            schema=schema(),
            status={**status, "file": "" if self._path is None else str(self._path)},
        )
        self.report = self._report(self.text)
        if self._running is None:
            self._say("error", _FAILED)
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._handing = threading.Lock()  # what is handed to the worker is done, or refused because there is none
        self.observe(lambda change: self._do(self._check), "text")
        self.on_msg(_on_message)
        threading.Thread(target=self._work, name=f"tritonnb editor {model.name}", daemon=True).start()

    # --- what people do -------------------------------------------------------------------------

    def apply(self) -> str:
        """Let the model run under the text.

        Returns
        -------
        str
            ``"unchanged"``, ``"in place"``, ``"reloaded"``, or ``"loaded"`` if it had failed to load.

        Raises
        ------
        TritonError
            If it is refused; the model goes on as it was.
        """
        return self._do(self._apply).result()

    def revert(self) -> None:
        """Go back to what runs; to the file, where nothing does."""
        self._do(self._revert).result()

    def save(self) -> None:
        """Write the text to the file, whole or not at all.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        self._do(self._save).result()

    def take_file(self) -> None:
        """Go on from what the file says now."""
        self._do(self._take_file).result()

    def set_field(self, path: str, value: Any) -> None:
        """Change one field, as the form does: ``set_field("dynamic_batching.max_queue_delay_microseconds", 500)``.

        Raises
        ------
        ConfigSyntaxError
            If the text cannot be parsed.
        """
        config = parse_text(self.text).config
        set_field(config, path, value)
        self.text = edit_text(self.text, config)

    def last_state(self) -> str:
        """The text as it was last."""
        return f"<p><b>{html.escape(self.model)}</b></p><pre>{html.escape(self.text)}</pre>"

    def settle(self) -> None:
        """Wait until everything that was asked for so far is done and shown."""
        self._do(lambda: None).result()

    def close(self) -> None:
        """Take the editor away; the model goes on as it is."""
        self._let_go()
        super().close()

    @traitlets.validate("text")
    def _with_plain_lines(self, proposal: dict[str, Any]) -> str:
        """A text as a browser would give it back."""
        text: str = proposal["value"]
        return text.replace("\r\n", "\n").replace("\r", "\n")

    # --- the worker -----------------------------------------------------------------------------

    def _do(self, job: Callable[[], T]) -> Future[T]:
        """Have the worker do something."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(job())
            except Exception as error:
                self._say("error", str(error))
                done.set_exception(error)

        with self._handing:
            if self._handle is not None:
                self._jobs.put(run)
                return done
        done.set_exception(RuntimeError("the editor is closed"))
        return done

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_LOOK_S)
            except queue.Empty:
                job = self._look
            if job is None:
                return
            handle = self._handle
            if handle is not None and not handle.server.alive:
                self._end()
            with contextlib.suppress(UnavailableError, RuntimeError):  # server or editor ended meanwhile
                job()
            self.keep_last_state()

    def _end(self) -> None:
        """The server was stopped: keep showing the last state, and let go of the server."""
        self._let_go()
        self.status = {**self.status, "ended": True, "busy": ""}
        self._say("", "The server has been stopped; this is the last state.")

    def _let_go(self) -> None:
        """Take no more jobs, and let go of the server."""
        with self._handing:
            handle, self._handle = self._handle, None
            self._jobs.put(None)
        if handle is not None:
            _open.get(handle.server, {}).pop(self.model, None)

    def _check(self) -> None:
        text = self.text
        if self.report.get("text") != text:
            self.report = self._report(text)

    def _look(self) -> None:
        """See what others have done."""
        seen = _FileSnapshot.of(self._path)
        if seen.stamp != self._file.stamp:
            outside = seen.text != self._file.text and seen.text != self.text
            self._file = seen
            self.status = {**self.status, "outside": outside}
        try:
            running = self._running_config()
        except TritonError:
            if self.status["loaded"]:
                self.status = {**self.status, "loaded": False, "outcome": _UNLOADED, "level": "error"}
            return
        if not self.status["loaded"]:
            self.status = {**self.status, "loaded": True, "outcome": "The model is loaded again.", "level": ""}
            self.report = self._report(self.text)
        if running != self._running:
            self._failure = self._failure_of_file()
            untouched = self.text == self._running_text
            self._follow(running, self._text_of(running))
            if untouched:
                self.text = self._running_text
            else:
                self.report = self._report(self.text)
            if running is None:
                self._say("error", _FAILED)
            else:
                self._say("", "The running configuration was changed elsewhere.")

    def _apply(self) -> str:
        text = self.text
        self.status = {**self.status, "busy": "Applying …", "outcome": "", "level": ""}
        try:
            config = self._model().config
            config.text = text
            done = config.apply()
        except TritonError as error:
            self._failure = text, error.message
            self.report = self._report(self.text)
            raise
        finally:
            self.status = {**self.status, "busy": ""}
        self._failure = None
        self._follow(self._running_config(), text)
        self.report = self._report(self.text)
        added = done == "unchanged" and config.WhichOneof("scheduling_choice") != _scheduling(self._running)
        self._say("good", _COMPLETED if added else _APPLIED[done])
        return done

    def _revert(self) -> None:
        self.text = self._running_text
        self._say("", "This is what runs." if self._running is not None else "This is what the file says.")

    def _save(self) -> None:
        assert self._path is not None
        text = self.text
        if self.status["outside"]:
            self.status = {**self.status, "outside": False}
            raise RuntimeError(
                "The file was changed by somebody else and has not been written. Save again to replace it."
            )
        write_text(self._path, text)
        self._file = _FileSnapshot.of(self._path)
        self._say("good", f"Saved to {self._path.name}.")

    def _take_file(self) -> None:
        self._file = _FileSnapshot.of(self._path)
        self.status = {**self.status, "outside": False}
        if self._file.text is not None:
            self.text = self._file.text
            self._say("", "This is what the file says; it is not applied yet.")

    # --- what is shown --------------------------------------------------------------------------

    def _say(self, level: str, outcome: str) -> None:
        self.status = {**self.status, "outcome": outcome, "level": level}

    def _report(self, text: str) -> dict[str, Any]:
        report: dict[str, Any] = report_on(text, self._checked, self._running, self._running_text, self._failure)
        return report

    def _checked(self, config: Any) -> Any:
        server = self._model().server
        return server.run(server.engine.check(self._model().name, config))

    def _model(self) -> ModelHandle:
        if self._handle is None:
            raise RuntimeError("the editor is closed")
        return self._handle

    def _failure_of_file(self) -> tuple[str, str] | None:
        """The file's text and why the model could not be loaded, if that is so."""
        model = self._model()
        failure = model.server.call(model.server.engine.failure, model.name)
        return (self._file.text or "", failure) if failure else None

    def _running_config(self) -> Any:
        """What runs; None if nothing does because the model failed to load."""
        model = self._model()
        if model.server.call(model.server.engine.failure, model.name):
            return None
        running = pb.ModelConfig()
        running.CopyFrom(model.server.call(model.server.engine.model, model.name).config)
        return running

    def _follow(self, running: Any, text: str) -> None:
        self._running, self._running_text = running, text

    def _text_of(self, running: Any) -> str:
        return text_of(running, self._file.text, self._checked)


def _scheduling(config: Any) -> Any:
    return None if config is None else config.WhichOneof("scheduling_choice")


def _on_message(editor: ConfigEditor, content: dict[str, Any], buffers: Any) -> None:
    """A button or a field of the form; takes no time."""
    action = content.get("action")
    if action == "set":
        try:
            editor.set_field(content["path"], content["value"])
        except (ConfigSyntaxError, TypeError, ValueError, KeyError) as error:
            editor._say("error", str(error))
    elif action in _ACTIONS:
        editor._do(_ACTIONS[action].__get__(editor))


_ACTIONS: dict[str, Callable[[ConfigEditor], Any]] = {
    "apply": ConfigEditor._apply,
    "revert": ConfigEditor._revert,
    "save": ConfigEditor._save,
    "take_file": ConfigEditor._take_file,
}
