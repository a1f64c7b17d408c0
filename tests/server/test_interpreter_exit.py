"""A script may end while a server runs: the interpreter exits in seconds, without a traceback, and leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.server.isolated_repository import write_repository

#: Seconds that a script has; it starts a server, which takes some of them on a loaded machine.
LIMIT_S = 60

SERVER = """
import atexit, os, sys, threading, time
import tritonnb as tnb

server = tnb.Server({repository!r}, port=0, grpc_port=0, metrics_port=0, exit_timeout=2)

@server.model(max_batch_size=4)
def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    return X * 2

executing = threading.Event()

@server.model
def slow(X: tnb.FP32[1]) -> tnb.FP32[1]:
    executing.set()
    time.sleep(0.5)
    return X

def call(name):
    try:
        return server[name](X=[[1.0]] if name == "double" else [1.0])
    except tnb.TritonError:  # the server was stopped at exit
        pass

print(*(instance.backend_instance._child.pid for instance in server["apart"].served.instances), flush=True)
"""

ENDS = {
    "at the last line": "",
    "sys.exit": "sys.exit(0)",
    "with a request of a daemon thread in flight": """
        threading.Thread(target=call, args=("slow",), daemon=True).start()
        executing.wait()
    """,
    "with a request of an ordinary thread in flight": """
        threading.Thread(target=call, args=("slow",)).start()
        executing.wait()
    """,
    "with daemon threads that call all the time": """
        def calls():
            while server.alive:
                call("double")
        for _ in range(3):
            threading.Thread(target=calls, daemon=True).start()
        call("double")
    """,
    "with calls of an isolated model": """
        def calls():
            while server.alive:
                try:
                    server["apart"](X=[[1.0]])
                except tnb.TritonError:
                    return
        threading.Thread(target=calls, daemon=True).start()
        server["apart"](X=[[1.0]])
    """,
    "with a call in an exit handler that was registered before": "atexit.register(call, 'double')",
    "with a stop in an exit handler": "atexit.register(server.stop)",
    "with a new server in an exit handler": "atexit.register(lambda: tnb.Server(port=0).stop())",
    "with a recording in progress": "recording = server.record(); recording.__enter__(); call('double')",
    "with a running load": "load = tnb.load(server['double'], clients=2, duration=600)",
    "with a running sweep": """
        sweep = tnb.sweep(server["double"], count=[1, 2], rate=100, requests=50, service=tnb.fixed(1))
    """,
    "with a live view": "view = server['double'].watch(); call('double')",
    "with an editor": "editor = server['double'].edit()",
    "with a connection": "remote = tnb.connect(server.url); call('double')",
    "with a receiver": "receiver = tnb.otlp_receiver(port=0)",
    "with several servers": "others = [tnb.Server(port=0) for _ in range(3)]",
    "with a server that a daemon thread starts": """
        def starts():
            while True:
                try:
                    tnb.Server(port=0).stop()
                except BaseException:
                    return
        threading.Thread(target=starts, daemon=True).start()
    """,
    "with a thread that waits for a server": """
        threading.Thread(target=server.run, args=(server.engine.is_ready(),), daemon=True).start()
    """,
    "without references": "handle = server['double']; del server, handle",
    "in a cycle": "server.itself = server; del server",
    "as an attribute of a module": "sys.modules['kept'] = server",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("repository"))


def exists(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("name", ENDS)
def test_interpreter_exits_with_a_running_server(repository: Path, tmp_path: Path, name: str) -> None:
    shared = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    program = SERVER.format(repository=str(repository)) + textwrap.dedent(ENDS[name])
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, env=environment
    )
    assert (run.returncode, run.stderr) == (0, "")
    children = list(map(int, run.stdout.splitlines()[0].split()))
    assert children
    assert not [child for child in children if exists(child)]
    assert not [left for left in tmp_path.iterdir() if left.name.startswith("tritonnb")]
    if shared:
        assert not {left for left in set(os.listdir("/dev/shm")) - shared if "tritonnb" in left}
