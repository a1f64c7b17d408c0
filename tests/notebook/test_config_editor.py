"""The configuration editor without a browser."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tritonnb as tnb
from tritonnb.core.errors import TritonError
from tritonnb.notebook.config_editor import ConfigEditor
from tritonnb.server.server import Server

EXAMPLES = Path(__file__).parents[2] / "model_repository"
INPUTS = {"INPUT0": [[1.0, 2, 3, 4]], "INPUT1": [[1.0, 1, 1, 1]]}
DELAY = "dynamic_batching.max_queue_delay_microseconds"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    shutil.copytree(EXAMPLES / "add_sub", tmp_path / "add_sub")
    with Server(tmp_path, port=0) as server:
        yield server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "add_sub" / "config.pbtxt"


@pytest.fixture
def editor(server: Server) -> Iterator[ConfigEditor]:
    editor = server["add_sub"].edit()
    yield editor
    editor.close()


def shown(editor: ConfigEditor, path: str) -> object:
    """Return the value that the form shows for a field."""
    editor.settle()
    fields = [field for section in editor.report["form"] for field in section["fields"]]
    (value,) = [field["value"] for field in fields if field["path"] == path]
    return value


def until(editor: ConfigEditor, reached: Callable[[], bool]) -> None:
    """Wait for something that the editor notices by itself."""
    done = threading.Event()
    names = ["text", "report", "status"]
    editor.observe(lambda change: reached() and done.set(), names)  # type: ignore[func-returns-value]
    if not reached():
        assert done.wait(60)


def test_editor_opens_with_the_unchanged_file(editor: ConfigEditor, file: Path) -> None:
    assert editor.text == file.read_text()
    assert editor.report["effect"] == "unchanged"
    assert editor.report["problems"] == editor.report["diff"] == []


def test_form_and_text_follow_each_other(editor: ConfigEditor) -> None:
    editor.text = editor.text.replace("max_batch_size: 8", "max_batch_size: 4  # fewer")
    assert shown(editor, "max_batch_size") == 4
    editor.set_field("max_batch_size", 2)
    assert "max_batch_size: 2  # fewer" in editor.text


def test_line_endings_are_those_of_a_browser(editor: ConfigEditor) -> None:
    editor.text = "max_batch_size: 8\r\nbackend: 'python'\r\n"
    editor.settle()
    assert editor.report["text"] == editor.text == "max_batch_size: 8\nbackend: 'python'\n"


def test_editor_reports_the_effect_of_applying_in_advance(editor: ConfigEditor) -> None:
    editor.set_field(DELAY, 500)
    editor.settle()
    assert editor.report["effect"] == "in place"
    editor.set_field("max_batch_size", 4)
    editor.settle()
    assert editor.report["effect"] == "reloaded"


def test_editor_shows_the_effect_after_applying(server: Server, editor: ConfigEditor) -> None:
    editor.set_field(DELAY, 500)
    assert editor.apply() == "in place"
    assert server["add_sub"].config.dynamic_batching.max_queue_delay_microseconds == 500
    editor.set_field("max_batch_size", 4)
    assert editor.apply() == "reloaded"
    assert editor.apply() == "unchanged"
    assert server["add_sub"].config.max_batch_size == 4
    assert editor.status["level"] == "good"


def test_no_request_in_flight_fails(server: Server, editor: ConfigEditor) -> None:
    async def ask_while(applying: Callable[[], object]) -> int:
        worker = asyncio.get_running_loop().run_in_executor(None, applying)
        answered = 0
        while not worker.done():
            await asyncio.gather(*(server["add_sub"].infer_async(INPUTS) for _ in range(20)))
            answered += 20
        await worker
        return answered

    def apply() -> None:
        for delay, size in ((500, 8), (500, 4), (0, 4), (0, 8)):
            editor.set_field(DELAY, delay)
            editor.set_field("max_batch_size", size)
            assert editor.apply() != "unchanged"

    assert asyncio.run(ask_while(apply)) > 0


def test_rejected_configuration_is_shown_and_changes_nothing(server: Server, editor: ConfigEditor) -> None:
    editor.set_field("dynamic_batching.preferred_batch_size", [16])
    editor.settle()
    (problem,) = editor.report["problems"]
    assert problem["message"] == "dynamic batching preferred size must be <= max batch size for add_sub"
    assert problem["line"] == editor.text.splitlines().index("dynamic_batching { preferred_batch_size: [16] }") + 1
    with pytest.raises(TritonError, match="preferred size must be"):
        editor.apply()
    assert editor.status["level"] == "error"
    editor.revert()
    assert editor.report["effect"] in ("", "unchanged")
    assert server["add_sub"](INPUTS)["OUTPUT0"].tolist() == [[2.0, 3.0, 4.0, 5.0]]


def test_unparsable_text_leaves_the_form_unchanged(editor: ConfigEditor) -> None:
    editor.text = "max_batch_size 8"
    editor.settle()
    assert editor.report["form"] is None
    assert editor.report["problems"][0]["message"] == '1:16: Expected ":", found "8".'


def test_running_configuration_is_shown_in_the_format_of_the_file(server: Server, file: Path) -> None:
    config = server["add_sub"].config
    config.dynamic_batching.max_queue_delay_microseconds = 77
    config.apply()
    editor = server["add_sub"].edit()
    wanted = file.read_text().splitlines()
    assert editor.text.splitlines()[:-1] == wanted[:-1]
    assert "max_queue_delay_microseconds: 77" in editor.text.splitlines()[-1]
    assert editor.report["effect"] == "unchanged"
    editor.close()


@pytest.mark.slow
def test_editor_follows_a_change_made_elsewhere(server: Server, editor: ConfigEditor) -> None:
    config = server["add_sub"].config
    config.dynamic_batching.max_queue_delay_microseconds = 99
    config.apply()
    until(editor, lambda: "max_queue_delay_microseconds: 99" in editor.text)


@pytest.mark.slow
def test_unloaded_model_is_reported_until_it_is_loaded_again(server: Server, editor: ConfigEditor) -> None:
    server.unload(editor.model)
    until(editor, lambda: "has been unloaded" in editor.status["outcome"])
    server.load(editor.model)
    until(editor, lambda: editor.status["outcome"] == "The model is loaded again.")
    editor.set_field("dynamic_batching.max_queue_delay_microseconds", 700)
    assert editor.apply() == "in place"


def test_saving_replaces_the_file_atomically(editor: ConfigEditor, file: Path) -> None:
    file.chmod(0o640)
    editor.set_field(DELAY, 500)
    editor.save()
    assert file.read_text() == editor.text
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in file.parent.iterdir()) == ["1", "config.pbtxt", "config.pbtxt.bak"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("max_batch_size: 4", "expected a whole configuration"),
        ("max_batch_size: -4", "'max_batch_size' must be non-negative value"),
        ("max_batch_size 4", "line 1, column|1:16"),
    ],
)
def test_text_that_the_server_would_reject_is_saved_only_on_a_second_save(
    editor: ConfigEditor, file: Path, text: str, problem: str
) -> None:
    before = file.read_text()
    editor.text = text
    with pytest.raises(RuntimeError, match=problem):
        editor.save()
    assert file.read_text() == before
    assert "Save again to write it nevertheless" in editor.status["outcome"]
    editor.save()
    assert file.read_text() == text
    assert file.with_name("config.pbtxt.bak").read_text() == before


@pytest.mark.slow
def test_externally_changed_file_is_overwritten_only_on_a_second_save(editor: ConfigEditor, file: Path) -> None:
    file.write_text(file.read_text() + "# by hand\n")
    until(editor, lambda: bool(editor.status["outside"]))
    with pytest.raises(RuntimeError, match="changed elsewhere"):
        editor.save()
    assert file.read_text().endswith("# by hand\n")
    editor.take_file()
    assert editor.text.endswith("# by hand\n")


def test_python_function_is_edited_the_same_way(server: Server) -> None:
    @server.model(max_batch_size=8, dynamic_batching={})
    def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X * 2

    editor = server["double"].edit()
    assert editor.status["file"] == ""
    assert "optimization" not in editor.text
    editor.set_field(DELAY, 500)
    assert editor.apply() == "in place"
    editor.set_field("max_batch_size", 4)
    assert editor.apply() == "reloaded"
    assert server["double"](X=[[1.0]])["OUTPUT"].tolist() == [[2.0]]
    editor.close()


def test_file_with_the_line_ends_of_windows_keeps_them(server: Server, file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    editor = server["add_sub"].edit()
    assert editor.text == file.read_text()
    editor.set_field(DELAY, 500)
    editor.save()
    assert file.read_bytes() == editor.text.replace("\n", "\r\n").encode()
    editor.close()


def break_file(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def test_model_with_an_invalid_file_is_corrected(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "add_sub", tmp_path / "add_sub")
    file = tmp_path / "add_sub" / "config.pbtxt"
    break_file(file, "max_batch_size: 8", "max_batch_size: -8")
    with Server(tmp_path, port=0) as server:
        editor = server["add_sub"].edit()
        assert editor.text == file.read_text()
        (problem,) = editor.report["problems"]
        assert problem["line"] == file.read_text().splitlines().index("max_batch_size: -8") + 1
        assert editor.status["level"] == "error"
        editor.set_field("max_batch_size", 4)
        editor.settle()
        assert editor.report["effect"] == "loaded"
        assert editor.report["problems"] == []
        assert editor.report["diff"][0] == "--- file"
        assert editor.apply() == "loaded"
        assert not server.load_errors
        assert server["add_sub"](INPUTS)["OUTPUT0"].tolist() == [[2.0, 3.0, 4.0, 5.0]]
        editor.set_field(DELAY, 500)
        assert editor.apply() == "in place"
        editor.save()
        assert "max_batch_size: 4" in file.read_text()
        editor.close()


def test_error_of_the_backend_is_shown_at_its_line_and_can_be_retried(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "accumulator_onnx", tmp_path / "accumulator_onnx")
    file = tmp_path / "accumulator_onnx" / "config.pbtxt"
    break_file(file, 'name: "OUTPUT"', 'name: "marks"')
    with Server(tmp_path, port=0) as server:
        editor = server["accumulator_onnx"].edit()
        (problem,) = editor.report["problems"]
        assert "'marks'" in problem["message"]
        assert "marks" in "".join(file.read_text().splitlines()[problem["line"] - 1 :][:4])
        with pytest.raises(TritonError, match="marks"):
            editor.apply()
        assert len(editor.report["problems"]) == 1
        editor.text = editor.text.replace("marks", "OUTPUT")
        editor.settle()
        assert editor.report["problems"] == []
        assert editor.apply() == "loaded"
        editor.close()


def test_model_in_several_repositories_has_no_file_to_edit(tmp_path: Path) -> None:
    for repository in ("a", "b"):
        shutil.copytree(EXAMPLES / "add_sub", tmp_path / repository / "add_sub")
    with (
        Server([tmp_path / "a", tmp_path / "b"], port=0) as server,
        pytest.raises(TritonError, match="not unique across all model repositories"),
    ):
        server["add_sub"].edit()


def test_model_is_edited_in_the_repository_that_contains_it(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "add_sub", tmp_path / "a" / "add_sub")
    (tmp_path / "b").mkdir()
    with Server([tmp_path / "b", tmp_path / "a"], port=0) as server:
        editor = server["add_sub"].edit()
        assert editor.status["file"] == str(tmp_path / "a" / "add_sub" / "config.pbtxt")
        shutil.copytree(tmp_path / "a" / "add_sub", tmp_path / "b" / "add_sub")  # which it is not served from
        editor.set_field("max_batch_size", 4)
        assert editor.apply() == "reloaded"
        editor.save()
        assert "max_batch_size: 4" in (tmp_path / "a" / "add_sub" / "config.pbtxt").read_text()
        assert "max_batch_size: 8" in (tmp_path / "b" / "add_sub" / "config.pbtxt").read_text()
        editor.close()


def test_editing_twice_returns_the_same_editor_until_it_is_closed(server: Server) -> None:
    editor = server["add_sub"].edit()
    assert server["add_sub"].edit() is editor
    editor.close()
    again = server["add_sub"].edit()
    assert again is not editor
    again.close()


@pytest.mark.slow
def test_dashboard_keeps_its_last_state_when_the_server_stops(server: Server) -> None:
    editor = server["add_sub"].edit()
    server.stop()
    until(editor, lambda: bool(editor.status["ended"]))
    assert editor.text
    with pytest.raises(RuntimeError, match="closed"):
        editor.apply()
    editor.close()


def test_calls_while_the_server_stops_are_rejected(server: Server) -> None:
    editor = server["add_sub"].edit()
    server.stop()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            editor.apply()
    editor.close()


def test_no_thread_outlives_its_editor(server: Server, editor: ConfigEditor) -> None:
    threads = [thread for thread in threading.enumerate() if thread.name == "tritonnb editor add_sub"]
    assert threads
    editor.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_batcher_that_the_model_enables_itself_stays_and_this_is_shown(tmp_path: Path) -> None:
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(ASKS)
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "python"\ndynamic_batching { }\n')
    with Server(tmp_path, port=0) as server:
        editor = server["m"].edit()
        editor.text = 'backend: "python"\n'
        assert editor.apply() == "unchanged"
        assert "enables dynamic_batching" in editor.status["outcome"]
        assert server["m"].config.HasField("dynamic_batching")
        editor.close()


ASKS = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(8)
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [1]})
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        return []
"""


def test_error_of_an_action_disappears_with_its_text(editor: ConfigEditor) -> None:
    valid = editor.text
    editor.text = valid.replace("max_batch_size: 8", "max_batch_size: }")
    with pytest.raises(TritonError):
        editor.apply()
    assert editor.status["level"] == "error"
    editor.text = valid
    editor.settle()
    assert (editor.status["outcome"], editor.status["level"]) == ("", "")
