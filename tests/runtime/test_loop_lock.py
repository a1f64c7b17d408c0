"""The lock of the event loop: one thread at a time has it, and the event loop continues soon."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.test_caller import CONFIG, INTERRUPT, INTERRUPT_TWICE, counts, thread_of, write
from tritonnb.core.events import RequestArrived
from tritonnb.core.packed_events import Packed
from tritonnb.runtime.execution import caller as caller_module
from tritonnb.runtime.execution import instance as instance_module
from tritonnb.runtime.execution import loop_lock as loop_lock_module
from tritonnb.runtime.execution.loop import BackgroundLoop
from tritonnb.runtime.execution.loop_lock import LoopLock
from tritonnb.server.server import Server

ALWAYS, NEVER = 10**18, 0
LONG_S = 60


@pytest.fixture(autouse=True)
def every_execution_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(instance_module, "QUICK_EXECUTION_NS", ALWAYS)
    monkeypatch.setattr(instance_module, "LOOP_EXECUTION_NS", ALWAYS)
    monkeypatch.setattr(loop_lock_module, "RAPID_NS", ALWAYS)
    monkeypatch.setattr(loop_lock_module, "NEEDED_NS", 0)
    monkeypatch.setattr(loop_lock_module, "SUSPENDED_NS", 50_000_000)
    monkeypatch.setattr(loop_lock_module, "UNUSED_NS", 50_000_000)
    monkeypatch.setattr(caller_module, "TIMERS", [])  # the time limit of tests is one


@pytest.fixture
def background() -> Iterator[BackgroundLoop]:
    loop = BackgroundLoop()
    yield loop
    loop.stop()


@pytest.fixture
def lock(background: BackgroundLoop) -> LoopLock:
    return LoopLock(background.loop)


def test_a_thread_with_the_lock_counts_as_the_event_loop(
    background: BackgroundLoop, lock: LoopLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_lock_module, "UNUSED_NS", LONG_S * 10**9)
    done = threading.Event()
    assert lock.acquire()
    assert asyncio.get_running_loop() is background.loop
    with pytest.raises(RuntimeError, match="event loop cannot wait for itself"):
        background.call(int)
    background.loop.call_soon_threadsafe(done.set)
    lock.release()
    lock.resume_loop()
    assert done.wait(LONG_S)
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_an_event_loop_whose_lock_is_not_used_continues(background: BackgroundLoop, lock: LoopLock) -> None:
    assert lock.acquire() or lock.acquire()  # on a loaded machine, it may continue before the lock is used
    lock.release()
    assert background.call(threading.get_ident) != threading.get_ident()


def test_an_event_loop_whose_lock_is_always_used_continues_after_a_time(
    background: BackgroundLoop, lock: LoopLock
) -> None:
    finished = threading.Event()
    background.loop.call_soon_threadsafe(finished.set)
    deadline = time.monotonic() + LONG_S
    while not finished.is_set() and time.monotonic() < deadline:
        if lock.acquire():
            lock.release()
            lock.call_ended()
    assert finished.is_set()


def test_a_busy_event_loop_keeps_its_lock(
    background: BackgroundLoop, lock: LoopLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_lock_module, "_PATIENCE_S", 0.0)
    free = threading.Event()
    background.loop.call_soon_threadsafe(free.wait, LONG_S)
    assert not lock.acquire()
    free.set()
    assert background.call(int) == 0


def test_a_closed_event_loop_keeps_its_lock(background: BackgroundLoop, lock: LoopLock) -> None:
    background.stop()
    assert not lock.acquire()


def test_only_one_thread_at_a_time_runs_code_of_the_event_loop(background: BackgroundLoop, lock: LoopLock) -> None:
    inside = 0
    entered: list[int] = []

    def enter() -> None:
        nonlocal inside
        inside += 1
        entered.append(inside)
        time.sleep(0)  # another thread may run
        inside -= 1

    def work(count: int) -> int:
        locked = 0
        for _ in range(count):
            if lock.acquire():
                enter()
                lock.release()
                locked += 1
            else:
                background.loop.call_soon_threadsafe(enter)
            lock.call_ended()
        return locked

    with ThreadPoolExecutor(8) as threads:
        locked = sum(threads.map(work, [500] * 8))
    background.call(int)
    assert set(entered) == {1}
    assert len(entered) == 4000
    assert locked > 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    write(tmp_path, "any", f"{CONFIG} dynamic_batching {{ }}")
    with Server(tmp_path, port=0) as server:
        thread_of(server, "any", 7)
        yield server


@pytest.fixture
def threads_of_the_event_loop(server: Server) -> list[int]:
    """The threads that have accepted requests as the event loop does: an event is emitted on each."""
    threads: list[int] = []

    def note(packed: Packed) -> None:
        if packed[0] == RequestArrived.__name__:
            threads.append(threading.get_ident())

    server.call(server.engine.stream.attach, note)
    return threads


def test_a_caller_that_calls_rapidly_does_the_work_of_the_event_loop(
    server: Server, threads_of_the_event_loop: list[int]
) -> None:
    assert thread_of(server, "any") == threading.get_ident()
    assert threads_of_the_event_loop == [threading.get_ident()]


def test_calls_with_time_between_them_are_left_to_the_event_loop(
    server: Server, threads_of_the_event_loop: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_lock_module, "RAPID_NS", NEVER)
    assert thread_of(server, "any") == threading.get_ident()
    assert threads_of_the_event_loop != [threading.get_ident()]


def test_the_event_loop_keeps_its_lock_while_others_send_requests(
    server: Server, threads_of_the_event_loop: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_lock_module, "NEEDED_NS", ALWAYS)
    body = {"inputs": [{"name": "X", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}
    thread_of(server, "any")
    urllib.request.urlopen(f"{server.url}/v2/models/any/infer", json.dumps(body).encode(), timeout=LONG_S).close()
    thread_of(server, "any")  # the first request that follows one of others
    thread_of(server, "any")
    own = [thread == threading.get_ident() for thread in threads_of_the_event_loop]
    assert own == [True, False, True, False]


def test_a_thread_that_a_timer_may_interrupt_leaves_calls_to_the_event_loop(
    server: Server, threads_of_the_event_loop: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception of the timer's handler would leave the scheduler in the middle of a decision."""
    monkeypatch.setattr(caller_module, "TIMERS", [signal.SIGALRM])
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    try:
        thread_of(server, "any")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert threads_of_the_event_loop != [threading.get_ident()]


@pytest.mark.parametrize(("limit_ns", "with_lock"), [(ALWAYS, True), (NEVER, False)], ids=["quick", "slow"])
def test_only_a_quick_model_is_executed_with_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_ns: int, with_lock: bool
) -> None:
    monkeypatch.setattr(instance_module, "LOOP_EXECUTION_NS", limit_ns)
    write(tmp_path, "any", CONFIG)
    model = tmp_path / "any" / "1" / "model.py"
    model.write_text(model.read_text().replace("threading.get_ident()", "bool(asyncio._get_running_loop())"))
    model.write_text(f"import asyncio\n{model.read_text()}")
    with Server(tmp_path, port=None) as server:
        assert not thread_of(server, "any")  # on the thread of the instance
        assert thread_of(server, "any") == with_lock


@pytest.mark.parametrize(("value", "outcome"), [(INTERRUPT, "success"), (INTERRUPT_TWICE, "fail")])
def test_after_an_interrupt_with_lock_the_server_continues(
    server: Server, threads_of_the_event_loop: list[int], value: int, outcome: str
) -> None:
    before = counts(server["any"].stats())
    with pytest.raises(KeyboardInterrupt):
        thread_of(server, "any", value)
    assert threads_of_the_event_loop == [threading.get_ident()]
    assert (counts(server["any"].stats()) - before)[outcome] == 1
    assert thread_of(server, "any") == threading.get_ident()


def test_every_request_is_answered_while_callers_tasks_clients_and_edits_compete(server: Server) -> None:
    """Four threads that call rapidly, one with tasks, one with HTTP clients, and one that edits the configuration."""
    model, url = server["any"], f"{server.url}/v2/models/any/infer"
    before = counts(model.stats())

    def call(value: int) -> bool:
        return bool(model(X=np.full((1, 1), value, np.int32))["Y"].item() == value)

    def post(value: int) -> bool:
        body = {"inputs": [{"name": "X", "shape": [1, 1], "datatype": "INT32", "data": [value]}]}
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=LONG_S) as response:
            outputs = {output["name"]: output["data"] for output in json.load(response)["outputs"]}
            return bool(outputs["Y"] == [value])

    async def run_tasks() -> list[bool]:
        answers = await asyncio.gather(*(model.infer_async(X=np.full((1, 1), v, np.int32)) for v in range(1, 201)))
        return [answer["Y"].item() == value for value, answer in enumerate(answers, 1)]

    def edit() -> list[bool]:
        for delay_us in (100, 1, 500, 0):
            model.config.dynamic_batching.max_queue_delay_microseconds = delay_us
            model.config.apply()
        return [True]

    with ThreadPoolExecutor(7) as threads:
        jobs = [threads.submit(lambda: [call(value) for value in range(1, 301)]) for _ in range(4)]
        jobs += [threads.submit(lambda: [post(value) for value in range(1, 101)])]
        jobs += [threads.submit(lambda: asyncio.run(run_tasks())), threads.submit(edit)]
        results = [result for job in jobs for result in job.result(LONG_S)]
    assert all(results)
    gained = counts(model.stats()) - before
    assert (gained["success"], gained["fail"]) == (4 * 300 + 200 + 100, 0)
    assert model.served.in_flight == 0
