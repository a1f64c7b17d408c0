"""The preview of an edited configuration: the last seconds of traffic under the draft, while one types.

A `DraftPreview` belongs to a configuration editor. Whenever the check of its text succeeds, and once a second during
traffic, it replays the latest requests on a thread; only the newest draft is replayed. The result is set as the
``preview`` of the editor, and as the ``ghost`` of the model's live view, which draws these batches behind the live
ones.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from tritonnb.client.model import Model
from tritonnb.core.errors import TritonError
from tritonnb.core.json_types import Json
from tritonnb.core.packed_events import Packed, unpack
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.draft_replay import DraftReplay, replay_draft
from tritonnb.notebook.live_batch_view import LiveBatchView
from tritonnb.notebook.view_encoding import MODEL
from tritonnb.notebook.views import find_view
from tritonnb.notebook.worker import LatestOnlyWorker
from tritonnb.recording.recording import Recording
from tritonnb.server.model_handle import ModelHandle

#: Instead of the newest event, before a draft is replayed.
_NEVER = object()
#: Events of the model that give the service times.
_MOST_EVENTS = 6000


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
        self._jobs = LatestOnlyWorker(f"tritonnb preview {model.name}")

    def update(self, draft: pb.ModelConfig | None) -> None:
        """Preview another draft; None if the text has problems or is the running configuration."""
        self._draft, self._newest = draft, _NEVER
        self._jobs.submit(self._clear if draft is None else self._replay)

    def refresh(self) -> None:
        """Replay the draft again, if there is one and requests have arrived since."""
        if self._draft is not None:
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
        with suppress(TritonError, RuntimeError):  # model unloaded, server stopped or editor closed in the meantime
            stream = model.server.engine.stream
            recent: list[Packed] = model.server.call(lambda: list(stream.recent))
            events = [event for event in recent if event[MODEL] == model.name][-_MOST_EVENTS:]
            newest = events[-1] if events else None
            if newest == self._newest:  # the history makes new tuples of the same events
                return
            config = model.running_config()
            try:
                replay = replay_draft(Recording(map(unpack, events), {model.name: config}), draft)
            except TritonError as error:
                self._show(model, {"text": f"No preview: {error.message}", "figures": {}}, None)
            else:
                self._show(model, {"text": replay.verdict(), "figures": replay.figures()}, replay)
            self._newest = newest

    def _clear(self) -> None:
        if self._model is not None:
            self._show(self._model, {}, None)

    def _show(self, model: ModelHandle, preview: Json, replay: DraftReplay | None) -> None:
        if self._jobs.outdated:
            return
        if self._editor.preview != preview:
            self._editor.preview = preview
        view = find_view(LiveBatchView, model.server, model.name)
        if view is not None:
            view.show_ghost(preview.get("text", ""), [] if replay is None else _boxes(replay))


def _boxes(replay: DraftReplay) -> list[tuple[str, int, int, int]]:
    """Return the batches under the draft: instance, begin and end (monotonic clock, ns), rows."""
    return [
        (batch.instance, replay.begin_ns + batch.exec_start_ns, replay.begin_ns + batch.exec_end_ns, batch.size)
        for batch in replay.after.batches
    ]
