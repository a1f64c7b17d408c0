"""A recording survives its file, and a file that is none is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import tritonnb as tnb

CONFIG = 'name: "m" max_batch_size: 2 sequence_batching { direct { } max_sequence_idle_microseconds: 5000 }'


def test_a_recording_is_the_same_after_saving_and_loading(tmp_path: Path) -> None:
    arrivals = [*tnb.sequences([3, 2, 4], every_ms=0.7), tnb.Arrival(1, sequence_id="late")]
    rec = tnb.simulate(CONFIG, arrivals, tnb.fixed(1))
    rec.save(tmp_path / "rec.jsonl")
    loaded = tnb.Recording.load(tmp_path / "rec.jsonl")
    assert loaded.events == rec.events
    assert loaded.configs == rec.configs
    assert [batch.why for batch in loaded.batches] == [batch.why for batch in rec.batches]
    assert [path.name for path in tmp_path.iterdir()] == ["rec.jsonl"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "expected a tritonnb recording"),
        ("[]\n", "expected a tritonnb recording"),
        ('{"format": "other", "version": 1}\n', "expected a tritonnb recording"),
        ('{"format": "tritonnb recording", "version": 1}\n', "expected a tritonnb recording"),
        (
            '{"format": "tritonnb recording", "version": 1, "models": {"m": "max_batch"}}\n',
            "expected a tritonnb recording",
        ),
        ('{"format": "tritonnb recording", "version": 9, "models": {}}\n', "expected format version 1, got 9"),
        (
            '{"format": "tritonnb recording", "version": 1, "models": {}}\n{"event": "Nothing"}\n',
            "line 2: expected an event",
        ),
        ('{"format": "tritonnb recording", "version": 1, "models": {}}\n{"event"\n', "line 2: expected an event"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(tnb.TritonError, match=complaint):
        tnb.Recording.load(tmp_path / "file")
