"""Serve a model of a repository, and send the same requests over HTTP and gRPC at once, so that they share a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tritonnb.core.datatypes import datatype_of
from tritonnb.server.server import Server

Arrays = Mapping[str, np.ndarray]
#: Requests wait until their rows make the preferred batch size, at most this long.
DELAY_US = 20_000_000


def one_batch(rows: int) -> str:
    """The fields of a configuration that make requests with together ``rows`` rows one batch."""
    return (
        f"max_batch_size: {rows} dynamic_batching {{ preferred_batch_size: {rows} "
        f"max_queue_delay_microseconds: {DELAY_US} }} instance_group {{ count: 1 kind: KIND_CPU }}"
    )


def write_config(repository: Path, model: str, text: str) -> None:
    """Write the *config.pbtxt* of a model."""
    (repository / model).mkdir(parents=True, exist_ok=True)
    (repository / model / "config.pbtxt").write_text(text)


def check_batches(
    repository: Path,
    model: str,
    requests: Sequence[Arrays],
    expected: Callable[[Arrays], Arrays],
    *,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    """Serve a model configured with `one_batch`, and compare every response with what the framework computes alone.

    Parameters
    ----------
    repository : path
    model : str
    requests : sequence of mapping of str to array
        The inputs of requests that together make one batch, with the batch dimension.
    expected : callable
        Computes the outputs of one request from its inputs with the framework itself.
    rtol, atol : float
        Tolerances of `numpy.testing.assert_allclose`.
    """
    rows = sum(len(next(iter(request.values()))) for request in requests)
    with Server(repository, port=0, grpc_port=0, model_control_mode="explicit", load_models=[model]) as server:
        for send in (_http(server, model), _grpc(server, model)):
            with ThreadPoolExecutor(len(requests)) as pool:
                responses = list(pool.map(send, requests))
            for request, response in zip(requests, responses, strict=True):
                for name, array in expected(request).items():
                    np.testing.assert_allclose(response[name], array, rtol=rtol, atol=atol)
                    assert response[name].dtype == array.dtype
        statistics = server[model].stats()
    assert statistics["execution_count"] == 2
    assert statistics["inference_count"] == 2 * rows
    sizes = {entry["batch_size"]: entry["compute_infer"]["count"] for entry in statistics["batch_stats"]}
    assert sizes == {rows: 2}


def _http(server: Server, model: str) -> Callable[[Arrays], Arrays]:
    def send(arrays: Arrays) -> Arrays:
        with httpclient.InferenceServerClient(server.url.removeprefix("http://")) as client:
            result = client.infer(model, _inputs(httpclient, arrays))
            return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}

    return send


def _grpc(server: Server, model: str) -> Callable[[Arrays], Arrays]:
    def send(arrays: Arrays) -> Arrays:
        with grpcclient.InferenceServerClient(f"localhost:{server.grpc_port}") as client:
            result = client.infer(model, _inputs(grpcclient, arrays))
            return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}

    return send


def _inputs(client: Any, arrays: Arrays) -> list[Any]:
    inputs = []
    for name, array in arrays.items():
        tensor = client.InferInput(name, array.shape, datatype_of(array.dtype).name)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs
