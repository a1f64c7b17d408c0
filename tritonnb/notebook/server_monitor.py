"""The content of a dashboard: the models of a server and their activity in the last seconds, as plain values."""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict

from tritonnb.core.json_types import Json
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.simulation.models import step_names
from tritonnb.lab.simulation.run import instance_count
from tritonnb.model_config.diff import describe_changes
from tritonnb.notebook.activity import INTERVAL_NS, KEPT, RECENT, ServerActivity, measures
from tritonnb.recording.ensemble_graph import StepGraph, ensemble_graph
from tritonnb.scheduling.from_config import describe_scheduling
from tritonnb.scheduling.reasons import pluralize
from tritonnb.server.background import BackgroundServer

#: A model is idle after this number of intervals without a request.
_IDLE = 3
#: Applied configurations of a model that are listed.
_PERIODS = 20
#: The times of a step that a graph shows as a bar.
_PARTS = ("queue_ms", "compute_ms")
#: Intervals of the curve of a model in a list.
CURVE = 40


class ServerMonitor:
    """A monitor of a server's executions and configurations; `close` ends it.

    All methods but `close` are called on one thread.
    """

    def __init__(self, server: BackgroundServer) -> None:
        self._server = server
        self._activity = ServerActivity.follow(server)
        self._end = 0  # the number of the interval that is not over yet
        self._configs: dict[str, pb.ModelConfig] = {}
        self._periods: dict[str, deque[Json]] = {}

    def close(self) -> None:
        """Stop following."""
        self._activity.close()

    def update(self) -> bool:
        """Count the new events; return whether another interval is complete."""
        end = self._activity.update()
        self._follow_configs()
        is_over, self._end = end != self._end, end
        return is_over

    def models(self) -> list[Json]:
        """Return the models that are served or failed to load, with their states and rates."""
        states, failures, served = self._server.run(self._read_models())
        return [self._model(name, states.get(name, ""), failures) for name in [*served, *failures]]

    async def _read_models(self) -> tuple[dict[str, str], dict[str, str], dict[str, None]]:
        """Return the states and the failures of models, and the names of the served models, at one moment."""
        engine = self._server.engine
        states = {entry["name"]: entry["state"] for entry in await engine.index() if "state" in entry}
        return states, engine.table.failures(), dict.fromkeys(model.name for model in engine.models())

    def tiles(self, model: str, numbers: Json | None = None) -> list[Json]:
        """Return the most important numbers of a model, by default over the last seconds."""
        config = self._configs.get(model, pb.ModelConfig())
        instances = instance_count(config)
        numbers = numbers or self.recent(model)
        window = f"last {RECENT} s"
        unit = "steps" if config.sequence_batching.iterative_sequence else "requests"
        n = f"n = {numbers['n']:,}, {window}"
        problem = self._activity.problem(model)
        errors = {"note": problem, "level": "error"} if numbers["errors"] else {"note": f"none, {window}"}
        growth = {"note": problem, "level": "warning"} if problem and not numbers["errors"] else {"note": window}
        tiles = [
            _tile("throughput", _number(numbers["rate"], ",.0f"), f"{unit}/s", **growth),
            _tile("errors", _number(numbers["errors"], ",.3g"), "requests/s", **errors),
            _tile("latency p50", _number(numbers["p50_ms"]), "ms", n),
            _tile("latency p99", _number(numbers["p99_ms"]), "ms", n),
        ]
        if config.HasField("ensemble_scheduling"):
            count = len(config.ensemble_scheduling.step)
            return [*tiles, _tile("ensemble", str(count), "steps", "see their models")]
        busy = _number(100 * numbers["busy"], ".0f")
        size = f"at most {max(1, config.max_batch_size)}, {window}"
        return [
            *tiles,
            _tile("utilization", busy, "% busy", f"{pluralize(instances, 'instance')}, {window}"),
            _tile("mean batch", _number(numbers["rows"]), "rows", size),
        ]

    def series(self, model: str) -> Json:
        """Return the intervals of a model, the oldest first; times in seconds since the epoch."""
        end = self._activity.end
        count = min(KEPT, end)
        config = self._configs.get(model, pb.ModelConfig())
        columns = [measures([interval], config) for interval in self._activity.last(model, count)]
        names = ("rate", "errors", "p50_ms", "p99_ms", "n", "busy")
        times = [self._activity.begin_s + number * INTERVAL_NS / 1e9 for number in range(end - count, end)]
        return {"time": times, **{name: [column[name] for column in columns] for name in names}}

    def recent(self, model: str) -> Json:
        """Return the numbers of a model over the last seconds: see `measures`."""
        return self._activity.recent(model, self._configs.get(model, pb.ModelConfig()))

    def last_busy(self, model: str) -> Json:
        """Return the numbers of the last seconds before the newest request ended; empty if that was long ago."""
        intervals = self._activity.last(model, KEPT)
        while intervals and not (intervals[-1].requests or intervals[-1].failed or intervals[-1].refused):
            intervals.pop()
        return measures(intervals[-RECENT:], self._configs.get(model, pb.ModelConfig())) if intervals else {}

    def periods(self, model: str) -> list[Json]:
        """Return the configurations of a model in the order of application; empty if there is none.

        Each has its ``time`` (seconds since the epoch), a ``text``, and the numbers of its time: ``n``, ``rate``,
        ``errors``, ``p50_ms`` and ``p99_ms``. For the first reading, and for long times, only the last seconds count.
        """
        periods = self._periods.get(model, ())
        return [*list(periods)[:-1], {**periods[-1], **self._numbers_since(model, periods[-1])}] if periods else []

    def _numbers_since(self, model: str, period: Json) -> Json:
        """Return the numbers of the time since a configuration was applied, in whole intervals."""
        end = self._activity.end
        begin = -(-int((period["time"] - self._activity.begin_s) * 1e9) // INTERVAL_NS)
        count = min(KEPT, end - begin)
        numbers = measures(self._activity.last(model, count), self._configs[model]) if count > 0 else {"n": 0}
        return {name: numbers.get(name) for name in ("n", "rate", "errors", "p50_ms", "p99_ms")}

    def graph(self, ensemble: str) -> Json:
        """Return the graph of an ensemble with its numbers, and the queue depth and the mean times of each step."""
        config = self._configs[ensemble]
        graph = ensemble_graph(config)
        labels = [node.label for node in graph.nodes if node.step >= 0]
        model = self._server.engine.model
        depths, in_flight = self._server.call(
            lambda: ([model(name).driver.queue_depth() for name in labels], model(ensemble).in_flight)
        )
        steps = {name: self._step(name, depth) for name, depth in zip(labels, depths, strict=True)}
        slowest = max((step["total_ms"] for step in steps.values()), default=0.0)
        nodes = [
            {
                **asdict(node),
                "texts": _step_texts(steps[node.label]) if node.step >= 0 else [],
                "shares": [steps[node.label][part] / slowest if node.step >= 0 and slowest else 0.0 for part in _PARTS],
            }
            for node in graph.nodes
        ]
        edges = [
            {"source": edge.source, "target": edge.target, "label": ", ".join(edge.tensors)} for edge in graph.edges
        ]
        total = _total_text(self.recent(ensemble), in_flight)
        return {
            "nodes": nodes, "edges": edges, "layers": graph.layers, "places": graph.places, "total": total,
            "problem": self._activity.problem(ensemble),
            "description": f"{_graph_in_words(ensemble, graph, steps)} {total}",
        }  # fmt: skip

    def models_below(self, ensemble: str) -> list[str]:
        """Return the models of an ensemble's steps, and those of the ensembles in it."""
        found: list[str] = []
        ahead = [ensemble]
        while ahead:
            for name in step_names(self._configs[ahead.pop()]):
                if name not in found and name in self._configs:
                    found.append(name)
                    ahead.append(name)
        return found

    def is_idle(self, model: str) -> bool:
        """Return whether no request of a model was executed in the last intervals."""
        return not any(interval.requests for interval in self._activity.last(model, _IDLE))

    def _follow_configs(self) -> None:
        configs = {model.name: model.config for model in self._server.call(self._server.engine.models)}
        for name, config in configs.items():
            known = self._configs.get(name)
            if known is not None and known != config:
                first = {"time": self._activity.begin_s, "text": "before"}
                periods = self._periods.setdefault(name, deque([first], maxlen=_PERIODS))
                periods[-1] |= self._numbers_since(name, periods[-1])
                periods.append({"time": time.time(), "text": describe_changes(known, config)})
        self._configs = {name: copy.deepcopy(config) for name, config in configs.items()}

    def _model(self, name: str, state: str, failures: Mapping[str, str]) -> Json:
        intervals = self._activity.last(name, CURVE)
        config = self._configs.get(name)
        numbers = measures(intervals[-RECENT:], config or pb.ModelConfig())
        return {
            "name": name,
            "state": "FAILED" if name in failures else state or "READY",
            "reason": failures.get(name, ""),
            "scheduling": "" if config is None else describe_scheduling(config),
            "rate": numbers["rate"],
            "errors": numbers["errors"],
            "problem": self._activity.problem(name),
            "curve": [interval.requests for interval in intervals],
        }

    def _step(self, model: str, depth: int) -> Json:
        intervals = self._activity.last(model, RECENT)
        requests = sum(interval.requests for interval in intervals)
        queue_ms = sum(interval.queue_ns for interval in intervals) / max(1, requests) / 1e6
        compute_ms = sum(interval.compute_ns for interval in intervals) / max(1, requests) / 1e6
        return {
            "depth": depth, "requests": requests, "queue_ms": queue_ms, "compute_ms": compute_ms,
            "total_ms": queue_ms + compute_ms,
        }  # fmt: skip


def _tile(label: str, value: str, unit: str, note: str, level: str = "") -> Json:
    return {"label": label, "value": value, "unit": unit, "note": note, "level": level}


def _number(value: float | None, form: str = ".3g") -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:{form}}"


def _total_text(numbers: Json, in_flight: int) -> str:
    """Return what a client of an ensemble sees, from its request to its response."""
    latencies = [f"{name} {_duration(numbers[f'{name}_ms'])}" for name in ("p50", "p99") if numbers["n"]]
    parts = [f"{_number(numbers['rate'])} requests/s", *latencies, f"{in_flight} in flight"]
    return f"From request to response, last {RECENT} s: {' · '.join(parts)}"


def _duration(milliseconds: float) -> str:
    return f"{_number(milliseconds)} ms" if milliseconds < 1000 else f"{_number(milliseconds / 1000)} s"


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
