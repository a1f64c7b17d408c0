"""A recording as one web page: it works without a kernel and a network, and runs no script but its own."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tritonnb as tnb
from tests.notebook.accessibility import serious_violations, unreached_controls
from tritonnb.recording.recording import Recording

CONFIG = 'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }'
GUIDE = [(0, 4), (0, 2), (50_000 / 3, 2), (100_000 / 3, 6), (100_000 / 3, 2), (40_000, 4)]
ATTACKS = (
    "</script><script>window.attacked = true</script>",
    "<img src=x onerror='window.attacked = true'>",
    "<!--<script>",
    "\"'><svg onload=window.attacked=true>",
)


class Page:
    """A page in a browser that has no network."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1200, "height": 900}, offline=True, **options)
        self.tab = self.context.new_page()
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.tab.on("console", lambda message: self.messages.append(message.text))
        self.tab.on("pageerror", lambda error: self.messages.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.goto(path.as_uri())
        self.tab.locator(".tnb-batch-view canvas").last.wait_for()

    @property
    def attacked(self) -> bool:
        """True if a script of the recording has run."""
        return bool(self.tab.evaluate("() => Boolean(window.attacked)"))


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    """Opens pages, and closes them at the end."""
    pages: list[Page] = []

    def open_page(path: Path, **options: Any) -> Page:
        pages.append(Page(browser, path, **options))
        return pages[-1]

    yield open_page
    for page in pages:
        page.context.close()


@pytest.fixture
def rec() -> Recording:
    return tnb.simulate(CONFIG, GUIDE, tnb.fixed(50))


def test_view_works_without_a_network(opened: Any, rec: Recording, tmp_path: Path) -> None:
    rec.to_html(tmp_path / "page.html")
    page = opened(tmp_path / "page.html")
    view = page.tab.locator(".tnb-batch-view")
    assert view.locator(".tnb-fact").first.inner_text() == "6 requests"
    page.tab.get_by_role("button", name="next event").click()
    view.get_by_text("arrives (4 rows)").wait_for()
    assert [url for url in page.requests if not url.startswith("file:")] == []
    assert page.messages == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_accessible(opened: Any, rec: Recording, tmp_path: Path, axe: str, scheme: str) -> None:
    rec.to_html(tmp_path / "page.html", remedies=1)
    page = opened(tmp_path / "page.html", color_scheme=scheme)
    assert serious_violations(page.tab, axe, "body") == []
    assert unreached_controls(page.tab, "body") == []


def test_clicked_request_shows_the_causes_of_its_latency(opened: Any, rec: Recording, tmp_path: Path) -> None:
    rec.to_html(tmp_path / "page.html", remedies=1)
    page = opened(tmp_path / "page.html")
    canvas = page.tab.locator("canvas").last
    canvas.click(position={"x": canvas.bounding_box()["width"] * 0.6, "y": 50})  # request 4 in the second batch
    panel = page.tab.locator(".tnb-blame-result")
    panel.locator("table").wait_for()
    blame = rec.blame(4)
    assert panel.locator("b").inner_text() == blame.title
    shown = panel.locator("tbody tr").all_inner_texts()
    assert [row.split("\t")[0].strip() for row in shown] == [cause.replace("_", " ") for cause in blame.parts]
    assert all(
        row.endswith("the changes of the slowest requests only") for row in shown
    )  # it is not the slowest request
    assert panel.get_by_role("img").get_attribute("aria-label").startswith(blame.title)


def test_request_is_selected_with_the_keyboard_and_shows_its_remedies(
    opened: Any, rec: Recording, tmp_path: Path
) -> None:
    rec.to_html(tmp_path / "page.html", remedies=1)
    page = opened(tmp_path / "page.html")
    page.tab.locator("canvas").last.focus()
    page.tab.keyboard.press("ArrowLeft")  # the last event: the end of the batch of the slowest request
    page.tab.locator(".tnb-blame-choice button", has_text="6").focus()
    page.tab.keyboard.press("Enter")
    page.tab.get_by_text(str(rec.blame().remedies["earlier_requests"])).wait_for()


def test_slowest_requests_lead_to_their_causes(opened: Any, rec: Recording, tmp_path: Path) -> None:
    rec.to_html(tmp_path / "page.html")
    page = opened(tmp_path / "page.html")
    page.tab.locator(".tnb-blame-choice button").first.click()
    page.tab.locator(".tnb-blame-result b").wait_for()
    assert page.tab.locator(".tnb-blame-result b").inner_text() == rec.blame().title
    assert f"Batch {rec.blame().request.batch} on" in page.tab.locator(".tnb-details").inner_text()


@pytest.mark.parametrize("attack", ATTACKS)
def test_untrusted_recording_cannot_run_a_script(opened: Any, rec: Recording, tmp_path: Path, attack: str) -> None:
    rec.save(tmp_path / "rec.jsonl")
    lines = []
    for number, line in enumerate((tmp_path / "rec.jsonl").read_text().splitlines()):
        values = json.loads(line)
        if number == 0:
            values["models"] = {attack: values["models"]["m"]}
        for name in ("model", "instance", "id"):
            if name in values:
                values[name] = attack
        lines.append(json.dumps(values))
    (tmp_path / "rec.jsonl").write_text("\n".join(lines) + "\n")
    stranger = tnb.Recording.load(tmp_path / "rec.jsonl")
    stranger.to_html(tmp_path / "page.html", title=attack)
    page = opened(tmp_path / "page.html")
    assert page.tab.locator("h1").inner_text() == attack
    page.tab.get_by_role("button", name="next event").click()
    canvas = page.tab.locator("canvas").last
    canvas.click(position={"x": canvas.bounding_box()["width"] * 0.6, "y": 50})
    page.tab.locator(".tnb-details p").first.wait_for()
    page.tab.locator(".tnb-blame-result table").wait_for()
    assert not page.attacked
    assert page.messages == []


def test_content_security_policy_blocks_foreign_scripts(opened: Any, rec: Recording, tmp_path: Path) -> None:
    rec.to_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    injected = "<script>window.attacked = true</script><img src=x onerror='window.attacked = true'>"
    (tmp_path / "page.html").write_text(text.replace("<main>", f"<main>{injected}"))
    page = opened(tmp_path / "page.html")
    assert any("Content Security Policy" in message for message in page.messages)
    assert not page.attacked


def test_page_follows_the_colour_scheme_of_the_browser(opened: Any, rec: Recording, tmp_path: Path) -> None:
    rec.to_html(tmp_path / "page.html")
    colours = set()
    for scheme in ("light", "dark"):
        page = opened(tmp_path / "page.html", color_scheme=scheme)
        colours.add(page.tab.evaluate("() => getComputedStyle(document.body).backgroundColor"))
        assert page.tab.evaluate("() => document.body.dataset.jpThemeLight") == str(scheme == "light").lower()
    assert len(colours) == 2


def test_recording_of_several_models_has_a_view_for_each(opened: Any, rec: Recording, tmp_path: Path) -> None:
    other = tnb.simulate('name: "other" max_batch_size: 4', [(0, 1), (1000, 1)], tnb.fixed(5))
    both = Recording(rec.events + other.events, rec.configs | other.configs)
    both.to_html(tmp_path / "page.html")
    page = opened(tmp_path / "page.html")
    assert page.tab.locator(".tnb-model").all_inner_texts() == ["m", "other"]
    assert page.tab.title() == "Recording of m, other"


def test_picture_can_be_saved(opened: Any, rec: Recording, tmp_path: Path) -> None:
    rec.to_html(tmp_path / "page.html")
    page = opened(tmp_path / "page.html")
    with page.tab.expect_download() as download:
        page.tab.get_by_role("button", name="SVG").click()
    assert download.value.path().read_text().startswith("<svg")
    assert base64.b64decode(page.tab.locator("canvas").last.evaluate("(c) => c.toDataURL().split(',')[1]"))


def test_empty_recording_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(tnb.TritonError, match="expected a recording with events of a model, got none"):
        Recording().to_html(tmp_path / "page.html")
