"""The preview of an edited configuration: the last seconds of traffic under the draft, while one types.

A `DraftPreview` belongs to a configuration editor. Whenever the check of its text succeeds, and every few seconds
during traffic, a process of low priority replays the latest requests; only the newest draft is replayed. In this
process, replays would delay the requests of the server, and then show these delays as an effect of the draft. The
result is set as the
``preview`` of the editor, and as the ``ghost`` of the model's live view, which draws these batches behind the live
ones.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Protocol

from tritonnb.client.model import Model
from tritonnb.core.errors import TritonError
from tritonnb.core.json_types import Json
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.draft_replay import preview_draft
from tritonnb.notebook.live_batch_view import LiveBatchView
from tritonnb.notebook.side_process import previews
from tritonnb.notebook.view_encoding import MODEL
from tritonnb.notebook.views import find_view
from tritonnb.notebook.worker import LatestOnlyWorker
from tritonnb.server.model_handle import ModelHandle
from tritonnb.telemetry.stream import EventHistory

#: Instead of the newest event, before a draft is replayed.
_NEVER = object()
#: The newest events of the server that are read.
_MOST_EVENTS = 16_384
#: The share of time for which this process may work for previews while nobody edits, and the process of replays.
_OWN_SHARE, _REPLAY_SHARE = 0.01, 0.2


class WithPreview(Protocol):
    """A view that shows a preview, such as a `ConfigEditor`.

    Attributes
    ----------
    preview : dict
        A trait: ``text`` and ``figures``.
    """

    preview: Json


class DraftPreview:
    """The preview of an editor and the predicted batches of a live view, kept up to date.

    Parameters
    ----------
    editor : WithPreview
        Its trait ``preview`` is set: ``text`` and ``figures``, empty without a draft.
    model : Model
        A model of another server has no preview, since its requests are not known.
    """

    def __init__(self, editor: WithPreview, model: Model) -> None:
        self._editor = editor
        self._model = model if isinstance(model, ModelHandle) else None
        self._draft: pb.ModelConfig | None = None
        self._newest: object = _NEVER
        self._refresh_at_s = 0.0
        self._jobs = LatestOnlyWorker(f"tritonnb preview {model.name}")

    def update(self, draft: pb.ModelConfig | None) -> None:
        """Preview another draft; None if the text has problems or is the running configuration."""
        self._draft, self._newest = draft, _NEVER
        self._jobs.submit(self._clear if draft is None else self._replay)

    def refresh(self) -> None:
        """Replay the draft again, if there is one, requests have arrived since, and the last replay is long ago."""
        if self._draft is not None and time.monotonic() >= self._refresh_at_s:
            self._jobs.submit(self._replay)

    def close(self) -> None:
        """Remove the ghost, and release the server."""
        self._draft = None
        self._jobs.submit(self._clear)
        self.join()
        self._model = None

    def join(self) -> None:
        """Wait until the newest draft is shown."""
        self._jobs.join()

    def _replay(self) -> None:
        draft, model = self._draft, self._model
        if draft is None or model is None:
            return
        began_s, began_cpu_s = time.monotonic(), time.thread_time()
        with suppress(TritonError, RuntimeError):  # model unloaded, server stopped or editor closed in the meantime
            stream = model.server.engine.stream
            history = model.server.call(lambda: stream.recent.copy(_MOST_EVENTS))
            newest = next((event for event in reversed(history) if event[MODEL] == model.name), None)
            if newest != self._newest:  # the history makes new tuples of the same events
                self._show_replay(model, history, draft)
                if not self._jobs.outdated:  # else nothing was shown, and the next job replays
                    self._newest = newest
        own_s, all_s = time.thread_time() - began_cpu_s, time.monotonic() - began_s
        self._refresh_at_s = began_s + max(own_s / _OWN_SHARE, all_s / _REPLAY_SHARE)

    def _show_replay(self, model: ModelHandle, history: EventHistory, draft: pb.ModelConfig) -> None:
        try:
            configs = model.server.call(model.server.engine.configs)
            text, figures, boxes = previews.call(preview_draft, history, configs, draft)
        except TritonError as error:
            text, figures, boxes = f"No preview: {error.message}", {}, []
        self._show(model, {"text": text, "figures": figures}, boxes)

    def _clear(self) -> None:
        if self._model is not None:
            self._show(self._model, {}, [])

    def _show(self, model: ModelHandle, preview: Json, boxes: list[tuple[str, int, int, int]]) -> None:
        if self._jobs.outdated:
            return
        if self._editor.preview != preview:
            self._editor.preview = preview
        view = find_view(LiveBatchView, model.server, model.name)
        if view is not None:
            view.show_ghost(preview.get("text", ""), boxes)
