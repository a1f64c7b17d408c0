"""Traces among the files of `explain`: their figures go through the same rules as those of other files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tritonnb as tnb
from tests.lab.traces.traces import CONFIG, entries

UNNAMED = CONFIG.partition('name: "m"')[2]


def trace(requests: int, **how: Any) -> str:
    return json.dumps(entries(requests, **how))


def test_trace_says_what_limits_the_rate() -> None:
    answer = tnb.explain(trace(400), CONFIG)
    assert answer.causes == {"m": "batches_not_full"}
    assert "on average 1.0 executions of 5.00 ms run at the same time on 1 instance" in str(answer)
    assert "from_trace(FILES, CONFIG).what_if" in str(answer)


def test_sample_has_neither_a_rate_nor_batches() -> None:
    text = str(tnb.explain(trace(2000, every=10), CONFIG))
    assert "the trace seems to be sampled" in text
    assert "The rate is needed to tell" in text
    assert "The figures do not tell: the numbers of requests and executions" in text


def test_files_of_one_trace_are_joined() -> None:
    whole = entries(400)
    parts = [json.dumps(whole[:1200]), json.dumps(whole[1200:])]
    assert "400 requests ran in" in str(tnb.explain(*parts, CONFIG))
    assert "Not read: 'source 2'" in str(tnb.explain(parts[0], '[{"id": 1, "model_name": "m"', CONFIG))


def test_configuration_without_a_name_has_that_of_its_directory(tmp_path: Path) -> None:
    paths = [tmp_path / name / "config.pbtxt" for name in ("other", "m")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(UNNAMED if path.parent.name == "m" else "max_batch_size: 2")
    other = trace(20).replace('"m"', '"other"').replace('"id": ', '"id": 9')
    answer = tnb.explain(trace(400), other, *paths)
    assert answer.causes["m"] == "batches_not_full"
    assert "`m/config.pbtxt`" in str(answer)


def test_configuration_without_a_name_is_that_of_the_only_model() -> None:
    assert tnb.explain(trace(400), UNNAMED).causes == {"m": "batches_not_full"}
