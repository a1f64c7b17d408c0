"""The event loop moves to the thread of an instance and back; everything else is as without moving."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runtime.test_caller import CONFIG, FAIL, answer, counts, observed, thread_of, write
from tritonnb.runtime.execution import instance as instance_module
from tritonnb.runtime.execution import movable_loop as movable_loop_module
from tritonnb.runtime.execution.loop import BackgroundLoop
from tritonnb.server.server import Server

ALWAYS, NEVER, LONG_S = 10**18, 0, 60


@pytest.fixture(autouse=True)
def every_execution_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is; and an event loop that has moved stays where it is."""
    monkeypatch.setattr(instance_module, "LOOP_EXECUTION_NS", ALWAYS)
    monkeypatch.setattr(instance_module, "RAPID_NS", ALWAYS)
    monkeypatch.setattr(movable_loop_module, "LEFT_NS", LONG_S * 10**9)
    monkeypatch.setattr(movable_loop_module, "UNUSED_NS", LONG_S * 10**9)
    monkeypatch.setattr(movable_loop_module, "ALONE_NS", 0)


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop's own thread looks whether a batch takes longer than expected."""
    monkeypatch.setattr(movable_loop_module, "LEFT_NS", 500_000)


# --- an event loop and a thread with work ---------------------------------------------------------


class Worker(threading.Thread):
    """Calls functions that it gets as work, and runs the event loop in between if it has moved here."""

    def __init__(self, background: BackgroundLoop) -> None:
        super().__init__(daemon=True)
        self.work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._movable = background.movable
        self.start()

    def run(self) -> None:
        while (function := self.work.get()) is not None:
            function()
            if self._movable.is_at(self.work):
                self._movable.run_until_work(self.work, lambda: None)

    def assign(self, function: Callable[[], object] | None) -> None:
        """Give it work."""
        self.work.put(function)
        self._movable.leave()

    def end(self) -> None:
        """End the thread."""
        self.assign(None)
        self.join(LONG_S)


@pytest.fixture
def background() -> Iterator[BackgroundLoop]:
    loop = BackgroundLoop()
    yield loop
    loop.stop()
    assert loop.loop.is_closed()


@pytest.fixture
def worker(background: BackgroundLoop) -> Iterator[Worker]:
    worker = Worker(background)
    while background.call(threading.get_ident) != worker.ident:  # on a loaded machine, it may move back at once
        background.call(background.movable.prepare, worker.work, True)
        worker.assign(int)
    yield worker
    worker.end()


def test_the_event_loop_runs_on_the_thread_until_it_has_work(background: BackgroundLoop, worker: Worker) -> None:
    running: list[bool] = []

    def look() -> None:
        running.append(background.loop.is_running())
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()

    for _ in range(3):
        assert background.call(threading.get_ident) == worker.ident
        background.call(worker.assign, look)
    assert background.call(threading.get_ident) == worker.ident
    assert running == [False, False, False]


@pytest.mark.usefixtures("looking")
def test_it_moves_back_while_the_work_takes_long(background: BackgroundLoop, worker: Worker) -> None:
    go_on = threading.Event()
    background.call(worker.assign, go_on.wait)
    assert background.call(threading.get_ident) != worker.ident  # otherwise, the call would wait for ever
    go_on.set()
    assert not background.movable.is_at(worker.work)


def test_it_moves_back_if_there_is_no_work(
    background: BackgroundLoop, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(movable_loop_module, "UNUSED_NS", 0)
    deadline = time.monotonic() + LONG_S
    while background.call(threading.get_ident) == worker.ident:
        assert time.monotonic() < deadline


def test_it_moves_back_when_another_thread_gets_work(background: BackgroundLoop, worker: Worker) -> None:
    other: SimpleQueue[Any] = SimpleQueue()
    background.call(background.movable.prepare, other, True)
    assert background.call(threading.get_ident) not in (worker.ident, threading.get_ident())
    background.call(background.movable.prepare, worker.work, False)
    background.call(background.movable.prepare, worker.work, False)
    assert not background.movable.is_at(worker.work)


def test_it_moves_to_a_thread_that_has_been_the_only_one_for_a_while(
    background: BackgroundLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    work: SimpleQueue[Any] = SimpleQueue()
    monkeypatch.setattr(movable_loop_module, "ALONE_NS", ALWAYS)
    for _ in range(3):
        background.call(background.movable.prepare, work, True)
    assert not background.movable.is_at(work)
    monkeypatch.setattr(movable_loop_module, "ALONE_NS", 0)
    background.call(background.movable.prepare, work, True)
    assert background.movable.is_at(work)


def test_a_callback_may_end_it_there(
    background: BackgroundLoop, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda exit: None)  # pytest's does not ignore SystemExit
    background.loop.call_soon_threadsafe(sys.exit)
    while background.alive:
        assert worker.is_alive()
    assert background.loop.is_closed()


def test_the_event_loop_ends_if_it_is_to_be_left_at_the_same_time(background: BackgroundLoop) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    def end() -> None:
        background.loop.create_task(never())
        background.movable.leave()
        background.movable.end()

    background.loop.call_soon_threadsafe(end)
    background.stop()
    assert background.loop.is_closed()


def test_a_task_continues_where_the_event_loop_is(background: BackgroundLoop, worker: Worker) -> None:
    async def main() -> list[int]:
        threads = []
        for seconds in (0, 0.001, 0):
            threads.append(threading.get_ident())
            await asyncio.sleep(seconds)
        background.movable.move_back(worker.work)
        while threading.get_ident() == worker.ident:
            await asyncio.sleep(0.001)
        return threads

    assert background.run(main()) == [worker.ident] * 3


# --- models ---------------------------------------------------------------------------------------

OWN = CONFIG.replace("true", "false")
#: One kind of work that takes longer than expected, or depends on the thread, for each value.
DEPENDS_ON_THE_THREAD = """
import asyncio, sqlite3, threading, time, urllib.request

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.connection = sqlite3.connect(":memory:")  # raises an exception on any other thread

    def execute(self, requests):
        return [self.one(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()) for request in requests]

    def one(self, array):
        with open("{port}") as file:
            port = int(file.read())
        value = array.flat[0]
        if value in (1, 5):
            time.sleep(value / 5)
        elif value == 2:
            array = np.full(array.shape, asyncio.run(asyncio.sleep(0, 2)), np.int32)
        elif value == 3:
            with urllib.request.urlopen("http://127.0.0.1:%d/v2/health/live" % port) as response:
                assert response.status == 200
        elif value == 4:
            call = pb_utils.InferenceRequest(
                model_name="other", requested_output_names=["Y"], inputs=[pb_utils.Tensor("X", array)]
            )
            array = call.exec().output_tensors()[0].as_numpy()
        self.connection.execute("select 1")
        thread = np.full(array.shape, threading.get_ident(), np.int64)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", array), pb_utils.Tensor("THREAD", thread)])

    def finalize(self):
        self.connection.close()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    repository = tmp_path / "repository"
    write(repository, "own", f"{OWN} dynamic_batching {{ }}")
    write(repository, "other", f"{OWN} dynamic_batching {{ }}")
    write(repository, "strict", OWN)
    (repository / "strict" / "1" / "model.py").write_text(
        DEPENDS_ON_THE_THREAD.replace("{port}", str(tmp_path / "port"))
    )
    with Server(repository, port=0) as server:
        (tmp_path / "port").write_text(str(server.port))
        yield server


def move(server: Server, model: str) -> int:
    """Have the event loop move to the thread of the model; returns the thread."""
    deadline = time.monotonic() + LONG_S
    while server.call(threading.get_ident) != (thread := thread_of(server, model)):
        assert time.monotonic() < deadline
    return thread


def test_a_model_is_executed_on_its_own_thread_where_the_event_loop_is_too(server: Server) -> None:
    own = thread_of(server, "own")
    assert server.call(threading.get_ident) != own
    assert move(server, "own") == own
    assert [thread_of(server, "own") for _ in range(20)] == [own] * 20
    assert server.call(threading.get_ident) == own


def test_the_event_loop_is_on_its_own_thread_while_two_models_run(server: Server) -> None:
    threads = {move(server, "own"), thread_of(server, "other")}
    for model in ("own", "other") * 3:
        assert thread_of(server, model) in threads
        assert server.call(threading.get_ident) not in threads


@pytest.mark.usefixtures("looking")
@pytest.mark.parametrize("value", [0, 1, 2, 3, 4], ids=["quick", "slow", "asyncio.run", "HTTP to the server", "BLS"])
def test_a_model_may_do_what_takes_long_or_needs_its_thread_or_the_server(server: Server, value: int) -> None:
    thread = move(server, "strict")
    for number in (value, 0, value):
        answered = server["strict"](X=np.full((1, 1), number, np.int32))
        assert (answered["Y"].item(), answered["THREAD"].item()) == (number, thread)


@pytest.mark.usefixtures("looking")
def test_others_are_served_while_a_batch_takes_longer_than_expected(server: Server) -> None:
    move(server, "strict")
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(thread_of, server, "strict", 5)
        served_meanwhile = 0
        while not slow.done():
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v2/health/live", timeout=LONG_S):
                thread_of(server, "other")
            served_meanwhile += not slow.done()
    assert served_meanwhile


def test_the_event_loop_leaves_a_model_alone_that_was_slow(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    move(server, "own")
    monkeypatch.setattr(instance_module, "LOOP_EXECUTION_NS", NEVER)
    monkeypatch.setattr(instance_module, "BLOCKED_PART", 1e-9)
    thread = thread_of(server, "own")
    assert {server.call(threading.get_ident) == thread_of(server, "own") for _ in range(3)} == {False}
    monkeypatch.setattr(instance_module, "LOOP_EXECUTION_NS", ALWAYS)
    assert {server.call(threading.get_ident) == thread for _ in range(5) if thread_of(server, "own")} == {False}


def test_it_moves_back_when_the_model_is_unloaded_and_the_server_stops_where_it_is(tmp_path: Path) -> None:
    for name in ("own", "other"):
        write(tmp_path, name, f"{OWN} dynamic_batching {{ }}")
    with Server(tmp_path, port=None, model_control_mode="explicit", load_models=["*"]) as server:
        own = move(server, "own")
        server.unload("own")
        assert server.call(threading.get_ident) != own
        move(server, "other")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tritonnb o")]


# --- laws -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    write(repository, "own", f"{OWN} dynamic_batching {{ }}")
    write(repository, "still", f"{OWN} dynamic_batching {{ }}")
    with Server(repository, port=0) as server:
        yield server


values = st.lists(st.sampled_from([0, 1, 2, FAIL]), min_size=1, max_size=8)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(values, min_size=1, max_size=5))
def test_answers_statistics_reasons_and_events_do_not_depend_on_where_the_event_loop_is(
    both: Server, calls: list[list[int]]
) -> None:
    results = []
    for model, rapid_ns in (("own", ALWAYS), ("still", NEVER)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(instance_module, "RAPID_NS", rapid_ns)
            results.append(observed(both, model, lambda name: [answer(both, name, call) for call in calls]))
    assert results[0] == results[1]
    assert [outcome is None for outcome in results[0][0]] == [FAIL in call for call in calls]


def test_every_client_gets_its_own_answers_while_the_event_loop_moves(
    both: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moves all the time: back soon, and again when either of two models has executed a batch."""
    monkeypatch.setattr(movable_loop_module, "UNUSED_NS", 200_000)
    monkeypatch.setattr(movable_loop_module, "LEFT_NS", 0)
    before = {model: both[model].stats() for model in ("own", "still")}

    def over_http(model: str, call: list[int]) -> Any:
        inputs = [{"name": "X", "datatype": "INT32", "shape": [len(call), 1], "data": call}]
        body = json.dumps({"inputs": inputs, "outputs": [{"name": "Y"}]}).encode()
        url = f"http://127.0.0.1:{both.port}/v2/models/{model}/infer"
        with urllib.request.urlopen(url, body, timeout=LONG_S) as response:
            return json.load(response)["outputs"][0]["data"]

    def ask(number: int) -> tuple[Any, list[int]]:
        call = [number, number + 1]
        model = ("own", "still")[number % 2]
        return (over_http(model, call) if number % 3 else answer(both, model, call)), call

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(1200)))
    assert [given for given, _ in answers] == [expected for _, expected in answers]
    for model in ("own", "still"):
        gained = counts(both[model].stats()) - counts(before[model])
        assert (gained["success"], gained["inference_count"]) == (600, 1200)


def test_a_closed_event_loop_ends_the_thread_of_a_late_instance(background: BackgroundLoop, worker: Worker) -> None:
    """A server that does not wait for a batch closes its event loop before the batch ends."""
    go_on = threading.Event()
    background.call(worker.assign, go_on.wait)
    background.stop()
    go_on.set()
    with suppress(RuntimeError):
        worker.end()
    assert not worker.is_alive()
