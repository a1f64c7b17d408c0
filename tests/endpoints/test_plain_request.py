"""Plain gRPC requests are read without protobuf, which must make the same of them; their responses are written so."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from tests.endpoints.served import OneModel
from tests.laws import law
from tools.fuzz.plain_requests import compare_message, random_message
from tritonnb.core.datatypes import BYTES, FP32, INT32
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.endpoints.grpc.infer_response import common_response_parts, response_message
from tritonnb.endpoints.grpc.plain_request import read_plain
from tritonnb.endpoints.tensors import OutputFormat, ResponseFormat
from tritonnb.engine.shared_memory import SystemPart


def message(values: Any = (1, 2), **fields: Any) -> pb.ModelInferRequest:
    """A plain message with one input."""
    request = pb.ModelInferRequest(model_name="m", **fields)
    request.inputs.add(name="A", datatype="FP32", shape=[1, len(values)])
    request.raw_input_contents.append(np.array(values, "<f4").tobytes())
    return request


@pytest.mark.parametrize(
    "request_",
    [
        message(),
        message(id="7", model_version="3"),
        message(outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name="C")]),
        message(values=[1.0] * 5_000),
        message(values=[]),
        pb.ModelInferRequest(model_name="m"),
    ],
    ids=["shortest", "with ID and version", "with an output", "large", "empty input", "no input"],
)
def test_plain_message_is_read_without_protobuf(request_: pb.ModelInferRequest) -> None:
    serialized = request_.SerializeToString()
    plain = read_plain(serialized)
    assert plain is not None
    assert (plain.model_name, plain.model_version, plain.id) == ("m", request_.model_version, request_.id)
    assert [(name, list(shape)) for name, _, shape in plain.inputs] == [
        (x.name, list(x.shape)) for x in request_.inputs
    ]
    assert [serialized[at : at + size] for at, size in plain.contents] == list(request_.raw_input_contents)
    compare_message(serialized)


def typed(**contents: Any) -> bytes:
    """A message with typed contents."""
    request = pb.ModelInferRequest(model_name="m")
    request.inputs.add(name="A", datatype="FP32", shape=[1, 1]).contents.CopyFrom(pb.InferTensorContents(**contents))
    serialized: bytes = request.SerializeToString()
    return serialized


_PLAIN = message().SerializeToString()
_RAW = _PLAIN.index(b"\x3a\x08")


@pytest.mark.parametrize(
    "serialized",
    [
        message(parameters={"priority": pb.InferParameter(uint64_param=2)}).SerializeToString(),
        typed(fp32_contents=[1.0]),
        _PLAIN[_RAW:] + _PLAIN[:_RAW],
        _PLAIN + b"\x3a\x00",
        _PLAIN[:-1],
        _PLAIN[:_RAW],
        b"\x0a\x01m" + _PLAIN,
        _PLAIN.replace(b"FP32", b"FP33"),
        _PLAIN.replace(b"\x0a\x01m", b"\x0a\x01\xff"),
        _PLAIN.replace(b"\x1a\x02\x01\x02", b"\x18\x01\x18\x02"),
        b"\x0a\x81\x80\x80\x80\x80\x00m" + _PLAIN[3:],
        b"\x4a\x00" + _PLAIN,
    ],
    ids=["parameters", "typed contents", "unusual order", "too many contents", "incomplete", "no contents",
         "name twice", "unknown datatype", "not UTF-8", "shape not packed", "length too long", "unknown field"],
)  # fmt: skip
def test_uncommon_messages_are_read_by_protobuf(serialized: bytes) -> None:
    assert read_plain(serialized) is None


@pytest.mark.slow
@given(st.integers(0, 2**63))
@law(1000)
def test_both_readers_read_a_message_identically(seed: int) -> None:
    compare_message(random_message(random.Random(seed)))


OUTPUTS = st.lists(
    st.tuples(st.text(min_size=1, max_size=5), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 2)), max_size=3
)


@given(OUTPUTS, st.text(max_size=3))
def test_serialized_response_equals_protobufs(outputs: list[tuple[str, list[int], int]], request_id: str) -> None:
    served: Any = OneModel().echo
    tensors = []
    for name, shape, kind in outputs:
        datatype = (FP32, INT32, BYTES)[kind]
        array = np.full(shape, b"ab", object) if datatype is BYTES else np.ones(shape, datatype.numpy)
        tensors.append(Tensor(name, datatype, array))
    request, response = InferRequest("echo", {}, lambda request, response: None, id=request_id), InferResponse(tensors)
    written = common_response_parts(served, request, response, ResponseFormat())
    assert written is not None
    parsed = pb.ModelInferResponse.FromString(b"".join(written))
    assert parsed == response_message(served, request, response, ResponseFormat())


@pytest.mark.parametrize(
    ("response", "response_format"),
    [
        (InferResponse([], parameters={"a": 1}), ResponseFormat()),
        (InferResponse([]), ResponseFormat(outputs={"Y": OutputFormat(classification=1)})),
        (InferResponse([]), ResponseFormat(outputs={"Y": OutputFormat(region=SystemPart(memoryview(bytearray(1))))})),
    ],
    ids=["parameters", "classes", "shared memory"],
)
def test_uncommon_responses_are_written_by_protobuf(response: InferResponse, response_format: ResponseFormat) -> None:
    request = InferRequest("echo", {}, lambda request, response: None)
    served: Any = OneModel().echo
    assert common_response_parts(served, request, response, response_format) is None
