"""`Recording.from_trace`: a recording of a real Triton, from the traces that it wrote or sent."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.simulation.run import instance_count
from tritonnb.lab.traces.otlp import Span, SpanCollector, spans_of_json, spans_of_protobuf
from tritonnb.lab.traces.replay import TraceReplay, longest_difference
from tritonnb.lab.traces.trace_events import CountedRows, ModelVersion, TracedModel, events_of, models_of
from tritonnb.lab.traces.trace_file import content_of, read_entries, requests_of, series_of
from tritonnb.lab.traces.traced_request import TracedRequest
from tritonnb.model_config.read import AnyConfig, read_config
from tritonnb.recording.pipelines import without_root
from tritonnb.recording.recording import Recording
from tritonnb.recording.trace_source import UNNAMED_INSTANCES, Agreement, TraceSource
from tritonnb.scheduling.from_config import queue_delay_ns
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.trace_entry import TraceEntry

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Configs = AnyConfig | Mapping[str, AnyConfig] | None

#: The keys of a configuration in JSON; the other dicts are of configurations by name.
_FIELDS = {*pb.ModelConfig.DESCRIPTOR.fields_by_name, "config"}
#: A batch that waits longer than this, with an idle instance, waits for requests that are not in the trace.
_UNEXPLAINED_NS = 2_000_000
#: Share of such batches, and number of batches, from which a trace counts as sampled.
_UNEXPLAINED_SHARE, _MIN_BATCHES = 0.25, 20
#: Where the rows of requests are, if spans or trace files lack them.
_NO_SHAPES = "spans have no shapes; trace files of record(rows=True) have them"
_WITHOUT_SHAPES = "traces of the level TENSORS, record(rows=True), have them, and the contents of all tensors"


@with_short_traceback
def from_trace(paths: Paths, config: Configs = None, *, trace_rate: int | None = None) -> Recording:
    """Read the traces of a Triton server.

    Requests that were executed at the same time are a batch. A trace of Triton does not contain why a batch was
    sent: the reasons are inferred by a replay of the scheduler with the recorded arrivals and execution times, and
    marked as inferred. Spans of this project's server contain batches and reasons, so that nothing is inferred.
    `agreement` says how many batches the replay reproduces, `source` what else the trace leaves open.

    Parameters
    ----------
    paths : path or sequence of paths
        Trace files of the mode ``triton``, whole or cut off; the name of a series ``NAME.0``, ``NAME.1``, … stands
        for all of its files. Or files with OTLP messages (mode ``opentelemetry``), in JSON or protobuf.
    config : configuration, mapping of str to configuration, or path, optional
        The configuration of the model, in any form that `simulate` accepts; of several models, a dict by name or a
        model repository. Reasons and `what_if` need it.
    trace_rate : int, optional
        The server's trace rate n: every n-th request was traced. By default it is estimated whether the trace
        contains every request.

    Raises
    ------
    InvalidArgumentError
        If a file is not a trace, or the configuration cannot be read.

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
    ...         _ = tnb.connect(server.url)["double"](X=[[1.0], [2.0]])
    ...     rec = tnb.Recording.from_trace(trace.file, "max_batch_size: 8")
    >>> len(rec.batches)
    1
    """
    notes: list[str] = []
    requests = _read(trace_files(paths), notes)
    return recording_of(requests, configs_of(config, requests), trace_rate, notes)


def recording_of(
    requests: Iterable[TracedRequest],
    configs: Mapping[str, pb.ModelConfig],
    trace_rate: int | None = None,
    notes: Sequence[str] = (),
    counted: Mapping[ModelVersion, CountedRows] | None = None,
) -> Recording:
    """Make a recording of traced requests.

    Parameters
    ----------
    requests : iterable of TracedRequest
    configs : mapping of str to ModelConfig
    trace_rate : int, optional
        Every n-th request was traced; estimated by default.
    notes : sequence of str
        What is already known about the trace.
    counted : mapping of (str, int) to CountedRows, optional
        The server's counts in the meantime, by model version, which show the rows of requests.
    """
    every = list(requests)
    complete = [request for request in every if request.complete]
    said = [*notes]
    if len(complete) < len(every):
        left_out = pluralize(len(every) - len(complete), "request")
        said.append(f"{left_out} left out, of which the trace contains only a part")
    if unrooted := without_root({request.key: request.parent for request in complete if request.parent}):
        for request in complete:
            request.parent = 0 if request.key in unrooted else request.parent
        count = pluralize(len(unrooted), "request")
        said.append(f"{count} without a cause: it is said to be the request itself, or nested too deeply")
    models = models_of(complete, configs, counted)
    agreements: dict[str, Agreement] = {}
    for model in models:
        said += _notes_on(model)
        agreement = infer_reasons(model, said)
        if model.batches:
            agreements[model.name] = agreements.get(model.name, Agreement(0, 0)) + agreement
    sampled = _sampling(models, trace_rate)
    if sampled:
        agreements = {name: Agreement(0, 0, sampled) for name in agreements}
    unknown = {
        model.name: 0 if model.counted is None else model.counted.rows
        for model in models
        if model.batches and not model.knows_rows and not model.is_reported
    }
    source = TraceSource(tuple(dict.fromkeys(said)), sampled, agreements, unknown)
    return Recording(events_of(models), configs, source=source)


def configs_of(config: Configs, requests: Iterable[TracedRequest]) -> dict[str, pb.ModelConfig]:
    """Read the configurations of the models in a trace.

    Parameters
    ----------
    config : configuration, mapping of str to configuration, path, optional
        Of the only model (or the model whose name it contains), by model, a model repository, or the directory of a
        model.
    requests : iterable of TracedRequest

    Raises
    ------
    InvalidArgumentError
        If it cannot be read, is of none of the models, or does not say which one it is of.
    """
    models = sorted({request.model for request in requests if request.model})
    if config is None:
        return {}
    if isinstance(config, str | os.PathLike) and os.path.isdir(config):
        return _configs_in(Path(config), models)
    if isinstance(config, Mapping) and config and not config.keys() & _FIELDS:
        return {name: read_config(value, name=name) for name, value in config.items() if name in models}
    only: Any = config
    return _config_of_one(read_config(only, name=""), models)


def _configs_in(directory: Path, models: Sequence[str]) -> dict[str, pb.ModelConfig]:
    """Read the configurations in a model repository, or in the directory of a model."""
    file = "config.pbtxt"
    if (directory / file).is_file():
        name = directory.resolve().name
        return _config_of_one(read_config(directory / file, name=name if name in models else ""), models)
    files = {name: directory / name / file for name in models}
    configs = {name: read_config(path, name=name) for name, path in files.items() if path.is_file()}
    if models and not configs:
        raise InvalidArgumentError(
            f"config expected a model repository with a model of the trace ({_listed(models)}), or the directory of "
            f"one, got '{directory}', which contains no {file} of them"
        )
    return configs


def _config_of_one(config: pb.ModelConfig, models: Sequence[str]) -> dict[str, pb.ModelConfig]:
    """Return the configuration of the model with its name, or of the only model."""
    if config.name in models:
        return {config.name: config}
    if config.name or len(models) != 1:
        got = f"one of '{config.name}'" if config.name else "one without a name"
        raise InvalidArgumentError(
            f"config expected a configuration of one of the models in the trace ({_listed(models)}), got {got}: "
            "give a dict of configurations by model name"
        )
    config.name = models[0]
    return {models[0]: config}


def _listed(models: Sequence[str]) -> str:
    return ", ".join(map(repr, models)) or "none"


# --- files ----------------------------------------------------------------------------------------


def trace_files(paths: Paths) -> list[Path]:
    """Find trace files, the files of a series in the order of their numbers.

    Parameters
    ----------
    paths : path or sequence of paths
        The name of a series ``NAME.0``, ``NAME.1``, … stands for all of its files.

    Raises
    ------
    InvalidArgumentError
        If there is no such file.
    """
    given_paths = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files: list[Path] = []
    for path in map(Path, given_paths):
        series = series_of(path)
        if path.is_file():
            files.append(path)
        elif not series:
            raise InvalidArgumentError(
                f"trace file '{path}' expected a file, or a series {path.name}.0, …; got neither"
            )
        if not re.fullmatch(r"\.\d+", path.suffix):
            files += series
    return list(dict.fromkeys(files))


def _read(files: Sequence[Path], notes: list[str]) -> list[TracedRequest]:
    entries: list[TraceEntry] = []
    requests: list[TracedRequest] = []
    collector = SpanCollector(requests.append)
    for file in files:
        try:
            content = content_of(file)
            if content.lstrip()[:1] == b"[":
                read, missing = read_entries(content.decode("utf-8", "replace"))
                entries += read
                notes += [f"{file.name}: {missing}"] if missing else []
                continue
            for span in _spans(content):
                collector.add(span)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"trace file '{file}': {error.message}") from None
    collector.flush()
    return [*requests_of(entries), *requests]


def _spans(content: bytes) -> Iterator[Span]:
    """Yield the spans of a file: one message in JSON, one in each line, or one in protobuf."""
    if content.lstrip()[:1] != b"{":
        yield from spans_of_protobuf(content)
        return
    lines = content.splitlines()
    whole = len(lines) < 2 or not lines[0].rstrip().endswith(b"}") or not lines[1].lstrip().startswith(b"{")
    for message in [content] if whole else filter(bytes.strip, lines):
        yield from spans_of_json(message)


# --- what is inferred -------------------------------------------------------------------------------


def _notes_on(model: TracedModel) -> Iterator[str]:
    config = model.config
    if not model.batches:
        return
    if model.is_reported:
        yield f"model '{model.name}': batches, instances, rows and reasons are those that the server reported"
        return
    if config is None:
        yield f"model '{model.name}': its configuration is not known, so the reasons of its batches are not inferred"
    elif config.dynamic_batching.priority_levels:
        yield f"model '{model.name}': priorities are not in a trace"
    yield f"model '{model.name}': {UNNAMED_INSTANCES}"
    yield from _note_on_rows(model)
    if config is None or any(group.gpus for group in config.instance_group):
        return
    configured = instance_count(config)
    if len(model.instances) > configured:
        yield (
            f"model '{model.name}': {len(model.instances)} batches ran at the same time, and the configuration has "
            f"{pluralize(configured, 'instance')}"
        )


def _note_on_rows(model: TracedModel) -> Iterator[str]:
    counted = model.counted
    if not model.knows_rows:
        counts = "" if counted is None else f" (the server counted {counted.rows} in {counted.requests} requests)"
        remedy = _NO_SHAPES if any(request.is_span for request in model.requests) else _WITHOUT_SHAPES
        yield (
            f"model '{model.name}': batch sizes count requests, because the rows of each are not known{counts}: "
            f"{remedy}"
        )
        return
    has_shapes = all(request.shapes for request in model.requests)
    if counted is not None and (counted.per_request or 1) > 1 and not has_shapes:
        yield (
            f"model '{model.name}': each request has {counted.per_request} rows, because the server counted "
            f"{counted.rows} in {counted.requests} requests"
        )


def infer_reasons(model: TracedModel, notes: list[str]) -> Agreement:
    """Replay the scheduler, and set the reasons of the batches; ``notes`` are extended."""
    config = model.config
    if config is None:
        return Agreement(0, 0, model.unknown)
    if config.HasField("sequence_batching"):
        model.unknown = "a trace contains no correlation IDs, without which a sequence batcher cannot be replayed"
        return Agreement(0, 0, model.unknown)
    if not model.batches:
        return Agreement(0, 0)
    model.reasons, agreement = TraceReplay(model, config).run()
    if differs := longest_difference(model.reasons):
        origin_ns = min(request.queued_ns for request in model.requests)
        begin, end = ((model.batches[index].start_ns - origin_ns) / 1e6 for index in (differs[0], differs[-1]))
        notes.append(
            f"model '{model.name}': batches {differs[0] + 1} to {differs[-1] + 1} ({begin:.0f} to {end:.0f} ms) were "
            "sent under another configuration, as it seems; between(start_ms, end_ms) cuts a recording"
        )
    return agreement


def _sampling(models: Sequence[TracedModel], trace_rate: int | None) -> str:
    """Return why a trace does not contain every request; empty if it may."""
    if trace_rate is not None:
        return f"1 of {trace_rate} requests was traced (trace_rate {trace_rate})" if trace_rate > 1 else ""
    for model in models:
        if model.is_reported:
            if missing := _missing_rows(model):
                return missing
            continue
        if model.config is None or len(model.batches) < _MIN_BATCHES:
            continue
        delay_ns = queue_delay_ns(model.config)
        execution_ns = statistics.median(batch.end_ns - batch.start_ns for batch in model.batches)
        limit_ns = max(_UNEXPLAINED_NS, execution_ns / 4)
        waits = [
            batch.start_ns - max(batch.free_ns, min(request.queued_ns for request in batch.requests) + delay_ns)
            for batch in model.batches
        ]
        unexplained = sum(1 for wait in waits if wait > limit_ns)
        if unexplained >= _UNEXPLAINED_SHARE * len(waits):
            return (
                f"the trace seems to be sampled (trace_rate above 1): {unexplained} of {len(waits)} batches of model "
                f"'{model.name}' waited longer than max_queue_delay while an instance was idle"
            )
    return ""


def _missing_rows(model: TracedModel) -> str:
    """Describe the part of the reported batches that is not in the trace; empty if all of it is."""
    if model.config is not None and model.config.HasField("sequence_batching"):
        return ""  # rows of null requests, which are not traced
    reported = sum(batch.reported.size for batch in model.batches if batch.reported is not None)
    traced = sum(model.rows[request.key] for batch in model.batches for request in batch.requests)
    if traced >= reported:
        return ""
    return f"the trace contains {traced} of the {reported} rows in the batches of model '{model.name}'"
