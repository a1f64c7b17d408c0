"""A program that serves models with the datatypes FP8 and COMPLEX64; `test_new_datatype` adds them to a copy.

The datatypes are added to Triton's protobuf schema first, which would come with a newer ``tritonclient``.
"""

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        assert pb_utils.triton_string_to_numpy("TYPE_COMPLEX64") is np.complex64
        arrays = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", array.conj())]) for array in arrays]
"""
CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "X" data_type: TYPE_COMPLEX64 dims: [ 2 ] }
output { name: "OUTPUT" data_type: TYPE_COMPLEX64 dims: [ 2 ] }
"""


class ExtendedPool:
    """A descriptor pool in which the enum of datatypes has two more values."""

    def __init__(self) -> None:
        self._pool = descriptor_pool.DescriptorPool()

    def AddSerializedFile(self, serialized: bytes) -> object:
        file = descriptor_pb2.FileDescriptorProto.FromString(serialized)
        for enum in file.enum_type:
            if enum.name == "DataType":
                enum.value.add(name="TYPE_FP8", number=15)
                enum.value.add(name="TYPE_COMPLEX64", number=16)
        return self._pool.AddSerializedFile(file.SerializeToString())


def post(url: str, body: bytes, json_length: int | None = None) -> bytes:
    headers = {} if json_length is None else {"Inference-Header-Content-Length": str(json_length)}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as response:
        content: bytes = response.read()
        return content


def get_json(url: str) -> Any:
    with urllib.request.urlopen(url) as response:
        return json.load(response)


def main(repository: Path) -> None:
    pool = ExtendedPool()
    original, descriptor_pool.Default = descriptor_pool.Default, lambda: pool
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    descriptor_pool.Default = original
    import grpc

    import tritonnb as tnb
    from tritonnb.core import datatypes

    assert Path(tnb.__file__).is_relative_to(repository)
    (repository / "models" / "conjugate" / "1").mkdir(parents=True)
    (repository / "models" / "conjugate" / "1" / "model.py").write_text(MODEL)
    (repository / "models" / "conjugate" / "config.pbtxt").write_text(CONFIG)

    copy: Any = datatypes  # the type checker sees the original module
    fp8: Any = copy.FP8[2]
    with tnb.Server(repository / "models", port=0, grpc_port=0) as server:

        @server.model(max_batch_size=4)
        def negate(X: fp8) -> fp8:
            assert X.dtype == np.float32
            return -X

        url = f"{server.url}/v2/models"
        # FP8: in process, as JSON, as binary data, and over gRPC as typed contents
        output = server["negate"](X=[[1, 2.5]])["OUTPUT"]
        assert output.dtype == np.float32
        assert output.tolist() == [[-1, -2.5]]
        values = {"name": "X", "datatype": "FP8", "shape": [1, 2]}
        body = json.dumps({"inputs": [{**values, "data": [1, 2.5]}]}).encode()
        (tensor,) = json.loads(post(f"{url}/negate/infer", body))["outputs"]
        assert (tensor["datatype"], tensor["data"]) == ("FP8", [-1, -2.5])
        assert get_json(f"{url}/negate/config")["input"][0]["data_type"] == "TYPE_FP8"
        head = json.dumps(
            {
                "inputs": [{**values, "parameters": {"binary_data_size": 2}}],
                "parameters": {"binary_data_output": True},
            }
        ).encode()
        assert post(f"{url}/negate/infer", head + bytes([0x3C, 0x41]), len(head)).endswith(bytes([0xBC, 0xC1]))
        request = service_pb2.ModelInferRequest(model_name="negate")
        request.inputs.add(name="X", datatype="FP8", shape=[1, 2]).contents.fp32_contents.extend([1, 2.5])
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
        assert (answer.outputs[0].datatype, answer.raw_output_contents[0]) == ("FP8", bytes([0xBC, 0xC1]))
        # COMPLEX64: a model.py, and a wrong dtype
        conjugated = server["conjugate"](X=np.array([[1 + 2j, 3]], np.complex64))["OUTPUT"]
        assert conjugated.tolist() == [[1 - 2j, 3]]
        with pytest.raises(tnb.TritonError, match=r"is COMPLEX64 \(NumPy complex64\), got an array of float32"):
            server["conjugate"](X=np.array([[1, 2]], np.float32))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
