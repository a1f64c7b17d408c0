"""Long documents at every door: they are read and written beside the event loop, which answers others meanwhile."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

import tritonnb as tnb
from tests.laws import law
from tritonnb.client.v2_client import V2GrpcClient
from tritonnb.core import datatypes
from tritonnb.core.errors import InternalError, TritonError
from tritonnb.core.protobuf import service_pb2 as pb
from tritonnb.endpoints.grpc import infer_request, long_messages
from tritonnb.endpoints.http import json_fields, json_reader, tensor_data
from tritonnb.endpoints.http.json_arrays import MOST_VALUES
from tritonnb.endpoints.long_work import LONG, LongWork
from tritonnb.model_config.load import check_override

#: Documents that are valid, and characters that make them invalid, or valid for RapidJSON alone.
_TEXTS = st.text(st.sampled_from('a,:"[]{}\\é'), max_size=6)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=20,
)
_INSERTED = st.sampled_from(
    [b",", b"[", b"]", b"{", b"}", b'"', b"\\", b":", b"Inf", b"1e999", b'"a":1,', b"\xff", b"\0", b" ", b"\\ud800"]
)


def outcome(raw: bytes) -> object:
    """The value of a document with the names of its members in order, or the text of the error."""

    def described(value: object) -> object:
        if isinstance(value, dict):
            names = getattr(value, "names", None)
            return "object", names, [(name, described(member)) for name, member in value.items()]
        return [described(element) for element in value] if isinstance(value, list) else repr(value)

    try:
        return described(json_reader.parse(raw))
    except InternalError as error:
        return error.message


@law(400)
@given(_VALUES, st.booleans(), st.lists(st.tuples(st.floats(0, 1), _INSERTED), max_size=3), st.integers(1, 9))
def test_document_in_pieces_is_read_as_a_whole_one(
    value: object, ascii_only: bool, insertions: list[tuple[float, bytes]], piece: int
) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    for position, inserted in insertions:
        at = int(position * len(raw))
        raw = raw[:at] + inserted + raw[at:]
    whole = outcome(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_reader, "PIECE", piece)
        assert outcome(raw) == whole


_NUMBERS_OF_ANY_SIZE = st.sampled_from([0, -1, 2**63 - 1, 2**63, 2**64, 1.5, 1e39])
#: Elements of tensors: of one type, or mixed.
_ELEMENTS = st.sampled_from([_NUMBERS_OF_ANY_SIZE, st.integers(0, 2**64), st.floats(), st.booleans(), _TEXTS, _VALUES])


def contents(raw: bytes, datatype: Any, count: int) -> list[Any]:
    """What readers of a request find in it, or the texts of their errors."""
    found: list[Any] = []

    def add(read: Callable[[Any], Any], member: Any) -> None:
        try:
            found.append(repr(read(member)))
        except TritonError as error:
            found.append(error.message)

    document: Any = json_reader.parse(raw, tensors=True)
    entries: list[Any] = json_fields.array(document["inputs"])
    for entry in entries:
        shape, data = entry["shape"], entry["data"]
        add(lambda shape: [json_fields.unsigned(dim) for dim in json_fields.array(shape)], shape)
        add(len, data)
        add(lambda data: tensor_data.read_data(data, datatype, count).tolist(), data)
        add(tensor_data.read_strings, data)
    return found


@law(200)
@given(st.data(), st.sampled_from([tnb.FP32, tnb.INT8, tnb.UINT64, tnb.BOOL]), st.integers(1, 12), st.integers(1, 30))
def test_tensors_in_pieces_are_read_as_whole_ones(data: st.DataObject, datatype: Any, count: int, piece: int) -> None:
    nested = st.recursive(data.draw(_ELEMENTS), lambda inner: st.lists(inner, max_size=4), max_leaves=12)
    shapes = st.lists(st.sampled_from([1, 2, 1.5, "a", [2]]), max_size=3)
    inputs = data.draw(st.lists(st.tuples(shapes, st.lists(nested, max_size=12)), min_size=1, max_size=3))
    entries = [{"shape": shape, "data": elements} for shape, elements in inputs]
    raw = json.dumps({"inputs": entries, "id": "a"}).replace("Infinity", "1").replace("NaN", "1").encode()
    whole = contents(raw, datatype, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_reader, "PIECE", piece)
        assert contents(raw, datatype, count) == whole


@pytest.mark.parametrize("datatype", [tnb.FP32, tnb.BOOL, tnb.BYTES])
def test_tensors_are_written_in_parts_as_whole_ones(datatype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.array([b"a", b"", b"\n"], object) if datatype is tnb.BYTES else np.array([0, 1, 2], datatype.numpy)
    whole = tensor_data.write_data(array, datatype)
    monkeypatch.setattr(tensor_data, "_PART", 2)
    assert tensor_data.write_data(array, datatype) == whole


@pytest.mark.parametrize("count", [0, 1, LONG // 4 - 1, LONG // 4, LONG // 4 + 1, LONG])
def test_strings_in_parts_are_encoded_and_decoded_as_whole_ones(count: int) -> None:
    strings = [b"%d" % n for n in range(count)]
    encoded = b"".join(len(text).to_bytes(4, "little") + text for text in strings)
    assert datatypes.encode_bytes(np.array(strings, object)) == encoded
    assert datatypes.decode_bytes(encoded).tolist() == strings


@pytest.fixture(scope="module")
def server() -> Iterator[tnb.Server]:
    with tnb.Server(port=0, openai=tnb.OpenAiOptions(allow=True)) as running:

        @running.model
        def same(X: tnb.FP32[-1]) -> tnb.FP32[-1]:
            return X

        @running.model
        def texts(X: tnb.BYTES[-1]) -> tnb.BYTES[-1]:
            return X

        yield running


_COUNT = LONG // 2
_NUMBERS = b"[" + b",".join([b"1.5"] * _COUNT) + b"]"
_WORDS = json.dumps(["word"] * _COUNT).encode()
_INPUT = b'{"inputs":[{"name":"X","datatype":"%s","shape":[%d],"data":%s}]}'
#: By name: the path and the body of a request, and its status.
LONG_REQUESTS = {
    "numbers": ("/v2/models/same/infer", _INPUT % (b"FP32", _COUNT, _NUMBERS), 200),
    "strings": ("/v2/models/texts/infer", _INPUT % (b"BYTES", _COUNT, _WORDS), 200),
    "error": ("/v2/models/same/infer", _INPUT % (b"FP32", _COUNT, _NUMBERS[:-1]), 500),
    "generate": ("/v2/models/same/generate", b'{"X":%s}' % _NUMBERS, 200),
    "trace settings": ("/v2/trace/setting", b'{"x":%s}' % _NUMBERS, 200),
    "log settings": ("/v2/logging", b'{"x":%s}' % _NUMBERS, 200),
    "index": ("/v2/repository/index", b'{"x":%s}' % _NUMBERS, 200),
    "load": ("/v2/repository/models/same/load", b'{"x":%s}' % _NUMBERS, 503),
    "completions": ("/v1/completions", b'{"model":"same","prompt":%s}' % _WORDS, 400),
    "chat": ("/v1/chat/completions", b'{"model":"same","messages":%s}' % _WORDS, 400),
    "embeddings": ("/v1/embeddings", b'{"model":"same","input":%s}' % _WORDS, 400),
}


def post(server: tnb.Server, path: str, body: bytes) -> tuple[int, bytes]:
    """The status and the body of the response."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", path, body)
    response = connection.getresponse()
    status, answer = response.status, response.read()
    connection.close()
    return status, answer


@pytest.mark.parametrize("name", LONG_REQUESTS)
def test_event_loop_runs_between_the_pieces_of_a_long_document(
    name: str, server: tnb.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body, status = LONG_REQUESTS[name]
    expected = post(server, path, body)
    assert expected[0] == status, expected[1][:200]
    calls: list[int] = []

    def asking(read: Callable[[bytes, Any], object]) -> Callable[[bytes, Any], object]:
        def ask_and_read(raw: bytes, reader: Any) -> object:
            calls.append(server.call(lambda: 1))  # an error on the loop's own thread
            return read(raw, reader)

        return ask_and_read

    monkeypatch.setattr(json_reader, "_read_ordinary", asking(json_reader._read_ordinary))
    assert post(server, path, body) == expected
    assert len(calls) > 2


@pytest.mark.parametrize("model", ["same", "texts"])
def test_event_loop_runs_while_a_long_response_is_written(
    model: str, server: tnb.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.full(2 * LONG, 1.5, np.float32) if model == "same" else np.array([b"word"] * 2 * LONG, object)
    calls: list[int] = []
    write = tensor_data.write_data

    def ask_and_write(*arguments: Any) -> bytes:
        calls.append(server.call(lambda: 1))
        return write(*arguments)

    monkeypatch.setattr("tritonnb.endpoints.http.infer_response.write_data", ask_and_write)
    raw = array.tobytes() if model == "same" else b"\x04\0\0\0word" * array.size
    datatype = "FP32" if model == "same" else "BYTES"
    parameters = {"binary_data_size": len(raw)}
    head = {"inputs": [{"name": "X", "datatype": datatype, "shape": [array.size], "parameters": parameters}]}
    text = json.dumps(head).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Inference-Header-Content-Length": str(len(text))}
    connection.request("POST", f"/v2/models/{model}/infer", text + raw, headers)
    (output,) = json.loads(connection.getresponse().read())["outputs"]
    connection.close()
    assert output["data"] == ([1.5] if model == "same" else ["word"]) * array.size
    assert calls


#: By name: the path, the beginning of a body, what is repeated in it, and its end.
_ENTRY = b'{"name":"X","datatype":"FP32","shape":[1],"data":[1]}'
TOO_MANY = {
    "inputs": ("/v2/models/same/infer", b'{"inputs":[', _ENTRY, b"]}"),
    "outputs": ("/v2/models/same/infer", b'{"inputs":[%s],"outputs":[' % _ENTRY, b'{"name":"Y"}', b"]}"),
    "dims": ("/v2/models/same/infer", b'{"inputs":[{"name":"X","datatype":"FP32","data":[1],"shape":[', b"1", b"]}]}"),
    "parameters": ("/v2/models/same/generate", b'{"X":1,', b'"p":1', b"}"),
    "arrays": ("/v2/models/same/infer", b'{"a":[{},', b"[]", b"]}"),
    "settings": ("/v2/trace/setting", b"{", b'"a":[]', b"}"),
    "an index": ("/v2/repository/index", b"[", b"{}", b"]"),
    "messages": ("/v1/chat/completions", b'{"model":"same","messages":[', b'{"role":"user","content":""}', b"]}"),
}


@pytest.mark.parametrize("name", TOO_MANY)
def test_document_of_too_many_values_is_refused(name: str, server: tnb.Server) -> None:
    path, begin, unit, end = TOO_MANY[name]
    status, answer = post(server, path, begin + b",".join([unit] * 2 * MOST_VALUES) + end)
    assert status == 400
    assert b"expected at most 65536 values besides the elements of tensors, got more" in answer


def test_next_request_of_a_connection_does_not_overtake_a_long_one(server: tnb.Server) -> None:
    order: list[float] = []

    @server.model
    def ordered(X: tnb.FP32[-1]) -> tnb.FP32[-1]:
        order.append(float(X[0]))  # type: ignore[index]
        return X[:1]  # type: ignore[index]

    numbers = b"[1" + b",0" * (LONG - 1) + b"]"
    requests = [_INPUT % (b"FP32", LONG, numbers), *(_INPUT % (b"FP32", 1, b"[%d]" % n) for n in (2, 3))]
    head = b"POST /v2/models/ordered/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 60) as client:
        client.sendall(b"".join(head % len(body) + body for body in requests))
        received = b""
        while received.count(b'"OUTPUT"') < len(requests):
            part = client.recv(1 << 16)
            assert part, received
            received += part
    assert order == [1, 2, 3]


@pytest.mark.parametrize("transport", ["fast", "grpcio"])
def test_event_loop_runs_while_long_grpc_contents_are_read_and_their_order_stays(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[float] = []
    calls: list[int] = []
    encode = infer_request._encode_part

    def request(first: float, count: int) -> pb.ModelInferRequest:
        tensor = pb.ModelInferRequest.InferInputTensor(name="X", datatype="FP32", shape=[count])
        tensor.contents.fp32_contents.extend([first] + [0.0] * (count - 1))
        return pb.ModelInferRequest(model_name="ordered", inputs=[tensor])

    options = tnb.GrpcOptions(transport=transport)
    with (
        tnb.Server(port=0, grpc_port=0, grpc=options) as running,
        grpc.insecure_channel(f"127.0.0.1:{running.grpc_port}") as channel,
    ):

        @running.model
        def ordered(X: tnb.FP32[-1]) -> tnb.FP32[-1]:
            order.append(float(X[0]))  # type: ignore[index]
            return X[:1]  # type: ignore[index]

        def ask_and_encode(values: Any, *arguments: Any) -> bytes:
            if len(values) > 1:
                calls.append(running.call(lambda: 1))  # an error on the loop's own thread
            return encode(values, *arguments)

        monkeypatch.setattr(infer_request, "_encode_part", ask_and_encode)
        stub = GRPCInferenceServiceStub(channel)
        assert stub.ModelInfer(request(1, LONG)).outputs[0].shape == [1]
        answers = [*stub.ModelStreamInfer(iter([request(2, LONG), request(3, 1), request(4, 1)]))]
        assert [answer.error_message for answer in answers] == [""] * 3
        wrong = request(5, LONG)
        wrong.inputs[0].shape[0] = 7
        with pytest.raises(grpc.RpcError, match="input byte size mismatch for input 'X'"):
            stub.ModelInfer(wrong)
    assert order == [1, 2, 3, 4]
    assert len(calls) == 3 * LONG // infer_request._PART


_BYTES = st.lists(st.binary(max_size=200), max_size=9)
_CONTENTS = st.builds(
    pb.InferTensorContents,
    bool_contents=st.lists(st.booleans(), max_size=9),
    int_contents=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=9),
    uint64_contents=st.lists(st.integers(0, 2**64 - 1), max_size=9),
    fp64_contents=st.lists(st.floats(allow_nan=False), max_size=9),
    bytes_contents=_BYTES,
)
_INPUTS = st.builds(
    pb.ModelInferRequest.InferInputTensor,
    name=_TEXTS,
    shape=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    contents=st.none() | _CONTENTS,
)
_REQUESTS = st.builds(
    pb.ModelInferRequest,
    id=_TEXTS,
    inputs=st.lists(_INPUTS, max_size=3),
    raw_input_contents=_BYTES,
)


@law(400)
@given(
    _REQUESTS,
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), st.binary(max_size=3)), max_size=2),
    st.sampled_from([8, 64]),
)
def test_grpc_message_in_pieces_is_parsed_as_a_whole_one(
    request: pb.ModelInferRequest, changes: list[tuple[float, int, bytes]], piece: int
) -> None:
    raw = request.SerializeToString()
    for position, removed, inserted in changes:
        at = int(position * len(raw))
        raw = raw[:at] + inserted + raw[at + removed :]

    def parsed(parse: Callable[[], pb.ModelInferRequest]) -> object:
        try:
            return parse()
        except DecodeError:
            return "not valid"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_messages, "PIECE", piece)
        in_pieces = parsed(lambda: long_messages.read_long(memoryview(raw), pb.ModelInferRequest))
    assert in_pieces == parsed(lambda: pb.ModelInferRequest.FromString(raw))


@pytest.mark.parametrize("transport", ["fast", "grpcio"])
def test_message_of_too_many_fields_is_refused(transport: str) -> None:
    most = "expected a message of at most 65536 fields besides the elements of tensors"
    request = pb.ModelInferRequest(model_name="same")
    request.inputs.extend([pb.ModelInferRequest.InferInputTensor(shape=[1], datatype="FP32")] * 40_000)
    dims = pb.ModelInferRequest.InferInputTensor(name="X", datatype="FP32", shape=[1] * 140_000)
    levels = pb.TraceSettingRequest()
    levels.settings["trace_level"].value.extend(["TENSORS"] * 70_000)
    texts = pb.ModelInferRequest.InferInputTensor(name="X", datatype="BYTES", shape=[70_000])
    texts.contents.bytes_contents.extend([b"text"] * 70_000)
    with (
        tnb.Server(port=0, grpc_port=0, grpc=tnb.GrpcOptions(transport=transport)) as running,
        grpc.insecure_channel(f"127.0.0.1:{running.grpc_port}") as channel,
    ):

        @running.model
        def same(X: tnb.BYTES[-1]) -> tnb.BYTES[-1]:
            return X

        stub = GRPCInferenceServiceStub(channel)
        shaped = pb.ModelInferRequest(model_name="same", inputs=[dims])
        for call, message in ((stub.ModelInfer, request), (stub.ModelInfer, shaped), (stub.TraceSetting, levels)):
            with pytest.raises(grpc.RpcError, match=most):
                call(message)
        with pytest.raises(grpc.RpcError, match=most):
            list(stub.ModelStreamInfer(iter([request])))
        elements = pb.ModelInferRequest(model_name="same", inputs=[texts])
        assert stub.ModelInfer(elements).raw_output_contents == [b"\x04\0\0\0text" * 70_000]
        (answer,) = stub.ModelStreamInfer(iter([elements]))
        assert answer.infer_response.raw_output_contents == [b"\x04\0\0\0text" * 70_000]


def test_event_loop_runs_while_the_configuration_of_a_load_request_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    with tnb.Server(tmp_path, port=0, model_control_mode="explicit") as running:

        def ask_and_check(name: str, override: str) -> None:
            calls.append(running.call(lambda: 1))  # an error on the loop's own thread
            check_override(name, override)

        monkeypatch.setattr("tritonnb.engine.engine.check_override", ask_and_check)
        config = json.dumps({"backend": "../evil"})
        status, answer = post(
            running, "/v2/repository/models/m/load", json.dumps({"parameters": {"config": config}}).encode()
        )
    assert (status, json.loads(answer)["error"]) == (400, "model 'm': backend expected a name, got the path '../evil'")
    assert calls


def test_statistics_of_many_models_are_collected_in_pieces_and_written_on_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def echo(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X

    with tnb.Server(port=0, grpc_port=0) as server:
        client = V2GrpcClient("grpc", f"127.0.0.1:{server.grpc_port}")
        for number in range(5):
            echo.__name__ = f"echo_{number}"
            server.model(echo)

        def answers() -> tuple[bytes, object]:
            with urllib.request.urlopen(f"{server.url}/v2/models/stats") as response:
                return response.read(), client.statistics()

        whole, threads = answers(), []
        run = LongWork.run

        def run_watched(self: LongWork, function: Callable[[], Any]) -> Awaitable[Any]:
            threads.append(self)
            return run(self, function)

        monkeypatch.setattr(LongWork, "run", run_watched)
        monkeypatch.setattr("tritonnb.engine.engine._STATISTICS_AT_ONCE", 2)
        monkeypatch.setattr("tritonnb.endpoints.http.handlers.metadata._STATISTICS_SIZE", LONG)
        monkeypatch.setattr("tritonnb.endpoints.grpc.dispatch._MANY_ENTRIES", 4)
        assert answers() == whole
        assert len(threads) == 2
