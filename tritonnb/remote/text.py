"""Texts that the summaries of connections and their models share, as text and as HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tritonnb.core.errors import TritonError

if TYPE_CHECKING:
    from tritonnb.remote.connection import Remote
    from tritonnb.remote.model import RemoteModelHandle

CLOSED = "the connection has been closed"


def findings_of(remote: Remote) -> list[str]:
    """Return the findings of `Remote.check`; empty if the server does not permit it."""
    try:
        return remote.check()
    except TritonError:
        return []


def not_ready_text(model: RemoteModelHandle, error: TritonError) -> str:
    """Return why a model is not ready: its load error, or the error of a request."""
    try:
        failure = model.load_failure()
    except TritonError:
        return str(error)
    return f"not ready: {failure}" if failure else str(error)
