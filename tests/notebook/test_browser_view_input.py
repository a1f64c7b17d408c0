"""Scales that are chosen and pinned, wheel and keys, tips: the batch view in a page with known deliveries."""

from __future__ import annotations

from itertools import pairwise

import pytest

import tritonnb as tnb
from tests.notebook.test_browser_view_truth import DELAYED, DENSE, DIRECT
from tests.notebook.view_page import ViewPage, deliveries


@pytest.fixture
def paused(view: ViewPage) -> ViewPage:
    rec = tnb.simulate(DELAYED, tnb.poisson(rate=80, duration=2, seed=4), tnb.fixed(30))
    history, sent = deliveries(rec)
    view.open(history)
    view.receive(sent)
    view.do("pause")
    return view


def shown(view: ViewPage) -> tuple[float, float]:
    return tuple(view.run("[view.window.from, view.window.span]"))


def centre_of(view: ViewPage, kind: str, condition: str = "true") -> tuple[float, float]:
    """The centre of the first thing of a kind in the picture, where nothing else is in front of it."""
    centre = view.run(
        f"""view.frame.targets.filter((target) => target.kind === "{kind}" && {condition})
            .map((t) => [t.x + t.width / 2, t.y + t.height / 2])
            .find(([x, y]) => x > view.frame.scale.left + 5 && x < view.frame.scale.right - 5 &&
                view.targetAt({{ x, y }}).kind === "{kind}")"""
    )
    assert centre is not None, kind
    return tuple(centre)


def hover(view: ViewPage, x: float, y: float) -> None:
    box = view.page.locator(".tnb-picture canvas").bounding_box()
    view.page.mouse.move(box["x"] + x, box["y"] + y)


@pytest.mark.parametrize(
    ("rate", "service_ms", "scrolls"),
    [(3, 60, True), (3, 0.3, True), (20, 20, False), (100, 5, False), (1000, 0.2, False)],
)
def test_picture_scrolls_or_holds_the_last_batches(view: ViewPage, rate: int, service_ms: float, scrolls: bool) -> None:
    rec = tnb.simulate(DENSE, tnb.poisson(rate=rate, duration=8, seed=2), tnb.fixed(service_ms))
    history, sent = deliveries(rec)
    view.open(history)
    view.receive(sent)
    view.run("(view.window.changedAt = -1e6, view.draw())")
    view.settle()
    assert view.run("[view.window.batches, view.window.holds]") == [True, not scrolls]
    assert 5 <= view.run("view.frame.batches.length") <= (80 if scrolls else 25)
    rows, largest = view.run("view.window.rows"), max(batch.size for batch in rec.batches)
    assert 1 <= rows <= max(4, 2 * largest)
    assert f"{rows:g} of 64 rows" in [text for text, *_ in view.labels()]


@pytest.mark.parametrize("rate", [5, 300])
def test_pausing_keeps_exactly_the_picture_on_the_screen(view: ViewPage, rate: int) -> None:
    history, sent = deliveries(tnb.simulate(DENSE, tnb.poisson(rate=rate, duration=4, seed=2), tnb.fixed(2)))
    view.open(history)
    view.receive(sent)
    view.settle()
    before = view.run("[view.window.from, view.window.span, view.window.batches]")
    view.do("pause")
    assert view.run("[view.window.from, view.window.span, view.window.batches]") == pytest.approx(before, abs=20)
    assert view.run("view.window.batches")


def test_held_batches_are_shown_for_a_second(view: ViewPage) -> None:
    history, sent = deliveries(tnb.simulate(DENSE, tnb.poisson(rate=300, duration=3, seed=2), tnb.fixed(2)))
    view.open(history)
    view.receive(sent[:10])
    view.settle()
    picture = view.run("(view.window.heldAt = performance.now() + 1e6, view.svg())")
    view.receive(sent[10:])
    view.run("view.draw()")
    assert view.run("view.svg()") == picture
    view.run("(view.window.heldAt = performance.now() - 1000, view.draw())")
    assert view.run("view.svg()") != picture


def test_span_does_not_change_with_every_delivery(view: ViewPage) -> None:
    rec = tnb.simulate(DENSE, tnb.poisson(rate=5, duration=10, seed=2), tnb.fixed(5))
    history, sent = deliveries(rec)
    view.open(history)
    spans = []
    for delivery in sent:
        view.receive([delivery])
        view.run("(view.window.changedAt -= 100, view.draw())")
        spans.append(view.run("view.window.span"))
    steps = [span for before, span in pairwise(spans[10:]) if span != before]
    assert len(steps) <= 5


def test_pinned_scale_does_not_change_with_new_data(view: ViewPage) -> None:
    rec = tnb.simulate(DENSE, tnb.poisson(rate=60, duration=10, seed=2), tnb.fixed(5))
    history, sent = deliveries(rec)
    view.open(history)
    view.receive(sent[:10])
    view.do("pin")
    assert view.page.locator('[data-do="pin"]').get_attribute("aria-pressed") == "true"
    before = view.run("[view.window.span, view.window.rows]")
    view.receive(sent[10:])
    view.run("(view.window.changedAt = -1e6, view.draw())")
    assert view.run("[view.window.span, view.window.rows]") == before


def test_keys_zoom_and_pan(paused: ViewPage) -> None:
    paused.page.mouse.move(0, 0)
    paused.page.locator(".tnb-picture canvas").focus()
    _, span = shown(paused)
    paused.page.keyboard.press("w")
    assert shown(paused)[1] == pytest.approx(span * 0.6)
    paused.page.keyboard.press("s")
    assert shown(paused)[1] == pytest.approx(span * 0.96)
    before = shown(paused)
    paused.page.keyboard.press("d")
    assert shown(paused) == pytest.approx((before[0] + 0.2 * before[1], before[1]))
    paused.page.keyboard.press("a")
    assert shown(paused) == pytest.approx(before)


def test_mouse_wheel_zooms_at_the_pointer_if_the_picture_has_focus(paused: ViewPage) -> None:
    page = paused.page
    page.evaluate("() => { document.activeElement.blur(); window.scrollTo(0, 100); }")
    before = shown(paused)
    hover(paused, 500, 40)
    page.mouse.wheel(0, 50)
    page.wait_for_function("() => window.scrollY > 100")
    assert shown(paused) == before
    page.locator(".tnb-picture canvas").evaluate("(canvas) => canvas.focus({ preventScroll: true })")
    scrolled = page.evaluate("() => window.scrollY")
    hover(paused, 500, 40)
    time = paused.run("view.timeAt(500)")
    page.mouse.wheel(0, -50)
    page.wait_for_function(f"() => window.view.window.span < {before[1]}")
    assert paused.run("view.timeAt(500)") == pytest.approx(time)
    assert page.evaluate("() => window.scrollY") == scrolled


def test_minimap_shows_and_moves_the_window(paused: ViewPage) -> None:
    minimap = paused.page.locator(".tnb-minimap canvas")
    assert "to" in minimap.get_attribute("aria-valuetext")
    box = minimap.bounding_box()
    minimap.click(position={"x": box["width"] / 2, "y": 8})
    from_, span = shown(paused)
    end = paused.run("view.minimap.end")
    assert from_ + span / 2 == pytest.approx(end / 2, rel=0.02)
    minimap.focus()
    paused.page.keyboard.press("ArrowRight")
    assert shown(paused)[0] == pytest.approx(from_ + 0.25 * span)


def test_clicks_do_not_scroll_the_page(paused: ViewPage) -> None:
    page = paused.page
    page.evaluate("() => window.scrollTo(0, 150)")
    before = page.evaluate("() => [window.scrollY, document.querySelector('#root').offsetHeight]")
    x, y = centre_of(paused, "batch")
    for point in ((x, y), (x, paused.run("view.frame.layout.depthTop + 10")), (x, y)):
        hover(paused, *point)
        page.mouse.down()
        page.mouse.up()
        after = page.evaluate("() => [window.scrollY, document.querySelector('#root').offsetHeight]")
        assert after == before
    assert "Why now?" in paused.text("details")
    page.keyboard.press("Escape")
    assert page.locator(".tnb-details").is_hidden()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("batch", ("batch ", "oldest waited", "left waiting")),
        ("request", ("request ", "arrived", "waited", "in batch")),
        ("depth", ("waiting",)),
        ("budget", ("of 20 ms of max_queue_delay used",)),
    ],
)
def test_tooltip_describes_the_element_under_the_pointer(paused: ViewPage, kind: str, words: tuple[str, ...]) -> None:
    hover(paused, *centre_of(paused, kind))
    for word in words:
        assert word in paused.text("tip")
    hover(paused, 2, 2)
    assert paused.page.locator(".tnb-tip").is_hidden()


def test_request_and_its_wait_are_highlighted_together(paused: ViewPage) -> None:
    hover(paused, 2, 2)
    assert paused.run("view.frame.focusLines.length") == 0
    queue_top = paused.run("view.frame.layout.queueTop")
    for place in (f"target.y > {queue_top}", f"target.y + target.height < {queue_top}"):
        hover(paused, *centre_of(paused, "request", place))
        lines = paused.run("view.frame.focusLines.map(([points]) => points)")
        assert any(y > queue_top for points in lines for _, y in points)
        assert any(y < queue_top for points in lines for _, y in points)


def test_tooltip_names_the_slot_of_a_sequence(view: ViewPage) -> None:
    rec = tnb.simulate(DIRECT, tnb.sequences([6] * 8, every_ms=100, stagger_ms=30), tnb.fixed(40))
    view.open(rec.view().history, live=False)
    hover(view, *centre_of(view, "null"))
    assert "null request in slot" in view.text("tip")
    hover(view, *centre_of(view, "request"))
    assert "of sequence" in view.text("tip")
    hover(view, *centre_of(view, "occupancy"))
    assert "in slot" in view.text("tip")


def test_tips_of_columns_describe_their_interval(view: ViewPage) -> None:
    rec = tnb.simulate(DENSE, tnb.poisson(rate=2000, duration=2, seed=2), tnb.fixed(0.2))
    history, sent = deliveries(rec)
    view.open(history)
    view.receive(sent)
    view.do("all")
    hover(view, 600, 60)
    title, *lines = view.text("tip").splitlines()
    assert " ms from " in title
    begin = float(title.split("from ")[1].split()[0])
    width = view.run("view.frame.columns.width")
    counted = [batch for batch in rec.batches if begin <= (batch.exec_start_ns - rec.span_ns[0]) / 1e6 < begin + width]
    assert f"{len(counted)} batch" in lines[1]
    assert f"largest {max(batch.size for batch in counted)}" in lines[1]


def test_refused_request_has_a_tooltip_and_a_legend_entry(view: ViewPage) -> None:
    config = 'name: "m" max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 2 } }'
    rec = tnb.simulate(config, [(20_000 * at, 1) for at in range(10)], tnb.fixed(100))
    view.open(rec.view().history, live=False)
    hover(view, *centre_of(view, "refusal"))
    assert "was refused" in view.text("tip")
    assert "request refused" in view.text("legend")


def test_removed_output_is_reported_and_outputs_of_one_view_are_independent(view: ViewPage) -> None:
    history, sent = deliveries(tnb.simulate(DELAYED, tnb.poisson(rate=80, duration=1, seed=4), tnb.fixed(30)))
    view.open(history)
    view.receive(sent)
    view.page.wait_for_function("window.messages.some((message) => message.in_sight)")
    before, after = view.run("""[false, true].map((isMoved) => {
        if (isMoved) view.showMoment({ from: 1, span: 2, cursor: 1, columns: false, own: true });
        const { from, span, follow } = view.window;
        return [from, span, follow];
    })""")
    assert after == before
    view.run("view.close()")
    assert view.page.evaluate("window.messages.at(-1).in_sight") is None
