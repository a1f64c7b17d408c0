"""A response depends on the values of its request only, not on the addresses at which they lie."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
import tritonclient.utils.shared_memory as shm
from onnx import TensorProto, helper, numpy_helper, save_model

from tests.backends.models import Loaded, config_of, request, save_scripted
from tritonnb.server.server import Server

COLUMNS = 333
CONFIG = (
    'max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: 333 } '
    'output { name: "y" data_type: TYPE_FP32 dims: 1 } instance_group { count: 1 kind: KIND_CPU }'
)
#: The order in which these numbers are added changes the last digits of the sum.
NUMBERS = np.random.default_rng(1).normal(5, 1, (3, COLUMNS)).astype(np.float32)


class Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1, keepdim=True)


def write_sum(backend: str, directory: Path) -> None:
    version = directory / "1"
    version.mkdir(parents=True)
    if backend == "onnxruntime":
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", COLUMNS])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 1])
        axes = numpy_helper.from_array(np.array([1]), "axes")
        graph = helper.make_graph([helper.make_node("ReduceSum", ["x", "axes"], ["y"])], "g", [x], [y], [axes])
        opset = [helper.make_opsetid("", 17)]
        save_model(helper.make_model(graph, opset_imports=opset, ir_version=8), version / "model.onnx")
    elif backend == "openvino":
        import openvino as ov  # only here, since its import takes long

        parameter = ov.opset13.parameter([-1, COLUMNS], np.float32)
        result = ov.opset13.reduce_sum(parameter, np.array([1]), keep_dims=True)
        parameter.output(0).set_names({"x"})
        result.output(0).set_names({"y"})
        ov.save_model(ov.Model([result], [parameter], "sum"), version / "model.xml", compress_to_fp16=False)
    else:
        save_scripted(Sum(), directory)


def placed(array: npt.NDArray[np.float32], offset: int) -> npt.NDArray[np.float32]:
    """A copy of an array at this distance from a multiple of 64 bytes."""
    buffer = np.empty(array.nbytes + 128, np.uint8)
    start = -buffer.ctypes.data % 64 + offset
    copy = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


BACKENDS = pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "pytorch"])


@BACKENDS
def test_result_does_not_depend_on_the_address_of_the_input(backend: str, tmp_path: Path) -> None:
    write_sum(backend, tmp_path)
    loaded = Loaded(config_of(backend, CONFIG.partition("max_batch_size: 8")[2], max_batch_size=8), tmp_path)
    seen = set()
    for offset in range(64):
        (alone,) = loaded.run(request(x=placed(NUMBERS, offset)))
        parts = loaded.run(*(request(x=placed(row[None], offset)) for row in NUMBERS))
        together = np.concatenate([part.outputs[0].array for part in parts if part is not None])
        assert alone is not None
        seen |= {alone.outputs[0].array.tobytes(), together.tobytes()}
    assert len(seen) == 1


def ask(client_module: Any, client: Any, request_id: str, region: str = "", offset: int = 0) -> bytes:
    """The output for the numbers, which are in the body or at an offset of a region of shared memory."""
    tensor = client_module.InferInput("x", NUMBERS.shape, "FP32")
    if region:
        tensor.set_shared_memory(region, NUMBERS.nbytes, offset)
    else:
        tensor.set_data_from_numpy(NUMBERS)
    return bytes(client.infer("sum", [tensor], request_id=request_id).as_numpy("y").tobytes())


def ask_with_shared_memory(client: Any) -> set[bytes]:
    key = f"/{uuid.uuid4().hex}"
    region = shm.create_shared_memory_region("numbers", key, 2 * NUMBERS.nbytes)
    try:
        client.register_system_shared_memory("numbers", key, 2 * NUMBERS.nbytes)
        seen = set()
        for offset in range(64):
            shm.set_shared_memory_region(region, [NUMBERS], offset=offset)
            seen.add(ask(httpclient, client, "", "numbers", offset))
        client.unregister_system_shared_memory("numbers")
        return seen
    finally:
        shm.destroy_shared_memory_region(region)


@BACKENDS
def test_result_does_not_depend_on_the_header_nor_on_the_protocol(backend: str, tmp_path: Path) -> None:
    write_sum(backend, tmp_path / "sum")
    (tmp_path / "sum/config.pbtxt").write_text(f'backend: "{backend}" {CONFIG}')
    with Server(tmp_path, port=0, grpc_port=0, allow_client_shm=True) as server:
        seen = {server["sum"](x=placed(NUMBERS, offset))["y"].tobytes() for offset in range(0, 64, 4)}
        seen |= {server["sum"](x=placed(NUMBERS, offset), copy=False)["y"].tobytes() for offset in range(0, 64, 4)}
        address = server.url.removeprefix("http://")
        with (
            httpclient.InferenceServerClient(address) as http,
            grpcclient.InferenceServerClient(f"localhost:{server.grpc_port}") as grpc,
        ):
            for length in range(64):
                seen.add(ask(httpclient, http, "i" * length))
                seen.add(ask(grpcclient, grpc, "i" * length))
            seen |= ask_with_shared_memory(http)
    assert len(seen) == 1
