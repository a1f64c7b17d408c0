"""The preview of a draft in the configuration editor, and its ghost in the live view."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import tritonnb as tnb
from tritonnb.notebook.config_editor import ConfigEditor
from tritonnb.notebook.live_batch_view import LiveBatchView


@pytest.fixture(scope="module")
def server() -> Iterator[tnb.Server]:
    with tnb.serve() as server:

        @server.model(max_batch_size=8, dynamic_batching={})
        def slow(X: tnb.FP32[1]) -> tnb.FP32[1]:
            time.sleep(0.002)
            return X

        tnb.load(server["slow"], rate=200, requests=60, seed=1, arrivals="poisson").wait()
        yield server


@pytest.fixture
def editor(server: tnb.Server) -> Iterator[ConfigEditor]:
    editor = server["slow"].edit()
    yield editor
    editor.close()


def edit(editor: ConfigEditor, **fields: object) -> None:
    """Change fields as the form does, and wait for the preview."""
    for path, value in fields.items():
        editor.set_field(f"dynamic_batching.{path}", value)
    editor.settle()


def test_draft_is_previewed_before_it_is_applied(editor: ConfigEditor) -> None:
    assert editor.preview == {}
    edit(editor, max_queue_delay_microseconds=50_000)
    assert "The last 60 requests under this draft: mean batch " in editor.preview["text"]  # perhaps after a remark
    before, after = editor.preview["figures"]["mean_batch_size"]
    assert after > before
    assert editor.report["effect"] == "in place"


def test_running_configuration_and_invalid_draft_have_no_preview(editor: ConfigEditor) -> None:
    edit(editor, max_queue_delay_microseconds=50_000)
    editor.revert()
    edit(editor)
    assert editor.preview == {}
    edit(editor, max_queue_delay_microseconds=50_000)
    editor.text += "\nnonsense"
    edit(editor)
    assert editor.preview == {}


def test_preview_of_a_model_that_was_unloaded_ends(server: tnb.Server) -> None:
    @server.model(max_batch_size=8, dynamic_batching={})
    def unloaded(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X

    model = server["unloaded"]
    editor, draft = model.edit(), model.running_config()
    model.unload()
    editor._drafts.update(draft)
    editor.settle()
    editor.close()


def test_live_view_draws_the_draft_behind_the_batches(server: tnb.Server, editor: ConfigEditor) -> None:
    view: LiveBatchView = server["slow"].watch()
    edit(editor, max_queue_delay_microseconds=50_000)
    assert view.ghost["text"] == editor.preview["text"]
    assert {instance for instance, *_ in view.ghost["boxes"]} == {"slow_0"}
    assert max(rows for *_, rows in view.ghost["boxes"]) > 1
    assert all(begin < end for _, begin, end, _ in view.ghost["boxes"])
    editor.close()
    assert view.ghost == {}
    view.close()


def test_preview_explains_why_a_draft_cannot_run_the_traffic(server: tnb.Server) -> None:
    @server.model(max_batch_size=8, dynamic_batching={})
    def wide(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X

    server["wide"](X=[[1.0]] * 6)
    editor = server["wide"].edit()
    editor.set_field("max_batch_size", 4)
    editor.settle()
    assert editor.preview["text"].startswith("No preview: inference request batch-size must be <= 4")
    editor.close()


@pytest.mark.parametrize("has_traffic", [True, False])
def test_draft_is_replayed_again_only_after_new_requests_of_its_model(
    server: tnb.Server, monkeypatch: pytest.MonkeyPatch, has_traffic: bool
) -> None:
    """The history encodes events, and then makes new tuples of the same events at every reading."""

    @server.model(max_batch_size=8, dynamic_batching={})
    def edited(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X

    @server.model(max_batch_size=8)
    def other(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X

    if has_traffic:
        server["edited"](X=[[1.0]])
    replays: list[object] = []

    def replay(function: Any, history: Any, config: Any, draft: Any) -> object:
        replays.append(draft)
        return function(history, config, draft)

    monkeypatch.setattr("tritonnb.notebook.draft_preview.previews.call", replay)
    for share in ("_OWN_SHARE", "_REPLAY_SHARE"):
        monkeypatch.setattr(f"tritonnb.notebook.draft_preview.{share}", 1e9)
    editor = server["edited"].edit()
    try:
        edit(editor, max_queue_delay_microseconds=50_000)
        begun = len(replays)
        assert begun
        for _ in range(3):
            tnb.load(server["other"], clients=2, requests=200).wait()
            editor._drafts.refresh()
            editor._drafts.join()
        assert len(replays) == begun
        server["edited"](X=[[1.0]])
        editor._drafts.refresh()
        editor._drafts.join()
        # Twice if the view's own refresh came between its arrival and its end.
        assert begun < len(replays) <= begun + 2
    finally:
        editor.close()
        server.unload("edited")
        server.unload("other")


def test_draft_of_a_called_model_is_previewed_for_its_pipeline(server: tnb.Server, editor: ConfigEditor) -> None:
    @server.model(max_batch_size=8)
    def caller(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return next(iter(server["slow"](X=X).values()))

    tnb.load(server["caller"], rate=100, requests=20, seed=1).wait()
    edit(editor, max_queue_delay_microseconds=50_000)
    sentence = editor.preview["text"].partition(" Pipeline 'caller': p50 ")[2]
    before, after = map(float, sentence.split(" ms")[0].split(" → "))
    assert after > before + 20
    server["caller"].unload()
