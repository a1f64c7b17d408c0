"""Two recordings side by side."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest

import tritonnb as tnb

EAGER = 'name: "m" max_batch_size: 8 dynamic_batching { }'
PATIENT = 'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }'
ARRIVALS = [(0, 4), (0, 2), (17_000, 2), (33_000, 6), (33_000, 2)]


def simulated(config: str, arrivals: Any = ARRIVALS) -> tnb.Recording:
    return tnb.simulate(config, arrivals, tnb.fixed(50))


def live(rec: tnb.Recording) -> tnb.Recording:
    """The same batches as if a server had recorded them."""
    return tnb.Recording(rec.events, rec.configs)


@pytest.fixture
def both() -> tnb.Comparison:
    return tnb.compare(simulated(EAGER), simulated(PATIENT), names=("eager", "patient"))


def test_numbers_of_both_recordings_share_a_table(both: tnb.Comparison) -> None:
    rows = {name: (one, other) for name, one, other in both.table()}
    assert rows["batches"] == (3, 2)
    assert rows["requests"] == (5, 5)
    assert rows["rate"] == (both.before.summary()["rate"], both.after.summary()["rate"])
    assert both.verdict().startswith("patient compared with eager: rate (requests/s)")
    assert "batches 3 → 2" in both.verdict()


def test_text_and_html_have_a_column_for_each_under_its_name(both: tnb.Comparison) -> None:
    assert "     eager   patient\n" in repr(both)
    assert re.search(">eager</th><th[^>]*>patient</th>", both._repr_html_())
    assert "null rows" in repr(both)
    assert "null rows" in both._repr_html_()


def test_null_rows_are_counted() -> None:
    config = 'name: "m" max_batch_size: 2 sequence_batching { direct { } }'
    rec = tnb.simulate(config, tnb.sequences([3, 3, 3], every_ms=20, stagger_ms=5), tnb.fixed(4))
    nulls = sum(batch.requests.count(None) for batch in rec.batches)
    assert nulls > 0
    assert ("null_rows", nulls, nulls) in tnb.compare(rec, rec).table()
    assert ("null_rows", nulls, nulls) in rec.what_if().table()


@pytest.mark.parametrize(
    ("one", "other", "note"),
    [
        (simulated(EAGER), simulated(PATIENT), "eager and patient are simulated: their times and rates are virtual"),
        (live(simulated(EAGER)), simulated(PATIENT), "patient is simulated: its times and rates are virtual"),
    ],
)
def test_simulated_recordings_are_labelled_as_virtual(one: tnb.Recording, other: tnb.Recording, note: str) -> None:
    comparison = tnb.compare(one, other, names=("eager", "patient"))
    assert note in repr(comparison)
    assert note in comparison._repr_html_()


def test_comparison_of_live_recordings_has_no_simulated_numbers() -> None:
    comparison = tnb.compare(live(simulated(EAGER)), live(simulated(PATIENT)))
    assert "virtual" not in repr(comparison) + comparison._repr_html_()


def test_simulated_recording_is_labelled_in_files_and_parts(tmp_path: Path) -> None:
    rec = simulated(EAGER)
    rec.save(tmp_path / "rec.jsonl")
    for recording in (
        rec,
        tnb.Recording.load(tmp_path / "rec.jsonl"),
        rec.for_model("m"),
        rec.between(0, 20),
        rec.what_if().after,
    ):
        assert recording.simulated
        assert "virtual" in repr(recording)
        assert "virtual" in recording._repr_html_()
    assert not live(rec).simulated
    assert "virtual" not in repr(live(rec))


def test_batches_with_equal_arrivals_are_compared(both: tnb.Comparison) -> None:
    assert both.difference().startswith("batch 1 differs. eager: at 0.0 ms 1 request, 4 rows")
    requests = [{batch.requests for batch in run.batches} for run in (both.before, both.after)]
    for run, numbers, other in zip((both.before, both.after), both.changed_batches(), requests[::-1], strict=True):
        assert numbers == {batch.number for batch in run.batches if batch.requests not in other} != set()
    unlike = tnb.compare(simulated(EAGER), simulated(EAGER, ARRIVALS[:-1]))
    assert unlike.difference() == "the arrivals differ, so the batches are not compared one by one"
    assert unlike.changed_batches() == (set(), set())


def test_comparison_ignores_request_serials() -> None:
    rec = simulated(EAGER)
    shifted = tnb.simulate(EAGER.replace('"m"', '"other"'), ARRIVALS, tnb.fixed(50))
    both_models = tnb.Recording([*rec.events, *shifted.events])
    assert tnb.compare(rec, both_models.for_model("other")).difference() == "the batches are the same"


def test_both_recordings_are_drawn_over_the_same_time_range(both: tnb.Comparison) -> None:
    figure = both.plot()
    one, other = figure.axes
    assert one.get_xlim() == other.get_xlim()
    assert one.get_title(loc="left").startswith("eager: 3 batches")
    assert other.get_title(loc="left").startswith("patient: 2 batches")
    part = both.plot(start_ms=10, end_ms=40)
    assert part.axes[0].get_xlim()[0] > 9
    part.savefig(io.BytesIO())


def test_both_recordings_open_in_one_view(both: tnb.Comparison) -> None:
    _, before, _, after, _ = both.view().children
    assert before.value == "<b>eager</b>"
    assert after.value.startswith("<b>patient</b>: batch 1 differs")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((5, simulated(EAGER)), "compare expected two recordings, got int"),
        ((simulated(EAGER), None), "compare expected two recordings, got NoneType"),
    ],
)
def test_objects_other_than_recordings_are_refused(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(tnb.TritonError, match=words):
        tnb.compare(*arguments)


@pytest.mark.parametrize("names", [("a", "a"), ("a",), "ab", (1, 2)])
def test_comparison_needs_two_different_names(names: Any) -> None:
    with pytest.raises(tnb.TritonError, match="names expected two different strings"):
        tnb.compare(simulated(EAGER), simulated(EAGER), names=names)
