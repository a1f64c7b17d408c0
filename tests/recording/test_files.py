"""A recording survives its file, and a file that is none is refused."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args

import pytest

import tritonnb as tnb
from tests.full_disk import files_up_to
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import BatchSent, Event, RequestCancelled
from tritonnb.recording.files import event_of

CONFIG = 'name: "m" max_batch_size: 2 sequence_batching { direct { } max_sequence_idle_microseconds: 5000 }'


def test_recording_is_the_same_after_saving_and_loading(tmp_path: Path) -> None:
    arrivals = [*tnb.sequences([3, 2, 4], every_ms=0.7), tnb.Arrival(1, sequence_id="late")]
    rec = tnb.simulate(CONFIG, arrivals, tnb.fixed(1))
    rec.save(tmp_path / "rec.jsonl")
    loaded = tnb.Recording.load(tmp_path / "rec.jsonl")
    assert loaded.events == rec.events
    assert loaded.configs == rec.configs
    assert [batch.why for batch in loaded.batches] == [batch.why for batch in rec.batches]
    assert [path.name for path in tmp_path.iterdir()] == ["rec.jsonl"]


def test_recording_that_does_not_fit_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    rec = tnb.simulate(CONFIG, tnb.sequences([3, 2, 4], every_ms=0.7), tnb.fixed(1))
    rec.save(tmp_path / "rec.jsonl")
    before = (tmp_path / "rec.jsonl").read_bytes()
    with files_up_to(500), pytest.raises(OSError, match="File too large"):
        rec.save(tmp_path / "rec.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["rec.jsonl"]
    assert (tmp_path / "rec.jsonl").read_bytes() == before


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


def test_preferred_sizes_in_the_reason_of_a_batch_stay_a_tuple(tmp_path: Path) -> None:
    config = "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 2 ] }"
    rec = tnb.simulate(config, [(0, 1), (1, 2), (2, 3)], tnb.fixed(1))
    rec.save(tmp_path / "rec.jsonl")
    assert tnb.Recording.load(tmp_path / "rec.jsonl").events == rec.events


def sample(kind: type[Any]) -> dict[str, Any]:
    """A valid event of a kind, as in a file."""
    values: dict[str, Any] = {"event": kind.__name__}
    for definition in fields(kind):
        declared = str(getattr(definition.type, "__name__", definition.type))
        values[definition.name] = "text" if declared.startswith("str") else 7
    special: dict[str, Any] = {"rule": "no_delay", "members": [1, None], "slots": [0, 1], "facts": {"preferred": [2]}}
    special |= {"requests": [[1, 1, 0, 0, ""]], "final": False}
    return {name: special.get(name, value) for name, value in values.items()}


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_every_field_of_an_event_is_checked(kind: type[Any]) -> None:
    valid = sample(kind)
    assert type(event_of(valid)) is kind
    optional = {definition.name for definition in fields(kind) if definition.default is not MISSING}
    for name in valid:
        wrong_values: list[Any] = [{"<script>": {}}, [["<script>"]], None if name != "slots" else 1.5]
        wrong_values.append(7 if valid[name] is False else True)
        for wrong in wrong_values:
            with pytest.raises(ValueError, match=r"expected an object|of the wrong type|expected a rule"):
                event_of({**valid, name: wrong})
        without = {other: value for other, value in valid.items() if other != name}
        if name in optional:  # newer than the format
            assert type(event_of(without)) is kind
            continue
        with pytest.raises(ValueError, match=r"expected (the fields|an object)"):
            event_of(without)
    with pytest.raises(ValueError, match="expected the fields"):
        event_of({**valid, "more": 1})


@pytest.mark.parametrize("name", ["SimpleNamespace", "pack", "dataclass", "nothing", None])
def test_only_events_are_created_from_a_file(name: str | None) -> None:
    with pytest.raises(ValueError, match="expected an object whose 'event' is one of"):
        event_of(json.loads(json.dumps({"event": name})))


def test_text_instead_of_a_number_is_refused(tmp_path: Path) -> None:
    rec = tnb.simulate(CONFIG, tnb.sequences([1], every_ms=1), tnb.fixed(1))
    rec.save(tmp_path / "rec.jsonl")
    text = (tmp_path / "rec.jsonl").read_text().replace('"size": 1', '"size": "<img src=x onerror=alert(1)>"')
    (tmp_path / "rec.jsonl").write_text(text)
    with pytest.raises(tnb.TritonError, match="line 2: expected an event: size has a value of the wrong type: '<img"):
        tnb.Recording.load(tmp_path / "rec.jsonl")


HEAD = '{"format": "tritonnb recording", "version": 1, "models": {}}\n'


@pytest.mark.parametrize("line", [b"[" * 100_000, b"\xff\xfe", b'{"event": "RequestCancelled", "time_ns": 1e400}'])
def test_invalid_lines_of_a_recording_are_refused(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "head").write_bytes(line)
    (tmp_path / "event").write_bytes(HEAD.encode() + line)
    with pytest.raises(tnb.TritonError, match="expected a tritonnb recording"):
        tnb.Recording.load(tmp_path / "head")
    with pytest.raises(tnb.TritonError, match="line 2: expected an event"):
        tnb.Recording.load(tmp_path / "event")


def test_reason_without_its_facts_is_refused() -> None:
    batch = {**sample(BatchSent), "rule": "preferred_size"}
    with pytest.raises(ValueError, match="expected the facts of the rule 'preferred_size'"):
        event_of({**batch, "facts": {}})


def test_numbers_have_64_bits() -> None:
    arrived = sample(RequestCancelled)
    for number in (2**64, -(2**63) - 1):
        with pytest.raises(ValueError, match="time_ns has a value of the wrong type"):
            event_of({**arrived, "time_ns": number})


@pytest.mark.parametrize("number", [2**62, 2**63, 2**64 - 1, -(2**63)])
@pytest.mark.parametrize("field", ["time_ns", "size", "serial"])
def test_numbers_beyond_62_bits_are_refused(tmp_path: Path, field: str, number: int) -> None:
    """Sums and differences of them would not be integers of 64 bits."""
    path = tmp_path / "recording"
    tnb.simulate("max_batch_size: 4", [(0, 1)], tnb.fixed(10)).save(path)
    head, arrived, *rest = path.read_text().splitlines()
    path.write_text("\n".join([head, json.dumps(json.loads(arrived) | {field: number}), *rest]))
    with pytest.raises(InvalidArgumentError, match=f"line 2: expected an event: {field} has a value of the wrong"):
        tnb.Recording.load(path)
