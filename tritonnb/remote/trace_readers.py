"""Readers of the traces of a server: of the files to which it writes them, or of the spans that it sends."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.remote.otlp_receiver import OtlpReceiver
from tritonnb.remote.trace_file import read_entries, requests_of, series_of
from tritonnb.remote.traced_request import TracedRequest
from tritonnb.telemetry.trace_entry import TraceEntry
from tritonnb.telemetry.trace_settings import OPENTELEMETRY


def trace_reader(
    url: str,
    settings: Mapping[str, Any],
    trace_file: str | os.PathLike[str] | None,
    receiver: OtlpReceiver | None,
) -> SpanReader | TraceFileReader:
    """Begin to read the traces of a server.

    Parameters
    ----------
    url : str
        Of the server.
    settings : mapping
        Its trace settings.
    trace_file, receiver
        As for `Remote.record`.

    Raises
    ------
    InvalidArgumentError
        If the server traces in another mode, or to a file in a directory that cannot be read.
    """
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
        return SpanReader(receiver)
    written = settings.get("trace_file", "")
    if not (trace_file or written):
        raise InvalidArgumentError(
            f"record: {url} has no trace file: start it with --trace-config triton,file=PATH, or with "
            "--trace-config mode=opentelemetry"
        )
    path = Path(trace_file or written)
    if not path.parent.is_dir() or not os.access(path.parent, os.R_OK):
        raise InvalidArgumentError(
            f"record: the directory of the server's trace file '{written}' cannot be read at "
            f"'{path.parent}': pass trace_file= with its path on this machine, or a receiver"
        )
    return TraceFileReader(path, written)


class SpanReader:
    """A reader of the spans that a receiver gets."""

    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver
        self._requests: list[TracedRequest] = []
        receiver.flush()
        receiver.subscribe(self._requests.append)

    def collect(self) -> list[TracedRequest]:
        """Return the requests so far."""
        self._receiver.flush()
        return list(self._requests)

    def explain_nothing(self) -> str:
        """Explain why no request was traced, if the reason is known, with a remedy."""
        url = self._receiver.url
        return f"no spans of them arrived at {url}: start the server with --trace-config opentelemetry,url={url}"

    def close(self) -> None:
        """Read no more."""
        self._receiver.unsubscribe(self._requests.append)


class TraceFileReader:
    """A reader of what is new in a trace file and its series.

    Parameters
    ----------
    path : Path
        On this machine.
    written : str
        On the machine of the server.
    """

    def __init__(self, path: Path, written: str) -> None:
        self._path = path
        self._written = written
        self._before = _stamps(path)
        self._unreadable: dict[Path, str] = {}

    def collect(self) -> list[TracedRequest]:
        """Return the requests so far."""
        entries: list[TraceEntry] = []
        self._unreadable.clear()
        for file, stamp in _stamps(self._path).items():
            if self._before.get(file) == stamp:
                continue
            try:
                entries += read_entries(file.read_text("utf-8", "replace"))[0]
            except OSError as error:
                self._unreadable[file] = error.strerror or str(error)
            except InvalidArgumentError as error:  # perhaps the server is writing it
                self._unreadable[file] = error.message
        return list(requests_of(entries))

    def explain_nothing(self) -> str:
        """Explain why no request was traced, if the reason is known, with a remedy."""
        reason = "; ".join(f"'{file}' cannot be read: {error}" for file, error in self._unreadable.items())
        reason = reason or f"nothing new is in '{self._path}' or '{self._path}.0', … on this machine"
        return (
            f"the server writes its traces to '{self._written}' on its machine, and {reason}. Mount that directory "
            "here and pass trace_file= with the path on this machine; or copy the files and read them with "
            "tnb.Recording.from_trace(PATH, CONFIG); or record with receiver=tnb.otlp_receiver()"
        )

    def close(self) -> None:
        """Read no more: no file is open."""


def _stamps(path: Path) -> dict[Path, tuple[int, int]]:
    """Return modification time and size of a trace file and of the files of its series."""
    stamps = {}
    for file in (path, *series_of(path)):
        with suppress(OSError):
            status = file.stat()
            stamps[file] = (status.st_mtime_ns, status.st_size)
    return stamps
