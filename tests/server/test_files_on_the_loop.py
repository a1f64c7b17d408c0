"""Nothing on the server's event loop reads or writes a file or a directory, which may take seconds on a network."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import tritonnb as tnb
from tests.server.conftest import python_model
from tritonnb.core.errors import TritonError
from tritonnb.endpoints.grpc.rpcs import MESSAGES_OF, SERVICE
from tritonnb.endpoints.http.routes import ROUTES
from tritonnb.server.server import Server
from tritonnb.telemetry.trace_settings import TraceOptions

#: Files that need labels, an initial state and a warm-up sample.
CONFIG = """
instance_group { kind: KIND_CPU }
model_warmup { name: "w" batch_size: 1 inputs {
  key: "X" value { data_type: TYPE_FP32 dims: 1 input_data_file: "sample" } } }
sequence_batching { state {
  input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: 1
  initial_state { name: "i" data_type: TYPE_FP32 dims: 1 data_file: "state" } } }
"""
#: The events of `sys.audit` of a file or a directory.
_EVENTS = {"open", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "tempfile.mkstemp"}


class Watch:
    """A watch for files that event loops touch; an audit hook cannot be removed, so there is one for all tests."""

    def __init__(self) -> None:
        self.is_on = False
        self.found: list[str] = []
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_on and event in _EVENTS and not isinstance(arguments[0], int):
            self.note(f"{event} {arguments[0]!r}")

    def noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is noted when it is called."""

        def call(*args: Any, **keywords: Any) -> Any:
            self.note(f"os.{name} {args[0]!r}")
            return function(*args, **keywords)

        return call

    def note(self, what: str) -> None:
        """Note it if an event loop runs on this thread."""
        if self.is_on and asyncio._get_running_loop() is not None:
            stack = traceback.StackSummary.extract(traceback.walk_stack(None), lookup_lines=False)
            lines = [f"{frame.filename}:{frame.lineno}" for frame in stack if "/tritonnb/" in frame.filename]
            self.found.append(f"{what}: {', '.join(lines[:4])}")


WATCH = Watch()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    for name in ("stat", "lstat", "access", "readlink"):  # without an event
        monkeypatch.setattr(os, name, WATCH.noting(name, getattr(os, name)))
    WATCH.found.clear()
    yield WATCH
    WATCH.is_on = False


@pytest.fixture
def repository(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    repository = write_model("plain", python_model("x"))
    write_model("stateful", python_model("x"), CONFIG)
    write_model("broken", "raise ValueError('broken')")
    for folder, name in (("warmup", "sample"), ("initial_state", "state")):
        (repository / "stateful" / folder).mkdir()
        (repository / "stateful" / folder / name).write_bytes(np.ones(1, np.float32).tobytes())
    config = repository / "plain" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "Y"', 'name: "Y" label_filename: "labels.txt"'))
    (repository / "plain" / "labels.txt").write_text("cat\ndog\n")
    return repository


def over_http(server: Server) -> None:
    """Send GET and POST to every route, for models that exist and one that does not."""
    x = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    y = {"name": "Y", "parameters": {"classification": 1}}
    bodies = {"infer": {"inputs": [x], "outputs": [y]}, "logging": {"log_verbose_level": 0}}
    bodies["trace-setting"] = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}
    for route in ROUTES:
        for path in route.paths():
            for model in ("plain", "stateful", "broken", "absent"):
                target = path.format(
                    model=model, version="1", repository="r", region="r", kind="system", rest="x", without_v1="models"
                )
                for method in ("GET", "POST"):
                    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
                    body = json.dumps(bodies.get(route.name, {}))
                    connection.request(method, target, body if method == "POST" else None)
                    connection.getresponse().read()
                    connection.close()


def over_grpc(server: Server) -> None:
    """Call every RPC for models that exist and one that does not."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        for name, messages in MESSAGES_OF.items():
            for model in ("plain", "stateful", "broken", "absent"):
                fields = {field.name for field in messages.request.DESCRIPTOR.fields}
                known = {field: model for field in ("model_name", "name") if field in fields}
                request = messages.request(**known)
                call = channel.unary_unary if name != "ModelStreamInfer" else channel.stream_stream
                rpc = call(f"/{SERVICE}/{name}", messages.request.SerializeToString, messages.response.FromString)
                try:
                    answer = rpc(iter([request]) if name == "ModelStreamInfer" else request, timeout=60)
                    if name == "ModelStreamInfer":
                        list(answer)
                except grpc.RpcError:
                    pass  # many of these requests are invalid


def in_process(server: Server, repository: Path) -> None:
    """Call what the server and its handles offer."""

    @server.model(max_batch_size=8)
    def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X * 2

    for name in ("plain", "stateful", "broken", "absent"):
        for force in (False, True):
            with contextlib.suppress(TritonError):
                server.load(name, force=force)
    with server.record():
        server["plain"](X=[[1.0]])
    for name in ("plain", "stateful", "broken", "double"):
        model = server[name]
        config = model.config
        model.check_config(config.edited())
        config.max_batch_size = 4
        with contextlib.suppress(TritonError):
            config.apply()
        server.run(server.engine.reconfiguration.config_path(name))
        repr(model)
    server.labels("plain", "Y")
    assert server.ready() in (True, False)
    repr(server), server.index(), server.stats(), server.metadata(), server.models
    (repository / "plain" / "labels.txt").write_text("cat\nmouse\n")
    server.run(server.engine.poll())
    for name in ("plain", "double"):
        server.unload(name)


@pytest.mark.skipif("PYTHONASYNCIODEBUG" in os.environ, reason="asyncio's debug mode reads sources for its tracebacks")
def test_event_loop_touches_no_file(watch: Watch, repository: Path, tmp_path: Path) -> None:
    for number in range(2):
        watch.is_on = number > 0  # the first round imports modules
        trace = TraceOptions(str(tmp_path / f"trace{number}"), frozenset(["TIMESTAMPS"]), rate=1, log_frequency=2)
        first = Server(repository, port=0)
        server = Server(
            repository,
            port=0,
            grpc_port=0,
            model_control_mode="explicit",
            load_models=["*"],
            trace=trace,
            replaces=first,
        )
        with server:
            over_http(server)
            over_grpc(server)
            in_process(server, repository)
    watch.is_on = False
    assert watch.found == []
