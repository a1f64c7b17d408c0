"""The built page in Chromium, without a network: after it has been loaded, the browser is offline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.playground.presets import PRESETS, preset
from docs.playground.session import simulate_scenario
from tests.notebook.accessibility import serious_violations, unnamed_controls, unreached_controls
from tests.notebook.browser import SCREENSHOTS

DESKTOP, PHONE = {"width": 1400, "height": 1000}, {"width": 390, "height": 844}
READY = "() => document.body.dataset.ready === 'true' && Number(document.body.dataset.simulations) > 0"
#: Two requests that Triton executed together, and a third one: files of the trace extension.
TRACE = [
    {"id": number, "model_name": "m", "model_version": 1, "request_id": "", "parent_id": 0} for number in (1, 2, 3)
] + [
    {"id": number, "timestamps": [{"name": name, "ns": 1_000_000 * ms} for name, ms in stamps.items()]}
    for number, stamps in (
        (1, {"REQUEST_START": 0, "QUEUE_START": 1, "COMPUTE_START": 5, "COMPUTE_END": 15, "REQUEST_END": 16}),
        (2, {"REQUEST_START": 2, "QUEUE_START": 3, "COMPUTE_START": 5, "COMPUTE_END": 15, "REQUEST_END": 16}),
        (3, {"REQUEST_START": 20, "QUEUE_START": 21, "COMPUTE_START": 25, "COMPUTE_END": 35, "REQUEST_END": 36}),
    )
]
TRACE_CONFIG = 'name: "m" max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 4000 }'


class Page:
    """The playground in a tab."""

    def __init__(self, browser: Any, site: str, address: str = "", **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": DESKTOP, **options})
        self.context.set_default_timeout(90_000)
        self.tab = self.browser_page = self.context.new_page()
        self.site = site
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.tab.on("console", lambda message: self.messages.append(message.text))
        self.tab.on("pageerror", lambda error: self.messages.append(str(error)))
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.open(address)

    def open(self, address: str) -> None:
        """Load the page, and then switch the network off."""
        self.context.set_offline(False)
        self.tab.goto("about:blank")
        self.tab.goto(f"{self.site}index.html{address}")
        self.tab.wait_for_function(READY)
        self.context.set_offline(True)

    def settle(self, before: int = 0) -> None:
        """Wait for a simulation after the first ``before`` ones, and until no other one waits."""
        self.tab.wait_for_function(
            "(count) => Number(document.body.dataset.simulations) > count && document.body.ariaBusy === 'false'",
            arg=before,
        )

    @property
    def simulations(self) -> int:
        return int(self.tab.evaluate("() => document.body.dataset.simulations ?? 0"))

    def select(self, name: str) -> None:
        before = self.simulations
        self.tab.locator("#preset").select_option(name)
        self.settle(before)

    def type_config(self, text: str) -> None:
        before = self.simulations
        self.tab.locator(".tnb-input").fill(text)
        self.settle(before)

    @property
    def verdict(self) -> str:
        return str(self.tab.locator(".tnb-verdict").inner_text())

    @property
    def reasons(self) -> list[str]:
        """The last column of the table of batches."""
        script = """() => [...document.querySelectorAll(".tnb-tables details tbody tr td:last-child")]
            .map((cell) => cell.textContent)"""
        return list(self.tab.evaluate(script))


@pytest.fixture(scope="module")
def page(browser: Any, site: str) -> Iterator[Page]:
    """One tab for all tests of this module."""
    opened = Page(browser, site, "#preset=no-batching")
    yield opened
    opened.context.close()


def reasons_of(scenario: dict[str, Any]) -> list[str]:
    batches = simulate_scenario(scenario).batches
    return [batch.why for batch in sorted(batches, key=lambda batch: (batch.sent_ns, batch.number))]


def test_preset_page_loads_only_files_of_its_directory(page: Page) -> None:
    assert page.tab.title() == "Five requests, no batcher – tritonnb playground"
    assert page.reasons == reasons_of(preset("no-batching"))
    assert [url for url in page.requests if not url.startswith((page.site, "data:", "about:"))] == []


@pytest.mark.parametrize("name", PRESETS)
def test_preset_shows_the_simulation_of_python(page: Page, name: str) -> None:
    page.select(name)
    recording = simulate_scenario(preset(name))
    assert page.verdict == recording.verdict()
    assert page.reasons == reasons_of(preset(name))
    assert page.tab.locator(".tnb-batch-view .tnb-fact").nth(1).inner_text() == f"{len(recording.batches)} batches"
    assert page.tab.locator("#about").inner_text() == PRESETS[name]["about"]
    assert page.messages == []


def test_edit_is_simulated_and_compared_with_the_configuration_before(page: Page) -> None:
    page.select("five-requests")
    page.tab.locator("#keep").click()
    page.type_config("max_batch_size: 4\ndynamic_batching { }")
    page.tab.get_by_text("inference request batch-size must be <= 4").wait_for()
    page.type_config("max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 5000 }")
    edited = {
        **preset("five-requests"),
        "config": "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 5000 }",
    }
    assert page.reasons == reasons_of(edited)
    assert "mean batch size 8.00 → 5.33" in page.tab.locator(".tnb-change").inner_text()
    assert page.tab.locator(".tnb-ghost").inner_text() == "Dashed: the batches of the other configuration."
    page.tab.get_by_text("First difference: batch 1 differs.").wait_for()


def test_first_picture_is_shown_before_the_simulator_is_loaded(page: Page) -> None:
    tab = page.context.new_page()
    page.context.set_offline(False)
    tab.route("**/pyodide/**", lambda route: None)  # never answered
    tab.goto(f"{page.site}index.html")
    tab.locator(".tnb-batch-view canvas").first.wait_for()
    assert "5 requests" in tab.locator(".tnb-head").inner_text()
    page.context.set_offline(True)
    tab.close()


def test_scenario_that_is_chosen_during_the_quiz_is_its_exercise(page: Page) -> None:
    page.tab.locator("#quiz-toggle").click()
    page.select("preferred-sizes")
    page.tab.locator(".tnb-quiz select").filter(has_text="this scenario").wait_for()
    page.tab.wait_for_function("() => document.querySelector('.tnb-quiz select').value === 'scenario'")
    page.tab.locator("#quiz-toggle").click()


def test_message_ends_with_the_name_of_the_model_once(page: Page) -> None:
    page.select("five-requests")
    page.type_config("max_batch_size: -1")
    messages = page.tab.locator(".tnb-problems li").all_inner_texts()
    assert [message for message in messages if "non-negative" in message] == messages[:1]
    assert "non-negative value for simulated" in messages[0]


def test_problems_are_shown_at_their_line_and_fixed_with_a_button(page: Page) -> None:
    page.select("five-requests")
    page.type_config("max_batch_size: 8\ndynamic_batchin { }")
    page.tab.get_by_role("button", name="Fix: ").click()
    page.tab.wait_for_function("() => !document.querySelector('.tnb-problems li')")
    assert page.tab.locator(".tnb-input").input_value() == "max_batch_size: 8\ndynamic_batching { }"


def test_fields_are_completed_and_described_and_set_in_the_form(page: Page) -> None:
    page.select("five-requests")
    page.type_config("max_batch_size: 8\ndynamic_batching {  }")
    editor = page.tab.locator(".tnb-input")
    editor.focus()
    page.tab.keyboard.press("Control+End")
    page.tab.keyboard.press("ArrowLeft")
    page.tab.keyboard.press("ArrowLeft")
    page.tab.keyboard.press("Control+Space")
    page.tab.get_by_role("option", name="priority_levels").wait_for()
    page.tab.get_by_text("A batch of one of these sizes is sent without further delay").first.wait_for()
    page.tab.keyboard.press("Escape")
    page.tab.get_by_text("Fields", exact=True).click()
    field = page.tab.locator('[data-path="dynamic_batching.max_queue_delay_microseconds"]')
    field.fill("20000")
    field.press("Enter")
    page.tab.wait_for_function("() => document.querySelector('.tnb-input').value.includes('20000')")
    page.tab.wait_for_function("() => document.querySelector('.tnb-verdict').textContent.includes('2 batches')")


def test_request_is_moved_with_the_mouse_and_with_the_keyboard(page: Page) -> None:
    page.select("five-requests")
    mark = page.tab.get_by_role("slider", name="request 3,")
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    page.tab.mouse.move(box["x"] + 4, box["y"] + 6)
    page.tab.mouse.down()
    page.tab.mouse.move(box["x"] + 60, box["y"] + 6, steps=4)
    page.tab.mouse.up()
    moved = float(mark.get_attribute("aria-valuenow"))
    assert moved > 17
    page.tab.keyboard.press("ArrowRight")
    assert float(mark.get_attribute("aria-valuenow")) == pytest.approx(moved + 1)
    assert page.tab.locator('tr[data-index="2"] input').first.input_value() == f"{moved + 1:g}"
    page.tab.keyboard.press("ArrowDown")
    assert page.tab.evaluate("() => document.activeElement.dataset.index") == "3"
    requests = [dict(request) for request in preset("five-requests")["arrivals"]["requests"]]
    requests[2]["ms"] = moved + 1
    expected = reasons_of({**preset("five-requests"), "arrivals": {"kind": "list", "requests": requests}})
    page.tab.wait_for_function(
        """(why) => [...document.querySelectorAll(".tnb-tables details tbody tr td:last-child")]
            .map((cell) => cell.textContent).join() === why.join()""",
        arg=expected,
    )


def test_arrivals_and_service_times_are_edited_in_tables(page: Page) -> None:
    page.select("no-batching")
    before = page.simulations
    page.tab.get_by_role("button", name="Add a request").click()
    page.settle(before)
    assert page.verdict.startswith("6 requests ran in 6 batches")
    page.tab.get_by_label("rows of request 6").fill("9")
    page.tab.get_by_text("inference request batch-size must be <= 8").wait_for()
    page.tab.get_by_role("button", name="remove request 6").click()
    page.tab.locator("#service select").select_option("linear")
    page.tab.get_by_label("per execution").fill("100")
    page.tab.locator("#arrivals select").select_option("closed")
    page.tab.get_by_label("clients", exact=True).fill("3")
    page.tab.wait_for_function(
        "() => document.querySelector('.tnb-verdict').textContent.startsWith('40 requests ran in 40')"
    )
    page.tab.get_by_role("button", name="Edit single requests").click()
    page.tab.get_by_label("rows of request 40").wait_for()


@pytest.mark.parametrize("value", ["-5", ""])
def test_number_out_of_range_is_marked_and_not_simulated(page: Page, value: str) -> None:
    page.select("no-batching")
    before = page.simulations
    field = page.tab.get_by_label("every execution takes")
    field.fill(value)
    assert field.get_attribute("aria-invalid") == "true"
    page.tab.locator(".tnb-invalid", has_text="Not simulated.").first.wait_for()
    assert page.simulations == before
    field.fill("10000000")
    page.settle(before)
    assert field.get_attribute("aria-invalid") == "false"


def test_click_on_a_request_shows_the_reason_and_the_causes_of_its_latency(page: Page) -> None:
    page.select("five-requests")
    canvas = page.tab.locator(".tnb-picture canvas").last
    canvas.scroll_into_view_if_needed()
    canvas.click(position={"x": canvas.bounding_box()["width"] * 0.8, "y": 50})
    page.tab.locator(".tnb-why").wait_for()
    page.tab.locator(".tnb-blame-result table").wait_for()
    assert "instances" in page.tab.locator(".tnb-blame-result tbody").inner_text()


def test_figures_have_descriptions_with_their_numbers(page: Page) -> None:
    page.select("closed-loop")
    labels = page.tab.locator(".tnb-figures svg").evaluate_all(
        "(all) => all.map((svg) => svg.getAttribute('aria-label'))"
    )
    assert labels[0].startswith("Latency of 90 requests: p50 16 ms")
    assert labels[1] == "Mean time of a request by batch size: 6 rows, 15 batches, 4 ms in the queue, 12 ms executed"
    assert labels[2] == "Batches by size: 15 of 6 rows"
    statistics = json.loads(page.tab.locator(".tnb-wide pre").text_content())
    assert statistics["execution_count"] == 15


def test_quiz_grades_an_answer_that_is_given_with_the_keyboard(page: Page) -> None:
    page.select("no-batching")
    page.tab.get_by_role("button", name="Quiz").click()
    page.tab.get_by_label("Exercise").select_option("scenario")
    page.tab.get_by_text("Every execution takes 50 ms").wait_for()
    assert page.tab.locator("#results").is_hidden()
    for number, name in enumerate("ABCDE", 1):
        page.tab.locator(f'.tnb-chip[data-name="{name}"]').focus()
        page.tab.keyboard.press(str(number if number != 5 else 4))
    page.tab.get_by_role("button", name="Check").click()
    page.tab.get_by_text("3 of 5 batches correct.").wait_for()
    page.tab.locator('.tnb-chip[data-name="E"]').focus()
    page.tab.keyboard.press("5")
    page.tab.get_by_role("button", name="Check").click()
    page.tab.get_by_text("5 of 5 batches correct.").wait_for()
    page.tab.get_by_label("Exercise").select_option("direct")
    page.tab.get_by_role("button", name="Reveal").wait_for()
    page.tab.get_by_role("button", name="Reveal").click()
    page.tab.locator(".tnb-result", has_text="Why:").wait_for()
    page.tab.get_by_role("button", name="Quiz").click()
    assert page.tab.locator("#results").is_visible()


def test_exercise_cannot_be_answered_while_the_next_one_is_prepared(page: Page) -> None:
    page.tab.get_by_role("button", name="Quiz").click()
    page.tab.get_by_role("button", name="Reveal").wait_for()
    count = """(another) => {
        another.click();
        return document.querySelectorAll(".tnb-quiz .tnb-chip").length;
    }"""
    assert page.tab.get_by_role("button", name="Another one").evaluate(count) == 0
    page.tab.get_by_role("button", name="Reveal").wait_for()
    page.tab.get_by_role("button", name="Quiz").click()


def test_link_contains_the_whole_scenario(page: Page, browser: Any, site: str) -> None:
    page.select("priorities-timeouts")
    page.type_config(preset("priorities-timeouts")["config"].replace("70000", "30000"))
    page.tab.wait_for_function("() => location.hash.startsWith('#s=')")
    verdict, config = page.verdict, page.tab.locator(".tnb-input").input_value()
    other = Page(browser, site, page.tab.evaluate("() => location.hash"))
    assert other.verdict == verdict
    assert other.tab.locator(".tnb-input").input_value() == config
    assert other.tab.locator("tbody tr[data-index]").count() == 30
    assert other.messages == []
    other.context.close()


def test_damaged_link_opens_the_first_scenario(browser: Any, site: str) -> None:
    page = Page(browser, site, "#s=damaged")
    assert page.tab.locator("#preset").input_value() == "five-requests"
    page.context.close()


def test_scenario_is_copied_as_a_program_that_python_runs(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.select("direct-sequences")
    page.tab.get_by_role("button", name="Copy as Python").click()
    page.tab.get_by_text("Copied as a Python program.").wait_for()
    variables: dict[str, Any] = {}
    exec(page.tab.evaluate("() => navigator.clipboard.readText()").replace("recording.view()", ""), variables)
    assert variables["recording"].events == simulate_scenario(preset("direct-sequences")).events
    page.tab.get_by_role("button", name="Copy config.pbtxt").click()
    page.tab.get_by_text("Copied config.pbtxt.").wait_for()
    assert page.tab.evaluate("() => navigator.clipboard.readText()") == preset("direct-sequences")["config"]


DROP = """(files) => {
    const dataTransfer = new DataTransfer();
    for (const [name, text] of Object.entries(files)) dataTransfer.items.add(new File([text], name));
    document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
}"""


def drop(page: Page, files: dict[str, str]) -> None:
    page.tab.evaluate("() => { delete document.body.dataset.opened; }")
    page.tab.evaluate(DROP, files)
    page.tab.wait_for_function("() => document.body.dataset.opened")


def test_dropped_recording_is_shown_as_recorded_and_then_simulated(page: Page, tmp_path: Path) -> None:
    page.select("five-requests")
    recording = simulate_scenario(preset("closed-loop"))
    recording.save(tmp_path / "rec.jsonl")
    drop(page, {"rec.jsonl": (tmp_path / "rec.jsonl").read_text()})
    assert page.verdict == recording.verdict()
    assert "rec.jsonl: as recorded" in page.tab.locator(".tnb-notes").inner_text()
    assert page.tab.locator("tbody tr[data-index]").count() == 90
    config = page.tab.locator(".tnb-input").input_value()
    page.type_config(config.replace("4000", "0"))
    assert page.verdict.startswith("90 requests ran in 20 batches")


def test_dropped_trace_files_are_replayed_with_their_configuration(page: Page) -> None:
    page.select("five-requests")
    drop(page, {"trace.json": json.dumps(TRACE), "config.pbtxt": TRACE_CONFIG})
    assert page.verdict.startswith("3 requests ran in 2 batches")
    assert "Model m as recorded." in page.tab.locator("#about").inner_text()
    assert page.tab.locator(".tnb-input").input_value().startswith('name: "m"')


def test_dropped_file_that_is_not_a_recording_or_trace_is_an_error(page: Page) -> None:
    page.select("five-requests")
    page.tab.evaluate(DROP, {"notes.txt": "hello"})
    page.tab.get_by_role("alert").get_by_text("notes.txt").wait_for()


def test_page_is_accessible(page: Page, axe: str) -> None:
    for name in ("poisson", "control-inputs"):
        page.select(name)
        assert unnamed_controls(page, "body") == []  # type: ignore[arg-type]
        assert unreached_controls(page.tab, "body") == []
        assert serious_violations(page.tab, axe, "body") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_page_fits_the_screen_in_both_colour_schemes(
    page: Page, axe: str, viewport: dict[str, int], scheme: str
) -> None:
    page.tab.emulate_media(color_scheme=scheme)
    page.tab.set_viewport_size(viewport)
    page.select("direct-sequences")
    assert page.tab.evaluate("() => document.scrollingElement.scrollWidth <= innerWidth")
    assert serious_violations(page.tab, axe, "body") == []
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.tab.screenshot(path=SCREENSHOTS / f"playground-{viewport['width']}-{scheme}.png", full_page=True)
    page.tab.emulate_media(color_scheme="light")
    page.tab.set_viewport_size(DESKTOP)


def test_embedded_page_links_to_the_playground_with_the_same_scenario(browser: Any, site: str) -> None:
    page = Page(browser, site, "?embed#preset=iterative", viewport={"width": 700, "height": 700})
    assert not page.tab.get_by_role("button", name="Quiz").is_visible()
    page.tab.locator("#full").evaluate("(link) => link.addEventListener('click', (event) => event.preventDefault())")
    page.tab.locator("#full").click()
    assert page.tab.locator("#full").evaluate("(link) => link.href") == f"{site}index.html#preset=iterative"
    assert page.messages == []
    page.context.close()


def test_server_writes_nothing_to_the_console(page: Page) -> None:
    assert page.messages == []
