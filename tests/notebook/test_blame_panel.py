"""Data of the panel that splits the latency of a request."""

from __future__ import annotations

import threading
from functools import partial

import pytest

import tritonnb as tnb
from tritonnb.core.json_types import Json
from tritonnb.lab.analysis.blame import Blame
from tritonnb.notebook.batch_view import BatchView
from tritonnb.notebook.blame_panel import answer_request
from tritonnb.notebook.worker import LatestOnlyWorker
from tritonnb.recording.recording import Recording


@pytest.fixture
def rec() -> Recording:
    return tnb.simulate("max_batch_size: 8 dynamic_batching { }", [(0, 1), (2000, 8), (3000, 1)], tnb.fixed(5))


def test_blame_panel_has_parts_then_remedies(rec: Recording) -> None:
    reports: list[Json] = []
    answer_request(rec, 3, "3", reports.append)
    assert [len(report["parts"]) for report in reports] == [3, 3]
    assert [cause for cause, *_ in reports[0]["parts"]] == list(rec.blame(3).parts)
    assert {remedy for *_, remedy in reports[0]["parts"]} == {None}
    assert "max_batch_size: 9 removes it" in reports[1]["parts"][1][-1]


@pytest.mark.parametrize(("batch", "label"), [(9, "3"), (3, "1")])
def test_request_outside_the_kept_history_is_named(rec: Recording, batch: int, label: str) -> None:
    reports: list[Json] = []
    answer_request(rec, batch, label, reports.append)
    message = f"Request {label} is not in the events that are kept any more, or has not ended."
    assert reports == [{"batch": batch, "request": label, "error": message}]


def test_recording_without_a_configuration_has_a_note(rec: Recording) -> None:
    reports: list[Json] = []
    answer_request(Recording(rec.events), 3, "3", reports.append)
    assert "expected the configuration of model 'simulated', got none" in reports[0]["error"]


def test_view_answers_a_message_of_the_browser(rec: Recording) -> None:
    view: BatchView = rec.view()
    view._handle_custom_msg({"blame": {"batch": 3, "request": "3"}}, [])
    view._blaming.join()
    view._searching.join()
    assert view.blame["title"] == rec.blame(3).title
    assert view.blame["parts"][0][0] == "instances_busy"


def test_request_is_explained_while_remedies_of_another_are_searched(
    rec: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, release = threading.Event(), threading.Event()

    def search(blame: Blame) -> dict[str, str]:
        begun.set()
        assert release.wait(60)
        return {}

    monkeypatch.setattr(Blame, "remedies", property(search))
    view: BatchView = rec.view()
    for batch, label in ((3, "3"), (2, "2")):
        view._handle_custom_msg({"blame": {"batch": batch, "request": label}}, [])
        view._blaming.join()
        assert begun.wait(60)
    assert view.blame["title"] == rec.blame(2).title
    assert {remedy for *_, remedy in view.blame["parts"]} == {None}
    release.set()
    view._searching.join()
    assert view.blame["title"] == rec.blame(2).title
    assert None not in {remedy for *_, remedy in view.blame["parts"]}


def test_newest_job_replaces_waiting_ones() -> None:
    jobs = LatestOnlyWorker("test")
    done: list[tuple[int, bool]] = []
    begun, release = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        release.wait()
        done.append((1, jobs.outdated))

    jobs.submit(first)
    begun.wait()
    for number in (2, 3, 4):
        jobs.submit(partial(lambda number: done.append((number, jobs.outdated)), number))
    release.set()
    jobs.join()
    assert done == [(1, True), (4, False)]


def test_thread_is_joined_only_if_started(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, done = LatestOnlyWorker("test"), threading.Event()
    start = threading.Thread.start

    def join_first(thread: threading.Thread) -> None:
        jobs.join()  # as another thread may at this moment
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", join_first)
    jobs.submit(done.set)
    assert done.wait(60)
    jobs.join()
