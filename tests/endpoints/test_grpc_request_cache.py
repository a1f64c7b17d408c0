"""Messages that were read before are read the same the second time, and only if they are the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from tests.endpoints.served import ECHO, OneModel, spec_of
from tritonnb.core.datatypes import BYTES, FP32, INT32
from tritonnb.core.errors import InternalError
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.endpoints.grpc import dispatch
from tritonnb.endpoints.grpc.dispatch import RpcDispatcher
from tritonnb.endpoints.grpc.infer_response import common_response_bytes, response_message
from tritonnb.endpoints.grpc.inference import Inference
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.tensors import OutputFormat, ResponseFormat
from tritonnb.runtime.models.validation import RequestValidator
from tritonnb.runtime.shared_memory import SystemPart


class Asked:
    """An endpoint whose requests are kept, not answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = cast("Any", OneModel())
        self.engine.echo.hold = True
        self.rpcs = RpcDispatcher(self.engine, GrpcOptions())
        self.parsed = 0
        submit = Inference.submit

        def counted(*arguments: Any, **options: Any) -> Inference:
            self.parsed += 1
            return submit(*arguments, **options)

        monkeypatch.setattr(
            dispatch, "Inference", SimpleNamespace(submit=counted, submit_cached=Inference.submit_cached)
        )

    def ask(self, message: bytes) -> InferRequest:
        return self.rpcs.infer(message, {}, lambda inference, response: None).request

    def know(self, message: bytes) -> None:
        """Have a message stored, and not counted as parsed."""
        for _ in range(3):
            self.ask(message)
        assert self.parsed == 2
        self.parsed = 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def message(*values: int, **fields: Any) -> bytes:
    request = pb.ModelInferRequest(model_name="echo", **fields)
    request.inputs.add(name="X", datatype="INT32", shape=[1, len(values)])
    request.raw_input_contents.append(np.array(values, "<i4").tobytes())
    serialized: bytes = request.SerializeToString()
    return serialized


def x_of(request: InferRequest) -> list[int]:
    return request.inputs["X"].array.ravel().tolist()


def test_the_third_message_of_a_head_is_not_parsed_and_has_its_own_contents(asked: Asked) -> None:
    for values in ([1, 2], [3, 4], [5, 6]):
        assert x_of(asked.ask(message(*values))) == values
    assert asked.parsed == 2


def test_other_headers_are_kept(asked: Asked) -> None:
    fields: dict[str, Any] = {
        "parameters": {"a": pb.InferParameter(int64_param=5), "priority": pb.InferParameter(uint64_param=2)}
    }
    fields["outputs"] = [pb.ModelInferRequest.InferRequestedOutputTensor(name="Y")]
    _, first, second = (asked.ask(message(n, **fields)) for n in (1, 2, 3))
    assert asked.parsed == 2
    for request in (first, second):
        assert (request.parameters, request.priority, request.requested_outputs) == ({"a": 5}, 2, ("Y",))
    assert first.parameters is not second.parameters


@pytest.mark.parametrize(
    "other",
    [
        message(1, 2, 3),
        message(1, 2, id="a"),
        message(1, 2, model_version="1"),
        message(1, 2) + b"\x3a\x00",
    ],
)
def test_another_head_or_length_is_parsed(asked: Asked, other: bytes) -> None:
    asked.know(message(1, 2))
    asked.ask(other)
    assert asked.parsed == 1


def test_truncated_message_is_an_error(asked: Asked) -> None:
    asked.know(message(1, 2))
    with pytest.raises(InternalError, match="Unable to parse request"):
        asked.ask(message(1, 2)[:-1])


def test_a_message_with_an_id_is_always_parsed(asked: Asked) -> None:
    assert [asked.ask(message(1, id="a")).id for _ in range(3)] == ["a"] * 3
    assert asked.parsed == 3


def test_typed_contents_are_always_parsed(asked: Asked) -> None:
    request = pb.ModelInferRequest(model_name="echo")
    tensor = request.inputs.add(name="X", datatype="INT32", shape=[1, 2])
    tensor.contents.int_contents.extend([1, 2])
    for _ in range(3):
        assert x_of(asked.ask(request.SerializeToString())) == [1, 2]
    assert asked.parsed == 3


@pytest.mark.parametrize("raw", [(b"\1\0\0\0", b"\2\0\0\0"), (b"",)], ids=["unused contents", "no contents"])
def test_an_input_in_shared_memory_is_read_from_there_each_time(asked: Asked, raw: tuple[bytes, ...]) -> None:
    regions = {"r": b"\7\0\0\0" * (len(raw) - 1)}
    asked.engine.shared_memory = SimpleNamespace(part=lambda name, *_: SystemPart(memoryview(regions[name])))
    request = pb.ModelInferRequest(model_name="echo", raw_input_contents=raw)
    names = ("X", "Z")[: len(raw)]
    asked.engine.echo.spec = spec_of(ECHO + 'input { name: "Z" data_type: TYPE_INT32 dims: [ -1 ] optional: true }')
    asked.engine.echo._validator = RequestValidator(asked.engine.echo.spec)
    for name in names:
        request.inputs.add(name=name, datatype="INT32", shape=[1, len(names) - 1])
    request.inputs[0].parameters["shared_memory_region"].string_param = "r"
    request.inputs[0].parameters["shared_memory_byte_size"].int64_param = len(regions["r"])
    for _ in range(3):
        inputs = asked.ask(request.SerializeToString()).inputs
        assert {name: tensor.array.tobytes() for name, tensor in inputs.items()} == dict(
            zip(names, (regions["r"], *raw), strict=False)
        )
    regions.clear()
    with pytest.raises(KeyError):  # the region is not there any more
        asked.ask(request.SerializeToString())


def test_changes_to_a_request_do_not_affect_the_next_one(asked: Asked) -> None:
    def change(request: InferRequest, trace: object = None) -> None:
        assert (request.flags, request.parameters, list(request.inputs)) == (0, {}, ["X"])
        request.flags = 2
        request.parameters["changed"] = True

    asked.engine.echo.submit = change
    for _ in range(4):
        asked.ask(message(1, 2))


def test_fields_in_an_unusual_order_are_read(asked: Asked) -> None:
    whole = message(1, 2)
    split = whole.index(b"\x3a\x08")
    for _ in range(3):
        assert x_of(asked.ask(whole[split:] + whole[:split])) == [1, 2]


def test_reloaded_model_gets_no_request_of_the_old_one(asked: Asked) -> None:
    asked.know(message(1, 2))
    asked.engine.echo = type(asked.engine.echo)()
    asked.engine.echo.hold = True
    asked.ask(message(1, 2))
    assert asked.parsed == 1
    assert asked.engine.echo.held.qsize() == 1


def test_tracing_reads_every_message(asked: Asked) -> None:
    asked.know(message(1, 2))
    asked.engine.tracer.active = True
    asked.ask(message(1, 2))
    assert asked.parsed == 1


OUTPUTS = st.lists(
    st.tuples(st.text(min_size=1, max_size=5), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 2)), max_size=3
)


@given(OUTPUTS)
def test_response_in_bytes_is_sent_unchanged(outputs: list[tuple[str, list[int], int]]) -> None:
    served: Any = OneModel().echo
    tensors = []
    for name, shape, kind in outputs:
        datatype = (FP32, INT32, BYTES)[kind]
        array = np.full(shape, b"ab", object) if datatype is BYTES else np.ones(shape, datatype.numpy)
        tensors.append(Tensor(name, datatype, array))
    request, response = InferRequest("echo", {}, lambda request, response: None), InferResponse(tensors)
    written = common_response_bytes(served, request, response, ResponseFormat())
    assert written is not None
    parsed = pb.ModelInferResponse.FromString(written)
    assert parsed == response_message(served, request, response, ResponseFormat())


def test_uncommon_responses_are_serialized_by_protobuf() -> None:
    served: Any = OneModel().echo
    plain = InferRequest("echo", {}, lambda request, response: None)
    named = InferRequest("echo", {}, lambda request, response: None, id="a")
    classes = ResponseFormat(outputs={"Y": OutputFormat(classification=1)})
    region = ResponseFormat(outputs={"Y": OutputFormat(region=SystemPart(memoryview(bytearray(1))))})
    assert common_response_bytes(served, named, InferResponse([]), ResponseFormat()) is None
    assert common_response_bytes(served, plain, InferResponse([], parameters={"a": 1}), ResponseFormat()) is None
    assert common_response_bytes(served, plain, InferResponse([]), classes) is None
    assert common_response_bytes(served, plain, InferResponse([]), region) is None
