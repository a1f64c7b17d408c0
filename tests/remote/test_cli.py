"""``tritonnb trace --explain`` and ``--html``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tritonnb as tnb
from tests.remote.test_from_trace import CONFIG, entries
from tritonnb.cli.main import main
from tritonnb.scheduling.reasons import RULES


def test_a_trace_is_explained_in_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_timeline_can_be_written_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, output = tmp_path / "trace.json", tmp_path / "out.json"
    trace.write_text(json.dumps(entries(10)))
    assert main(["trace", str(trace), "--explain", "-o", str(output)]) == 0
    assert "the reason is not known" not in capsys.readouterr().out
    assert json.loads(output.read_text())["traceEvents"]


def test_a_trace_becomes_a_web_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_sample_is_no_web_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, page = tmp_path / "trace.json", tmp_path / "page.html"
    trace.write_text(json.dumps(entries(10)))
    assert main(["trace", str(trace), "--html", str(page), "--trace-rate", "5"]) == 1
    assert "expected a recording of every request, got a sample" in capsys.readouterr().err
    assert not page.exists()


def test_an_unknown_configuration_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(entries(10)))
    assert main(["trace", str(trace), "--explain", "--config", str(tmp_path / "missing.pbtxt")]) == 1
    assert "cannot read the configuration" in capsys.readouterr().err
