"""Clients that give up, cells that are interrupted and servers that are stopped while models are loaded."""

from __future__ import annotations

import _thread
import asyncio
import gc
import http.client
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

import tritonnb as tnb
from tests.server.conftest import python_model
from tests.waiting import wait_for
from tritonnb.core.errors import UnavailableError
from tritonnb.engine.repository.table import ExitTimeoutError
from tritonnb.notebook.side_process import previews
from tritonnb.server.server import Server

#: A model whose initialisation waits for the test.
SLOW = python_model("x").replace(
    "    def execute",
    """    def initialize(self, args):
        from tests.server.test_interrupted_servers import GATE
        GATE.enter()

    def execute""",
)
#: A model whose process waits forever while it is initialised.
ENDLESS = python_model("x").replace(
    "    def execute",
    "    def initialize(self, args):\n        import time\n        time.sleep(3600)\n\n    def execute",
)
#: A model whose process waits forever while its module is imported.
ENDLESS_IMPORT = "import time\ntime.sleep(3600)\n"
ISOLATED = 'parameters { key: "EXECUTION_PROCESS" value { string_value: "isolated" } } instance_group { count: 2 }'


class LoadGate:
    """Blocks initialisations until the test opens it."""

    def __init__(self) -> None:
        self.entered: SimpleQueue[None] = SimpleQueue()
        self.opened = threading.Event()

    def enter(self) -> None:
        self.entered.put(None)
        assert self.opened.wait(30)


GATE = LoadGate()


@pytest.fixture(autouse=True)
def _gate() -> Iterator[None]:
    GATE.__init__()  # type: ignore[misc]  # models have imported it
    yield
    GATE.opened.set()


def resources() -> tuple[list[str], int, int]:
    """The threads, the number of file descriptors and the number of child processes of this process."""
    gc.collect()  # objects of earlier tests
    process = psutil.Process()
    threads = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("tritonnb"))
    return threads, process.num_fds(), len(process.children(recursive=True))


@pytest.fixture
def _returned() -> Iterator[None]:
    """Check that a test leaves as many threads, descriptors and processes as there were."""
    previews.close()  # of an earlier test: its process ends after a minute
    with Server(port=0, grpc_port=0) as server:  # gRPC's client keeps two descriptors from its first call on
        load_over_grpc(server)
    before = resources()

    def is_left(after: tuple[list[str], int, int]) -> bool:
        # Fewer descriptors, if gRPC closes those of the client of an earlier test meanwhile.
        return (after[0], after[2]) == (before[0], before[2]) and after[1] <= before[1]

    yield
    deadline, pause = time.monotonic() + 60, threading.Event()
    while not is_left(after := resources()) and time.monotonic() < deadline:
        pause.wait(0.01)
    assert is_left(after), (before, after)


def start(write_model: Callable[..., Path], model: str = SLOW, config: str = "", **options: float) -> Server:
    """Start a server with a model that is not loaded."""
    repository = write_model("m", model, config)
    return Server(repository, port=0, grpc_port=0, model_control_mode="explicit", **options)  # type: ignore[arg-type]


def load_over_grpc(server: Server, timeout: float = 60) -> tuple[grpc.StatusCode, str]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = GRPCInferenceServiceStub(channel)
        try:
            stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="m"), timeout=timeout)
        except grpc.RpcError as error:
            return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def load_over_http(server: Server) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v2/repository/models/m/load")
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, json.loads(body)["error"] if body else ""


def in_process(server: Server) -> str:
    try:
        server.load("m")
    except UnavailableError as error:
        return str(error)
    return ""


def state(server: Server) -> str:
    (row,) = server.index()
    return row.get("state", "")


@pytest.mark.usefixtures("_returned")
def test_load_continues_after_the_deadline_of_its_client(write_model: Callable[..., Path]) -> None:
    with start(write_model) as server:
        for _ in range(3):
            assert load_over_grpc(server, timeout=0.2)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        GATE.entered.get(timeout=30)
        assert GATE.entered.empty()
        assert state(server) == "LOADING"
        GATE.opened.set()
        server.load("m")
        assert state(server) == "READY"
        assert GATE.entered.empty()  # the model was loaded once
        np.testing.assert_array_equal(server["m"](X=[[1.0]])["Y"], [[1.0]])


@pytest.mark.usefixtures("_returned")
def test_load_continues_after_its_client_has_disconnected(write_model: Callable[..., Path]) -> None:
    with start(write_model) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/v2/repository/models/m/load")
        GATE.entered.get(timeout=30)
        connection.close()
        GATE.opened.set()
        server.load("m")
        assert state(server) == "READY"


@pytest.mark.usefixtures("_returned")
def test_interrupted_cell_stops_waiting_for_its_load(write_model: Callable[..., Path]) -> None:
    with start(write_model) as server:

        def interrupt() -> None:
            GATE.entered.get(timeout=30)
            _thread.interrupt_main()

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            server.load("m")
        assert state(server) == "LOADING"
        GATE.opened.set()
        server.load("m")
        assert state(server) == "READY"


@pytest.mark.usefixtures("_returned")
@pytest.mark.parametrize("patient", [True, False])
def test_stop_answers_everybody_who_waits_for_a_load(write_model: Callable[..., Path], patient: bool) -> None:
    server = start(write_model, exit_timeout=30 if patient else 0.3)
    with ThreadPoolExecutor(5) as pool:
        callers = [pool.submit(load, server) for load in (load_over_http, load_over_grpc, in_process)]
        GATE.entered.get(timeout=30)
        unfinished = server.engine._repository.operations.unfinished
        wait_for(lambda: server.call(lambda: len(unfinished())) == len(callers))
        stopping = [pool.submit(server.stop) for _ in range(2)]
        wait_for(lambda: server.engine._stopping)
        if patient:
            GATE.opened.set()
            stopping[0].result(30)
            stopping[1].result(30)
            reason = "model 'm' was not loaded: the server is stopping"
        else:
            outcomes = {type(stop.exception(30)) for stop in stopping}
            assert outcomes == {ExitTimeoutError, type(None)}
            reason = "the server was stopped after 0.3 s (exit_timeout) while model 'm' was being loaded"
        assert not server.alive
        answers = [caller.result(30) for caller in callers]
    assert answers == [(503, reason), (grpc.StatusCode.UNAVAILABLE, reason), reason]
    GATE.opened.set()


def _is_model(child: psutil.Process) -> bool:
    with suppress(psutil.Error):  # a process that has just ended has no command line
        return "start.py" in " ".join(child.cmdline())
    return False


@pytest.mark.usefixtures("_returned")
@pytest.mark.parametrize("model", [ENDLESS, ENDLESS_IMPORT], ids=["initialize", "import"])
def test_stop_ends_processes_that_start(write_model: Callable[..., Path], model: str) -> None:
    server = start(write_model, model, ISOLATED, exit_timeout=3600)  # far beyond the time limit of the test
    with ThreadPoolExecutor(1) as pool:
        caller = pool.submit(in_process, server)
        wait_for(lambda: any(map(_is_model, psutil.Process().children())))
        server.stop()
        assert caller.result(30) == "model 'm' was not loaded: the server is stopping"


@pytest.mark.usefixtures("_returned")
def test_polls_loads_and_unloads_at_the_same_time_follow_one_another(write_model: Callable[..., Path]) -> None:
    with Server(write_model("other", python_model("x")), port=0, model_control_mode="poll") as server:
        write_model("m", SLOW)
        with ThreadPoolExecutor(4) as pool:
            polls = [pool.submit(server.run, server.engine.poll()) for _ in range(2)]
            GATE.entered.get(timeout=30)
            load = pool.submit(server.load, "m")
            cancelled = asyncio.run_coroutine_threadsafe(server.engine.poll(), server._background.loop)
            server.call(int)
            cancelled.cancel()
            GATE.opened.set()
            load.result(30)
            for poll in polls:
                poll.result(30)
        assert GATE.entered.empty()  # it was loaded once
        shutil.rmtree(tmp_path_of(server) / "m")
        server.run(server.engine.poll())
        assert list(server) == ["other"]
    assert not server.alive


def tmp_path_of(server: Server) -> Path:
    (repository,) = server.engine.options.model_repositories
    return Path(repository)


@pytest.mark.usefixtures("_returned")
def test_interrupted_start_ends(write_model: Callable[..., Path]) -> None:
    def interrupt() -> None:
        GATE.entered.get(timeout=30)
        _thread.interrupt_main()

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        Server(write_model("m", SLOW), port=0, exit_timeout=0.1)
    GATE.opened.set()


def test_recording_keeps_what_was_recorded_before_a_stop() -> None:
    server = Server(port=0)
    with server.record() as recording:

        @server.model(max_batch_size=8)
        def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X * 2

        server["double"](X=[[1.0]])
        server.stop()
    assert [batch.size for batch in recording.batches] == [1]
    assert recording.configs["double"].max_batch_size == 8
