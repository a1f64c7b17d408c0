"""``TritonPythonModel.is_ready`` decides whether a loaded model, and with it the server, is ready."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socketserver import ThreadingMixIn
from xmlrpc.server import SimpleXMLRPCServer

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tritonnb.engine.execution import instance
from tritonnb.server.server import Server

IDENTITY = """
import numpy as np
import readiness_probe as probe
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        probe.execute()
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy())])
            for r in requests
        ]
"""
#: The body of ``is_ready`` of a model, and whether it is ready.
CASES = {
    "none": ("", True),
    "true": ("def is_ready(self): return True", True),
    "false": ("def is_ready(self): return False", False),
    "raising": ("def is_ready(self): raise ValueError('no database')", False),
    "exiting": ("def is_ready(self): raise SystemExit(3)", False),
    "number": ("def is_ready(self): return 1", False),
    "nothing": ("def is_ready(self): pass", False),
    "coroutine": ("async def is_ready(self): return True", True),
    "false_coroutine": ("async def is_ready(self): return False", False),
}
REASONS = {
    "false": "Model 'false_0' is not ready (user-defined check failed).",
    "raising": "ValueError: no database",
    "number": "is_ready() must return a boolean value",
    "false_coroutine": "Model 'false_coroutine_0' is not ready (user-defined check failed).",
}
COUNTED = "def is_ready(self): return probe.check()"
COUNTED_COROUTINE = """async def is_ready(self):
        import asyncio
        return await asyncio.to_thread(probe.check)
"""


#: The module ``readiness_probe``, which models import in whichever process they run.
PROBE = """
from xmlrpc.client import ServerProxy

def check():
    return ServerProxy("{url}").check()

def execute():
    return ServerProxy("{url}").execute()
"""


class Probe:
    """The readiness that models of the tests report, from any process, and the event that they wait for."""

    def __init__(self) -> None:
        self.calls = 0
        self.checking, self.may_answer = threading.Event(), threading.Event()
        self.executing, self.may_execute = threading.Event(), threading.Event()
        self.may_execute.set()

    def check(self) -> bool:
        """Count a call, and answer when the test allows it."""
        self.calls += 1
        self.checking.set()
        assert self.may_answer.wait(30)
        return True

    def execute(self) -> bool:
        """Report an execution, and wait until the test allows it."""
        self.executing.set()
        return self.may_execute.wait(30)


class _Service(ThreadingMixIn, SimpleXMLRPCServer):
    """A service through which models call the methods of a probe, from whichever process."""

    daemon_threads = True


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probe]:
    probe = Probe()
    directory = tmp_path_factory.mktemp("modules")
    monkeypatch.syspath_prepend(directory)
    with _Service(("127.0.0.1", 0), logRequests=False) as service:
        service.register_instance(probe)
        url = f"http://127.0.0.1:{service.server_address[1]}"
        (directory / "readiness_probe.py").write_text(PROBE.format(url=url))
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        yield probe
        sys.modules.pop("readiness_probe", None)
        probe.may_answer.set()
        probe.may_execute.set()
        service.shutdown()
        thread.join()


def model(is_ready: str) -> str:
    return IDENTITY + (f"\n    {is_ready}" if is_ready else "")


def infer(server: Server, name: str) -> list[float]:
    outputs: list[float] = server[name].infer(X=np.ones((1, 1), np.float32))["Y"].ravel().tolist()
    return outputs


async def ready_four_times(server: Server) -> list[bool]:
    return await asyncio.gather(*(server.engine.model_ready("m") for _ in range(4)))


def test_model_readiness_is_reported(
    write_model: Callable[..., Path], probe: Probe, isolate: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tritonnb.engine.engine")
    for name, (is_ready, _) in CASES.items():
        repository = write_model(name, model(is_ready))
    with Server(repository, port=0, grpc_port=0, isolate=isolate) as server:
        http, grpc = httpclient.InferenceServerClient(f"127.0.0.1:{server.port}"), f"127.0.0.1:{server.grpc_port}"
        with http, grpcclient.InferenceServerClient(grpc) as grpc_client:
            for client in (http, grpc_client):
                ready = {name: client.is_model_ready(name) for name in CASES}
                assert ready == {name: expected for name, (_, expected) in CASES.items()}
                assert client.is_model_ready("true", "1")
                assert client.is_server_live()
                assert not client.is_server_ready()
        assert {name: server[name].ready for name in CASES} == ready
        assert infer(server, "false") == [1.0]
    for name, reason in REASONS.items():
        assert f"Model '{name}' version 1 is not ready: {reason}" in caplog.text


def test_server_without_strict_readiness_is_ready(
    write_model: Callable[..., Path], probe: Probe, isolate: bool
) -> None:
    with Server(write_model("m", model(CASES["false"][0])), port=0, strict_readiness=False, isolate=isolate) as server:
        assert server.ready()
        assert not server["m"].ready


def test_every_instance_must_be_ready(write_model: Callable[..., Path], probe: Probe, isolate: bool) -> None:
    is_ready = "def initialize(self, args): self.name = args['model_instance_name']\n"
    is_ready += "    def is_ready(self): return self.name.endswith('_0')"
    repository = write_model("m", model(is_ready), "instance_group { count: 2 kind: KIND_CPU }")
    with Server(repository, port=0, isolate=isolate) as server:
        assert not server["m"].ready


@pytest.mark.parametrize("is_ready", [COUNTED, COUNTED_COROUTINE], ids=["function", "coroutine"])
def test_concurrent_requests_share_one_check_during_executions(
    write_model: Callable[..., Path], probe: Probe, isolate: bool, is_ready: str
) -> None:
    with Server(write_model("m", model(is_ready)), port=0, isolate=isolate) as server, ThreadPoolExecutor() as threads:
        probe.may_execute.clear()
        inference = threads.submit(infer, server, "m")
        assert probe.executing.wait(30)
        checks = threads.submit(server.run, ready_four_times(server))
        assert probe.checking.wait(30)
        probe.may_answer.set()
        assert checks.result(30) == [True] * 4
        assert probe.calls == 1
        probe.may_execute.set()
        assert inference.result(30) == [1.0]


def test_readiness_check_continues_after_its_timeout_and_is_shared(
    write_model: Callable[..., Path], probe: Probe, isolate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "TIME_LIMIT_S", 0.05)
    with Server(write_model("m", model(COUNTED)), port=0, isolate=isolate) as server, ThreadPoolExecutor() as threads:
        assert not server["m"].ready
        assert not server["m"].ready
        assert infer(server, "m") == [1.0]
        monkeypatch.setattr(instance, "TIME_LIMIT_S", 30)
        later = threads.submit(lambda: server["m"].ready)
        probe.may_answer.set()
        assert later.result(30)
        assert probe.calls in (1, 2)  # a new one only if the old one ended before the request


def test_server_stops_despite_a_hanging_readiness_check(
    write_model: Callable[..., Path], probe: Probe, isolate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "TIME_LIMIT_S", 0.05)
    with Server(write_model("m", model(COUNTED)), port=0, isolate=isolate) as server:
        assert not server["m"].ready
    assert not server.ready()


def test_model_can_check_the_readiness_of_another(
    write_model: Callable[..., Path], probe: Probe, isolate: bool
) -> None:
    write_model("other", model(CASES["false"][0]))
    caller = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        ready = np.array([[pb_utils.is_model_ready("other")]], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", ready)]) for _ in requests]
"""
    with Server(write_model("caller", caller), port=0, isolate=isolate) as server:
        assert infer(server, "caller") == [0.0]
