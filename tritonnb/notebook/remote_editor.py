"""``remote["dense"].edit()``: the editor of a configuration on another server."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

from tritonnb.core.errors import TritonError
from tritonnb.core.failures import with_short_traceback
from tritonnb.notebook.config_editor import ConfigEditor, open_editors
from tritonnb.remote.connection import Remote
from tritonnb.remote.model import RemoteModelHandle


@with_short_traceback
def edit_remote_config(model: RemoteModelHandle) -> RemoteConfigEditor:
    """Open a live editor of the configuration; what it applies is restored when it is closed.

    Returns
    -------
    ConfigEditor
        A widget. Every call returns the same widget until it is closed.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0, model_control_mode="explicit") as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     with tnb.connect(server.url) as remote:
    ...         remote["double"].edit().close()
    """
    editor = open_editors.open(model.server, model.name, lambda: RemoteConfigEditor(model, None))
    assert isinstance(editor, RemoteConfigEditor)
    return editor


class RemoteConfigEditor(ConfigEditor):
    """A `ConfigEditor` of a model on another server.

    It applies through the load API, and restores the original configuration when it is closed.
    """

    def close(self) -> None:
        """Close the editor, and restore the configuration that the model had before.

        Raises
        ------
        TritonError
            If it could not be restored.
        """
        handle = self._handle
        super().close()
        if handle is not None and handle.server.alive:
            cast(Remote, handle.server).changed_configs.restore(handle.name)

    def __enter__(self) -> RemoteConfigEditor:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.close()
        else:
            with suppress(TritonError):
                self.close()
