"""Triton's own example backends, compiled from unmodified checkouts that TRITON_BACKENDS_CHECKOUT contains."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

import tritonnb as tnb
from tests.backends.serving import DELAY_US, check_batches, one_batch, write_config
from tritonnb.backends.native import build
from tritonnb.server.server import Server

CHECKOUT = os.environ.get("TRITON_BACKENDS_CHECKOUT", "")
SCRIPT = Path(__file__).parents[3] / "tools" / "build_triton_backends.sh"

pytestmark = [
    pytest.mark.skipif(not CHECKOUT, reason="TRITON_BACKENDS_CHECKOUT: checkouts of core, common, backend, …_backend"),
    pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("backends")
    subprocess.run([SCRIPT, CHECKOUT, directory], check=True)
    return directory


@pytest.fixture
def repository(backends: Path, tmp_path: Path) -> Path:
    """A repository whose models find the backend's library in their own directories."""
    for name in ("minimal", "recommended", "identity", "square", "repeat"):
        (tmp_path / name / "1").mkdir(parents=True)
        shutil.copy(backends / name / f"libtriton_{name}.so", tmp_path / name)
    return tmp_path


def tensors(name: str, kind: str = "INT32", dims: str = "4") -> str:
    return " ".join(
        f'{way} {{ name: "{tensor}" data_type: TYPE_{kind} dims: [ {dims} ] }}'
        for way, tensor in zip(("input", "output"), name.split(), strict=True)
    )


@pytest.mark.parametrize(
    ("backend", "names", "dtype", "dims"),
    [
        ("minimal", "IN0 OUT0", np.int32, "4"),
        ("recommended", "IN0 OUT0", np.float32, "4"),
        ("identity", "INPUT0 OUTPUT0", np.int32, "4"),
        ("identity", "INPUT0 OUTPUT0", np.object_, "4"),
    ],
)
def test_requests_over_http_and_grpc_share_batches(
    repository: Path, backend: str, names: str, dtype: Any, dims: str
) -> None:
    kinds = {np.int32: "INT32", np.float32: "FP32", np.object_: "STRING"}
    write_config(repository, backend, f'backend: "{backend}" {tensors(names, kinds[dtype], dims)} {one_batch(4)}')
    name, output = names.split()
    rows = [np.array([[row, row + 1, row + 2, row + 3]]) for row in range(4)]
    if dtype is np.object_:
        requests = [{name: np.array([[str(value).encode() for value in row[0]]], dtype)} for row in rows]
    else:
        requests = [{name: row.astype(dtype)} for row in rows]
    if dtype is not np.object_:
        check_batches(repository, backend, requests, lambda request: {output: request[name]})
        return
    with serve_one(repository, backend) as server:
        with ThreadPoolExecutor(4) as pool:
            responses = list(pool.map(server[backend], requests))
    for request, response in zip(requests, responses, strict=True):
        assert response[output].tolist() == request[name].tolist()


def test_recorded_times_are_those_reported_by_the_backend(repository: Path) -> None:
    delay = 'parameters { key: "execute_delay_ms" value { string_value: "20" } }'
    write_config(repository, "identity", f'backend: "identity" {delay} {tensors("INPUT0 OUTPUT0")} {one_batch(4)}')
    with serve_one(repository, "identity") as server:
        with server.record() as recording, ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda row: server["identity"](INPUT0=[[row] * 4]), range(8)))
        entry = server["identity"].stats()
    assert [batch.size for batch in recording.batches] == [4, 4]
    assert all("max_batch_size 4 reached" in batch.why for batch in recording.batches)
    assert (entry["inference_count"], entry["execution_count"]) == (8, 2)
    assert entry["batch_stats"][0]["compute_infer"]["ns"] >= 2 * 20_000_000
    assert entry["batch_stats"][0]["compute_output"]["ns"] < 20_000_000


def serve_one(repository: Path, model: str) -> Server:
    return Server(repository, port=0, grpc_port=0, model_control_mode="explicit", load_models=[model])


def stream(server: Server, model: str, arrays: dict[str, np.ndarray]) -> list[grpcclient.InferResult]:
    """All responses to a request to a decoupled model; the last one is empty."""
    responses: queue.Queue[Any] = queue.Queue()
    received: list[grpcclient.InferResult] = []
    with grpcclient.InferenceServerClient(f"localhost:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: responses.put(error or result))
        inputs = []
        for name, array in arrays.items():
            tensor = grpcclient.InferInput(name, array.shape, "UINT32" if array.dtype == np.uint32 else "INT32")
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        client.async_stream_infer(model, inputs, enable_empty_final_response=True)
        while True:
            result = responses.get(timeout=60)
            assert isinstance(result, grpcclient.InferResult), result
            if result.get_response().parameters["triton_final_response"].bool_param:
                return received
            received.append(result)


DECOUPLED = "model_transaction_policy { decoupled: true }"


def test_square_sends_its_responses_over_a_grpc_stream(repository: Path) -> None:
    write_config(repository, "square", f'backend: "square" {DECOUPLED} {tensors("IN OUT", dims="1")}')
    with serve_one(repository, "square") as server:
        results = stream(server, "square", {"IN": np.array([5], np.int32)})
        stream(server, "square", {"IN": np.array([0], np.int32)})  # executed when the first execution was counted
        entry = server["square"].stats()
    assert [result.as_numpy("OUT").tolist() for result in results] == [[5]] * 5
    assert [entry["response_stats"][str(index)]["success"]["count"] for index in range(5)] == [1] * 5
    assert entry["inference_count"] == entry["execution_count"] >= 1


def test_repeat_sends_its_responses_over_a_grpc_stream(repository: Path) -> None:
    text = """
        backend: "repeat" model_transaction_policy { decoupled: true }
        input { name: "IN" data_type: TYPE_INT32 dims: -1 }
        input { name: "DELAY" data_type: TYPE_UINT32 dims: -1 }
        input { name: "WAIT" data_type: TYPE_UINT32 dims: 1 }
        output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
        output { name: "IDX" data_type: TYPE_UINT32 dims: 1 }
    """
    write_config(repository, "repeat", text)
    inputs = {
        "IN": np.array([4, 2, 0], np.int32),
        "DELAY": np.array([1, 20, 1], np.uint32),
        "WAIT": np.array([5], np.uint32),
    }
    with serve_one(repository, "repeat") as server:
        results = stream(server, "repeat", inputs)
        none = stream(server, "repeat", {**inputs, "IN": inputs["IN"][:0], "DELAY": inputs["DELAY"][:0]})
        stream(server, "repeat", inputs)  # executed when the executions before it were counted
        entry = server["repeat"].stats()
    assert [(result.as_numpy("IDX").item(), result.as_numpy("OUT").item()) for result in results] == [
        (0, 4),
        (1, 2),
        (2, 0),
    ]
    assert none == []
    # The backend reports the time until it released the request as computing, not the time until the last response.
    infer = entry["batch_stats"][0]["compute_infer"]
    assert infer["count"] >= 2
    assert infer["ns"] >= 2 * 5_000_000


def test_tritons_example_batching_library_limits_the_volume_of_batches(repository: Path, backends: Path) -> None:
    volume = 'parameters { key: "MAX_BATCH_VOLUME_BYTES" value { string_value: "48" } }'  # three requests of 16 bytes
    text = f'backend: "identity" {volume} {tensors("INPUT0 OUTPUT0")} {one_batch(8)}'
    write_config(repository, "identity", text.replace(str(DELAY_US), "300000"))
    shutil.copy(backends / "batching" / "volume_batching.so", repository / "identity" / "1" / "batchstrategy.so")
    with serve_one(repository, "identity") as server:
        with server.record() as recording, ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda row: server["identity"](INPUT0=[[row] * 4]), range(6)))
    assert [batch.size for batch in recording.batches] == [3, 3]


def test_backend_directory_is_searched_last(backends: Path, tmp_path: Path) -> None:
    (tmp_path / "copy" / "1").mkdir(parents=True)
    write_config(tmp_path, "copy", f'backend: "minimal" {tensors("IN0 OUT0")}')
    with tnb.serve(tmp_path, port=0, backend_directory=backends) as server:
        assert server["copy"](IN0=[1, 2, 3, 4])["OUT0"].tolist() == [1, 2, 3, 4]
