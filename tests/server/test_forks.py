"""Forked children of a server's process: every call fails at once, and nothing that they do reaches the parent."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import io
import logging
import multiprocessing
import os
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import tritonnb as tnb
from tests.laws import law
from tests.server.forks import LIMIT_S, in_child
from tests.server.isolated_repository import MODEL, write_repository
from tritonnb.backends.isolation.process import ChildProcess
from tritonnb.core import forks
from tritonnb.errors import UnavailableError
from tritonnb.server.model_handle import ModelHandle


def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    return X * 2


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[tnb.Server]:
    with tnb.Server(repository, port=0, grpc_port=0, metrics_port=0) as server:
        server.model(double, max_batch_size=4)
        yield server


async def awaited(handle: Any) -> object:
    return await handle.infer_async(X=[[1.0]])


def recorded(server: tnb.Server) -> object:
    with server.record():
        return "recorded"


#: What fails in a child, by name; with a server and the handle of a model that were made in the parent.
CALLS: dict[str, Callable[[tnb.Server, Any], object]] = {
    "call": lambda server, handle: handle(X=[[1.0]]),
    "infer": lambda server, handle: handle.infer(X=[[1.0]]),
    "infer_all": lambda server, handle: handle.infer_all(X=[[1.0]]),
    "infer_async": lambda server, handle: asyncio.run(awaited(handle)),
    "isolated model": lambda server, handle: ModelHandle(server, "apart")(X=[[1.0]]),
    "item": lambda server, handle: server["double"],
    "names": lambda server, handle: list(server),
    "index": lambda server, handle: server.index(),
    "metadata": lambda server, handle: server.metadata(),
    "statistics": lambda server, handle: server.stats(),
    "statistics of a model": lambda server, handle: handle.stats(),
    "readiness of a model": lambda server, handle: handle.ready,
    "labels": lambda server, handle: server.labels("double", "OUTPUT"),
    "configuration": lambda server, handle: handle.config.max_batch_size,
    "check": lambda server, handle: handle.check_config(None),
    "load": lambda server, handle: server.load("apart"),
    "reload": lambda server, handle: handle.reload(),
    "unload": lambda server, handle: handle.unload(),
    "function": lambda server, handle: server.model(double, max_batch_size=2),
    "record": lambda server, handle: recorded(server),
    "recent": lambda server, handle: server.recent(),
    "watch": lambda server, handle: handle.watch(),
    "editor": lambda server, handle: handle.edit(),
    "dashboard": lambda server, handle: server.dashboard(),
    "run": lambda server, handle: server.run(server.engine.is_ready()),
}


@pytest.mark.parametrize("name", CALLS)
def test_call_in_a_child_fails_at_once_with_the_remedy(server: tnb.Server, name: str) -> None:
    handle = server["double"]
    outcome = in_child(lambda: CALLS[name](server, handle))
    assert "UnavailableError: the server runs in the process that forked this one" in outcome
    assert f"call it over HTTP (tnb.connect('{server.url}'))" in outcome
    assert "'spawn'" in outcome


OPEN: dict[str, Callable[[tnb.Server, Any], Any]] = {name: CALLS[name] for name in ("watch", "editor", "dashboard")} | {
    "traffic": lambda server, handle: handle.traffic()
}


@pytest.mark.parametrize("name", OPEN)
def test_view_that_is_open_in_the_parent_ends_in_the_child(server: tnb.Server, name: str) -> None:
    view = OPEN[name](server, server["double"])
    assert in_child(view.close) == "None"
    if name == "editor":
        assert "the process that forked this one" in in_child(view.apply)
    if name == "watch":
        assert in_child(lambda: (view.stop(), view.ended.is_set())) == "(None, True)"
    view.close()


def test_load_and_sweep_of_a_child_end(server: tnb.Server) -> None:
    handle = server["double"]
    assert "the process that forked this one" in in_child(lambda: tnb.load(handle, clients=1, requests=3).wait())
    assert "the process that forked this one" in in_child(lambda: tnb.sweep(handle, count=[1, 2], rate=10).wait())


def test_load_that_runs_in_the_parent_does_not_end_in_the_child(server: tnb.Server) -> None:
    load = tnb.load(server["double"], rate=50, duration=60)
    assert in_child(lambda: load.wait()) == (
        "UnavailableError: load: it runs in the process that forked this one; wait for it there"
    )
    in_child(load.stop)
    assert not load.done
    load.stop()
    assert load.wait(LIMIT_S).failed == 0


def test_states_that_a_child_can_read(server: tnb.Server) -> None:
    handle = server["double"]
    assert in_child(lambda: (server.alive, server.url, server.ready())) == str((False, server.url, False))
    assert "runs in the process that forked this one" in in_child(lambda: repr(handle))
    assert "stopped" in in_child(lambda: repr(server))
    assert in_child(server.stop) == "None"
    assert server["double"](X=[[2.0]])["OUTPUT"].item() == 4.0


def test_child_reaches_the_server_over_http(server: tnb.Server) -> None:
    assert in_child(lambda: tnb.connect(server.url)["double"](X=[[2.0]])["OUTPUT"].item()) == "4.0"
    remote = tnb.connect(server.url)
    assert in_child(lambda: remote["double"](X=[[2.0]])["OUTPUT"].item()) == "4.0"


def test_child_can_have_its_own_server(server: tnb.Server, repository: Path) -> None:
    def serve() -> object:
        with tnb.Server(repository, port=0, grpc_port=0, metrics_port=0) as own:
            own.model(double, max_batch_size=4)
            return own["double"](X=[[3.0]])["OUTPUT"].item(), own["apart"](X=[[3.0]])["Y"].item()

    assert in_child(serve) == "(6.0, 3.0)"


@pytest.mark.parametrize("method", ["Process", "Pool", "futures"])
def test_children_of_multiprocessing_fail(server: tnb.Server, method: str) -> None:
    handle = server["double"]
    context = multiprocessing.get_context("fork")
    outcomes: Any = context.SimpleQueue()

    def call(_: int = 0) -> None:
        try:
            handle(X=[[1.0]])
        except tnb.TritonError as error:
            outcomes.put(str(error))

    globals()["_call_in_pool"] = call  # found by name in the children
    if method == "Process":
        process = context.Process(target=call)
        process.start()
        process.join(LIMIT_S)
        assert process.exitcode == 0
    elif method == "Pool":
        with context.Pool(1) as pool:
            pool.map_async(pooled, [1]).get(LIMIT_S)
    else:
        with concurrent.futures.ProcessPoolExecutor(1, context) as executor:
            executor.submit(pooled, 1).result(LIMIT_S)
    assert "forked this one" in outcomes.get()
    assert handle(X=[[2.0]])["OUTPUT"].item() == 4.0


def pooled(number: int) -> None:
    globals()["_call_in_pool"](number)


def test_workers_of_a_data_loader_fail(server: tnb.Server) -> None:
    torch = pytest.importorskip("torch")
    handle = server["double"]

    class Calls(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> object:
            return handle(X=[[1.0]])["OUTPUT"]

    loader = torch.utils.data.DataLoader(Calls(), num_workers=1, multiprocessing_context="fork", timeout=LIMIT_S)
    with pytest.raises(UnavailableError, match="forked this one"):
        list(loader)


def test_function_before_exec_fails(server: tnb.Server, tmp_path: Path) -> None:
    handle, said = server["double"], tmp_path / "said"

    def call() -> None:
        try:
            handle(X=[[1.0]])
        except tnb.TritonError as error:
            said.write_text(str(error))

    subprocess.run([sys.executable, "-c", ""], preexec_fn=call, check=True, timeout=LIMIT_S)
    assert "forked this one" in said.read_text()


STATES = ["idle", "busy", "recording", "wake-up scheduled", "locks held"]


@law(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=st.sampled_from(STATES), name=st.sampled_from(sorted(CALLS)))
def test_law_every_call_of_a_child_ends_in_every_state_of_the_parent(server: tnb.Server, state: str, name: str) -> None:
    handle = server["double"]
    call = CALLS[name]
    if state == "busy":
        load = tnb.load(handle, clients=4, duration=60)
        try:
            outcome = in_child(lambda: call(server, handle))
        finally:
            load.stop()
            assert load.wait(LIMIT_S).failed == 0
    elif state == "recording":
        with server.record():
            outcome = in_child(lambda: call(server, handle))
    elif state == "wake-up scheduled":
        server.engine.submitter._is_wake_scheduled = True  # as if another thread submitted a request
        try:
            outcome = in_child(lambda: call(server, handle))
        finally:
            server.engine.submitter._is_wake_scheduled = False
    elif state == "locks held":
        held = threading.Event()
        done = threading.Event()

        def hold() -> None:
            for lock in list(forks._locks):
                lock.acquire()
            held.set()
            done.wait(LIMIT_S)
            for lock in list(forks._locks):
                lock.release()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(LIMIT_S)
        try:
            outcome = in_child(lambda: call(server, handle))
        finally:
            done.set()
            thread.join()
    else:
        outcome = in_child(lambda: call(server, handle))
    assert "forked this one" in outcome, (state, name)
    assert handle(X=[[2.0]])["OUTPUT"].item() == 4.0


def test_child_can_write_to_the_log_file_that_the_server_is_writing_to(server: tnb.Server, tmp_path: Path) -> None:
    """The lock of a file that another thread writes to stays locked in a child."""
    written, forked = threading.Event(), threading.Event()

    class SlowFile(io.FileIO):
        def write(self, data: Any) -> int:
            written.set()
            forked.wait(0.2)  # no thread of the server runs meanwhile
            return super().write(data) or 0

    stream = io.TextIOWrapper(io.BufferedWriter(SlowFile(str(tmp_path / "log"), "w")))
    handler = logging.StreamHandler(stream)
    log = logging.getLogger("tritonnb")
    log.addHandler(handler)
    try:
        thread = threading.Thread(target=server.call, args=(log.error, "a line of the server"))
        thread.start()
        written.wait(LIMIT_S)
        assert in_child(lambda: log.error("a line of the child")) == "None"
        forked.set()
        thread.join()
    finally:
        log.removeHandler(handler)


def test_recording_that_a_child_leaves_does_not_end_that_of_the_parent(server: tnb.Server) -> None:
    with server.record() as recording:
        server["double"](X=[[1.0]])
        in_child(lambda: None)
        server["double"](X=[[1.0]])
    assert len(recording.batches) == 2


def test_garbage_of_the_parent_is_not_collected_in_a_child(server: tnb.Server) -> None:
    """A library's object may wait, when it is freed, for threads that the child does not have."""

    class Library:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            freed.append(self.__class__)

    freed: list[type] = []
    gc.disable()
    try:
        Library()
        assert in_child(lambda: (gc.collect(), len(freed))[1]) == "0"
        gc.collect()
        assert len(freed) == 1
    finally:
        gc.enable()


# --- what belongs to the parent ----------------------------------------------------------------


def sleeping() -> multiprocessing.process.BaseProcess:
    """Return a forked child that lives until it is killed."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    process.start()
    return process


def test_ports_are_free_while_a_child_lives() -> None:
    server = tnb.Server(port=0, grpc_port=0, metrics_port=0, openai_port=0)
    ports = [server.port, server.grpc_port, server.metrics_port, server.openai_port]
    child = sleeping()
    try:
        server.stop()
        for port in ports:
            assert port is not None
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=5)
        with tnb.Server(port=ports[0], grpc_port=ports[1], metrics_port=ports[2], openai_port=ports[3]) as again:
            assert again.port == ports[0]
    finally:
        child.kill()
        child.join()


WITHOUT_DESCRIPTORS = """
import os, resource, socket, sys, time
import tritonnb as tnb

server = tnb.Server(port=0)

@server.model
def echo(X: tnb.FP32[1]) -> tnb.FP32[1]:
    return X

reader, writer = os.pipe()
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
files = []
try:
    while True:
        files.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    child = os.fork()
if child == 0:
    try:
        server["echo"](X=[1.0])
    except Exception as error:
        os.write(writer, str(error).encode())
    time.sleep(600)
print(os.read(reader, 1000).decode().partition(":")[0])
for file in files:
    os.close(file)
port = server.port
server.stop()
try:
    socket.create_connection(("127.0.0.1", port), timeout=5)
except ConnectionRefusedError:
    print("refused")
os.kill(child, 9)
"""


def test_child_without_free_descriptors_fails_and_leaves_the_port() -> None:
    command = [sys.executable, "-c", WITHOUT_DESCRIPTORS]
    result = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=True)
    assert result.stdout.splitlines() == [
        "the server runs in the process that forked this one, without its threads",
        "refused",
    ]


def test_port_of_grpcio_is_free_while_a_child_lives() -> None:
    server = tnb.Server(port=0, grpc_port=0, grpc=tnb.GrpcOptions(keepalive_time=10_000))
    child = sleeping()
    try:
        port = server.grpc_port
        server.stop()
        with tnb.Server(port=0, grpc_port=port) as again:
            assert again.grpc_port == port
    finally:
        child.kill()
        child.join()


def test_new_server_takes_the_port_of_the_old_one_while_a_child_lives() -> None:
    old = tnb.serve(port=0)
    child = sleeping()
    try:
        new = tnb.serve(port=old.port)
        assert (new.port, new.alive, old.alive) == (old.port, True, False)
        new.stop()
    finally:
        child.kill()
        child.join()


def test_connection_that_the_server_closes_ends_while_a_child_lives(server: tnb.Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S) as connection:
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\n\r\n")
        assert connection.recv(1000)
        child = sleeping()
        try:
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nConnection: close\r\n\r\n")
            while connection.recv(1000):
                pass
        finally:
            child.kill()
            child.join()


def test_sockets_of_others_stay_open_in_a_child(server: tnb.Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as own:
        client = socket.create_connection(("127.0.0.1", server.port))
        assert in_child(lambda: [own.send(b"x"), client.getpeername()[1]]) == str([1, server.port])
        client.close()


def test_files_with_the_numbers_of_an_ended_process_stay_open_in_a_child(tmp_path: Path) -> None:
    process = ChildProcess("m", None, str(tmp_path))
    process.close()  # the object remains
    pipes = [os.pipe() for _ in range(16)]
    try:
        numbers = [number for pipe in pipes for number in pipe]
        assert in_child(lambda: all(stat.S_ISFIFO(os.fstat(number).st_mode) for number in numbers)) == "True"
    finally:
        for number in numbers:
            os.close(number)
    assert process.has_ended


def test_process_of_a_model_ends_with_the_server_while_a_child_lives(repository: Path) -> None:
    program = f"""
        import multiprocessing, os, time, tritonnb as tnb
        server = tnb.Server({str(repository)!r}, port=0)
        def wait():
            os.closerange(1, 3)  # the test reads to the end of the output
            time.sleep(60)
        child = multiprocessing.get_context("fork").Process(target=wait)
        child.start()
        instance = server["apart"].served.instances[0].backend_instance
        print(instance._child.pid, child.pid, flush=True)
        os._exit(0)
    """
    result = run(program)
    model, child = map(int, result.stdout.split())
    try:
        deadline = time.monotonic() + LIMIT_S
        while exists(model) and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        assert not exists(model)
    finally:
        os.kill(child, 9)


def exists(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def run(program: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(program)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, **options)
    assert result.returncode == 0, result.stderr
    return result


@pytest.mark.parametrize("ending", ["sys.exit()", "raise SystemExit", "del server; gc.collect(); sys.exit()"])
def test_child_that_exits_in_the_ordinary_way_leaves_the_parent_alone(
    repository: Path, ending: str, tmp_path: Path
) -> None:
    """Exit handlers and finalizers run; a library whose threads are missing must not be waited for."""
    program = f"""
        import faulthandler, gc, json, logging, os, sys, tritonnb as tnb
        logging.basicConfig(level=logging.DEBUG, filename="log", format="%(process)d %(message)s")
        logging.getLogger("asyncio").setLevel(logging.INFO)  # in debug mode, it logs that a loop is closed
        server = tnb.Server({str(repository)!r}, port=0, grpc_port=0, model_control_mode="explicit",
                            load_models=["*"], allow_file_override=True)
        files = {{"file:1/model.py": {MODEL!r}}}
        server.run(server.engine.load("sent", {{"config": json.dumps({{"backend": "python", "max_batch_size": 4,
            "input": [{{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}}],
            "output": [{{"name": "Y", "data_type": "TYPE_FP32", "dims": [1]}}]}}), **files}}, trusted=True))
        remote = tnb.connect(server.url)
        config = remote["apart"].config
        config.max_batch_size = 2
        config.apply()
        while "successfully unloaded 'apart'" not in open("log").read():
            pass
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(20, exit=True)
            del remote, config
            {ending}
        assert os.waitpid(child, 0)[1] == 0
        assert f"{{child}} " not in open("log").read()
        assert server["apart"].config.max_batch_size == 2
        assert server["apart"](X=[[1.0]])["Y"].item() == 1.0
        assert server["sent"](X=[[1.0]])["Y"].item() == 1.0
        assert list(os.scandir(os.environ["TMPDIR"]))  # the files that were sent
        print("served")
        server.stop()
    """
    (tmp_path / "files").mkdir()
    result = run(program, cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path / "files")})
    assert (result.stdout, result.stderr) == ("served\n", "")
