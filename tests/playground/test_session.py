"""Messages of the page to Python in JSON, and their answers, without a browser."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from docs.playground.presets import PRESETS, preset
from docs.playground.session import Session, simulate_scenario
from docs.sitegen.playground import write_archive


def ask(session: Session, **message: Any) -> Any:
    answer = json.loads(session.answer(json.dumps(message)))
    return answer["result"] if "result" in answer else answer["error"]


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_valid_and_complete(name: str) -> None:
    result = ask(Session(), do="simulate", scenario=preset(name))
    shown = result["shown"]
    recording = simulate_scenario(preset(name))
    assert result["report"]["problems"] == []
    assert [row[-1] for row in shown["batches"]] == [
        batch.why for batch in sorted(recording.batches, key=lambda batch: (batch.sent_ns, batch.number))
    ]
    assert bool(shown["comparison"]) == bool(preset(name)["baseline"])
    assert shown["figures"]["statistics"]["execution_count"] == len(recording.batches)
    assert len(shown["arrivals"]) == len(recording.arrivals())
    assert shown["figures"]["latencies"]["count"] == len({request.serial for request in recording.requests})


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"arrivals": {"kind": "list", "requests": []}}, "arrivals expected at least one request, got none"),
        ({"config": "max_batch_size: 2"}, "inference request batch-size must be <= 2 for 'simulated', got 4"),
        ({"service": {"kind": "fixed"}}, "service times: 'ms' expected a number, got None"),
    ],
)
def test_invalid_scenario_has_an_explanation(changed: dict[str, Any], error: str) -> None:
    assert ask(Session(), do="simulate", scenario={**preset("no-batching"), **changed})["error"] == error


def test_text_with_problems_is_not_simulated() -> None:
    result = ask(Session(), do="simulate", scenario={**preset("no-batching"), "config": "max_batchsize: 8"})
    assert [problem["line"] for problem in result["report"]["problems"]] == [1]
    assert "shown" not in result


def test_baseline_incompatible_with_the_requests_is_omitted() -> None:
    scenario = {**preset("no-batching"), "baseline": "max_batch_size: 2"}
    assert ask(Session(), do="simulate", scenario=scenario)["shown"]["comparison"] is None


def test_field_of_the_form_is_written_into_the_text() -> None:
    path = "dynamic_batching.max_queue_delay_microseconds"
    text = ask(Session(), do="set_field", text="max_batch_size: 8  # rows\ndynamic_batching { }", path=path, value=500)
    assert text == "max_batch_size: 8  # rows\ndynamic_batching { max_queue_delay_microseconds: 500 }"
    assert "no_such_field" in ask(Session(), do="set_field", text="", path="no_such_field", value=1)


def test_blame_splits_the_latency_of_a_request() -> None:
    session = Session()
    ask(session, do="simulate", scenario=preset("five-requests"))
    report = ask(session, do="blame", batch=2, request="4")
    assert sum(ms for _, ms, *_ in report["parts"]) == pytest.approx(50 + 100 / 3)


def test_exercise_on_the_scenario_is_graded() -> None:
    session = Session()
    sheet = ask(session, do="worksheet", batcher="scenario", scenario=preset("five-requests"))
    assert [request[0] for request in sheet["requests"]] == ["A", "B", "C", "D", "E"]
    assert ask(session, do="grade", action="check", answer=[["A", "B", "C"], ["D", "E"]])["done"]
    assert "closed loop" in ask(session, do="worksheet", batcher="scenario", scenario=preset("closed-loop"))
    assert ask(Session(), do="grade", action="check", answer=[]) == "expected an exercise, got none"


def test_recording_is_opened_with_a_scenario_that_simulates_it(tmp_path: Path) -> None:
    simulate_scenario(preset("bursts")).save(tmp_path / "rec.jsonl")
    session = Session()
    opened = ask(session, do="open", paths=[str(tmp_path / "rec.jsonl")], config="")
    again = ask(session, do="simulate", scenario=opened["scenario"])
    assert opened["shown"]["batches"] == again["shown"]["batches"]


def test_file_that_is_neither_a_recording_nor_a_trace_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").write_text("max_batch_size: 8")
    answer = ask(Session(), do="open", paths=[str(tmp_path / "config.pbtxt")], config="")
    assert answer == "expected a recording or a trace file, got none"


def test_playground_archive_is_reproducible_and_contains_only_sources(tmp_path: Path) -> None:
    for name in ("one.zip", "other.zip"):
        write_archive(tmp_path / name)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "other.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        names = archive.namelist()
    assert {"docs/playground/session.py", "tritonclient/grpc/model_config_pb2.py"} <= set(names)
    assert [name for name in names if not name.endswith((".py", ".pyi"))] == []
    assert (tmp_path / "one.zip").stat().st_size < 600_000
