"""Inference requests of many kinds, over HTTP and over gRPC; the contents of their tensors differ each time."""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

T = TypeVar("T", "Inference", "HttpInference", "GrpcInference")

#: Registered regions: one that inputs are in, and one that outputs are written to.
READ, WRITTEN = "read", "written"

#: Parameters of requests, by name: of JSON, and the field of ``InferParameter``.
_PARAMETERS: dict[str, tuple[object, str]] = {
    "priority": (3, "uint64_param"),
    "timeout": (5, "int64_param"),
    "sequence_id": (9, "int64_param"),
    "sequence_start": (True, "bool_param"),
    "sequence_end": (True, "bool_param"),
    "custom": ("x", "string_param"),
    "triton_reserved": (1, "int64_param"),
}
_HEADERS = {
    "key": "key: secret",
    "wrong key": "key: public",
    "forwarded": "X-One: 1",
    "reserved": "Timeout: 5",
    "trace": "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "close": "Connection: close",
    "continue": "Expect: 100-continue",
    "upgrade": "Connection: Upgrade\r\nUpgrade: h2c",
    "accept": "Accept-Encoding: gzip",
    "page": "Origin: http://localhost",
    "other page": "Origin: http://evil.example",
}
_METADATA = {
    "key": ("triton-grpc-protocol-key", "secret"),
    "wrong key": ("triton-grpc-protocol-key", "public"),
    "forwarded": ("x-one", "1"),
    "reserved": ("timeout", "5"),
    "trace": ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
}


@dataclass(frozen=True)
class Inference:
    """An inference request.

    Attributes
    ----------
    target : str
        Model, and version if the client names one.
    shape : tuple of int
        Of the input X.
    datatype : str
    x, z : str
        Where the contents of these inputs are; empty if the input is missing.
    outputs : str
        The form of the requested output; empty if none is requested.
    id : str
    parameters : frozenset of str
        Names of `_PARAMETERS`.
    headers : frozenset of str
        Names of headers, or of metadata.
    """

    target: str = "echo"
    shape: tuple[int, ...] = (1, 2)
    datatype: str = "INT32"
    x: str = "raw"
    z: str = ""
    outputs: str = ""
    id: str = ""
    parameters: frozenset[str] = frozenset()
    headers: frozenset[str] = frozenset({"key"})

    def contents(self, number: int) -> bytes:
        """The contents of the input X in one request of many."""
        values = np.full(self.shape, number, "<f4" if self.datatype == "FP32" else "<i4")
        return values.tobytes()[: -4 if self.x == "short" else None]

    def document(self, number: int) -> tuple[bytes, bytes]:
        """The JSON of the HTTP request, and the bytes after it."""
        inputs: list[dict[str, Any]] = []
        tail = b""
        for name, place, shape in (("X", self.x, self.shape), ("Z", self.z, (self.shape[0], 1))):
            contents = self.contents(number) if name == "X" else bytes([number, 0, 0, 0]) * self.shape[0]
            entry: dict[str, Any] = {"name": name, "datatype": self.datatype, "shape": shape}
            if place in ("raw", "short", "surplus"):
                entry["parameters"] = {"binary_data_size": len(contents)}
                tail += contents
            elif place == "typed":
                entry["data"] = [number] * (len(contents) // 4)
            elif place in ("shared", "empty"):
                size = len(contents) if place == "shared" else 0
                entry["shape"] = shape if size else (0, *shape[1:])
                entry["parameters"] = {"shared_memory_region": READ, "shared_memory_byte_size": size}
            if place:
                inputs.append(entry)
        document: dict[str, Any] = {"inputs": inputs}
        if self.id:
            document["id"] = self.id
        if self.parameters:
            document["parameters"] = {name: _PARAMETERS[name][0] for name in sorted(self.parameters)}
        if self.outputs:
            parameters = {
                "raw": {"binary_data": True},
                "classes": {"classification": 1},
                "shared": {"shared_memory_region": WRITTEN, "shared_memory_byte_size": 4096},
            }
            name = "none" if self.outputs == "unknown" else "X"
            document["outputs"] = [{"name": name, "parameters": parameters.get(self.outputs, {})}]
        return json.dumps(document).encode(), tail + b"\0" * (self.x == "surplus")

    def message(self, number: int) -> bytes:
        """The gRPC request."""
        model, _, version = self.target.partition("/")
        request = pb.ModelInferRequest(model_name=model, model_version=version, id=self.id)
        for name in sorted(self.parameters):
            value, field = _PARAMETERS[name]
            setattr(request.parameters[name], field, value)
        for name, place, shape in (("X", self.x, self.shape), ("Z", self.z, (self.shape[0], 1))):
            contents = self.contents(number) if name == "X" else bytes([number, 0, 0, 0]) * self.shape[0]
            if not place:
                continue
            tensor = request.inputs.add(name=name, datatype=self.datatype, shape=shape)
            if place in ("raw", "short", "surplus"):
                request.raw_input_contents.append(contents)
            elif place == "typed":
                tensor.contents.int_contents.extend([number] * (len(contents) // 4))
            else:
                size = len(contents) if place == "shared" else 0
                tensor.shape[0] = shape[0] if size else 0
                tensor.parameters["shared_memory_region"].string_param = READ
                tensor.parameters["shared_memory_byte_size"].int64_param = size
        if self.x == "surplus":  # unused contents of the size of Z
            request.raw_input_contents.append(b"\1" * 4 * self.shape[0])
        if self.outputs:
            output = request.outputs.add(name="none" if self.outputs == "unknown" else "X")
            if self.outputs == "classes":
                output.parameters["classification"].int64_param = 1
            if self.outputs == "shared":
                output.parameters["shared_memory_region"].string_param = WRITTEN
                output.parameters["shared_memory_byte_size"].int64_param = 4096
        serialized: bytes = request.SerializeToString()
        return serialized


@dataclass(frozen=True)
class HttpInference:
    """An inference request over HTTP.

    Attributes
    ----------
    inference : Inference
    host : str
    framing : str
        ``length``, ``chunked``, ``both``, or ``1.0`` for HTTP/1.0.
    encoding : str
        ``gzip``, ``identity``, an unknown one, or empty.
    query : str
        The end of the target.
    """

    inference: Inference = Inference()
    host: str = "localhost"
    framing: str = "length"
    encoding: str = ""
    query: str = "/infer"

    def wire(self, number: int) -> bytes:
        """The bytes of one request of many."""
        document, tail = self.inference.document(number)
        model, _, version = self.inference.target.partition("/")
        path = f"/v2/models/{model}{'/versions/' + version if version else ''}{self.query}"
        lines = [f"POST {path} HTTP/{'1.0' if self.framing == '1.0' else '1.1'}"]
        lines += [f"Host: {self.host}"] * bool(self.host)
        lines += [_HEADERS[name] for name in sorted(self.inference.headers)]
        lines += [f"Inference-Header-Content-Length: {len(document)}"] * bool(tail)
        lines += [f"Content-Encoding: {self.encoding}"] * bool(self.encoding)
        body = document + tail
        if self.encoding == "gzip":
            body = gzip.compress(body, mtime=0)
        lines += [f"Content-Length: {len(body)}"] * (self.framing != "chunked")
        if self.framing in ("chunked", "both"):
            lines.append("Transfer-Encoding: chunked")
            body = b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (3, body[:3], len(body) - 3, body[3:])
        return "\r\n".join((*lines, "", "")).encode() + body

    def with_headers(self, headers: frozenset[str]) -> HttpInference:
        """The same inference with other headers."""
        return replace(self, inference=replace(self.inference, headers=headers))


@dataclass(frozen=True)
class OtherHttp:
    """Another HTTP request."""

    data: bytes

    def with_headers(self, headers: frozenset[str]) -> OtherHttp:
        """The same request."""
        return self

    def wire(self, number: int) -> bytes:
        """The bytes of one request of many."""
        return self.data


def post(path: str, document: object) -> OtherHttp:
    """A request with a JSON document."""
    body = json.dumps(document).encode()
    return OtherHttp(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (
        path.encode(), len(body), body,
    ))  # fmt: skip


@dataclass(frozen=True)
class GrpcInference:
    """An inference request over gRPC; ``compressed`` with gzip."""

    inference: Inference = Inference()
    compressed: bool = False
    stream: bool = False

    def headers(self) -> list[tuple[str, str]]:
        """The fields of the header block."""
        rpc = "ModelStreamInfer" if self.stream else "ModelInfer"
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/inference.GRPCInferenceService/{rpc}"),
            ("content-type", "application/grpc"),
            *(_METADATA[name] for name in sorted(self.inference.headers) if name in _METADATA),
        ]
        return [*fields, ("grpc-encoding", "gzip")] if self.compressed else fields

    def body(self, number: int) -> bytes:
        """The message of one request of many, as gRPC frames it."""
        message = self.inference.message(number)
        if self.compressed:
            message = gzip.compress(message, mtime=0)
        return struct.pack(">BI", self.compressed, len(message)) + message

    def with_headers(self, headers: frozenset[str]) -> GrpcInference:
        """The same inference with other metadata."""
        return replace(self, inference=replace(self.inference, headers=headers))


_HEADER_SETS = (frozenset[str](), frozenset({"wrong key"}), *(frozenset({"key", name}) for name in _HEADERS))
#: The headers of a request that is sent again; half of them decide whether it is accepted, or become parameters.
HEADERS = st.one_of(
    st.sampled_from((*_HEADER_SETS[:2], frozenset({"key", "forwarded"}), frozenset({"key", "reserved"}))),
    st.sampled_from(_HEADER_SETS),
)


def _varied(usual: tuple[T, ...], variations: dict[str, tuple[Any, ...]]) -> st.SearchStrategy[T]:
    """A strategy of requests of which half are usual, and the others differ in one or two attributes."""
    changes = [st.tuples(st.just(name), st.sampled_from(values)) for name, values in variations.items()]
    chosen = st.one_of(st.just([]), st.lists(st.one_of(changes), min_size=1, max_size=2))
    return st.builds(lambda request, changes: replace(request, **dict(changes)), st.sampled_from(usual), chosen)


INFERENCES = _varied(
    (
        *(Inference(),) * 4,
        Inference(x="surplus", z="shared"),
        Inference(z="empty"),
        Inference(outputs="shared"),
    ),
    {
        "target": ("echo/1", "echo/2", "none"),
        "shape": ((2, 2), (1, 3), (9, 2), (1, 40)),
        "datatype": ("FP32", "INT64"),
        "x": ("typed", "shared", "empty", "short", "surplus"),
        "z": ("raw", "typed", "shared", "empty"),
        "outputs": ("raw", "classes", "shared", "unknown"),
        "id": ("7",),
        "parameters": tuple(frozenset({name}) for name in _PARAMETERS),
        "headers": _HEADER_SETS,
    },
)
HTTP_REQUESTS = st.builds(
    lambda envelope, inference: replace(envelope, inference=inference),
    _varied(
        (HttpInference(),),
        {
            "host": ("", "127.0.0.1:8000", "evil.example", "localhost,evil.example"),
            "framing": ("chunked", "both", "1.0"),
            "encoding": ("gzip", "identity", "br"),
            "query": ("/infer?x=1", "?x/infer", "/generate", "/ready", ""),
        },
    ),
    INFERENCES,
)
GRPC_REQUESTS = st.builds(
    lambda envelope, inference: replace(envelope, inference=inference),
    _varied((GrpcInference(),), {"compressed": (True,), "stream": (True,)}),
    INFERENCES,
)
OTHER_REQUESTS = st.sampled_from(
    (
        OtherHttp(b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        OtherHttp(b"GET /v2/models/echo HTTP/1.1\r\n\r\n"),
        OtherHttp(b"BREW /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        OtherHttp(b"CONNECT h:80 HTTP/1.1\r\nContent-Length: 6\r\n\r\n\r\n\r\n\r\n"),
        OtherHttp(b"nonsense\r\n\r\n"),
        post("/v2/models/echo/infer", {"inputs": []}),
        post("/v2/repository/index", {"ready": True}),
        post("/v2/repository/index", "a" * 1000),
        post("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}),
        post("/v2/trace/setting", {"trace_level": ["OFF"]}),
        post(f"/v2/systemsharedmemory/region/{READ}/unregister", {}),
        post("/v2/systemsharedmemory/unregister", {}),
    )
)
