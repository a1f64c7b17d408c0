"""``remote.record()``: switch the traces of a server on, collect them, and restore its settings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from weakref import WeakSet

from tritonnb.client.check import find_configs, find_tracing, warn_of
from tritonnb.client.connection import Remote
from tritonnb.client.trace_state import TRACE_COUNT, changed_settings, end_recordings
from tritonnb.client.v2_client import V2Client
from tritonnb.core.arguments import require_positive
from tritonnb.core.errors import InvalidArgumentError, TritonError, UnavailableError
from tritonnb.core.failures import ShortTracebacks, warn, with_short_traceback
from tritonnb.core.option_types import with_checked_types
from tritonnb.core.paths import fixed_path
from tritonnb.lab.traces.from_trace import recording_of
from tritonnb.lab.traces.otlp_receiver import OtlpReceiver
from tritonnb.lab.traces.replicas import configs_with_steps, record_replicas
from tritonnb.lab.traces.trace_events import counted_rows
from tritonnb.lab.traces.trace_file import read_entries, requests_of, series_of
from tritonnb.lab.traces.traced_request import TracedRequest
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.statistics_entry import StatisticsEntry
from tritonnb.telemetry.trace_entry import TraceEntry
from tritonnb.telemetry.trace_settings import OPENTELEMETRY

#: The number of traces in a file of the series: Triton writes what is left when its settings change.
_LOG_FREQUENCY = "1000"
_POLL_S = 0.05
#: The trace file of a server is complete when it has not changed for this time: it is written as requests end, or when
#: the trace settings change. Spans come in batches (Triton sends them every 5 s), so that silence says nothing.
_QUIET_S = 1.0

_CRASH_WARNING = (
    "Triton 2.51 may crash while it traces every request of 16 or more HTTP connections, whoever opened them; it was "
    "not seen to crash with requests over gRPC, or with trace_rate=2"
)
#: Connections that were warned of it.
_warned: WeakSet[Remote] = WeakSet()


@with_short_traceback
@with_checked_types
def record(
    remote: Remote,
    models: str | Sequence[str] | None = None,
    *,
    trace_file: str | os.PathLike[str] | None = None,
    receiver: OtlpReceiver | None = None,
    trace_rate: int = 1,
    trace_count: int = TRACE_COUNT,
    rows: bool = False,
    timeout: float = 15.0,
) -> AbstractContextManager[Recording]:
    """Record models during a ``with`` block.

    A deployment (`tritonnb.scale`) sends the events of all replicas; their instances have the replica in their
    names. The clocks of several machines have to be synchronized.

    Another server is recorded by its trace extension. The trace settings of the server are changed for the block,
    and restored afterwards. The traces come from the trace file, if this process can read it, or from a receiver
    (trace mode ``opentelemetry``).

    Parameters
    ----------
    models : str or sequence of str, optional
        By default all models that are ready.
    trace_file : path, optional
        Where the trace file of the server is on this machine; by default the path in its trace settings.
    receiver : OtlpReceiver, optional
        To which the server sends its spans.
    trace_rate : int, optional
        Record every n-th request; figures that need every request need 1.
    trace_count : int, optional
        The largest number of requests to trace of each model: the server stops then, even if this process is killed.
    rows : bool, optional
        Also trace the shapes of inputs (level ``TENSORS``), to know the rows of requests that have different
        numbers of rows. Triton then writes the *contents* of all tensors to its disk. Not with a receiver: spans
        have no shapes. Without it, the rows are those that the server counts, if all requests have equally many.
    timeout : float, optional
        Seconds to wait at the end for the traces of the requests that the server has counted. Spans may come late:
        Triton sends them every 5 s.

    Returns
    -------
    context manager of Recording
        The recording is filled when the block ends.

    Raises
    ------
    TritonError
        If the server cannot trace, or its traces cannot be read; its settings are restored.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as directory:
    ...     trace = tnb.TraceOptions(f"{directory}/trace.json", frozenset({"TIMESTAMPS"}), rate=1)
    ...     with tnb.Server(port=0, trace=trace) as server:
    ...         @server.model(max_batch_size=8)
    ...         def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...             return X * 2
    ...         with tnb.connect(server.url) as remote, remote.record("double") as rec:
    ...             _ = remote["double"](X=[[1.0], [2.0]])
    >>> [batch.size for batch in rec.batches]
    [2]
    """
    server = remote.server
    names = list(remote) if models is None else _names(remote, models)
    if trace_file is None and receiver is None and _is_deployment(remote):
        return ShortTracebacks(record_replicas(server, names))
    remote.require_extension("trace")
    if receiver is None and trace_rate == 1:
        _warn_of_crash(remote)
    addresses = [remote.address_of(name) for name in names]
    warn_of(remote.url, find_tracing(server, addresses))
    notes = [finding.text for finding in find_configs(addresses)]

    @contextmanager
    def recorded() -> Iterator[Recording]:
        if rows and receiver is not None:
            raise InvalidArgumentError(
                "record: rows=True has no effect with a receiver, since spans have no shapes: leave it out, or record "
                "the trace files of a server in the trace mode triton"
            )
        if not names:
            raise InvalidArgumentError(f"record expected at least one model of {server.url}, got none that is ready")
        require_positive(trace_rate=trace_rate, trace_count=trace_count)
        configs = configs_with_steps(server, names)
        levels = ["TIMESTAMPS", "TENSORS"] if rows else ["TIMESTAMPS"]
        changes = {"trace_level": levels, "trace_rate": str(trace_rate), "trace_count": str(trace_count)}
        if receiver is None:
            changes["log_frequency"] = _LOG_FREQUENCY
        end_recordings(server, names)
        before = server.statistics()
        recording = Recording()
        with closing(trace_reader(server, trace_file, receiver)) as reader:
            try:
                with changed_settings(server, names, changes):
                    yield recording
                    counts = _completed(server.statistics(), before, names)
            except BaseException:  # of the block, or the server has gone: what was traced until then is not lost
                _fill(recording, recording_of(reader.collect(), configs, trace_rate, notes))
                raise
            expected = sum(min(count // trace_rate, trace_count) for count in counts.values())
            quiet_s = _QUIET_S if receiver is None else timeout
            requests = _wait(reader.collect, names, expected, timeout, quiet_s)
            if expected and not any(request.model in names for request in requests):
                counted = pluralize(sum(counts.values()), "request")
                raise UnavailableError(f"record: {server.url} counted {counted}, and {reader.explain_nothing()}")
            rows_by_version = counted_rows(server.statistics(), before)  # of all traced requests: they have completed
        said = [
            *notes,
            *_missing(requests, names, expected, receiver is not None, timeout),
            *_untraced_calls(requests, counts),
            *_limited(counts, trace_rate * trace_count),
        ]
        _fill(recording, recording_of(requests, configs, trace_rate, said, rows_by_version))

    return ShortTracebacks(recorded())


def _fill(recording: Recording, full: Recording) -> None:
    recording.source = full.source
    recording.fill(full.events, full.configs)


def _is_deployment(remote: Remote) -> bool:
    """Return whether a server is a deployment of replicas; over gRPC that is not known."""
    try:
        remote.replicas()
    except TritonError:
        return False
    return True


def _warn_of_crash(remote: Remote) -> None:
    if remote in _warned or not remote.url.startswith("http"):
        return
    if remote.metadata().get("version", "").startswith("2.51"):
        _warned.add(remote)
        warn(_CRASH_WARNING)


def _completed(
    after: Sequence[StatisticsEntry], before: Sequence[StatisticsEntry], models: Sequence[str]
) -> dict[str, int]:
    """Return the number of requests of each model that the server completed between two readings."""

    def count(statistics: Sequence[StatisticsEntry], model: str) -> int:
        parts = [entry["inference_stats"] for entry in statistics if entry["name"] == model]
        return sum(part["success"]["count"] + part["fail"]["count"] for part in parts)

    return {name: count(after, name) - count(before, name) for name in models}


def _wait(
    collect: Callable[[], list[TracedRequest]], models: Sequence[str], count: int, timeout_s: float, quiet_s: float
) -> list[TracedRequest]:
    """Wait until the traces of the counted requests are there, or none has come for a while."""
    deadline = time.monotonic() + timeout_s
    last, changed_s = -1, time.monotonic()
    while True:
        requests = collect()
        complete = _number(requests, models)
        now = time.monotonic()
        if complete != last:
            last, changed_s = complete, now
        quiet = now - changed_s > quiet_s and (complete > 0 or not count)
        if complete >= count or now > deadline or quiet:
            return requests
        time.sleep(_POLL_S)


def _names(remote: Remote, models: str | Sequence[str]) -> list[str]:
    """Return the names of models; unknown names are refused if the server has an index."""
    has_index = "model_repository" in remote.extensions
    return [remote[name].name if has_index else name for name in ([models] if isinstance(models, str) else models)]


def _number(requests: Sequence[TracedRequest], models: Sequence[str]) -> int:
    return sum(1 for request in requests if request.complete and request.model in models)


def _missing(
    requests: Sequence[TracedRequest], models: Sequence[str], count: int, as_spans: bool, timeout_s: float
) -> list[str]:
    """Return a note on counted requests without a trace, with what to set if they are late."""
    complete = _number(requests, models)
    if complete >= count:
        return []
    note = f"the server counted {count} requests, the trace contains {complete}"
    if not as_spans:
        return [note]
    return [
        f"{note}: no more spans came within {timeout_s:g} s. Give record() a longer timeout=, or start the server with "
        "--trace-config opentelemetry,bsp_schedule_delay=500, so that it sends them more often (in ms, by default "
        "5000), and with a larger bsp_max_queue_size, so that it drops none (by default 2048)"
    ]


def _untraced_calls(requests: Sequence[TracedRequest], counts: Mapping[str, int]) -> list[str]:
    """Return a note on models that were executed and not traced: Triton traces a call only if its model asks for it."""
    traced = {request.model for request in requests}
    names = [name for name, count in counts.items() if count and name not in traced]
    if not names or not traced:
        return []
    return [
        f"no request of {', '.join(map(repr, names))} is in the trace: if a model calls it, create the request with "
        "InferenceRequest(…, trace=request.trace())"
    ]


def _limited(counts: Mapping[str, int], limit: int) -> list[str]:
    return [
        f"model '{name}': the recording ends after {limit} of {count} requests: trace_count= sets the limit"
        for name, count in counts.items()
        if count > limit
    ]


# --- reading the traces -------------------------------------------------------------------------------


def trace_reader(
    server: V2Client, trace_file: str | os.PathLike[str] | None, receiver: OtlpReceiver | None
) -> SpanReader | TraceFileReader:
    """Begin to read the traces of a server.

    Parameters
    ----------
    server : V2Client
    trace_file, receiver
        As for `Remote.record`.

    Raises
    ------
    InvalidArgumentError
        If the server traces in another mode, or to a file in a directory that cannot be read.
    """
    settings = server.trace_settings()
    is_sending = settings.get("trace_mode") == OPENTELEMETRY
    if is_sending != (receiver is not None):
        mode = settings.get("trace_mode", "triton")
        remedy = "start it with --trace-config mode=opentelemetry, or record without a receiver"
        if is_sending:
            remedy = "pass receiver=tnb.otlp_receiver(…)"
        raise InvalidArgumentError(f"record: {server.url} traces in the mode '{mode}': {remedy}")
    if receiver is not None:
        if not receiver.alive:
            raise InvalidArgumentError("record: the OTLP receiver has been closed")
        return SpanReader(receiver)
    written = settings.get("trace_file", "")
    if not (trace_file or written):
        raise InvalidArgumentError(
            f"record: {server.url} has no trace file: start it with --trace-config triton,file=PATH, or with "
            "--trace-config mode=opentelemetry"
        )
    # The block may change the working directory, and cells before it may have changed it.
    path = fixed_path(trace_file) if trace_file else server.directory / written
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
