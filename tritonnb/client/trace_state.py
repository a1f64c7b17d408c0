"""The trace settings of the models of a server: change them for a while, and find and clear leftover settings.

A model has the server's settings until it gets its own; the value None resets a setting to the server's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tritonnb.client.v2_client import V2Client
from tritonnb.core.errors import TritonError, UnavailableError
from tritonnb.core.forks import require_process
from tritonnb.core.json_types import Json

#: An update that gives a model the server's settings again.
_CLEARED: Json = dict.fromkeys(("trace_level", "trace_rate", "trace_count", "log_frequency"))
_UNLIMITED = "-1"
#: How many requests are traced at most: a process that is killed does not restore the settings.
TRACE_COUNT = 100_000


@contextmanager
def changed_settings(server: V2Client, models: Sequence[str], changes: Mapping[str, Any]) -> Iterator[None]:
    """Change the trace settings of models, and restore them at the end of the block.

    Raises
    ------
    UnavailableError
        If a setting could not be restored; an error of the block is raised in its place.
    TritonError
        If the server does not accept the changes; no setting is changed then.
    """
    shared = server.trace_settings()
    changed: list[tuple[str, Json]] = []
    process = os.getpid()
    try:
        for name in models:
            changed.append((name, _restoration(server.trace_settings(name), shared)))
            server.update_trace_settings(changes, name)
        yield
        require_process(process, f"recording of {server.url}")
    except BaseException:
        if os.getpid() == process:  # a forked child must not end the recording of its parent
            with suppress(TritonError):  # the error of the block is the one to report
                _restore(server, changed)
        raise
    _restore(server, changed)


def end_recordings(server: V2Client, models: Sequence[str]) -> None:
    """Clear the settings of recordings that did not end, so that the server writes their traces to its file now."""
    for name in models:
        if _is_limited(server.trace_settings(name)):
            clear_settings(server, name)


def _restoration(own: Mapping[str, Any], shared: Mapping[str, Any]) -> Json:
    """Return the update that restores settings.

    Settings with a limited number of traces are those of a recording that did not end, or has not ended yet: they are
    not restored, because nobody would switch them off.
    """
    if _is_limited(own):
        return _CLEARED
    return {name: None if own.get(name) == shared.get(name) else own.get(name) for name in _CLEARED}


def _restore(server: V2Client, changed: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    failures: list[str] = []
    for name, settings in changed:
        try:
            server.update_trace_settings(settings, name)
        except TritonError as error:
            failures.append(f"'{name}' ({error.message})")
    if failures:
        raise UnavailableError(f"the trace settings of these models were not restored: {', '.join(failures)}")


# --- what was left on -----------------------------------------------------------------------------


def describe_server_tracing(settings: Mapping[str, Any]) -> str:
    """Describe the tracing of all models; empty if there is none."""
    return f"every model is traced: {_extent(settings)}" if _is_tracing(settings) else ""


def describe_model_tracing(name: str, own: Mapping[str, Any], shared: Mapping[str, Any]) -> str:
    """Describe what is traced of a model with its own settings; empty if it has none, or they trace nothing.

    Parameters
    ----------
    name : str
        Of the model.
    own, shared : mapping
        The settings of the model, and the settings of the server.

    Examples
    --------
    >>> shared = {"trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1"}
    >>> describe_model_tracing("m", shared | {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}, shared)
    "model 'm' is traced: every request, with its time stamps, without end"
    """
    if own.get("trace_level") == ["OFF"] or _kept(own) == _kept(shared):
        return ""
    if not _is_tracing(own):
        return f"model '{name}' has the trace settings of a recording that did not end; nothing is traced any more"
    return f"model '{name}' is traced: {_extent(own)}"


def clear_settings(server: V2Client, name: str) -> None:
    """Give a model the trace settings of the server again."""
    server.update_trace_settings(_CLEARED, name)


def _is_limited(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("trace_count", _UNLIMITED) != _UNLIMITED)


def _kept(settings: Mapping[str, Any]) -> list[Any]:
    """Return the settings that requests do not change: the number of traces that remain becomes smaller with each."""
    kept = [settings.get(name) for name in _CLEARED if name != "trace_count"]
    return [*kept, settings.get("trace_count") == _UNLIMITED]


def _is_tracing(settings: Mapping[str, Any]) -> bool:
    return settings.get("trace_level", ["OFF"]) != ["OFF"] and settings.get("trace_count") != "0"


def _extent(settings: Mapping[str, Any]) -> str:
    rate, count = settings.get("trace_rate", "1"), settings.get("trace_count", _UNLIMITED)
    requests = "every request" if rate == "1" else f"1 of {rate} requests"
    has_contents = "TENSORS" in settings["trace_level"]
    content = "with the contents of its tensors" if has_contents else "with its time stamps"
    file = settings.get("trace_file", "")
    limit = "without end" if count == _UNLIMITED else f"until {count} more are traced"
    return ", ".join(filter(None, [requests, content, file and f"to {file}", limit]))
