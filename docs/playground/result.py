"""A recording as plain values for the page, the control inputs of stateful models included."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from statistics import fmean
from typing import Any

from docs.playground.scenario import write_arrival
from tritonnb.core.events import BatchSent, RequestArrived
from tritonnb.core.json_types import Json
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.schedulable import SEQUENCE_END, SEQUENCE_START
from tritonnb.lab.analysis.comparison import Comparison
from tritonnb.notebook.view_encoding import ViewEncoder
from tritonnb.notebook.view_session import recorded_history
from tritonnb.recording.batches import latencies_ms
from tritonnb.recording.recording import Recording
from tritonnb.telemetry.quantiles import quantile
from tritonnb.telemetry.statistics import ModelStatistics

#: Rows of the table of batches and control inputs, and points of the curve of latencies.
_MOST_ROWS, _MOST_POINTS = 300, 200
Control = pb.ModelSequenceBatching.Control
#: The value of each kind for a row: None is a null request.
_ROW: dict[int, Callable[[RequestArrived | None], Any]] = {
    Control.CONTROL_SEQUENCE_START: lambda row: bool(row and row.flags & SEQUENCE_START),
    Control.CONTROL_SEQUENCE_END: lambda row: bool(row and row.flags & SEQUENCE_END),
    Control.CONTROL_SEQUENCE_READY: lambda row: row is not None,
    Control.CONTROL_SEQUENCE_CORRID: lambda row: row.correlation_id if row else 0,
}
_VALUES = ("int32_false_true", "fp32_false_true", "bool_false_true")


def describe(recording: Recording, baseline: Recording | None = None) -> Json:
    """Return everything that the page shows of a recording of one model.

    Parameters
    ----------
    recording : Recording
    baseline : Recording, optional
        The simulation of the same arrivals to compare with.

    Returns
    -------
    dict
        ``history`` and ``ghost`` of the batch view; ``verdict``, ``remarks``, ``diagnoses``, ``summary``,
        ``comparison``; ``batches`` and ``controls`` as tables; ``figures``; ``arrivals`` of the timeline.
    """
    model = next(event.model for event in recording.events)
    config = recording.configs.get(model, pb.ModelConfig())
    history = recorded_history(recording)
    compared: Json | None = None
    if baseline is not None:
        comparison = Comparison(baseline, recording)
        changed = comparison.changed_batches()[1]
        rows = comparison.columns_and_rows()[1]
        compared = {"verdict": comparison.verdict(), "difference": comparison.difference(), "rows": rows}
        numbers = history["batches"].get("n", ())
        history["batches"] = {**history["batches"], "differs": [number in changed for number in numbers]}
    is_sample = recording.source is not None and bool(recording.source.sampled)
    return {
        "history": history,
        "ghost": {} if baseline is None else _ghost(baseline),
        "verdict": recording.verdict(),
        "remarks": recording.remarks(),
        "diagnoses": [] if is_sample else [diagnosis.text for diagnosis in recording.diagnoses()],
        "summary": [row[:2] for row in Comparison(recording, recording).columns_and_rows()[1]],
        "comparison": compared,
        "batches": batch_table(recording)[:_MOST_ROWS],
        "controls": control_inputs(recording, config)[:_MOST_ROWS],
        "figures": _figures(recording),
        "arrivals": [write_arrival(arrival) for arrival in recording.arrivals()],
    }


def batch_table(recording: Recording) -> list[list[Any]]:
    """Return the batches in the order in which they were sent.

    Returns
    -------
    list of list
        Number, ms after the beginning, instance, rows, requests (serials; None is a null request), slots or None, ms
        executed, and why it was sent.
    """
    begin = recording.origin_ns
    return [
        [
            batch.number, (batch.sent_ns - begin) / 1e6, batch.instance, batch.size, list(batch.requests),
            None if batch.slots is None else list(batch.slots), batch.compute_ns / 1e6, batch.why,
        ]
        for batch in sorted(recording.batches, key=lambda batch: (batch.sent_ns, batch.number))
    ]  # fmt: skip


def _ghost(baseline: Recording) -> Json:
    ticks = ViewEncoder(baseline.origin_ns).ticks
    boxes = [
        [batch.instance, ticks(batch.exec_start_ns), ticks(batch.exec_end_ns), batch.size] for batch in baseline.batches
    ]
    return {"text": "the batches of the other configuration.", "boxes": boxes}


def _figures(recording: Recording) -> Json:
    """Return the data of the figures; times in ms."""
    latencies = latencies_ms(recording.requests)
    step = max(1, len(latencies) // _MOST_POINTS)
    curve = [[value, (place + 1) / len(latencies)] for place, value in enumerate(latencies)]
    return {
        "latencies": {
            "curve": [*curve[::step], *curve[-1:]],
            "p50": quantile(latencies, 0.5),
            "p99": quantile(latencies, 0.99),
            "count": len(latencies),
        },
        "sizes": _sizes(recording),
        "statistics": _statistics(recording),
    }


def _sizes(recording: Recording) -> list[list[Any]]:
    """Return rows, number of batches, and the mean queue and execution time of a request, by batch size."""
    executions_ms, waits_ms = defaultdict(list), defaultdict(list)
    for batch in recording.batches:
        executions_ms[batch.size].append(batch.compute_ns / 1e6)
    size_of = {batch.number: batch.size for batch in recording.batches}
    for request in recording.requests:
        waits_ms[size_of[request.batch]].append(request.queue_ns / 1e6)
    return [[size, len(ms), fmean(waits_ms[size] or [0.0]), fmean(ms)] for size, ms in sorted(executions_ms.items())]


def _statistics(recording: Recording) -> Json:
    """Return the statistics extension's entry of the model."""
    sent = next((event for event in recording.events if isinstance(event, BatchSent | RequestArrived)), None)
    if sent is None:
        return {}
    statistics = ModelStatistics(sent.model, sent.version)
    for event in recording.events:
        statistics.fold(event)
    return {name: value for name, value in statistics.to_dict().items() if name != "last_inference"}


def control_inputs(recording: Recording, config: pb.ModelConfig) -> list[list[Any]]:
    """List the control inputs of each batch; empty without ``control_input`` in the configuration.

    Returns
    -------
    list of list
        Number of the batch, instance, and a dict from the name of each control tensor to its values, one for each row.

    Examples
    --------
    >>> from docs.playground.presets import preset
    >>> from docs.playground.session import simulate_scenario
    >>> rec = simulate_scenario(preset("control-inputs"))
    >>> control_inputs(rec, rec.configs["direct_stateful_model"])[0]
    [1, 'direct_stateful_model_0_0', {'START': [1.0], 'READY': [1.0]}]
    """
    controls = [
        (tensor.name, control) for tensor in config.sequence_batching.control_input for control in tensor.control
    ]
    if not controls:
        return []
    return [
        [
            batch.number,
            batch.instance,
            {
                name: [_value(control, recording.arrived.get(serial or 0)) for serial in batch.requests]
                for name, control in controls
            },
        ]
        for batch in sorted(recording.batches, key=lambda batch: (batch.sent_ns, batch.number))
    ]


def _value(control: pb.ModelSequenceBatching.Control, row: RequestArrived | None) -> Any:
    value = _ROW[control.kind](row)
    configured = next((values for name in _VALUES if (values := getattr(control, name))), None)
    return value if configured is None else configured[value]
