"""Connections and their models as plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tritonnb.core.errors import TritonError
from tritonnb.scheduling.from_config import describe_scheduling
from tritonnb.server.index_text import state_text

if TYPE_CHECKING:
    from tritonnb.remote.connection import Remote
    from tritonnb.remote.model import RemoteModelHandle

CLOSED = "the connection has been closed"


def remote_text(remote: Remote) -> str:
    """Return a server's address and version, its models with their states, and the findings of `Remote.check`."""
    if not remote.alive:
        return f"<Remote {remote.url}: {CLOSED}>"
    try:
        metadata, index = remote.metadata(), remote.index()
    except TritonError as error:
        return f"<Remote {remote.url}: {error}>"
    lines = [f"{metadata['name']} {metadata['version']} at {remote.url}"]
    for entry in index:
        state = state_text(entry) if "state" in entry else "not loaded"
        lines.append(f"  {entry['name']} {entry.get('version', '')}  {state}".rstrip())
    return "\n".join([*lines, *(f"  ! {text}" for text in findings_of(remote))])


def remote_model_text(model: RemoteModelHandle) -> str:
    """Return a model's address, version, scheduler and counts; if it is not ready, the reason."""
    title = f"model '{model.name}' at {model.server.url}"
    try:
        stats, config = model.stats(), model.running_config()
    except TritonError as error:
        return f"{title}: {not_ready_text(model, error)}"
    counts = f"{stats['inference_count']} rows in {stats['execution_count']} executions"
    return f"{title} (version {stats['version']})\n  {describe_scheduling(config)}\n  {counts}"


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
