"""Traces among the files that users show: a recording of all of them, and the figures of its models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.explain.figures import Figures
from tritonnb.lab.traces.from_trace import from_trace
from tritonnb.recording.batches import Batch, RequestRecord
from tritonnb.recording.recording import Recording

#: The source of figures of a trace.
TRACE = "trace"
_MODEL = re.compile(r'"(?:model_name|triton\.model_name)" ?[:,] ?(?:"value" ?: ?\{ ?"stringValue" ?: ?)?"([^"]+)"')


def models_in(text: str) -> list[str]:
    """Return the names of the models in a trace file.

    Parameters
    ----------
    text : str
    """
    return [*dict.fromkeys(_MODEL.findall(text))]


def read_traces(
    traces: Sequence[tuple[str, str]], configs: Iterable[pb.ModelConfig]
) -> tuple[list[Recording], list[str]]:
    """Read trace files as one recording, or each as its own if that fails.

    Parameters
    ----------
    traces : sequence of (str, str)
        Names and texts.
    configs : iterable of ModelConfig

    Returns
    -------
    list of Recording
    list of str
        What cannot be read, and why.
    """
    named = {config.name: config for config in configs if config.name} or None
    found, refused = [], []
    with TemporaryDirectory() as directory:
        paths = [Path(directory) / f"{number}.json" for number in range(len(traces))]
        for path, (_, text) in zip(paths, traces, strict=True):
            path.write_text(text, "utf-8")
        if len(paths) > 1:
            with suppress(InvalidArgumentError):
                return [from_trace(paths, named)], []
        for path, (name, _) in zip(paths, traces, strict=True):
            try:
                found.append(from_trace(path, named))
            except InvalidArgumentError as error:
                refused.append(f"'{name}': {error.message.replace(str(path), name)}")
    return found, refused


def figures_of(recording: Recording) -> Iterator[Figures]:
    """Yield the figures of each model that executed batches; those of a sample have neither a rate nor batches.

    Parameters
    ----------
    recording : Recording
    """
    is_sample = recording.source is not None and bool(recording.source.sampled)
    for model in dict.fromkeys(batch.model for batch in recording.batches):
        executed = [(batch, requests) for batch, requests in recording.executed if batch.model == model and requests]
        every = [request for _, requests in executed for request in requests]
        if not every:
            continue
        figures = Figures(
            TRACE,
            TRACE,
            model=model,
            failed=sum(bool(request.failed) for request in every),
            server_ms=fmean(max(one.exec_end_ns, one.responded_ns) - one.received_ns for one in every) / 1e6,
            queue_ms=fmean(one.exec_start_ns - one.queued_ns for one in every) / 1e6,
            infer_ms=fmean(one.exec_end_ns - one.exec_start_ns for one in every) / 1e6,
        )
        yield figures if is_sample else replace(figures, **_counts(executed, every))


def _counts(executed: Sequence[tuple[Batch, list[RequestRecord]]], every: Sequence[RequestRecord]) -> dict[str, Any]:
    times: dict[int, list[float]] = {}
    for batch, _ in executed:
        times.setdefault(batch.size, []).append((batch.exec_end_ns - batch.exec_start_ns) / 1e6)
    seconds = (max(one.exec_end_ns for one in every) - min(one.received_ns for one in every)) / 1e9
    return {
        "requests": len(every),
        "rows": sum(batch.size for batch, _ in executed),
        "executions": len(executed),
        "rate": len(every) / seconds if seconds > 0 else None,
        "sizes": {size: (len(known), fmean(known)) for size, known in times.items()},
    }
