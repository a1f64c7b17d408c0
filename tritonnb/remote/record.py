"""Record a remote server: switch its traces on, collect them, and restore its settings."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tritonnb.core.errors import InvalidArgumentError, TritonError, UnavailableError
from tritonnb.core.json_types import Json
from tritonnb.profile.remote_server import RemoteServer
from tritonnb.recording.recording import Recording
from tritonnb.remote.from_trace import recording_of
from tritonnb.remote.otlp_receiver import OtlpReceiver
from tritonnb.remote.trace_file import read_entries, requests_of
from tritonnb.remote.traced_request import TracedRequest
from tritonnb.telemetry.trace_entry import TraceEntry
from tritonnb.telemetry.trace_settings import OPENTELEMETRY

Collect = Callable[[], list[TracedRequest]]

#: A file of the series for so many traces: Triton writes what is left when its settings change.
_LOG_FREQUENCY = "1000"
_POLL_S = 0.05
#: Traces of requests that were in flight at the end come a little later; without news for so long none come.
_QUIET_S = 1.0
#: Triton 2.51 was seen to crash when it traces every request of so many HTTP connections.
_CRASH_WARNING = (
    "Triton 2.51 may crash while it traces every request of 16 or more HTTP connections: "
    "send with fewer connections or over gRPC"
)


@contextmanager
def record(
    server: RemoteServer,
    models: Sequence[str],
    *,
    trace_file: str | os.PathLike[str] | None = None,
    receiver: OtlpReceiver | None = None,
    trace_rate: int = 1,
    rows: bool = True,
    timeout_s: float = 15.0,
) -> Iterator[Recording]:
    """Record models of a server; see `Remote.record`."""
    if not models:
        raise InvalidArgumentError(f"record expected at least one model of {server.url}, got none that is ready")
    settings = server.trace_settings()
    open_source = _source(server.url, settings, trace_file, receiver)
    if receiver is None and server.url.startswith("http") and server.metadata().get("version", "").startswith("2.51"):
        warnings.warn(_CRASH_WARNING, stacklevel=3)
    configs = {name: server.config(name) for name in models}
    steps = {step.model_name for config in configs.values() for step in config.ensemble_scheduling.step}
    configs |= {name: server.config(name) for name in sorted(steps - configs.keys())}
    levels = ["TIMESTAMPS", "TENSORS"] if rows and receiver is None else ["TIMESTAMPS"]
    changes = {"trace_level": levels, "trace_rate": str(trace_rate), "trace_count": "-1"}
    if receiver is None:
        changes["log_frequency"] = _LOG_FREQUENCY
    before = _counted(server, models)
    recording = Recording()
    with open_source() as collect:
        with changed_settings(server, models, changes):
            yield recording
            counted = _counted(server, models) - before
        requests = _wait(collect, models, counted // trace_rate, timeout_s)
    notes = _missing(requests, models, counted // trace_rate)
    full = recording_of(requests, configs, trace_rate, notes)
    recording.source = full.source
    recording.fill(full.events, full.configs)


@contextmanager
def changed_settings(server: RemoteServer, models: Sequence[str], changes: Mapping[str, Any]) -> Iterator[None]:
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
    try:
        for name in models:
            own = server.trace_settings(name)
            changed.append((name, _restoration(own, shared, changes)))
            server.update_trace_settings(changes, name)
        yield
    except BaseException:
        with suppress(TritonError):  # the error of the block is the one to report
            _restore(server, changed)
        raise
    _restore(server, changed)


def _restoration(own: Mapping[str, Any], shared: Mapping[str, Any], changes: Mapping[str, Any]) -> Json:
    """The update that restores settings: None for those that a model has from the server."""
    return {name: None if own.get(name) == shared.get(name) else own.get(name) for name in changes}


def _restore(server: RemoteServer, changed: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    failures: list[str] = []
    for name, settings in changed:
        try:
            server.update_trace_settings(settings, name)
        except TritonError as error:
            failures.append(f"'{name}' ({error.message})")
    if failures:
        raise UnavailableError(f"the trace settings of these models were not restored: {', '.join(failures)}")


def _counted(server: RemoteServer, models: Sequence[str]) -> int:
    """Requests of these models that the server has completed."""
    entries = [entry for entry in server.statistics() if entry["name"] in models]
    return sum(entry["inference_stats"][part]["count"] for entry in entries for part in ("success", "fail"))


# --- traces ---------------------------------------------------------------------------------------


def _source(
    url: str,
    settings: Mapping[str, Any],
    trace_file: str | os.PathLike[str] | None,
    receiver: OtlpReceiver | None,
) -> Callable[[], AbstractContextManager[Collect]]:
    """Where the traces come from: a context whose function returns the requests that were traced since it began."""
    is_sending = settings.get("trace_mode") == OPENTELEMETRY
    if is_sending != (receiver is not None):
        mode = settings.get("trace_mode", "triton")
        remedy = (
            "pass receiver=tnb.otlp_receiver(…)"
            if is_sending
            else "start it with --trace-config mode=opentelemetry, or record without a receiver"
        )
        raise InvalidArgumentError(f"record: {url} traces in the mode '{mode}': {remedy}")
    if receiver is not None:
        if not receiver.alive:
            raise InvalidArgumentError("record: the OTLP receiver has been closed")
        return partial(_received, receiver)
    path = trace_file or settings.get("trace_file")
    if not path:
        raise InvalidArgumentError(
            f"record: {url} has no trace file: start it with --trace-config triton,file=PATH, or with "
            "--trace-config mode=opentelemetry"
        )
    local = Path(path)
    if not local.parent.is_dir() or not os.access(local.parent, os.R_OK):
        raise InvalidArgumentError(
            f"record: the directory of the server's trace file '{settings.get('trace_file')}' cannot be read at "
            f"'{local.parent}': pass trace_file= with its path on this machine, or a receiver"
        )
    return partial(_new_in_files, local)


@contextmanager
def _received(receiver: OtlpReceiver) -> Iterator[Collect]:
    received: list[TracedRequest] = []
    receiver.flush()

    def collect() -> list[TracedRequest]:
        receiver.flush()
        return list(received)

    receiver.subscribe(received.append)
    try:
        yield collect
    finally:
        receiver.unsubscribe(received.append)


@contextmanager
def _new_in_files(path: Path) -> Iterator[Collect]:
    """The requests in a trace file and its series that were written since now."""
    before = _stamps(path)

    def collect() -> list[TracedRequest]:
        entries: list[TraceEntry] = []
        for file, stamp in _stamps(path).items():
            if before.get(file) != stamp:
                with suppress(InvalidArgumentError, OSError):  # a file that is being written
                    entries += read_entries(file.read_text("utf-8", "replace"))[0]
        return list(requests_of(entries))

    yield collect


def _stamps(path: Path) -> dict[Path, tuple[int, int]]:
    files = [path, *(file for file in path.parent.glob(f"{path.name}.*") if file.suffix[1:].isdigit())]
    stamps = {}
    for file in files:
        with suppress(OSError):
            status = file.stat()
            stamps[file] = (status.st_mtime_ns, status.st_size)
    return dict(sorted(stamps.items(), key=lambda item: (len(item[0].name), item[0].name)))


def _wait(collect: Collect, models: Sequence[str], count: int, timeout_s: float) -> list[TracedRequest]:
    """Wait until the traces of so many requests are there, or no more come."""
    deadline = time.monotonic() + timeout_s
    last, changed_s = -1, time.monotonic()
    while True:
        requests = collect()
        complete = _number(requests, models)
        now = time.monotonic()
        if complete != last:
            last, changed_s = complete, now
        quiet = now - changed_s > _QUIET_S and (complete > 0 or not count)
        if complete >= count or now > deadline or quiet:
            return requests
        time.sleep(_POLL_S)


def _number(requests: Sequence[TracedRequest], models: Sequence[str]) -> int:
    return sum(1 for request in requests if request.complete and request.model in models and not request.parent)


def _missing(requests: Sequence[TracedRequest], models: Sequence[str], count: int) -> list[str]:
    complete = _number(requests, models)
    return [f"the server counted {count} requests, the trace contains {complete}"] if complete < count else []
