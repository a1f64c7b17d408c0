"""The configuration editor in a real browser: text, form, problems, and a model that changes meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.notebook.accessibility import check_accessibility
from tests.notebook.browser import ROOT, NotebookPage

SERVE = f"""
import shutil, tempfile
from pathlib import Path
import tritonnb as tnb
if "server" in globals():
    server.stop()
models = Path(tempfile.mkdtemp())
shutil.copytree({str(ROOT / "model_repository" / "add_sub")!r}, models / "add_sub")
server = tnb.serve(models, port=0)
editor = server["add_sub"].edit()
"""
DELAY = "dynamic_batching.max_queue_delay_microseconds"


class Editor:
    """The editor as a user sees it."""

    def __init__(self, page: NotebookPage, output: int) -> None:
        self.page = page
        self.root = page.output(output).locator(".tnb-config-editor")
        self.root.wait_for()
        self.text = self.root.get_by_label("config.pbtxt of add_sub")

    def field(self, path: str) -> Any:
        return self.root.locator(f'[data-path="{path}"]')

    def enter(self, path: str, value: str) -> None:
        self.field(path).fill(value)
        self.field(path).press("Enter")

    def replace(self, old: str, new: str) -> None:
        """Replace a piece of the text by typing."""
        self.text.evaluate(
            """(input, old) => {
                input.focus();
                const at = input.value.indexOf(old);
                input.setSelectionRange(at, at + old.length);
            }""",
            old,
        )
        self.page.browser_page.keyboard.insert_text(new)

    def type(self, after: str, keys: str) -> None:
        """Type after a piece of the text, key by key."""
        self.text.evaluate(
            """(input, after) => {
                input.focus();
                const at = input.value.indexOf(after) + after.length;
                input.setSelectionRange(at, at);
            }""",
            after,
        )
        self.page.browser_page.keyboard.type(keys)

    def press(self, keys: str) -> None:
        self.page.browser_page.keyboard.press(keys)

    def value(self) -> str:
        return str(self.text.input_value())

    def has_value(self, path: str, value: str) -> None:
        self.page.browser_page.wait_for_function(  # the form may be rebuilt in the meantime
            "([root, path, value]) => root.querySelector(`[data-path='${path}']`)?.value === value",
            arg=[self.root.element_handle(), path, value],
        )

    def click(self, button: str) -> None:
        self.root.get_by_role("button", name=button, exact=False).first.click()

    def shows(self, text: str) -> None:
        self.root.get_by_text(text, exact=False).first.wait_for()

    def has_text(self, words: str) -> None:
        self.page.browser_page.wait_for_function(
            "([input, words]) => input.value.includes(words)", arg=[self.text.element_handle(), words]
        )


@pytest.fixture(scope="module")
def page(notebook: Callable[..., NotebookPage]) -> NotebookPage:
    return notebook(SERVE, "editor", "server['add_sub'].edit()")


@pytest.fixture
def editor(page: NotebookPage) -> Iterator[Editor]:
    page.run_all()
    yield Editor(page, 1)
    assert page.errors == []


def test_field_of_the_form_changes_the_text_and_the_running_model(editor: Editor) -> None:
    editor.enter(DELAY, "20000")
    editor.has_text("dynamic_batching { max_queue_delay_microseconds: 20000 }")
    editor.click("Diff")
    editor.shows("+dynamic_batching { max_queue_delay_microseconds: 20000 }")
    editor.page.screenshots("config-editor-diff", editor.root)
    editor.click("Apply in place")
    editor.shows("the model was not loaded again")
    delay = editor.page.execute("print(server['add_sub'].config.dynamic_batching.max_queue_delay_microseconds)")
    assert delay == "20000\n"


def test_typing_changes_the_form_and_a_larger_change_reloads_the_model(editor: Editor) -> None:
    editor.replace("max_batch_size: 8", "max_batch_size: 16")
    editor.has_value("max_batch_size", "16")
    editor.click("Apply by reloading")
    editor.shows("a new copy serves new requests")
    assert editor.page.execute("print(server['add_sub'].config.max_batch_size)") == "16\n"


def test_error_is_shown_at_its_line_and_fixed_by_a_click(editor: Editor) -> None:
    editor.replace("max_batch_size: 8", "max_batchsize: 8")
    editor.shows('has no field named "max_batchsize"')
    assert editor.root.locator(".tnb-gutter .tnb-bad").inner_text() == "●4"
    assert editor.root.get_by_role("button", name="Apply").is_disabled()
    assert editor.field("max_batch_size").is_disabled()
    editor.page.screenshots("config-editor-problem", editor.root)
    editor.click("Fix: max_batchsize → max_batch_size")
    editor.has_text("max_batch_size: 8")
    editor.root.locator(".tnb-problems li").wait_for(state="detached")


def test_all_problems_are_shown_at_their_tokens(editor: Editor) -> None:
    editor.replace("max_batch_size: 8", "max_batch_size: eight")
    editor.replace("TYPE_FP32", "TYPE_FP3")
    editor.shows("Expected integer, got: eight")
    editor.shows('Unknown enumeration value of "TYPE_FP3"')
    assert editor.root.locator(".tnb-shown .tnb-bad").all_inner_texts() == ["eight", "TYPE_FP3"]
    assert editor.root.locator(".tnb-problems li").count() == 2
    editor.page.screenshots("config-editor-problems", editor.root)


def test_undo_history_includes_text_and_form_changes(editor: Editor) -> None:
    original = editor.value()
    editor.replace("max_batch_size: 8", "max_batch_size: 16")
    editor.has_value("max_batch_size", "16")
    editor.enter(DELAY, "700")
    editor.has_text("max_queue_delay_microseconds: 700")
    editor.press("Control+z")
    editor.has_value(DELAY, "0")
    assert "max_queue_delay" not in editor.value()
    assert "max_batch_size: 16" in editor.value()
    editor.press("Control+z")
    editor.has_value("max_batch_size", "8")
    assert editor.value() == original
    editor.press("Control+y")
    editor.press("Control+Shift+z")
    editor.has_value(DELAY, "700")
    editor.has_text("max_queue_delay_microseconds: 700")


def test_names_and_values_are_completed_with_their_help(editor: Editor) -> None:
    editor.replace("{ }", "{  }")
    editor.type("dynamic_batching { ", "prio")
    options = editor.root.get_by_role("listbox", name="Completions").get_by_role("option")
    options.first.wait_for()
    names = [option.split("\n")[0] for option in options.all_inner_texts()]
    assert names == ["priority_levels", "priority_queue_policy", "default_priority_level"]
    editor.shows("The number of priorities.")
    editor.press("Enter")
    editor.has_text("{ priority_levels:  }")
    editor.page.browser_page.keyboard.type("2 preserve")
    editor.press("Tab")
    options.get_by_text("true").wait_for()
    editor.press("Enter")
    editor.has_text("priority_levels: 2 preserve_ordering: true")
    editor.page.browser_page.keyboard.type(" prio")
    options.get_by_text("priority_queue_policy").wait_for()
    editor.page.screenshots("config-editor-completion", editor.root)  # last: they may take the focus from the text


def test_ctrl_space_lists_the_fields_and_escape_closes_the_list(editor: Editor) -> None:
    editor.type('"python"\n', "")
    editor.press("Control+Space")
    options = editor.root.get_by_role("listbox", name="Completions").get_by_role("option")
    options.first.wait_for()
    assert "sequence_batching" in " ".join(options.all_inner_texts())
    editor.press("Escape")
    options.first.wait_for(state="hidden")


def test_ctrl_enter_applies_the_text_and_the_field_that_is_being_entered(editor: Editor) -> None:
    editor.field(DELAY).fill("80")
    editor.press("Control+Enter")
    editor.shows("the model was not loaded again")
    delay = editor.page.execute("print(server['add_sub'].config.dynamic_batching.max_queue_delay_microseconds)")
    assert delay == "80\n"


def test_change_during_a_cell_is_checked_or_a_busy_hint_is_shown(editor: Editor) -> None:
    with editor.page.busy():
        editor.replace("max_batch_size: 8", "max_batch_size: 4")
        hint = editor.root.get_by_text("The kernel is busy")
        hint.or_(editor.root.get_by_role("button", name="Apply by reloading")).first.wait_for()
    editor.has_value("max_batch_size", "4")
    editor.root.get_by_text("The kernel is busy").wait_for(state="detached")


def test_editor_is_accessible(editor: Editor, axe: str) -> None:
    editor.replace("max_batch_size: 8", "max_batch_size: eight")
    editor.shows("Expected integer, got: eight")
    editor.click("Diff")
    check_accessibility(editor.page, axe, ".tnb-config-editor")


def test_field_at_the_cursor_is_described(editor: Editor) -> None:
    editor.replace("{ }", "{ max_queue_delay_microseconds: ")
    editor.shows("How long a request may be delayed for others")
    assert editor.root.locator(".tnb-help code").inner_text() == "dynamic_batching.max_queue_delay_microseconds"
    editor.replace("backend", "backend")
    editor.shows("or a backend of your own")
    assert editor.root.locator(".tnb-help code").all_inner_texts() == ["backend", "onnxruntime", "pytorch", "python"]


def test_file_is_saved_and_a_change_from_outside_is_shown(editor: Editor) -> None:
    editor.enter("max_batch_size", "4")
    editor.has_text("max_batch_size: 4")
    editor.click("Save")
    editor.shows("Saved to config.pbtxt")
    path = "(models / 'add_sub' / 'config.pbtxt')"
    assert "max_batch_size: 4\n" in editor.page.execute(f"print({path}.read_text())")
    editor.page.execute(f"{path}.write_text({path}.read_text().replace('size: 4', 'size: 5'))")
    editor.shows("The file was changed outside of this editor")
    editor.page.screenshots("config-editor-outside", editor.root)
    editor.click("Use the file's text")
    editor.has_text("max_batch_size: 5")


def test_two_outputs_of_an_editor_stay_synchronized(editor: Editor) -> None:
    editor.enter(DELAY, "7")
    Editor(editor.page, 2).has_text("max_queue_delay_microseconds: 7")


def test_interrupted_cell_leaves_editor_and_server_alive(editor: Editor) -> None:
    blocks = "import threading\nprint('blocking', flush=True)\nthreading.Event().wait()"
    assert editor.page.interrupt(blocks) == "KeyboardInterrupt"
    editor.enter(DELAY, "30")
    editor.click("Apply in place")
    editor.shows("the model was not loaded again")


def test_actions_during_a_cell_take_effect_when_it_ends(editor: Editor) -> None:
    with editor.page.busy():
        editor.enter(DELAY, "40")
    editor.has_text("max_queue_delay_microseconds: 40")


def test_applying_to_an_unloaded_model_is_an_error(editor: Editor) -> None:
    editor.enter(DELAY, "50")
    apply = editor.root.get_by_role("button", name="Apply in place")
    apply.wait_for()
    editor.page.execute("server.unload('add_sub')")
    editor.shows("The model has been unloaded")
    assert apply.is_disabled()
    editor.enter(DELAY, "60")  # what is typed meanwhile is known when the model is back
    editor.page.execute("server.load('add_sub')")
    editor.shows("The model is loaded again")
    editor.click("Apply in place")
    editor.shows("the model was not loaded again")
    delay = editor.page.execute("print(server['add_sub'].config.dynamic_batching.max_queue_delay_microseconds)")
    assert delay == "60\n"


def test_last_state_remains_when_the_server_stops(editor: Editor) -> None:
    editor.page.execute("server.stop()")
    editor.shows("The server has been stopped")
    editor.has_text("max_batch_size: 8")
    assert editor.root.get_by_role("button", name="Apply").is_disabled()
