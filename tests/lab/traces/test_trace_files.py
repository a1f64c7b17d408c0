"""Traces are read with or without a configuration; other files are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import tritonnb as tnb
from tests.lab.traces.traces import CONFIG, entries


def test_trace_without_a_configuration_has_batches_but_no_reasons(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(entries(50)))
    recording = tnb.Recording.from_trace(path)
    assert {batch.reason.rule for batch in recording.batches} == {"unknown"}
    assert "the configuration of the model was not given" in recording.batches[0].why
    assert str(recording.agreement).startswith("not replayed")
    with pytest.raises(tnb.TritonError, match="expected the configuration of model 'm', got none: give config="):
        recording.what_if(count=2)


def test_configurations_are_given_by_name_or_repository(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(entries(50)))
    (tmp_path / "repository" / "m").mkdir(parents=True)
    (tmp_path / "repository" / "m" / "config.pbtxt").write_text(CONFIG)
    for config in (tmp_path / "repository", {"m": CONFIG}, {"max_batch_size": 8, "dynamic_batching": {}}):
        assert tnb.Recording.from_trace(path, config).agreement.share == 1
    with pytest.raises(tnb.TritonError, match="one of the models in the trace \\('m'\\), got one of 'other'"):
        tnb.Recording.from_trace(path, CONFIG.replace('"m"', '"other"'))


def test_directory_of_a_model_is_its_configuration_and_other_directories_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(entries(50)))
    for name, text in (("m", CONFIG), ("other", CONFIG), ("unnamed", CONFIG.replace('name: "m"', ""))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(text)
        assert tnb.Recording.from_trace(path, tmp_path / name).agreement.share == 1
    (tmp_path / "other" / "config.pbtxt").write_text(CONFIG.replace('"m"', '"other"'))
    (tmp_path / "empty").mkdir()
    for name, message in (("other", "got one of 'other'"), ("empty", "which contains no config.pbtxt of them")):
        with pytest.raises(tnb.TritonError, match=rf"in the trace \('m'\), {message}|of the trace \('m'\).*{message}"):
            tnb.Recording.from_trace(path, tmp_path / name)


def test_note_explains_inferred_instance_names(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(entries(50)))
    for config in (CONFIG, None):
        text = repr(tnb.Recording.from_trace(path, config))
        assert "From a trace: model 'm': the names of instances are made up, since a trace has none." in text


@pytest.mark.parametrize("parents", [{1: 1}, {1: 2, 2: 1}, {key: key + 1 for key in range(1, 10_000)}])
def test_requests_that_are_said_to_have_caused_themselves_have_no_cause(
    parents: dict[int, int], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    traced = entries(10_000 if len(parents) > 2 else 50)
    for entry in traced:
        if "model_name" in entry and entry["id"] in parents:
            entry["parent_id"] = parents[entry["id"]]
    path.write_text(json.dumps(traced))
    recording = tnb.Recording.from_trace(path)
    recording.derive()
    count = len(parents) - 99 if len(parents) > 2 else len(parents)
    assert recording.source is not None
    assert any(note.startswith(f"{count} request") for note in recording.source.notes)


def test_recording_and_a_trace_are_not_confused(tmp_path: Path) -> None:
    trace, saved = tmp_path / "trace.json", tmp_path / "recording.jsonl"
    trace.write_text(json.dumps(entries(5)))
    tnb.Recording.from_trace(trace, CONFIG).save(saved)
    with pytest.raises(tnb.TritonError, match=r"expected traces, got a recording: open it with Recording\.load"):
        tnb.Recording.from_trace(saved)
    with pytest.raises(tnb.TritonError, match=r"got another kind of file: traces are read by Recording\.from_trace"):
        tnb.Recording.load(trace)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": [1]}, "id"),
        ({"id": 2**63}, "id"),
        ({"model_name": 1}, "model_name"),
        ({"model_version": "one"}, "model_version"),
        ({"request_id": None}, "request_id"),
        ({"parent_id": "x"}, "parent_id"),
        ({"timestamps": [{"name": "QUEUE_START"}]}, "timestamps"),
        ({"timestamps": [{"name": "QUEUE_START", "ns": "1"}]}, "timestamps"),
        ({"timestamps": 1}, "timestamps"),
        ({"activity": "TENSOR_QUEUE_INPUT"}, "tensor"),
        ({"activity": "TENSOR_QUEUE_INPUT", "tensor": {"name": "X", "shape": "1,a"}}, "tensor"),
    ],
)
def test_entries_with_values_of_the_wrong_type_are_refused(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([*entries(2), {"id": 1, "model_name": "m", "model_version": 1, **change}]))
    with pytest.raises(tnb.TritonError, match=f"entry 17: '{field}' has a value of the wrong type, or none"):
        tnb.Recording.from_trace(path)


def test_trace_of_deeply_nested_values_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("[" * 100_000)
    with pytest.raises(tnb.TritonError, match="got deeply nested values"):
        tnb.Recording.from_trace(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "expected an OTLP trace message in JSON, got JSON without 'resourceSpans'"),
        ("[1]", "expected a list of objects with an 'id'"),
        (" ", "expected traces, got an empty file"),
        ("text", "expected traces, which are a list or OTLP messages in JSON, or .* in protobuf, got other content"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(tnb.TritonError, match=f"trace file '{path}': {message}"):
        tnb.Recording.from_trace(path)
    with pytest.raises(tnb.TritonError, match=r"expected a file, or a series missing\.0"):
        tnb.Recording.from_trace(tmp_path / "missing")
    shutil.rmtree(tmp_path)
