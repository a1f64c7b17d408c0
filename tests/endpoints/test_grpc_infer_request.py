"""A message becomes a request: what is wrong with it is said in Triton's order."""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.endpoints.served import spec_of
from tritonnb.core.errors import InvalidArgumentError, NotFoundError, TritonError
from tritonnb.endpoints.grpc.infer_request import read_request
from tritonnb.engine.shared_memory import SharedMemory

PLAIN = spec_of("""
name: "plain"
input { name: "A" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
""")
REGION = {"shared_memory_region": "nowhere", "shared_memory_byte_size": 4}


def message(read: dict[str, Any], wanted: dict[str, Any], raw: bytes = b"\0\0\0\0") -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="plain", raw_input_contents=[raw] if raw else [])
    tensors = (request.inputs.add(name="A", datatype="INT32", shape=[1]), request.outputs.add(name="OUT"))
    for tensor, parameters in zip(tensors, (read, wanted), strict=True):
        for name, value in parameters.items():
            kind = {str: "string_param", int: "int64_param", bool: "bool_param"}[type(value)]
            setattr(tensor.parameters[name], kind, value)
    return request


def complaint(kind: type[TritonError], request: pb.ModelInferRequest) -> str:
    with pytest.raises(kind) as raised:
        read_request(request, PLAIN, 1, SharedMemory())
    return raised.value.message


@pytest.mark.parametrize("name", ["shared_memory_byte_size", "shared_memory_offset"])
def test_region_offset_without_a_region_is_ignored(name: str) -> None:
    text = f"'{name}' can not be specified without 'shared_memory_region' parameter for tensor 'A'"
    for value in (4, "4"):
        assert complaint(InvalidArgumentError, message({name: value}, {})) == text


@pytest.mark.parametrize(("name", "kind"), [("region", "string"), ("offset", "int64"), ("byte_size", "int64")])
def test_region_offset_and_size_must_be_integers(name: str, kind: str) -> None:
    name = f"shared_memory_{name}"
    assert complaint(InvalidArgumentError, message({}, {**REGION, name: True})) == (
        f"invalid value type for '{name}' parameter for tensor 'OUT', expected {kind}_param."
    )


def test_inputs_are_checked_before_outputs() -> None:
    assert "unable to find data" in complaint(InvalidArgumentError, message({}, REGION, raw=b""))
    both = {**REGION, "classification": 1}
    assert complaint(NotFoundError, message(REGION, both)) == "Unable to find shared memory region: 'nowhere'"
    assert complaint(InvalidArgumentError, message({}, both)) == (
        "output can't set both 'shared_memory_region' and 'classification'"
    )
