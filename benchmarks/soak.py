"""A soak: mixed requests over many connections, a checksum in each, and the resident set before and after.

None may be lost and none answered with what belongs to another. ``python -m benchmarks.soak --requests 1000000``.
"""

from __future__ import annotations

import argparse
import asyncio
import zlib
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc.aio as grpcclient
import tritonclient.http.aio as httpclient

from benchmarks.memory import resident_mb
from benchmarks.servers import ROOT
from tritonnb.server.server import Server

Clients = tuple[httpclient.InferenceServerClient, grpcclient.InferenceServerClient]


def main() -> None:
    """Send the requests, and say what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=256)
    options = parser.parse_args()
    models = ["identity_fp32", "string_upper", "add_sub"]
    explicit = {"model_control_mode": "explicit", "load_models": models}
    with Server(ROOT / "model_repository", port=0, grpc_port=0, **explicit) as server:
        counts = asyncio.run(_soak(server, options.requests, options.connections))
    print(dict(counts))
    if counts["wrong"] or counts["answered"] != options.requests:
        raise SystemExit("requests were lost or misrouted")


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
                right = await _one((http, grpc), index, number)
                counts["answered"] += 1
                counts["wrong"] += not right
                if counts["answered"] == requests // 4:
                    warm = resident_mb()
                if counts["answered"] % 10_000 == 0:
                    print(f"{counts['answered']}: {resident_mb():.0f} MB", flush=True)

    await asyncio.gather(*map(client, range(connections)))
    print(f"resident set after a quarter {warm:.0f} MB, at the end {resident_mb():.0f} MB")
    return counts


async def _one(clients: Clients, client: int, number: int) -> bool:
    """One request of a kind that its number chooses; whether the answer is its own."""
    random = np.random.default_rng(number)
    over_grpc = number % 2
    module: Any = (httpclient, grpcclient)[over_grpc]
    if number % 3 == 0:
        text = f"{client} {number} {zlib.crc32(str(number).encode())}"
        given = _input(module, "TEXT", np.array([[text.encode()]], dtype=object), "BYTES")
        found = await clients[over_grpc].infer("string_upper", [given], request_id=str(number))
        return bool(found.as_numpy("UPPER").item() == text.upper().encode()) and _id(found) == str(number)
    size = int(random.integers(1, 2000))
    array = random.random((1, size), np.float32)
    if number % 3 == 1:
        given = _input(module, "INPUT0", array, "FP32")
        found = await clients[over_grpc].infer("identity_fp32", [given])
        return zlib.crc32(found.as_numpy("OUTPUT0").tobytes()) == zlib.crc32(array.tobytes())
    try:
        await clients[over_grpc].infer("identity_fp32", [_input(module, f"X{number}", array, "FP32")])
    except Exception as error:  # refused by name: the answer must name this request's input
        return f"'X{number}'" in str(error)
    return False


def _id(found: Any) -> str:
    response = found.get_response()
    return str(response["id"] if isinstance(response, dict) else response.id)


def _input(module: Any, name: str, array: npt.NDArray[Any], datatype: str) -> Any:
    given = module.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array)
    return given


if __name__ == "__main__":
    main()
