"""Figures of recordings: what they show is what the scheduler did."""

from __future__ import annotations

import base64
import re
from itertools import pairwise
from threading import Thread
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import rc_context, rcParams, style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import same_color, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

import tritonnb as tnb
from tritonnb.lab.figures import latency, picture
from tritonnb.lab.figures.batch_sizes import ENOUGH, SizeCost, most_efficient_size, size_costs
from tritonnb.lab.figures.palette import COMPUTE, DARK, PAPER, PRIORITIES, QUEUE
from tritonnb.lab.figures.picture import figure_of, on_dark
from tritonnb.lab.figures.queue import depth_columns
from tritonnb.lab.figures.scale import TimeScale
from tritonnb.recording.waits import queue_depth, waits_of

THIRD = 50_000 / 3
GUIDE = [(0, 4), (THIRD, 2), (0, 2), (2 * THIRD, 6), (2 * THIRD, 2)]
DELAYED = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }"
BUSY = 'name: "m" max_batch_size: 16 dynamic_batching { preferred_batch_size: [4, 8] } instance_group { count: 2 }'
NAMES = ["timeline", "batch_sizes", "latency", "queue"]


@pytest.fixture(scope="module")
def guide() -> tnb.Recording:
    return tnb.simulate(DELAYED, GUIDE, tnb.fixed(50))


@pytest.fixture(scope="module")
def busy() -> tnb.Recording:
    arrivals = tnb.poisson(rate=1500, duration=0.2, seed=1)
    return tnb.simulate(BUSY, arrivals, tnb.linear(per_row_ms=0.3, base_ms=3))


def texts(ax: Axes) -> list[str]:
    return [text.get_text().strip() for text in ax.texts]


def legend_of(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_figure_draws_into_given_axes_and_into_its_own(
    guide: tnb.Recording, busy: tnb.Recording, name: str
) -> None:
    for rec in (guide, busy, tnb.Recording()):
        ax = Figure().add_subplot()
        assert getattr(rec.plot, name)(ax=ax) is ax.figure
        assert getattr(rec.plot, name)() is not ax.figure


@pytest.mark.parametrize("name", NAMES)
def test_notebook_shows_a_figure_with_its_description(guide: tnb.Recording, name: str) -> None:
    bundle = getattr(guide.plot, name)()._repr_mimebundle_()
    assert bundle["text/plain"] == guide.plot.alt(name)
    assert f'alt="{guide.plot.alt(name)}"' in bundle["text/html"]
    assert bundle["image/png"].startswith("iVBOR")


def shown(figure: Figure) -> str:
    """The HTML that a notebook displays for a figure."""
    assert isinstance(figure, picture.Picture)
    return str(figure._repr_mimebundle_()["text/html"])


def drawn_svg(markup: str, name: str) -> str:
    """The SVG document of the image with a class."""
    (source,) = re.findall(rf'class="{name}"[^>]*src="data:image/svg\+xml;base64,([^"]*)"', markup)
    return base64.b64decode(source).decode()


def test_notebook_gets_a_drawing_for_light_and_one_for_dark_pages(guide: tnb.Recording) -> None:
    figure = guide.plot.timeline()
    markup = shown(figure)
    light, dark = drawn_svg(markup, "tnb-on-light"), drawn_svg(markup, "tnb-on-dark")
    for colour in (QUEUE, PAPER):
        assert colour.lower() in light
        assert colour.lower() not in dark
        assert DARK[colour].lower() in dark
    assert "filter" not in markup
    assert drawn_svg(shown(figure), "tnb-on-light") == light  # unchanged by the other drawing


def test_figure_with_its_own_background_is_drawn_once(guide: tnb.Recording) -> None:
    figure = guide.plot.timeline()
    figure.set_facecolor("lightyellow")
    assert "tnb-on-dark" not in shown(figure)
    with style.context("dark_background"):
        assert "tnb-on-dark" not in shown(guide.plot.timeline())


def test_on_dark_changes_colours_of_the_palette_only_and_restores_them() -> None:
    figure = Figure()
    ax = figure.add_subplot()
    (line,) = ax.plot([1, 2], color=COMPUTE)
    (own,) = ax.plot([1, 2], color="tab:pink")
    bars = ax.bar([1], [2], color=f"{QUEUE}80")
    with on_dark(figure):
        assert line.get_color() == pytest.approx((*to_rgb(DARK[COMPUTE]), 1))
        assert bars[0].get_facecolor() == pytest.approx((*to_rgb(DARK[QUEUE]), 128 / 255))
        assert own.get_color() == "tab:pink"
        assert figure.get_facecolor() == pytest.approx((*to_rgb(DARK[PAPER]), 1))
    assert line.get_color() == COMPUTE
    assert bars[0].get_facecolor() == pytest.approx((*to_rgb(QUEUE), 128 / 255))


def test_large_figure_is_shown_as_png(guide: tnb.Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "_LARGEST_SVG", 1000)
    markup = shown(guide.plot.timeline())
    assert markup.count('src="data:image/png;base64,') == 2


def test_figure_can_be_drawn_on_any_thread(guide: tnb.Recording) -> None:
    drawn = []
    thread = Thread(target=lambda: drawn.append(guide.plot.timeline()._repr_mimebundle_()))
    thread.start()
    thread.join()
    assert "image/png" in drawn[0]


def test_drawing_as_svg_keeps_parameters_that_another_thread_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may change them."""
    figure = picture.Picture()

    def savefig(raw: Any, **options: Any) -> None:
        rcParams["lines.linewidth"] = 7
        raw.write("<svg ></svg>")

    with rc_context():
        fonts = rcParams["svg.fonttype"]
        monkeypatch.setattr(figure, "savefig", savefig)
        figure.svg()
        assert rcParams["lines.linewidth"] == 7
        assert rcParams["svg.fonttype"] == fonts


def test_timeline_names_requests_rows_and_batches(guide: tnb.Recording) -> None:
    [ax] = guide.plot.timeline().axes
    assert {"3 requests, 8 rows", "2 requests, 8 rows"} <= set(texts(ax))
    assert {"1", "2", "3", "4", "5"} <= set(texts(ax))
    assert "simulated_0_0" in [label.get_text() for label in ax.get_yticklabels()]
    assert "queue depth 2" in [label.get_text() for label in ax.get_yticklabels()]


def test_timeline_has_a_lane_for_an_unused_instance() -> None:
    rec = tnb.simulate(BUSY, [(0, 1)], tnb.fixed(1))
    labels = [label.get_text() for label in rec.plot.timeline().axes[0].get_yticklabels()]
    assert labels[:2] == ["m_0_0", "m_0_1"]


def test_timeline_explains_the_marks_that_it_has(guide: tnb.Recording, busy: tnb.Recording) -> None:
    [ax] = guide.plot.timeline().axes
    assert (ax.get_xlabel(), legend_of(ax)) == ("time (ms)", ["batch, height: share of max_batch_size"])
    assert "preferred size" in legend_of(busy.plot.timeline().axes[0])
    many = tnb.simulate("max_batch_size: 4 dynamic_batching { }", [(1000 * n, 1) for n in range(40)], tnb.fixed(4))
    [ax] = many.plot.timeline().axes
    assert "4/4" in texts(ax)
    assert legend_of(ax) == ["batch, height: share of max_batch_size, label: requests/rows"]


@pytest.mark.parametrize(("rate", "service_ms"), [(20, 10), (300, 2), (2000, 0.3)])
def test_drawn_share_of_a_lane_equals_the_instances_busy_time(rate: int, service_ms: float) -> None:
    config = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 5000 }"
    rec = tnb.simulate(config, tnb.poisson(rate=rate, duration=3, seed=1), tnb.fixed(service_ms))
    figure = rec.plot.timeline()
    [ax] = figure.axes
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    red = np.asarray(canvas.buffer_rgba())[:, :, 0] / 255  # type: ignore[no-untyped-call]
    (left, _), (right, y) = (ax.transData.transform((at, 0.45)) for at in TimeScale.for_recording(rec).ends)
    pixels = red[len(red) - round(y), round(left) : round(right)]
    full = 1 - (1 - 0.45 + 0.45 * to_rgb(COMPUTE)[0])  # of a pixel that a batch covers
    covered = np.minimum(1, (1 - pixels) / full).mean()
    assert covered == pytest.approx(busy_share(rec), abs=0.05)


def busy_share(rec: tnb.Recording) -> float:
    begin, end = rec.span_ns
    return sum(batch.compute_ns for batch in rec.batches) / (end - begin) / len(rec.instances)


def test_text_descriptions_of_figures_state_their_numbers(guide: tnb.Recording, busy: tnb.Recording) -> None:
    assert "8 rows on simulated_0_0 at 16.7 ms; 8 rows on simulated_0_0 at 66.7 ms" in guide.plot.alt("timeline")
    assert "At most 2 requests waited at the same time" in guide.plot.alt("timeline")
    assert "2 batches of 8 rows, 50.0 ms" in guide.plot.alt("batch_sizes")
    assert f"latency of {len(busy.requests)} requests" in busy.plot.alt("latency")
    assert "a request waits" in busy.plot.alt("queue")


def test_picture_for_both_themes_shows_the_drawing_of_the_theme(guide: tnb.Recording) -> None:
    figure = guide.plot.timeline()
    root = ElementTree.fromstring(figure.svg_for_both_themes())
    light, dark = root.findall("{*}g")
    assert [group.get("class") for group in (light, dark)] == ["tnb-on-light", "tnb-on-dark"]
    for group, paper in ((light, PAPER), (dark, DARK[PAPER])):
        assert f"fill: {paper.lower()}" in ElementTree.tostring(group, encoding="unicode").lower()
    assert same_color(figure.get_facecolor(), PAPER)  # again


def test_unknown_figure_is_named(guide: tnb.Recording) -> None:
    with pytest.raises(tnb.TritonError, match=r"figure expected one of timeline, .* got 'pie'"):
        guide.plot.alt("pie")


def test_queue_depth_is_the_number_of_waiting_requests(guide: tnb.Recording) -> None:
    times, depths = queue_depth(waits_of(guide))
    assert [round(time / 1e6, 1) for time in times] == [0.0, 16.7, 33.3, 66.7]
    assert depths == [2, 0, 2, 0]


def test_queue_depth_equals_the_schedulers_when_a_batch_is_sent(busy: tnb.Recording) -> None:
    times, depths = queue_depth(waits_of(busy))
    after = dict(zip(times, depths, strict=True))
    last = {batch.sent_ns: batch.queue_depth for batch in busy.batches}
    assert {time: after[time] for time in last} == last


def test_refused_request_is_drawn_waiting_until_its_refusal() -> None:
    config = "max_batch_size: 1 dynamic_batching { default_queue_policy { default_timeout_microseconds: 500 } }"
    rec = tnb.simulate(config, [(0, 1), (10, 1)], tnb.fixed(10))
    refused = waits_of(rec)[1]
    assert (refused.refused, refused.end_ns - refused.begin_ns) == ("Request timeout expired", 500_001)
    assert "refused" in legend_of(rec.plot.timeline().axes[0])


def sizes_run(repeats: int) -> tnb.Recording:
    """Batches of 1, 2, 4, 6 and 8 rows, several of each."""
    config = "max_batch_size: 8 dynamic_batching { }"
    arrivals = [(100_000 * number, size) for number, size in enumerate([1, 2, 4, 6, 8] * repeats)]
    return tnb.simulate(config, arrivals, tnb.table({1: 10, 2: 11, 4: 12, 6: 18, 8: 30}))


def test_most_efficient_size_is_the_smallest_with_the_lowest_cost() -> None:
    rec = sizes_run(ENOUGH)
    costs = size_costs(rec)
    assert [(cost.size, cost.count, cost.batch_ms, cost.spread_ms) for cost in costs] == [
        (1, 20, 10, (10, 10)), (2, 20, 11, (11, 11)), (4, 20, 12, (12, 12)), (6, 20, 18, (18, 18)),
        (8, 20, 30, (30, 30)),
    ]  # fmt: skip
    assert most_efficient_size(costs).size == 4
    labels = [label for ax in rec.plot.batch_sizes().axes for label in ax.get_legend_handles_labels()[1]]
    assert "from 4 rows on within 5 % of the lowest (of sizes with n ≥ 20)" in labels
    assert "within 5% of its minimum from 4 rows on: 3.0 ms (n = 20)" in rec.plot.alt("batch_sizes")


def test_too_few_batches_give_no_recommendation() -> None:
    rec = sizes_run(ENOUGH - 1)
    assert most_efficient_size(size_costs(rec)) is None
    labels = [label for ax in rec.plot.batch_sizes().axes for label in ax.get_legend_handles_labels()[1]]
    assert not any("of the lowest" in label for label in labels)
    assert "too few to compare" in rec.plot.alt("batch_sizes")


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0.1, 20)), min_size=1, max_size=8))
def test_no_size_is_cheaper_than_the_recommended_size(drawn: list[tuple[int, float]]) -> None:
    costs = [SizeCost(size, count, (ms,)) for size, (count, ms) in enumerate(drawn, 1)]
    found = most_efficient_size(costs)
    assert found is None or found.row_ms <= 1.05 * min(cost.row_ms for cost in costs)


def test_batch_sizes_have_a_numeric_axis_and_counts_their_sample_size() -> None:
    figure = sizes_run(2).plot.batch_sizes()
    bars = figure.axes[0].containers[0]
    assert [round(bar.get_x() + bar.get_width() / 2, 6) for bar in bars] == [1, 2, 4, 6, 8]
    assert all(tick == int(tick) for tick in figure.axes[0].get_xticks())
    assert "batches (n = 10)" in [text.get_text() for ax in figure.axes for text in ax.texts]


@pytest.mark.parametrize("few", [False, True])
def test_legend_of_batch_sizes_explains_hollow_boxes_if_there_are_some(few: bool) -> None:
    arrivals = [(100_000 * number, 8 if few and number == 0 else 1 + number % 2) for number in range(20)]
    rec = tnb.simulate("max_batch_size: 8 dynamic_batching { }", arrivals, tnb.fixed(5))
    ax = rec.plot.batch_sizes().axes[0]
    assert ("hollow: n < 5" in legend_of(ax)) == few
    assert ax.get_ylabel().replace("\n", " ") == "time per batch (ms, median, with quartiles)"


def test_percentiles_have_sample_size_and_interval(busy: tnb.Recording) -> None:
    ax = busy.plot.latency().axes[0]
    assert f"n = {len(busy.requests)} requests" in ax.get_xlabel()
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    ordered = sorted(request.latency_ns / 1e6 for request in busy.requests)
    for label, share in zip(labels, (0.50, 0.95, 0.99), strict=True):
        value, low, high = map(float, re.findall(r"[\d.]+", label.replace("95% interval", ""))[1:])
        assert low <= value <= high
        below = sum(latency < low for latency in ordered) / len(ordered)
        assert below < share


def test_comparison_is_drawn_with_a_common_time_axis(guide: tnb.Recording) -> None:
    changed = guide.what_if(max_queue_delay_microseconds=0)
    figure = changed.plot()
    before, after = figure.axes
    assert before.get_xlim() == after.get_xlim()
    assert "max_queue_delay_microseconds: 0" in after.get_title(loc="left")
    assert changed.verdict() in figure.alt


@pytest.mark.parametrize(
    ("name", "message"), [("slots", "a recording of a stateful model"), ("steps", "a recording of an ensemble")]
)
def test_figure_that_does_not_apply_has_no_description(name: str, message: str) -> None:
    for made in (tnb.Recording().plot.alt, tnb.Recording().plot.svg):
        with pytest.raises(tnb.TritonError, match=message):
            made(name)


def test_long_names_are_truncated_at_the_start_and_long_legends_wrap() -> None:
    config = f"""name: "{"long_" * 12}" max_batch_size: 4 instance_group {{ count: 2 }}
        dynamic_batching {{ priority_levels: 7 default_priority_level: 1 }}"""
    arrivals = [tnb.Arrival(100 * number, priority=1 + number % 7) for number in range(40)]
    [ax] = tnb.simulate(config, arrivals, tnb.fixed(5)).plot.timeline().axes
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert [(name[0], name[-9:], len(name)) for name in names[:2]] == [("…", "long__0_0", 32), ("…", "long__0_1", 32)]
    figure, legend = figure_of(ax), ax.get_legend()
    FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]
    assert legend.get_window_extent().width < figure.bbox.width
    assert legend_of(ax)[1:3] == ["priority 1", "priority 2"]
    assert [line.get_color() for line in legend.get_lines()][:2] == list(PRIORITIES[:2])


def test_view_has_as_many_rows_as_requests_waited_at_once(busy: tnb.Recording) -> None:
    [ax] = busy.plot.timeline().axes
    _, depths = queue_depth(waits_of(busy))
    (lines,) = [artist for artist in ax.collections if isinstance(artist, LineCollection) and artist.get_zorder() == 2
                and len(artist.get_segments()) == len(waits_of(busy))]  # fmt: skip
    rows = {round(segment[0][1], 6) for segment in lines.get_segments()}
    assert len(rows) <= max(depths) + 1  # a request that did not wait has a dedicated mark


def test_queue_of_thousands_of_requests_is_drawn_as_columns_of_maximum_and_mean() -> None:
    arrivals = tnb.poisson(rate=4000, duration=2, seed=1)
    dense = tnb.simulate('name: "m" max_batch_size: 16 dynamic_batching { }', arrivals, tnb.linear(0.2, base_ms=1))
    times, depths = queue_depth(waits_of(dense))
    assert len(times) > 5000
    ax = dense.plot.queue().axes[0]
    steps: list[Any] = [patch.get_data() for patch in ax.patches if isinstance(patch, StepPatch)]
    mean, deepest = steps
    assert len(deepest.values) <= 250
    assert max(deepest.values) == max(depths)
    lengths = [end - begin for begin, end in pairwise(times)]
    total = sum(depth * length for depth, length in zip(depths, lengths, strict=False)) / 1e6
    assert float(np.dot(mean.values, np.diff(mean.edges))) == pytest.approx(total, rel=1e-6)
    assert (mean.values <= deepest.values).all()
    assert legend_of(ax) == ["deepest of 20.0 ms", "mean of 20.0 ms"]
    assert "Deepest and mean queue of every 20.0 ms." in dense.plot.alt("queue")


@given(changes=st.dictionaries(st.integers(0, 60), st.integers(0, 9), max_size=12), width=st.integers(1, 25))
def test_columns_of_a_queue_show_its_depth_at_every_time(changes: dict[int, int], width: int) -> None:
    times = sorted(changes)
    depths = [changes[time] for time in times]
    edges, deepest, mean = depth_columns(times, depths, 10, 50, width)
    at = [next((changes[time] for time in reversed(times) if time <= moment), 0) for moment in range(50)]
    for begin, end, most, average in zip(edges, edges[1:], deepest, mean, strict=False):
        assert (most, average) == (max(at[begin:end]), pytest.approx(np.mean(at[begin:end])))


@pytest.mark.parametrize("name", ["timeline", "batch_sizes", "latency", "queue"])
def test_empty_figure_has_a_message_instead_of_axes(name: str) -> None:
    [ax] = getattr(tnb.Recording().plot, name)().axes
    assert [text.get_text() for text in ax.texts] == ["Nothing was executed."]
    assert not ax.axison


def test_many_refused_requests_are_not_labelled() -> None:
    config = 'name: "m" max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 2 } }'
    rec = tnb.simulate(config, [(at, 1) for at in range(300)], tnb.fixed(10))
    assert len(rec.requests) == 3
    assert len(rec.plot.timeline().axes[0].texts) <= 3


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("latency_ms", [4.93174, 0.001, 0.25, 1000, 123456.7])
def test_axis_of_equal_latencies_has_readable_numbers(latency_ms: float, count: int) -> None:
    arrivals = [tnb.Arrival(ms=10 * latency_ms * number) for number in range(count)]
    ax = Figure().subplots()
    latency.draw(tnb.simulate("max_batch_size: 1", arrivals, tnb.fixed(latency_ms)), ax)
    FigureCanvasAgg(figure_of(ax)).draw()  # type: ignore[no-untyped-call]
    assert ax.xaxis.get_offset_text().get_text() == ""
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert len(set(labels)) == len(labels) > 2
