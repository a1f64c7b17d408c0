"""The batch view is true at every rate: pixels and words of a page with known deliveries."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

import tritonnb as tnb
from tests.notebook.view_page import COVERED, ViewPage, deliveries
from tritonnb.recording.batches import Batch, RequestRecord, batches_of
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import MARKS

DENSE = 'name: "dense" max_batch_size: 64 dynamic_batching { }'
DELAYED = 'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }'
DIRECT = """name: "s" max_batch_size: 4 instance_group { count: 2 }
    sequence_batching { direct { } max_sequence_idle_microseconds: 3000000 }"""
GUIDE = [(0, 4), (50_000 / 3, 2), (0, 2), (100_000 / 3, 6), (100_000 / 3, 2)]


@cache
def traffic(rate: int, service_ms: float = 2.0, seconds: float = 6) -> Recording:
    arrivals = tnb.poisson(rate=rate, duration=seconds, seed=rate)
    return tnb.simulate(DENSE, arrivals, tnb.linear(per_row_ms=0.05, base_ms=service_ms))


def busy_share(rec: Recording, begin_ms: float, end_ms: float) -> float:
    """The share of a period in which batches were executed, from the statistics."""
    begin, end = (rec.span_ns[0] + round(time * 1e6) for time in (begin_ms, end_ms))
    busy = sum(max(0, min(batch.exec_end_ns, end) - max(batch.exec_start_ns, begin)) for batch in rec.batches)
    return busy / (end - begin) / len(rec.instances)


def joined(rec: Recording) -> list[tuple[Batch, list[RequestRecord]]]:
    return list(batches_of(rec.events))


@pytest.mark.parametrize(
    ("rate", "service_ms"), [(5, 6.0), (5, 100.0), (200, 2.0), (200, 0.5), (2000, 0.3), (2000, 2.0), (5000, 0.1)]
)
def test_drawn_utilization_equals_the_statistics(view: ViewPage, rate: int, service_ms: float) -> None:
    rec = traffic(rate, service_ms, 3 if rate > 1000 else 6)
    history, sent = deliveries(rec)
    view.open(history)
    view.receive(sent)
    view.settle()
    begin, span, end = view.run("[view.frame.from, view.frame.span, view.frame.end]")
    shown = max(0.0, begin), min(begin + span, end)
    assert view.page.evaluate(COVERED) == pytest.approx(busy_share(rec, *shown), abs=0.05)


@pytest.mark.parametrize("rate", [5, 200, 2000])
def test_figure_description_matches_the_picture(view: ViewPage, rate: int) -> None:
    history, sent = deliveries(traffic(rate, 0.3, 3))
    view.open(history)
    view.receive(sent)
    view.settle()
    if view.run("view.window.batches"):
        assert "box: a batch" in view.text("legend")
    else:
        assert "each column counts all of 40 ms" in view.text("legend")
        assert "column: 40 ms" in [text for text, *_ in view.labels()]
    view.do("all")
    level = view.run("view.frame.columns && view.frame.columns.width")
    assert level is None or f"each column counts all of {level:g} ms" in view.text("legend")


def test_label_is_read_from_its_line(view: ViewPage) -> None:
    """Of two requests that arrive at once one does not wait and one waits 50 ms: they have separate lines."""
    arrivals = [(0, 4), (0, 8), (60_000, 1)]
    view.open(
        tnb.simulate("max_batch_size: 8 dynamic_batching { }", arrivals, tnb.fixed(50)).view().history, live=False
    )
    members = view.run(
        """[...view.timeline.batches.values()].flatMap((batch) => batch.members.map((member) =>
            [member.label, member.queue_row, member.queued, batch.sent]))"""
    )
    assert [(label, queued, sent) for label, _, queued, sent in members][:2] == [("1", 0, 0), ("2", 0, 50)]
    assert members[0][1] != members[1][1]
    left = view.run("view.frame.scale.left")
    assert {"1", "2"} <= {text for text, _, right in view.labels() if right < left + 40}


@pytest.mark.parametrize("service_ms", [5, 7, 12])
def test_numbers_without_a_word_are_requests(view: ViewPage, service_ms: float) -> None:
    rec = tnb.simulate(DELAYED, tnb.poisson(rate=150, duration=0.3, seed=4), tnb.fixed(service_ms))
    view.open(rec.view().history, live=False)
    above_boxes = [text for text, *_ in view.labels() if text[0] in "".join(mark for mark, _ in MARKS.values())]
    assert above_boxes
    assert [text for text in above_boxes if re.search(r"\d$", text)] == []


def test_labels_are_not_cut_at_the_edges(view: ViewPage) -> None:
    rec = tnb.simulate(DELAYED, tnb.poisson(rate=150, duration=3, seed=4), tnb.fixed(20))
    history, sent = deliveries(rec)
    view.open(history)
    view.receive(sent)
    view.do("pause")
    for _ in range(6):
        view.do("in")
        left, width = view.run("[view.frame.scale.left, view.canvas.clientWidth]")
        labels = view.labels()
        in_picture = [label for label in labels if label[2] > left and not label[0].endswith((" ms", " s"))]
        assert [label for label in in_picture if label[1] < left - 1] == []
        assert [label for label in labels if label[2] > width + 1] == []


def test_thin_lanes_are_not_crossed_by_links_of_others(view: ViewPage) -> None:
    for count, is_linked in ((2, True), (16, False)):
        config = f'name: "m" max_batch_size: 8 instance_group {{ count: {count} }}'
        view.open(
            tnb.simulate(config, tnb.poisson(rate=50, duration=1, seed=1), tnb.fixed(20)).view().history, live=False
        )
        assert view.run("view.frame.linksWaits") == is_linked


def test_axis_has_its_last_label(view: ViewPage) -> None:
    view.open(tnb.simulate(DELAYED, GUIDE, tnb.fixed(50)).view().history, live=False)
    view.run("(Object.assign(view.window, { from: 0, span: 100 }), view.draw())")
    assert [text for text, *_ in view.labels() if text.endswith(" ms")][-1] == "100 ms"


def test_stepping_back_stays_at_its_event_while_deliveries_arrive(view: ViewPage) -> None:
    rec = traffic(200, 2.0)
    history, sent = deliveries(rec)
    view.open(history)
    view.receive(sent[:20])
    view.do("back")
    view.do("back")
    description = view.text("event")
    number = view.run("view.timeline.counts.requests")
    view.receive(sent[20:])
    view.run("view.draw()")
    assert view.text("event") == description
    assert any(word in description for word in ("arrives", "sent to", "is done"))
    assert view.run("view.timeline.counts.requests") == number
    view.do("back")
    times = [float(text.split()[0]) for text in (view.text("event"), description)]
    assert times[0] <= times[1]


def test_pause_applies_to_all_parts_of_the_view(view: ViewPage) -> None:
    arrivals = tnb.sequences([12] * 12, every_ms=120, stagger_ms=60)
    rec = tnb.simulate(DIRECT, arrivals, tnb.fixed(20))
    history, sent = deliveries(rec)
    view.open(history)
    view.receive(sent[:10])
    view.do("pause")
    before = {part: view.text(part) for part in ("head", "slots", "legend")}
    picture = view.run("view.svg()")
    for delivery in sent[10:20]:
        view.receive([delivery | {"slot_state": {"owners": [[99, "s_0_0", 0, 10.0]], "backlog": [77], "omitted": 0}}])
    view.run("view.draw()")
    assert {part: view.text(part) for part in ("slots", "legend")} == {
        part: before[part] for part in ("slots", "legend")
    }
    assert view.text("head").startswith(before["head"].split(" requests")[0])
    assert "paused at" in view.text("head")
    assert view.run("view.svg()") == picture
    view.do("pause")
    view.page.locator(".tnb-slots", has_text="backlog: 77").wait_for()


def test_idle_time_left_is_at_most_the_limit(view: ViewPage) -> None:
    rec = tnb.simulate(DIRECT, tnb.sequences([3], every_ms=50, stagger_ms=0), tnb.fixed(5))
    history, sent = deliveries(rec)
    view.open(history)
    owner = {"owners": [["1", "s_0_0", 0, 3000.0]], "backlog": [], "omitted": 0}
    view.receive([delivery | {"slot_state": owner} for delivery in sent])
    view.page.wait_for_function(
        """() => {
          view.textUpdatedAt = 0;
          view.draw();
          return document.querySelector(".tnb-slots").textContent.includes("times out in");
        }"""
    )
    (left,) = re.findall(r"times out in (\d+\.\d) s", view.text("slots"))
    assert 0 < float(left) <= 3.0


def test_description_of_a_time_refers_to_existing_data(view: ViewPage) -> None:
    history, sent = deliveries(traffic(2000, 0.3, 3))
    view.open(history)
    view.receive(sent)
    view.do("all")
    view.run("(view.cursor = 1500, view.draw())")
    if not view.run("view.timeline.isExact(1500, 1500.001)"):
        assert view.text("event").split(": ")[1].startswith(("8 ms from", "16 ms from", "10 ms from", "20 ms from"))
        assert "batches" in view.text("event")
    first, last = view.run("view.timeline.spans.at(-1)")
    view.run(f"(view.cursor = {(first + last) / 2}, view.draw())")
    assert "waiting, " in view.text("event")


def test_selected_range_has_the_statistics_of_the_recording(view: ViewPage) -> None:
    rec = tnb.simulate(DELAYED, tnb.poisson(rate=150, duration=3, seed=4), tnb.fixed(20))
    view.open(rec.view().history, live=False)
    view.run("Object.assign(view.window, { from: 500, span: 1000 })")
    view.page.locator(".tnb-picture canvas").focus()
    view.page.keyboard.press("r")
    begin, end = (rec.span_ns[0] + round(ms * 1e6) for ms in (500, 1500))
    ended = [request for request in rec.requests if begin <= request.exec_end_ns < end]
    answered = [request.exec_end_ns - request.queued_ns for request in ended]
    sent = [batch for batch in rec.batches if begin <= batch.sent_ns < end]
    text = view.text("event")
    assert text.startswith(f"1 s from 500.000 ms: {len(answered)} requests answered, p50 ")
    p50, p99 = (float(value) for value in re.findall(r"p\d\d ([\d.]+) ms", text))
    assert (p50, p99) == pytest.approx(tuple(np.percentile(answered, [50, 99]) / 1e6), abs=0.06)
    assert f"{len(sent)} batches sent, {sum(batch.size for batch in sent) / len(sent):.1f} rows on average" in text
    assert float(re.findall(r"busy ([\d.]+) %", text)[0]) == pytest.approx(100 * busy_share(rec, 500, 1500), abs=0.6)
    view.run("(view.received.spans.length = 0, view.textUpdatedAt = -1e6, view.draw())")
    assert f"{len(sent)} batches" in view.text("event")  # of the intervals
    view.page.keyboard.press("Escape")
    assert view.text("event") == ""


def test_discarded_batches_are_drawn_as_columns(view: ViewPage) -> None:
    rec = traffic(200, 2.0)
    history, sent = deliveries(rec)
    view.open(history)
    view.receive(sent)
    view.run("(view.received.batches.clear(), view.received.spans.length = 0)")
    view.do("all")
    assert not view.run("view.window.batches")
    end = min(view.run("view.frame.end"), view.run("view.frame.from + view.frame.span"))
    assert view.page.evaluate(COVERED) == pytest.approx(busy_share(rec, 0, end), abs=0.05)


def test_lost_deliveries_are_hatched_and_labelled(view: ViewPage) -> None:
    history, sent = deliveries(traffic(200, 2.0))
    view.open(history)
    view.receive(sent[:10] + sent[30:])
    view.do("all")
    assert "not received" in [text for text, *_ in view.labels()]
    middle = sum(view.run("view.timeline.gaps[0]")) / 2
    view.run(f"(view.cursor = {middle}, view.draw())")
    assert "these deliveries were not received" in view.text("event")


def test_history_fills_gaps_of_lost_deliveries(view: ViewPage) -> None:
    rec = traffic(200, 2.0)
    history, sent = deliveries(rec)
    view.open(history)
    view.receive(sent[:10] + sent[30:])
    complete = dict(rec.view().history)
    view.page.evaluate("(history) => window.replaceHistory(history)", {**complete, "number": sent[-1]["number"]})
    assert view.run("view.received.gaps") == []


def test_views_of_a_comparison_have_the_same_level_of_detail(view: ViewPage) -> None:
    config = 'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }'
    rec = tnb.simulate(config, tnb.poisson(rate=100, duration=2, seed=1), tnb.fixed(9))
    view.open(rec.view().history, live=False)
    assert view.run("view.window.batches")
    view.run("view.showMoment({ from: view.window.from, span: view.window.span, cursor: null, columns: true })")
    assert not view.run("view.window.batches")
    view.run("view.showMoment({ from: 0, span: 100, cursor: null, columns: false })")
    assert view.run("view.window.batches")


def test_wait_scale_ends_at_the_longest_visible_wait(view: ViewPage) -> None:
    config = 'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 2000 }'
    rec = tnb.simulate(config, tnb.poisson(rate=600, duration=2, seed=1), tnb.fixed(20))
    view.open(rec.view().history, live=False)
    longest_ms = (
        max(batch.sent_ns - min(request.queued_ns for request in requests) for batch, requests in joined(rec)) / 1e6
    )
    assert view.run("view.frame.maxWait") == pytest.approx(longest_ms, rel=0.01)
    assert f"{longest_ms:.0f} ms" in [text for text, *_ in view.labels()]


def test_marks_of_waiting_requests_are_no_longer_than_a_third_of_the_waits(view: ViewPage) -> None:
    config = 'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 1500 }'
    view.open(
        tnb.simulate(config, tnb.poisson(rate=140, duration=2, seed=1), tnb.fixed(0.5)).view().history, live=False
    )
    for span, dots in ((100, True), (1500, False)):
        view.run(f"Object.assign(view.window, {{ from: 200, span: {span} }})")
        circles = view.run(
            """[...new DOMParser().parseFromString(view.svg(), "image/svg+xml").querySelectorAll("circle")]
                .map((circle) => Number(circle.getAttribute("r")))"""
        )
        assert bool(circles) == dots
        assert all(2 * radius <= 1.5 / span * view.run("view.frame.scale.width") for radius in circles)


def test_waiting_sequence_is_always_in_the_backlog(view: ViewPage) -> None:
    arrivals = tnb.sequences([12] * 12, every_ms=120, stagger_ms=60)
    history, sent = deliveries(tnb.simulate(DIRECT, arrivals, tnb.fixed(20)))
    view.open(history)
    state = {"owners": [], "backlog": ["9", "10"], "omitted": 0}
    view.receive([delivery | {"slot_state": state} for delivery in sent[:8]])
    view.do("pause")
    pending = view.run("view.timeline.pending.map(({ sequence, queued }) => [String(sequence), queued])")
    waiting = {name: time for name, time in reversed(pending) if name in {"9", "10"}}
    assert set(waiting) == {"9", "10"}
    view.run(
        f"(view.timeline.slotState.backlog = view.timeline.pending.map(({{ sequence }}) => sequence)"
        f".filter((one, at, all) => all.indexOf(one) === at && ['9', '10'].includes(String(one))),"
        f" view.cursor = {max(waiting.values())} + 1, view.textUpdatedAt = -1e6, view.draw())"
    )
    assert "backlog: 9, 10" in view.text("slots")


def test_queue_columns_show_peaks(view: ViewPage) -> None:
    """Few requests wait: the filled mean is near 0, whatever the deepest moment was."""
    history, sent = deliveries(traffic(2000, 0.3, 3))
    view.open(history)
    view.receive(sent)
    view.settle()
    totals = view.run(
        """view.timeline.counters.intervals(500, 2500, 0).map(([, , index]) =>
            view.timeline.counters.queue.total(0, index, index)).filter(Boolean)
            .map(({ depth, waited }) => [depth, waited / 1e6 / 10])"""
    )
    assert max(depth for depth, _ in totals) >= 2
    assert all(mean <= depth for depth, mean in totals)
    rec = traffic(2000, 0.3, 3)
    waited = sum(request.queue_ns for request in rec.requests) / 1e6
    assert sum(mean * 10 for _, mean in totals) == pytest.approx(waited * 2000 / 3000, rel=0.2)


def test_legend_has_every_colour_of_requests(view: ViewPage) -> None:
    config = """name: "m" max_batch_size: 4
        dynamic_batching { priority_levels: 3 default_priority_level: 2 }"""
    arrivals = [tnb.Arrival(3000 * at, priority=at % 4) for at in range(40)]
    view.open(tnb.simulate(config, arrivals, tnb.fixed(5)).view().history, live=False)
    used = view.run(
        "[...new Set([...view.timeline.batches.values()]"
        ".flatMap((batch) => batch.members.map((member) => member.priority)))]"
    )
    assert sorted(used) == [1, 2, 3]
    for level in used:
        assert f"P{level}: priority {level}" in view.text("legend")
    view.run("Object.assign(view.window, { from: 0, span: 60 })")
    written = {text[:2] for text, *_ in view.labels() if " · " in text and text.startswith("P")}
    assert written == {"P1", "P2", "P3"}


@pytest.mark.parametrize("dark", [False, True])
def test_swatches_have_the_colours_of_the_picture(view: ViewPage, dark: bool) -> None:
    view.open(tnb.simulate(DELAYED, GUIDE, tnb.fixed(50)).view().history, live=False, dark=dark)
    swatches = view.page.eval_on_selector_all(".tnb-key", "(nodes) => nodes.map((node) => node.style.backgroundColor)")
    names = view.page.eval_on_selector_all(".tnb-key", "(nodes) => nodes.map((node) => node.parentNode.innerText)")
    meanings = {"input": "input", "compute": "compute", "output": "output", "waiting, and delay used": "queue"}
    for name, swatch in zip(names, swatches, strict=True):
        if name in meanings:
            shown = view.run(f"view.theme.{meanings[name]}")
            red, green, blue = (int(shown[at : at + 2], 16) for at in (1, 3, 5))
            assert swatch == f"rgb({red}, {green}, {blue})"
            assert shown.lower() in view.run("view.svg()").lower()


def test_legend_and_minimap_remain_with_forced_colours(view: ViewPage) -> None:
    view.page.emulate_media(forced_colors="active")
    try:
        view.open(tnb.simulate(DELAYED, GUIDE, tnb.fixed(50)).view().history, live=False)
        view.page.wait_for_function(
            """() => {
              const keys = [...document.querySelectorAll(".tnb-key")];
              const shown = keys.map((key) => getComputedStyle(key).backgroundColor);
              return shown.length > 2 && new Set(shown).size === shown.length;
            }"""
        )
        assert view.page.locator(".tnb-minimap canvas").bounding_box()["width"] > 50
    finally:
        view.page.emulate_media(forced_colors="none")


def test_one_row_is_singular_in_text(view: ViewPage) -> None:
    view.open(tnb.simulate(DELAYED, [(0, 1)], tnb.fixed(50)).view().history, live=False)
    view.run("(view.cursor = 30, view.draw())")
    assert "running: 1 row on" in view.text("event")
    for _ in range(3):
        view.do("forward")
        assert "1 rows" not in view.text("event")


def test_slots_view_height_is_independent_of_the_backlog(view: ViewPage) -> None:
    rec = tnb.simulate(DIRECT, tnb.sequences([3] * 30, every_ms=60, stagger_ms=5), tnb.fixed(9))
    assert max(held.assigned_ns - held.arrived_ns for held in rec.slot_occupancy) > 0
    history, sent = deliveries(rec)
    view.open(history)
    heights = set()
    for delivery in sent:
        view.receive([delivery])
        view.settle()
        heights.add(view.run("view.root.clientHeight"))
    assert len(heights) == 1


def test_many_slots_fit_on_a_page(view: ViewPage) -> None:
    many = DIRECT.replace("max_batch_size: 4", "max_batch_size: 45")
    rec = tnb.simulate(many, tnb.sequences([6] * 90, every_ms=60, stagger_ms=3), tnb.fixed(30))
    history, sent = deliveries(rec)
    view.open(history)
    view.receive(sent[: len(sent) // 2])
    view.settle()
    assert view.run("view.canvas.clientHeight") < 750
    assert view.page.locator(".tnb-cell").count() == 24
    assert " more held, 0 free" in view.text("slots")
    labels = [text for text, *_ in view.labels()]
    assert "null" not in labels
    assert len(labels) < 60
