"""Record a remote server: switch its traces on, collect them, and restore its settings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

from tritonnb.client.v2_client import V2Client
from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.recording.recording import Recording
from tritonnb.remote.counted_rows import counted_rows
from tritonnb.remote.from_trace import recording_of
from tritonnb.remote.otlp_receiver import OtlpReceiver
from tritonnb.remote.trace_readers import trace_reader
from tritonnb.remote.trace_state import TRACE_COUNT, changed_settings, end_recordings
from tritonnb.remote.traced_request import TracedRequest
from tritonnb.scheduling.reasons import pluralize
from tritonnb.simulation.arrivals import require_positive
from tritonnb.telemetry.statistics_entry import StatisticsEntry

#: A file of the series for so many traces: Triton writes what is left when its settings change.
_LOG_FREQUENCY = "1000"
_POLL_S = 0.05
#: Traces of requests that were in flight at the end come a little later; without news for so long none come.
_QUIET_S = 1.0


@contextmanager
def record(
    server: V2Client,
    models: Sequence[str],
    *,
    trace_file: str | os.PathLike[str] | None = None,
    receiver: OtlpReceiver | None = None,
    trace_rate: int = 1,
    trace_count: int = TRACE_COUNT,
    rows: bool = False,
    timeout_s: float = 15.0,
    notes: Sequence[str] = (),
) -> Iterator[Recording]:
    """Record models of a server; see `Remote.record`. The notes are added to those on the trace."""
    if rows and receiver is not None:
        raise InvalidArgumentError(
            "record: rows=True has no effect with a receiver, since spans have no shapes: leave it out, or record the "
            "trace files of a server in the trace mode triton"
        )
    if not models:
        raise InvalidArgumentError(f"record expected at least one model of {server.url}, got none that is ready")
    require_positive(trace_rate=trace_rate, trace_count=trace_count)
    configs = {name: server.config(name) for name in models}
    steps = {step.model_name for config in configs.values() for step in config.ensemble_scheduling.step}
    configs |= {name: server.config(name) for name in sorted(steps - configs.keys())}
    levels = ["TIMESTAMPS", "TENSORS"] if rows else ["TIMESTAMPS"]
    changes = {"trace_level": levels, "trace_rate": str(trace_rate), "trace_count": str(trace_count)}
    if receiver is None:
        changes["log_frequency"] = _LOG_FREQUENCY
    end_recordings(server, models)
    before = server.statistics()
    recording = Recording()
    with closing(trace_reader(server.url, server.trace_settings(), trace_file, receiver)) as reader:
        with changed_settings(server, models, changes):
            yield recording
            counts = _completed(server.statistics(), before, models)
        expected = sum(min(count // trace_rate, trace_count) for count in counts.values())
        requests = _wait(reader.collect, models, expected, timeout_s)
        if expected and not any(request.model in models for request in requests):
            counted = pluralize(sum(counts.values()), "request")
            raise UnavailableError(f"record: {server.url} counted {counted}, and {reader.explain_nothing()}")
        rows_by_version = counted_rows(server.statistics(), before)  # of all traced requests: they have completed
    said = [*notes, *_missing(requests, models, expected), *_limited(counts, trace_rate * trace_count)]
    full = recording_of(requests, configs, trace_rate, said, rows_by_version)
    recording.source = full.source
    recording.fill(full.events, full.configs)


def _completed(
    after: Sequence[StatisticsEntry], before: Sequence[StatisticsEntry], models: Sequence[str]
) -> dict[str, int]:
    """How many requests of each model the server completed between two readings."""

    def count(statistics: Sequence[StatisticsEntry], model: str) -> int:
        parts = [entry["inference_stats"] for entry in statistics if entry["name"] == model]
        return sum(part["success"]["count"] + part["fail"]["count"] for part in parts)

    return {name: count(after, name) - count(before, name) for name in models}


def _wait(
    collect: Callable[[], list[TracedRequest]], models: Sequence[str], count: int, timeout_s: float
) -> list[TracedRequest]:
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


def _limited(counts: Mapping[str, int], limit: int) -> list[str]:
    return [
        f"model '{name}': the recording ends after {limit} of {count} requests: trace_count= sets the limit"
        for name, count in counts.items()
        if count > limit
    ]
