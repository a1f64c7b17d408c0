"""The worker thread of widgets."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tests.server.forks import in_child
from tritonnb.notebook.worker import Job, LatestOnlyWorker, Worker


def run(job: Job) -> None:
    job()


def test_jobs_run_in_order_including_those_submitted_before_the_end() -> None:
    results: list[int] = []
    worker = Worker("worker", run, lambda: None, 60)
    assert [worker.submit(lambda number=number: results.append(number)) for number in range(5)] == [True] * 5  # type: ignore[misc]
    worker.stop()
    assert not worker.submit(lambda: results.append(5))
    worker.start()
    worker.join()
    assert results == list(range(5))


def test_idle_worker_polls() -> None:
    polled = threading.Event()
    worker = Worker("worker", run, polled.set, 0.001)
    worker.start()
    assert polled.wait(60)
    worker.stop()
    worker.join()


def test_newest_job_runs_at_once_where_there_are_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritonnb.notebook.worker.IN_BROWSER", True)
    jobs, done = LatestOnlyWorker("test"), list[int]()
    before = threading.active_count()
    for number in range(3):
        jobs.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    jobs.submit(lambda: 1 // 0)  # type: ignore[arg-type]
    jobs.join()
    assert (done, threading.active_count(), jobs.outdated) == ([0, 1, 2], before, False)


def test_worker_can_be_stopped_and_joined_from_its_own_thread() -> None:
    ended = threading.Event()

    def stop() -> None:
        worker.stop()
        worker.join()
        ended.set()

    worker = Worker("worker", run, lambda: None, 60)
    worker.start()
    worker.submit(stop)
    assert ended.wait(60)
    worker.join()
    assert worker.stopped


def test_job_of_a_forked_child_is_refused_where_the_thread_does_not_exist() -> None:
    worker, newest, begun, go = Worker("worker", run, lambda: None, 60), LatestOnlyWorker("test"), *_events(2)
    worker.start()
    newest.submit(lambda: begun.set() or go.wait())  # type: ignore[arg-type, func-returns-value]
    begun.wait()
    assert in_child(lambda: worker.submit(print)) == (
        "UnavailableError: worker: it runs in the process that forked this one: open another one here"
    )
    assert in_child(worker.close) == in_child(newest.join) == "None"

    def renewed() -> list[int]:
        done: list[int] = []
        newest.submit(lambda: done.append(1))
        newest.join()
        return done

    assert in_child(renewed) == "[1]"
    go.set()
    newest.join()
    worker.close()


def _events(number: int) -> list[threading.Event]:
    return [threading.Event() for _ in range(number)]


JOB = """
import threading

from tritonnb.notebook.worker import LatestOnlyWorker, ViewThread, Worker

begun = threading.Event()

def draw():
    begun.set()
    threading.main_thread().join()
    print(sum(range(10**7)), flush=True)
"""


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_latest_job_runs_after_one_that_failed(error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    jobs, begun, submitted, done = LatestOnlyWorker("test"), *(threading.Event() for _ in range(3))

    def fail() -> None:
        begun.set()
        submitted.wait()
        raise error

    jobs.submit(fail)
    begun.wait()
    jobs.submit(done.set)
    submitted.set()
    jobs.join()
    assert done.is_set()
    assert "a job failed" in caplog.text


@pytest.mark.parametrize(
    "start",
    [
        "Worker('test', lambda job: job(), draw, 0.001).start()",
        "LatestOnlyWorker('test').submit(draw)",
        "ViewThread('test', draw, lambda: None).start()",
    ],
)
def test_interpreter_does_not_exit_during_a_job(start: str) -> None:
    script = f"{JOB}\nthread = {start}\nbegun.wait()"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr, run.returncode) == ("49999995000000\n", "", 0)
