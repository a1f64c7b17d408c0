"""``tritonnb trace --explain`` and ``--html``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tritonnb as tnb
from tests.lab.traces.traces import CONFIG, entries
from tritonnb.cli.main import main
from tritonnb.scheduling.reasons import RULES


def test_trace_is_explained_in_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, config = tmp_path / "trace.json", tmp_path / "config.pbtxt"
    trace.write_text(json.dumps(entries(100)))
    config.write_text(CONFIG)
    assert main(["trace", str(trace), "--explain", "--config", str(config)]) == 0
    text = capsys.readouterr().out
    recording = tnb.Recording.from_trace(trace, config)
    assert text.startswith(f"m\n  {recording.verdict()}\n")
    assert str(recording.agreement) in text
    assert f"batches: {RULES['no_delay']}" in text
    assert not (tmp_path / "trace.perfetto.json").exists()


def test_timeline_can_be_written_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, output = tmp_path / "trace.json", tmp_path / "out.json"
    trace.write_text(json.dumps(entries(10)))
    assert main(["trace", str(trace), "--explain", "-o", str(output)]) == 0
    assert "the reason is not known" not in capsys.readouterr().out
    assert json.loads(output.read_text())["traceEvents"]


def test_series_name_selects_all_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, series, output = entries(10), tmp_path / "trace.json", tmp_path / "out.json"
    for number, part in enumerate((whole[:30], whole[30:])):
        (tmp_path / f"trace.json.{number}").write_text(json.dumps(part))
    assert main(["trace", str(series), "-o", str(output)]) == 0
    of_series = json.loads(output.read_text())
    series.write_text(json.dumps(whole))
    for file in tmp_path.glob("trace.json.*"):
        file.unlink()
    assert main(["trace", str(series), "-o", str(output)]) == 0
    assert json.loads(output.read_text()) == of_series
    assert main(["trace", str(tmp_path / "missing")]) == 1
    assert "expected a file, or a series missing.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"import tritonnb", "a timeline expected a list of objects with an 'id'"),
        (b"\xff\x00", "expected a list of objects with an 'id'"),
        (b'{"resourceSpans": []}', "OTLP messages are read with --explain and --html"),
        (b'{"format": "tritonnb recording"}', "expected traces, got a recording: open it with Recording.load"),
    ],
)
def test_timeline_of_a_file_that_is_not_a_trace_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    file, output = tmp_path / "file", tmp_path / "out.json"
    file.write_bytes(content)
    assert main(["trace", str(file), "-o", str(output)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"trace file '{file}': ")
    assert message in error
    assert not output.exists()


@pytest.mark.parametrize("option", [["--config", "missing.pbtxt"], ["--trace-rate", "1"]])
def test_options_without_effect_on_a_timeline_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    trace, output = tmp_path / "trace.json", tmp_path / "out.json"
    trace.write_text(json.dumps(entries(10)))
    assert main(["trace", str(trace), "-o", str(output), *option]) == 1
    assert "--config and --trace-rate apply to --explain and --html: add one of them" in capsys.readouterr().err
    assert not output.exists()


def test_trace_becomes_a_web_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, config, page = tmp_path / "trace.json", tmp_path / "config.pbtxt", tmp_path / "page.html"
    trace.write_text(json.dumps(entries(10)))
    config.write_text(CONFIG)
    assert main(["trace", str(trace), "--html", str(page), "--config", str(config)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    text = page.read_text("utf-8")
    recording = tnb.Recording.from_trace(trace, config)
    assert "<h1>Recording of m</h1>" in text
    assert recording._repr_html_() in text
    assert "(inferred)" in text
    assert not (tmp_path / "trace.perfetto.json").exists()


def test_sampled_recording_cannot_become_a_web_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, page = tmp_path / "trace.json", tmp_path / "page.html"
    trace.write_text(json.dumps(entries(10)))
    assert main(["trace", str(trace), "--html", str(page), "--trace-rate", "5"]) == 1
    assert "expected a recording of every request, got a sample" in capsys.readouterr().err
    assert not page.exists()


def test_error_for_invalid_configuration_file_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(entries(10)))
    assert main(["trace", str(trace), "--explain", "--config", str(tmp_path / "missing.pbtxt")]) == 1
    assert "cannot read the configuration" in capsys.readouterr().err
    (tmp_path / "wrong.pbtxt").write_text("import os")
    assert main(["trace", str(trace), "--explain", "--config", str(tmp_path / "wrong.pbtxt")]) == 1
    assert capsys.readouterr().err.startswith(f"'{tmp_path / 'wrong.pbtxt'}': 1:8: Message type")
