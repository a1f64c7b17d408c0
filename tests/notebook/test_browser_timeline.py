"""The batch view's JavaScript in a browser: without data, with unusual names, and with hours of data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

import tritonnb as tnb
from tritonnb.notebook.batch_view import BatchView
from tritonnb.notebook.view_session import ViewSession

RUN = """async ([source, code, history]) => {
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    return new Function("modules", "history", code)(await import(url), history);
}"""
DRAW = """
const timeline = new modules.Timeline();
timeline.merge(history);
const page = Object.fromEntries(["ink", "faint", "paper", "panel", "line"].map((name) => [name, "#222"]));
const theme = { ...page, ...timeline.meta.themes.light };
return [true, false].map((batches) => {
  const surface = new modules.SvgSurface(900, modules.heightOf(timeline), theme, timeline.describe());
  const shown = { from: -0.1, span: 10, end: timeline.now, cursor: timeline.now, selected: null, focus: null };
  modules.drawTimeline(surface, timeline, { ...shown, batches });
  return surface.toString();
});
"""
REFUSE = """
const timeline = new modules.Timeline();
for (let now = 1; now <= 200; now += 1) {
  const refused = Array.from({ length: 100 }, (_, index) => [now, now, `${now} ${index}`, 0, "queue full", 0]);
  const occupancy = refused.map(([, , label], index) => [label, "m_0", index, now, now, now, "END", 1, now]);
  for (const [label] of occupancy) timeline.colourNumber(label);
  timeline.merge({ ...history, number: now, now, refused, occupancy });
}
return [timeline.refused, timeline.occupancy, timeline.colourNumbers].map((map) => [map.size, [...map.keys()].pop()]);
"""
COLUMNS = """
const timeline = new modules.Timeline();
timeline.merge(history);
const theme = { ...timeline.meta.themes.light, panel: "#eee", line: "#222", faint: "#222", ink: "#222", paper: "#fff" };
const surface = new modules.SvgSurface(900, modules.heightOf(timeline), theme, "");
const shown = { from: 0, span: 1000, end: timeline.now, cursor: null, selected: null, focus: null, batches: false };
modules.drawTimeline(surface, timeline, shown);
return surface.toString().split(`fill="${theme.compute}" fill-opacity="0.35"`).length - 1;
"""
SCHEDULERS = {
    "default": "",
    "dynamic": "dynamic_batching { max_queue_delay_microseconds: 5000 preferred_batch_size: 4 }",
    "direct": "sequence_batching { direct { } }",
    "oldest": "sequence_batching { oldest { max_candidate_sequences: 100 } }",
}


@pytest.fixture(scope="module")
def run(browser: Any) -> Iterator[Callable[[str, Any], Any]]:
    page = browser.new_page()
    yield lambda code, history: page.evaluate(RUN, [str(BatchView._esm), code, history])
    page.close()


@pytest.mark.parametrize("name", ["m", "<b>&\"'", "x" * 300])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_empty_timeline_and_a_single_request_are_drawn_for_any_model_name(
    run: Callable[[str, Any], Any], scheduler: str, name: str
) -> None:
    config = text_format.Parse(f"max_batch_size: 8 {SCHEDULERS[scheduler]}", pb.ModelConfig(name=name))
    request = tnb.Arrival(0, sequence_id=1, sequence_start=True) if config.HasField("sequence_batching") else (0, 1)
    recorded = [tnb.simulate(config, [request], tnb.fixed(ms)).view().history for ms in (0, 5)]
    for history in (ViewSession(name, config, 0).history(), *recorded):
        for picture in run(DRAW, history):
            assert ElementTree.fromstring(picture)[0].text.startswith(f"{name}: ")
            assert not any(wrong in picture for wrong in ("NaN", "Infinity", "undefined"))


def test_thousands_of_slots_still_fit_on_a_canvas(run: Callable[[str, Any], Any]) -> None:
    slots = 'name: "m" instance_group { count: 1 } sequence_batching { oldest { max_candidate_sequences: 4000 } }'
    history = ViewSession("m", text_format.Parse(slots, pb.ModelConfig()), 0).history()
    picture, _ = map(
        ElementTree.fromstring, run(DRAW, {**history, "slot_state": {"owners": [[1, "m_0_0", 3999, 1000.0]]}})
    )
    assert 4000 < float(picture.attrib["height"]) < 10_000


def test_timeline_keeps_only_the_newest_data(run: Callable[[str, Any], Any]) -> None:
    history = ViewSession("m", pb.ModelConfig(name="m"), 0).history()
    assert run(REFUSE, history) == [
        [6000, "0.02 200 99"],
        [6000, "m_0 99 0.02"],
        [6000, "200 99"],
    ]


def test_columns_of_a_long_batch_have_no_gaps(run: Callable[[str, Any], Any]) -> None:
    rec = tnb.simulate('name: "m" max_batch_size: 8 dynamic_batching { }', [(0, 4)], tnb.fixed(1000))
    assert run(COLUMNS, rec.view().history) > 100
