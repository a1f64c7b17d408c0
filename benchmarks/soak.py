"""A soak test: mixed requests with checksums over many connections, and the resident set before and after.

No request may be lost or get the response to another one. ``python -m benchmarks.soak --requests 1000000``.
"""

from __future__ import annotations

import argparse
import asyncio
import zlib
from collections import Counter
from typing import Any

import numpy as np
import tritonclient.grpc.aio as grpcclient
import tritonclient.http.aio as httpclient

from benchmarks.memory import resident_mb
from benchmarks.servers import ROOT
from tritonnb.server.server import Server

Clients = tuple[httpclient.InferenceServerClient, grpcclient.InferenceServerClient]


def main() -> None:
    """Send the requests and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=256)
    options = parser.parse_args()
    models = ["identity_fp32", "string_upper", "add_sub"]
    repository = ROOT / "model_repository"
    with Server(repository, port=0, grpc_port=0, model_control_mode="explicit", load_models=models) as server:
        counts = asyncio.run(_soak(server, options.requests, options.connections))
    print(dict(counts))
    if counts["wrong"] or counts["responses"] != options.requests:
        raise SystemExit("expected the right response to every request")


async def _soak(server: Server, requests: int, connections: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    numbers = iter(range(requests))
    warm = resident_mb()

    async def client(index: int) -> None:
        nonlocal warm
        async with (
            httpclient.InferenceServerClient(f"127.0.0.1:{server.port}") as http,
            grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc,
        ):
            for number in numbers:
                is_correct = await _send_one((http, grpc), index, number)
                counts["responses"] += 1
                counts["wrong"] += not is_correct
                if counts["responses"] == requests // 4:
                    warm = resident_mb()
                if counts["responses"] % 10_000 == 0:
                    print(f"{counts['responses']}: {resident_mb():.0f} MB", flush=True)

    await asyncio.gather(*map(client, range(connections)))
    print(f"resident set after a quarter {warm:.0f} MB, at the end {resident_mb():.0f} MB")
    return counts


async def _send_one(clients: Clients, client: int, number: int) -> bool:
    """Send a request of the kind that its number selects; returns whether the response is the one to this request."""
    random = np.random.default_rng(number)
    over_grpc = number % 2
    module: Any = (httpclient, grpcclient)[over_grpc]
    if number % 3 == 0:
        string = f"{client} {number} {zlib.crc32(str(number).encode())}"
        tensor = _input(module, "TEXT", np.array([[string.encode()]], dtype=object), "BYTES")
        result = await clients[over_grpc].infer("string_upper", [tensor], request_id=str(number))
        return bool(result.as_numpy("UPPER").item() == string.upper().encode()) and _id(result) == str(number)
    size = int(random.integers(1, 2000))
    array = random.random((1, size), np.float32)
    if number % 3 == 1:
        tensor = _input(module, "INPUT0", array, "FP32")
        result = await clients[over_grpc].infer("identity_fp32", [tensor])
        return zlib.crc32(result.as_numpy("OUTPUT0").tobytes()) == zlib.crc32(array.tobytes())
    try:
        await clients[over_grpc].infer("identity_fp32", [_input(module, f"X{number}", array, "FP32")])
    except Exception as error:  # the error must name the input of this request
        return f"'X{number}'" in str(error)
    return False


def _id(result: Any) -> str:
    response = result.get_response()
    return str(response["id"] if isinstance(response, dict) else response.id)


def _input(module: Any, name: str, array: np.ndarray, datatype: str) -> Any:
    tensor = module.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


if __name__ == "__main__":
    main()
