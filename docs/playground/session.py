"""Messages of the page to Python, in JSON, each with an answer in JSON.

The page runs `Session.answer` in a worker thread of the browser. Nothing here uses a network or a clock.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from docs.playground.presets import PRESETS
from docs.playground.result import batch_table, describe
from docs.playground.scenario import python_code, read_arrivals, read_service, read_table, write_arrival
from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.json_types import Json
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.explain.explain import explain_texts
from tritonnb.lab.simulation.arrivals import ClosedLoop
from tritonnb.lab.simulation.simulate import simulate
from tritonnb.lab.teaching.exercises import worksheet
from tritonnb.lab.teaching.grading import describe_sheet, grade
from tritonnb.lab.teaching.worksheet import LETTERS, Worksheet
from tritonnb.lab.traces.from_trace import from_trace
from tritonnb.model_config.parse import parse_text
from tritonnb.model_config.read import config_text, read_config
from tritonnb.model_config.text_edit import edit_text
from tritonnb.model_config.validate import check_scheduling
from tritonnb.notebook.blame_panel import answer_request
from tritonnb.notebook.config_report import report_on, set_field
from tritonnb.notebook.field_help import schema
from tritonnb.recording.recording import Recording

_NAME = "simulated"


def simulate_scenario(scenario: Json) -> Recording:
    """Simulate a scenario.

    Raises
    ------
    InvalidArgumentError
        If the configuration, the arrivals or the service times are invalid.
    """
    return simulate(scenario["config"], read_arrivals(scenario["arrivals"]), read_service(scenario["service"]))


@lru_cache(maxsize=1)
def _simulate_baseline(scenario: str) -> Recording:
    """Simulate a scenario in JSON; the last one is kept, since the baseline stays the same during edits."""
    return simulate_scenario(json.loads(scenario))


class Session:
    """The state of one open page: its last recording, its file and its exercise."""

    def __init__(self) -> None:
        self._recording: Recording | None = None
        self._worksheet: Worksheet | None = None
        self._messages: dict[str, Callable[[Json], Any]] = {
            "describe": lambda message: {"schema": schema(), "presets": PRESETS},
            "simulate": self._simulate,
            "set_field": self._set_field,
            "blame": self._blame,
            "worksheet": self._new_worksheet,
            "grade": self._grade,
            "python": lambda message: python_code(message["scenario"]),
            "open": self._open,
            "explain": _explain,
            "batches": lambda message: batch_table(simulate_scenario(message["scenario"])),
        }

    def answer(self, message: str) -> str:
        """Answer a message.

        Parameters
        ----------
        message : str
            JSON with ``do``, the name of what is asked, and its arguments.

        Returns
        -------
        str
            JSON with ``result``, or with ``error`` if the request was rejected.
        """
        content = json.loads(message)
        try:
            return json.dumps({"result": self._messages[content["do"]](content)}, separators=(",", ":"))
        except TritonError as error:
            return json.dumps({"error": error.message})

    def _simulate(self, message: Json) -> Json:
        scenario = message["scenario"]
        report = report_on(scenario["config"], _checked, _NAME, None, "", None)
        if report["problems"]:
            return {"report": report}
        try:
            recording = simulate_scenario(scenario)
            if not recording.events:
                raise InvalidArgumentError("arrivals expected at least one request, got none")
            self._recording = recording
            return {"report": report, "shown": describe(recording, self._compared_with(scenario))}
        except TritonError as error:
            return {"report": report, "error": error.message}

    @staticmethod
    def _compared_with(scenario: Json) -> Recording | None:
        """Simulate the configuration to compare with; return None if there is none, or it cannot run the requests."""
        if not scenario.get("baseline") or scenario["baseline"] == scenario["config"]:
            return None
        before = {"config": scenario["baseline"], "arrivals": scenario["arrivals"], "service": scenario["service"]}
        try:
            return _simulate_baseline(json.dumps(before))
        except TritonError:
            return None

    def _set_field(self, message: Json) -> str:
        config = parse_text(message["text"]).config
        try:
            set_field(config, message["path"], message["value"])
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidArgumentError(f"{message['path']}: {error}") from error
        return edit_text(message["text"], config)

    def _blame(self, message: Json) -> Json:
        reports: list[Json] = []
        answer_request(self._recording, int(message["batch"]), str(message["request"]), reports.append)
        return reports[-1]

    def _new_worksheet(self, message: Json) -> Json:
        if message["batcher"] == "scenario":
            self._worksheet = _worksheet_of(message["scenario"])
        else:
            self._worksheet = worksheet(message["batcher"], seed=message["seed"], requests=message["requests"])
        return describe_sheet(self._worksheet)

    def _grade(self, message: Json) -> Json:
        if self._worksheet is None:
            raise InvalidArgumentError("expected an exercise, got none")
        return grade(self._worksheet, message["action"], message["answer"])

    def _open(self, message: Json) -> Json:
        """Read files that the user dropped: a recording, or trace files and the configuration of their model."""
        recording = _read_files([Path(path) for path in message["paths"]], message["config"])
        self._recording = recording
        name = next(event.model for event in recording.events)
        config = recording.configs.get(name)
        text = "" if config is None else config_text(config)
        agreement = None if recording.agreement is None else str(recording.agreement)
        opened = {"model": name, "config": text, "agreement": agreement, "shown": describe(recording)}
        if config is None or (recording.source is not None and recording.source.sampled):
            return {**opened, "scenario": None}
        times = {str(size): recording.median_ms(size) for size in recording.batch_sizes()}
        arrivals = [write_arrival(arrival) for arrival in recording.arrivals()]
        scenario = {
            "config": text, "arrivals": {"kind": "list", "requests": arrivals},
            "service": {"kind": "table", "ms": times}, "baseline": "",
        }  # fmt: skip
        return {**opened, "scenario": scenario}


def _explain(message: Json) -> Json:
    """Explain texts that the user dropped or pasted, with their names."""
    answer = explain_texts(
        [(str(source["name"]), str(source["text"])) for source in message["sources"]], message["seconds"]
    )
    return {"markdown": answer.markdown(), "refused": answer.refused}


def _checked(config: pb.ModelConfig) -> pb.ModelConfig:
    """Check the parts that the simulation uses; a configuration may lack its inputs and outputs."""
    named = pb.ModelConfig(name=_NAME)  # messages end with the name
    named.MergeFrom(config)
    check_scheduling(named)
    return config


def _worksheet_of(scenario: Json) -> Worksheet:
    """Return an exercise on the first requests of a scenario."""
    arrivals = read_arrivals(scenario["arrivals"])
    if isinstance(arrivals, ClosedLoop):
        raise InvalidArgumentError("an exercise expected arrivals at known times, got a closed loop")
    service = scenario["service"]
    read_service(service)
    if service["kind"] == "fixed":
        times: Any = service["ms"]
    elif service["kind"] == "table":
        times = read_table(service)
    else:
        most = max(1, read_config(scenario["config"]).max_batch_size)
        times = {rows: service["per_row_ms"] * rows + service["base_ms"] for rows in {1, most}}
    return Worksheet(scenario["config"], arrivals[: len(LETTERS)], times)


def _read_files(paths: list[Path], config: str) -> Recording:
    """Return the part of a recording or of traces that concerns one model, the one with the most batches."""
    configs = [path for path in paths if path.suffix == ".pbtxt"]
    traces = [path for path in paths if path not in configs]
    if not traces:
        raise InvalidArgumentError("expected a recording or a trace file, got none")
    with traces[0].open("rb") as file:
        is_recording = b'"tritonnb recording"' in file.readline()
    if is_recording:
        recording = Recording.load(traces[0])
    else:
        recording = _read_traces(traces, configs[0].read_text("utf-8") if configs else config)
    batches = Counter(batch.model for batch in recording.batches)
    if not batches:
        raise InvalidArgumentError(f"'{traces[0].name}' expected at least one executed batch, got none")
    return recording.for_model(max(batches, key=lambda name: (batches[name], name)))


def _read_traces(traces: list[Path], config: str) -> Recording:
    """Read traces with the configuration of their model; without it if they are of another model, or several."""
    if config.strip():
        try:
            return from_trace([*traces], config)
        except InvalidArgumentError as error:
            if "config expected" not in error.message:
                raise
    return from_trace([*traces])
