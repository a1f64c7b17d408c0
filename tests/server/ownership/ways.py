"""Ways to send a request to a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tritonnb.server.server import Server


def in_process(server: Server, name: str, x: Any) -> Any:
    return server[name](X=x)["Y"]


def in_process_list(server: Server, name: str, x: Any) -> Any:
    return server[name](X=x.tolist())["Y"]


def over_http(server: Server, name: str, x: Any, binary: bool = True) -> Any:
    tensor = httpclient.InferInput("X", list(x.shape), "BYTES" if x.dtype.kind == "O" else "FP32")
    tensor.set_data_from_numpy(x, binary_data=binary)
    with httpclient.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        return client.infer(name, [tensor]).as_numpy("Y")


def over_http_json(server: Server, name: str, x: Any) -> Any:
    return over_http(server, name, x, binary=False)


def over_grpc(server: Server, name: str, x: Any) -> Any:
    tensor = grpcclient.InferInput("X", list(x.shape), "BYTES" if x.dtype.kind == "O" else "FP32")
    tensor.set_data_from_numpy(x)
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        return client.infer(name, [tensor]).as_numpy("Y")


#: Sends an array to a model and returns what it answers.
Way = Callable[[Server, str, Any], Any]


WAYS: list[Way] = [in_process, in_process_list, over_http, over_http_json, over_grpc]
