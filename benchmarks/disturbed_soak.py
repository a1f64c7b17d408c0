"""A soak test under disturbances: ``python -m benchmarks.disturbed_soak --requests 1000000 --connections 256``.

Meanwhile models are reloaded, configurations are edited, and the processes of an isolated model are killed. Every
request has its own number, and its response must contain it. Only the isolated model may respond with an error,
and only with that of a lost process. Every other connection is HTTP, the others are gRPC with grpcio's client. The
server is a separate process; its resident set is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import struct
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from benchmarks.servers import ports_and_process

_MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor)]) for tensor in tensors]
"""
_CONFIG = """
backend: "python" max_batch_size: 16 dynamic_batching { } instance_group { count: 2 kind: KIND_CPU }
input { name: "X" data_type: TYPE_INT64 dims: -1 } output { name: "Y" data_type: TYPE_INT64 dims: -1 }
"""
_ISOLATED = 'parameters { key: "EXECUTION_PROCESS" value { string_value: "isolated" } }'
MODELS = {"plain": _CONFIG, "edited": _CONFIG, "isolated": _CONFIG + _ISOLATED}
#: Seconds that a response may take; after that the request counts as lost.
_LOST_AFTER = 120.0


class Soak:
    """The requests, and what became of them.

    Attributes
    ----------
    outcomes : Counter
        ``right``, ``wrong`` (the response to another request), ``lost``, and errors by their texts.
    disturbances : Counter
    """

    def __init__(self, port: int, grpc_port: int, server: psutil.Process, requests: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.disturbances: Counter[str] = Counter()
        self._port = port
        self._grpc_port = grpc_port
        self._server = server
        self._numbers = iter(range(1, requests + 1))
        self._requests = requests
        self.resident: list[tuple[int, int]] = []  # requests, MB

    async def run(self, connections: int) -> None:
        """Send all requests."""
        disturbing = asyncio.create_task(self._disturb())
        clients = [
            self._client(GrpcConnection(self._grpc_port) if number % 2 else HttpConnection(self._port))
            for number in range(connections)
        ]
        await asyncio.gather(*clients)
        disturbing.cancel()

    async def _client(self, connection: HttpConnection | GrpcConnection) -> None:
        for number in self._numbers:
            try:
                async with asyncio.timeout(_LOST_AFTER):
                    outcome = await connection.infer(("plain", "edited", "isolated")[number % 3], number)
            except (OSError, EOFError, TimeoutError) as error:
                outcome = f"lost: {type(error).__name__}"
                await connection.close()
            self.outcomes[outcome] += 1
            if self.outcomes.total() % (max(20, self._requests) // 20) == 0:
                self._report()
        await connection.close()

    def _report(self) -> None:
        self.resident.append((self.outcomes.total(), self._server.memory_info().rss >> 20))
        counts = dict(self.outcomes), dict(self.disturbances)
        print(time.strftime("%H:%M:%S"), *counts, f"{self.resident[-1][1]} MB", flush=True)

    async def _disturb(self) -> None:
        choice, edits = random.Random(0), self._edits()
        while True:
            await asyncio.sleep(choice.uniform(0.2, 1.0))
            kind = choice.choice(("reload", "edit", "kill"))
            if kind == "reload":
                await asyncio.to_thread(self._load, "plain", {"reloaded": str(choice.random())})
            elif kind == "edit":
                await asyncio.to_thread(self._load, "edited", next(edits))
            elif not self._kill(choice):
                continue
            self.disturbances[kind] += 1

    def _kill(self, choice: random.Random) -> bool:
        processes = self._server.children()
        if processes:
            choice.choice(processes).kill()
        return bool(processes)

    def _edits(self) -> Iterator[dict[str, str]]:
        while True:
            for count, delay, size in ((1, 0, 16), (3, 200, 8), (2, 1000, 16), (4, 0, 1)):
                yield {"count": str(count), "delay": str(delay), "size": str(size)}

    def _load(self, model: str, change: dict[str, str]) -> None:
        """Load a model with another configuration: another parameter, batch size, delay, or number of instances."""
        tensor = {"data_type": "TYPE_INT64", "dims": [-1]}
        config = {
            "backend": "python",
            "max_batch_size": int(change.get("size", 16)),
            "dynamic_batching": {"max_queue_delay_microseconds": int(change.get("delay", 0))},
            "instance_group": [{"count": int(change.get("count", 2)), "kind": "KIND_CPU"}],
            "input": [{"name": "X", **tensor}],
            "output": [{"name": "Y", **tensor}],
            "parameters": {"change": {"string_value": json.dumps(change)}},
        }
        body = json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
        url = f"http://127.0.0.1:{self._port}/v2/repository/models/{model}/load"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=_LOST_AFTER):
            pass


def write_models(repository: Path) -> None:
    """Write the models into a repository."""
    for name, config in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(_MODEL)
        (repository / name / "config.pbtxt").write_text(config)


class HttpConnection:
    """A connection for one request at a time; opened by the first one, and again by the one after `close`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def infer(self, model: str, number: int) -> str:
        """Send a request whose tensor is its number, as often as the number says; returns the outcome."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        data = _data(number)
        count = len(data) // 8
        tensor = {"name": "X", "shape": [1, count], "datatype": "INT64", "parameters": {"binary_data_size": len(data)}}
        parameters = {"binary_data_output": True}
        head = json.dumps({"id": str(number), "inputs": [tensor], "parameters": parameters}).encode()
        writer.write(
            b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: %d\r\n"
            b"Content-Length: %d\r\n\r\n%s%s" % (model.encode(), len(head), len(head) + len(data), head, data)
        )
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        if lines[0].split()[1] != "200":
            return _error_outcome(model, json.loads(body)["error"])
        length = int(headers["inference-header-content-length"])
        return "right" if (json.loads(body[:length])["id"], body[length:]) == (str(number), data) else "wrong"

    async def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class GrpcConnection:
    """The same over gRPC."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._channel: grpc.aio.Channel | None = None

    async def infer(self, model: str, number: int, timeout: float | None = None) -> str:
        """Send a request with a deadline in seconds; returns the outcome."""
        if self._channel is None:
            options = [("grpc.use_local_subchannel_pool", 1)]  # otherwise all channels share one connection
            self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{self._port}", options=options)
            self._stub = GRPCInferenceServiceStub(self._channel)
        data = _data(number)
        request = pb.ModelInferRequest(model_name=model, id=str(number), raw_input_contents=[data])
        request.inputs.add(name="X", datatype="INT64", shape=[1, len(data) // 8])
        try:
            response = await self._stub.ModelInfer(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            return _error_outcome(model, error.details() or str(error.code()))
        return "right" if (response.id, [*response.raw_output_contents]) == (str(number), [data]) else "wrong"

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None


def _data(number: int) -> bytes:
    return struct.pack("<q", number) * (1 + number % 50)


def _error_outcome(model: str, message: str) -> str:
    return "process lost" if model == "isolated" and "is not healthy" in message else message


def main() -> None:
    """Run it and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        write_models(Path(scratch))
        with ports_and_process(scratch, "--model-control-mode=explicit", "--load-model=*") as (
            port,
            grpc_port,
            process,
        ):
            soak, begin = Soak(port, grpc_port, process, options.requests), time.monotonic()
            asyncio.run(soak.run(options.connections))
            seconds = time.monotonic() - begin
    print(f"{options.requests} requests over {options.connections} connections in {seconds:.0f} s")
    print(dict(soak.outcomes), dict(soak.disturbances))
    print("resident set after so many requests, in MB:", soak.resident)
    if soak.outcomes.keys() - {"right", "process lost"} or soak.outcomes.total() != options.requests:
        raise SystemExit("expected the right response, or the error of a lost process, to every request")


if __name__ == "__main__":
    main()
