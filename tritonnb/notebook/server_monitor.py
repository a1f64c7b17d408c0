"""The content of a dashboard: the models of a server and their activity in the last seconds, as plain values."""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat, starmap
from typing import Any

from tritonnb.core.events import BatchExecuted, CacheHit, EnsembleExecuted
from tritonnb.core.json_types import Json
from tritonnb.core.packed_events import Packed, unpack
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.diff import changed_fields
from tritonnb.notebook.interval_counters import Counters, ModelIntervals, MonitorInterval
from tritonnb.recording.ensemble_graph import StepGraph, ensemble_graph
from tritonnb.scheduling.from_config import describe_scheduling
from tritonnb.scheduling.reasons import pluralize
from tritonnb.server.server import Server
from tritonnb.simulation.run import instance_count
from tritonnb.telemetry.quantiles import quantile

#: Intervals without a request after which a model is idle.
_IDLE = 3
#: Applied configurations that are marked in charts.
_MARKS = 20
#: Characters of a value in the description of a change.
_VALUE = 60
#: Events that wait to be taken; of more, the oldest are lost. A thread takes them several times a second.
_MOST_EVENTS = 1_000_000
INTERVAL_NS = 1_000_000_000
#: Intervals that are kept, and those that tiles and the ensemble graph are computed from.
KEPT, RECENT = 120, 5
#: Intervals of the curve of a model in a list.
CURVE = 40
_KINDS = {event.__name__ for event in (BatchExecuted, EnsembleExecuted, CacheHit)}


class ServerMonitor:
    """Follows the executions and configurations of a server; `close` ends it.

    All methods but `close` are called on one thread.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._events = EventQueue()
        self._begin_ns = time.monotonic_ns()
        self._begin_s = time.time()
        self._activity = Activity(self._begin_ns)
        self._end = 0  # the number of the interval that is not over yet
        self._configs: dict[str, pb.ModelConfig] = {}
        self._marks: dict[str, deque[Json]] = {}
        server.call(server.engine.stream.attach, self._events.append)

    def close(self) -> None:
        """Stop following; the server must run."""
        self._server.call(self._server.engine.stream.detach, self._events.append)

    def update(self) -> bool:
        """Count what happened; return whether another interval is over."""
        self._activity.fold(self._events.take())
        self._follow_configs()
        end = self._activity.number_at(time.monotonic_ns())
        is_over, self._end = end != self._end, end
        return is_over

    def models(self) -> list[Json]:
        """Return the models that are served or failed to load, with their states and rates."""
        failures = self._server.call(self._server.engine.table.failures)
        states = {entry["name"]: entry["state"] for entry in self._server.index() if "state" in entry}
        return [self._model(name, states.get(name, ""), failures) for name in [*self._server, *failures]]

    def tiles(self, model: str) -> list[Json]:
        """Return the most important numbers of a model over the last seconds."""
        config = self._configs.get(model, pb.ModelConfig())
        instances = instance_count(config)
        numbers = measures(self._activity.of(model).last(self._end, RECENT), instances)
        window = f"last {RECENT} s"
        n = f"n = {numbers['n']:,}, {window}"
        tiles = [
            _tile("throughput", _number(numbers["rate"], ",.0f"), "requests/s", window),
            _tile("latency p50", _number(numbers["p50_ms"]), "ms", n),
            _tile("latency p99", _number(numbers["p99_ms"]), "ms", n),
        ]
        if self._is_ensemble(model):
            count = len(config.ensemble_scheduling.step)
            return [*tiles, _tile("ensemble", str(count), "steps", "see their models")]
        busy = _number(100 * numbers["busy"], ".0f")
        size = f"of at most {max(1, config.max_batch_size)} rows, {window}"
        return [
            *tiles,
            _tile("utilization", busy, "% busy", f"{pluralize(instances, 'instance')}, {window}"),
            _tile("mean batch", _number(numbers["rows"]), "rows", size),
        ]

    def series(self, model: str) -> Json:
        """Return the intervals of a model, the oldest first; times in seconds since the epoch."""
        count = min(KEPT, self._end)
        instances = instance_count(self._configs.get(model, pb.ModelConfig()))
        first = self._end - count
        columns = [measures([interval], instances) for interval in self._activity.of(model).last(self._end, count)]
        if self._is_ensemble(model):
            columns = [{**column, "busy": None} for column in columns]  # its steps are busy, not the ensemble
        names = ("rate", "p50_ms", "p99_ms", "n", "busy")
        times = [self._begin_s + number * INTERVAL_NS / 1e9 for number in range(first, self._end)]
        return {"time": times, **{name: [column[name] for column in columns] for name in names}}

    def marks(self, model: str) -> list[Json]:
        """Return when configurations were applied, and what changed; times in seconds since the epoch."""
        return list(self._marks.get(model, ()))

    def graph(self, ensemble: str) -> Json:
        """Return the graph of an ensemble with the queue depth and the mean times of each step."""
        config = self._configs[ensemble]
        graph = ensemble_graph(config)
        steps = {node.label: self._step(node.label) for node in graph.nodes if node.step >= 0}
        slowest = max((step["total_ms"] for step in steps.values()), default=0.0)
        nodes = [
            {
                "label": node.label, "step": node.step, "layer": node.layer, "place": node.place,
                "texts": _step_texts(steps[node.label]) if node.step >= 0 else [],
                "share": steps[node.label]["total_ms"] / slowest if node.step >= 0 and slowest else 0.0,
            }
            for node in graph.nodes
        ]  # fmt: skip
        edges = [
            {"source": edge.source, "target": edge.target, "label": ", ".join(edge.tensors)} for edge in graph.edges
        ]
        description = _graph_in_words(ensemble, graph, steps)
        return {
            "nodes": nodes, "edges": edges, "layers": graph.layers, "places": graph.places, "description": description,
        }  # fmt: skip

    def is_idle(self, model: str) -> bool:
        """Return whether no request of a model was executed in the last intervals."""
        return not any(interval.requests for interval in self._activity.of(model).last(self._end + 1, _IDLE))

    def _is_ensemble(self, model: str) -> bool:
        return bool(self._configs.get(model, pb.ModelConfig()).HasField("ensemble_scheduling"))

    def _follow_configs(self) -> None:
        configs = {model.name: model.config for model in self._server.call(self._server.engine.models)}
        for name, config in configs.items():
            known = self._configs.get(name)
            if known is not None and known != config:
                changes = describe_changes(known, config)
                self._marks.setdefault(name, deque(maxlen=_MARKS)).append({"time": time.time(), "text": changes})
        self._configs = {name: copy.deepcopy(config) for name, config in configs.items()}

    def _model(self, name: str, state: str, failures: Mapping[str, str]) -> Json:
        intervals = self._activity.of(name).last(self._end, CURVE)
        config = self._configs.get(name)
        return {
            "name": name,
            "state": "FAILED" if name in failures else state or "READY",
            "reason": failures.get(name, ""),
            "scheduling": "" if config is None else describe_scheduling(config),
            "rate": measures(intervals[-RECENT:], 1)["rate"],
            "curve": [interval.requests for interval in intervals],
        }

    def _step(self, model: str) -> Json:
        intervals = self._activity.of(model).last(self._end, RECENT)
        requests = sum(interval.requests for interval in intervals)
        queue_ms = sum(interval.queue_ns for interval in intervals) / max(1, requests) / 1e6
        compute_ms = sum(interval.compute_ns for interval in intervals) / max(1, requests) / 1e6
        depth = self._server.call(self._server.engine.model(model).queue_depth)
        return {
            "depth": depth, "requests": requests, "queue_ms": queue_ms, "compute_ms": compute_ms,
            "total_ms": queue_ms + compute_ms,
        }  # fmt: skip


def describe_changes(before: pb.ModelConfig, after: pb.ModelConfig) -> str:
    """Describe the fields in which two configurations differ, the innermost ones.

    Examples
    --------
    >>> describe_changes(pb.ModelConfig(max_batch_size=4), pb.ModelConfig(max_batch_size=8))
    'max_batch_size: 4 → 8'
    """
    return "; ".join(_changes(before, after, ""))


def _changes(before: Any, after: Any, prefix: str) -> Iterator[str]:
    for name in sorted(changed_fields(before, after)):
        field = before.DESCRIPTOR.fields_by_name[name]
        old, new = getattr(before, name), getattr(after, name)
        if field.has_presence and before.HasField(name) and after.HasField(name) and field.message_type is not None:
            yield from _changes(old, new, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}: {_value(old)} → {_value(new)}"


def _value(value: object) -> str:
    text = " ".join(str(value).split()) or "none"
    return text if len(text) <= _VALUE else f"{text[: _VALUE - 1]}…"


def _tile(label: str, value: str, unit: str, note: str) -> Json:
    return {"label": label, "value": value, "unit": unit, "note": note}


def _number(value: float | None, form: str = ".3g") -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:{form}}"


def _step_texts(step: Json) -> list[str]:
    if not step["requests"]:
        return [f"{step['depth']} waiting", "no request lately"]
    return [
        f"queue {_number(step['queue_ms'])} ms",
        f"{step['depth']} waiting",
        f"compute {_number(step['compute_ms'])} ms",
    ]


def _graph_in_words(ensemble: str, graph: StepGraph, steps: Mapping[str, Json]) -> str:
    parts = [f"{node.label}: {', '.join(_step_texts(steps[node.label]))}" for node in graph.nodes if node.step >= 0]
    count = pluralize(len(parts), "step")
    return f"Ensemble {ensemble} with {count} in {graph.layers - 2} layers, means of {RECENT} s. {'; '.join(parts)}."


class EventQueue:
    """Keeps packed events until they are taken.

    Attributes
    ----------
    append : callable
        The sink, called on the server's loop; it does nothing but append.

    Examples
    --------
    >>> events = EventQueue()
    >>> events.append(("RequestArrived", 0))
    >>> events.take(), events.take()
    ([('RequestArrived', 0)], [])
    """

    def __init__(self) -> None:
        self._events: deque[Packed] = deque(maxlen=_MOST_EVENTS)
        self.append = self._events.append

    def take(self) -> list[Packed]:
        """Return and forget the events so far; called on one other thread."""
        return list(starmap(self._events.popleft, repeat((), len(self._events))))


class Activity:
    """The intervals of all models, numbered from ``begin_ns``."""

    def __init__(self, begin_ns: int) -> None:
        self._begin_ns = begin_ns
        self._models: dict[str, ModelIntervals] = {}

    def number_at(self, time_ns: int) -> int:
        """Return the number of the interval of a time."""
        return (time_ns - self._begin_ns) // INTERVAL_NS

    def of(self, model: str) -> ModelIntervals:
        """Return the intervals of a model; they are kept for `KEPT` seconds."""
        if model not in self._models:
            self._models[model] = ModelIntervals(self._begin_ns, INTERVAL_NS, KEPT, levels=1)
        return self._models[model]

    def fold(self, packed: Iterable[Packed]) -> None:
        """Count packed events of executions; others are ignored."""
        counted: dict[str, Counters] = {}
        for event in (unpack(one) for one in packed if one[0] in _KINDS):
            counters = counted.get(event.model)
            if counters is None:
                counters = counted[event.model] = self.of(event.model).counters()
            if isinstance(event, BatchExecuted):
                start, end = event.exec_start_ns, event.exec_end_ns
                rows = sum(request_rows for _, request_rows, *_ in event.requests)  # without null requests
                counters.add_execution(event.instance, start, end, rows)
                for _, _, received_ns, queued_ns, failed in event.requests:
                    if not failed:
                        counters.add_request(end, end - received_ns, start - queued_ns, end - start)
            elif isinstance(event, CacheHit) or (isinstance(event, EnsembleExecuted) and not event.failed):
                counters.add_request(event.time_ns, event.time_ns - event.received_ns, 0, 0)
        for model, counters in counted.items():
            self.of(model).add(counters)


def measures(intervals: list[MonitorInterval], instances: int) -> Json:
    """Return rate (requests/s), p50 and p99 (ms, None without requests), busy share and mean batch size of intervals.

    Examples
    --------
    >>> second = MonitorInterval(requests=2, rows=6, batches=2, busy_ns=500_000_000, latencies_ns=[10**6, 3 * 10**6])
    >>> measures([second], 1)
    {'rate': 2.0, 'n': 2, 'p50_ms': 2.0, 'p99_ms': 2.98, 'busy': 0.5, 'rows': 3.0}
    """
    seconds = len(intervals) * INTERVAL_NS / 1e9
    latencies_ms = sorted(latency / 1e6 for interval in intervals for latency in interval.latencies_ns)
    batches = sum(interval.batches for interval in intervals)
    busy_ns = sum(interval.busy_ns for interval in intervals)
    return {
        "rate": sum(interval.requests for interval in intervals) / seconds,
        "n": len(latencies_ms),
        "p50_ms": quantile(latencies_ms, 0.5) if latencies_ms else None,
        "p99_ms": quantile(latencies_ms, 0.99) if latencies_ms else None,
        "busy": busy_ns / (seconds * 1e9 * max(1, instances)),
        "rows": sum(interval.rows for interval in intervals) / batches if batches else None,
    }
