"""The batch view's own arithmetic in a browser: nothing, little, strange names, and what comes for hours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

import tritonnb as tnb
from tritonnb.notebook.batch_view import BatchView
from tritonnb.notebook.feed import Feed

RUN = """async ([source, code, given]) => {
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    return new Function("parts", "given", code)(await import(url), given);
}"""
DRAW = """
const story = new parts.Story();
story.merge(given);
const colours = Object.fromEntries(["ink", "faint", "paper", "panel", "line", "accent"].map((each) => [each, "#222"]));
const surface = new parts.SvgSurface(900, parts.heightOf(story), colours, story.describe());
parts.drawStory(surface, story, { from: -0.1, span: 10, end: story.now, cursor: story.now, selected: null });
return surface.toString();
"""
REFUSE = """
const story = new parts.Story();
for (let now = 1; now <= 200; now += 1) {
  const refused = Array.from({ length: 100 }, (_, at) => [now, now, `${now} ${at}`, 0, "no room", 0]);
  const stays = refused.map(([, , label], at) => [label, "m_0", at, now, now, now, "END", 1, now]);
  const none = { instances: [], pending: [], depth: 0, counts: {}, batches: {}, done: {}, depths: [] };
  story.merge({ ...none, now, refused, stays });
}
return [story.refused, story.stays].map((each) => [each.size, [...each.keys()].pop()]);
"""
SCHEDULERS = {
    "default": "",
    "dynamic": "dynamic_batching { max_queue_delay_microseconds: 5000 preferred_batch_size: 4 }",
    "direct": "sequence_batching { direct { } }",
    "oldest": "sequence_batching { oldest { max_candidate_sequences: 100 } }",
}


@pytest.fixture(scope="module")
def run(browser: Any) -> Callable[[str, Any], Any]:
    page = browser.new_page()
    return lambda code, given=None: page.evaluate(RUN, [str(BatchView._esm), code, given])


@pytest.mark.parametrize("name", ["m", "<b>&\"'", "x" * 300])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_nothing_and_a_single_request_are_drawn_whatever_the_model_is_called(run, scheduler: str, name: str):
    config = text_format.Parse(f"max_batch_size: 8 {SCHEDULERS[scheduler]}", pb.ModelConfig(name=name))
    request = tnb.Arrival(0, sequence_id=1, sequence_start=True) if config.HasField("sequence_batching") else (0, 1)
    one = [tnb.simulate(config, [request], tnb.fixed(ms)).view().history for ms in (0, 5)]
    for history in (Feed(name, config, 0).history(0), *one):
        picture = run(DRAW, history)
        assert ElementTree.fromstring(picture)[0].text.startswith(f"{name}: ")
        assert not any(wrong in picture for wrong in ("NaN", "Infinity", "undefined"))


def test_of_what_comes_for_hours_the_newest_is_kept(run):
    assert run(REFUSE) == [[6000, "0.02 200 99"], [6000, "m_0 99 0.02"]]
