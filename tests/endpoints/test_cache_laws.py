"""Endpoints answer in every history of requests as endpoints that remember nothing of them."""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory

import pytest
from hpack import Encoder
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from tests.endpoints.cached_requests import (
    GRPC_REQUESTS,
    HEADERS,
    HTTP_REQUESTS,
    OTHER_REQUESTS,
    READ,
    WRITTEN,
    GrpcInference,
    HttpInference,
    OtherHttp,
    post,
)
from tests.endpoints.http1_peer import Loop
from tests.endpoints.http2_client import HELLO
from tests.endpoints.in_memory import Endpoints
from tests.laws import law
from tools.fuzz.unexpected import UnexpectedErrors
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.grpc.transport import framing
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.engine.shared_memory import SystemRegion

_X = 'output { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } '
#: Configurations of the model, which is loaded again with another one.
CONFIGS = (
    'name: "echo" max_batch_size: 8 input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } '
    'input { name: "Z" data_type: TYPE_INT32 dims: [ -1 ] optional: true } ' + _X,
    'name: "echo" input { name: "X" data_type: TYPE_INT32 dims: [ -1, 2 ] } '
    'input { name: "Z" data_type: TYPE_INT32 dims: [ -1, 1 ] optional: true } ' + _X,
    'name: "echo" max_batch_size: 8 input { name: "X" data_type: TYPE_INT32 dims: [ 2 ] } ' + _X,
    'name: "echo" max_batch_size: 8 input { name: "X" data_type: TYPE_INT32 dims: [ 2 ] reshape { shape: [ 1, 2 ] } } '
    + _X,
    'name: "echo" input { name: "X" data_type: TYPE_FP32 dims: [ 1, 2 ] } ' + _X.replace("INT32", "FP32"),
    'name: "echo" max_batch_size: 8 input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } '
    "model_transaction_policy { decoupled: true } " + _X,
    'name: "echo" max_batch_size: 8 input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] is_shape_tensor: true } ' + _X,
)
HTTP = st.builds(
    HttpOptions,
    max_input_size=st.sampled_from((1 << 20, 1 << 20, 200)),
    max_body_size=st.sampled_from((1 << 20, 1 << 20, 200)),
    allow_foreign=st.booleans(),
    restricted_api=st.sampled_from(((), (("inference", "key", "secret"),))),
    header_forward_pattern=st.sampled_from(("", "X-|^timeout$")),
)
GRPC = st.builds(
    GrpcOptions,
    restricted_protocol=st.sampled_from(((), (("inference", "key", "secret"),))),
    header_forward_pattern=st.sampled_from(("", "x-|^timeout$")),
)
NUMBER = st.integers(0, 2)
#: The connections on which a request is sent, one time after the other.
TIMES = st.lists(NUMBER, min_size=2, max_size=5)
CONFIG = st.sampled_from((0, 1, *range(len(CONFIGS))))
CHANGES = st.tuples(
    st.sampled_from(("load", "load", "unload", "register", "unregister", "lose")), st.integers(1, 2), CONFIG
)


class Client:
    """A client with the same connection to every side, which connects again when it is disconnected."""

    def __init__(self, sides: list[Endpoints], grpc: bool) -> None:
        self._sides, self._grpc = sides, grpc
        self.connect()

    def connect(self) -> None:
        """Connect to every side."""
        self.connections = [side.connect_grpc() if self._grpc else side.connect_http() for side in self._sides]
        self._encoder, self._stream = Encoder(), 1
        if self._grpc:
            self.send(HELLO)

    def send(self, *parts: bytes) -> None:
        """Send bytes to every side."""
        if self.connections[0].wire.state != "open":
            self.lose()
        for connection in self.connections:
            connection.feed(*parts)

    def lose(self) -> None:
        """Disconnect, and connect again."""
        for connection in self.connections:
            connection.lose()
        self.connect()

    def infer(self, request: GrpcInference, number: int) -> None:
        """Send an inference request over gRPC."""
        if self.connections[0].wire.state != "open":
            self.lose()
        block = self._encoder.encode(request.headers())
        self._stream += 2
        self.send(
            framing.frame(framing.HEADERS, framing.END_HEADERS, self._stream, block),
            framing.frame(framing.DATA, framing.END_STREAM, self._stream, request.body(number)),
        )


class CacheLaws(RuleBasedStateMachine):
    """Two servers that receive the same bytes; only one of them remembers requests."""

    http_requests = Bundle("http_requests")
    grpc_requests = Bundle("grpc_requests")

    @initialize(http=HTTP, grpc=GRPC, config=CONFIG)
    def start(self, http: HttpOptions, grpc: GrpcOptions, config: int) -> None:
        self.errors = UnexpectedErrors().__enter__()
        self.loop = Loop()
        self.errors.watch(self.loop)
        self.memory = [SharedMemory(create=True, size=4096) for _ in range(2)]
        self.sides = [Endpoints(self.loop, http, grpc, caches=caches) for caches in (True, False)]
        self.load(config, 1)
        self.register()
        self.http, self.grpc = ([Client(self.sides, grpc=grpc) for _ in range(3)] for grpc in (False, True))

    @rule(target=http_requests, numbers=TIMES, request=st.one_of(HTTP_REQUESTS, HTTP_REQUESTS, OTHER_REQUESTS))
    def send_new(self, numbers: list[int], request: HttpInference | OtherHttp) -> HttpInference | OtherHttp:
        self.send(numbers, request)
        return request

    @rule(numbers=TIMES, request=http_requests, change=CHANGES)
    def send_before_and_after_a_change(
        self, numbers: list[int], request: HttpInference | OtherHttp, change: tuple[str, int, int]
    ) -> None:
        self.send(numbers, request)
        self.change(change)
        self.send(numbers, request)

    @rule(numbers=TIMES, request=http_requests, headers=HEADERS)
    def send_with_other_headers(
        self, numbers: list[int], request: HttpInference | OtherHttp, headers: frozenset[str]
    ) -> None:
        self.send(numbers, request)
        self.send(numbers, request.with_headers(headers))

    def send(self, numbers: list[int], request: HttpInference | OtherHttp) -> None:
        """Send a request on connections, one after the other."""
        for value, number in enumerate(numbers):
            self.http[number].send(request.wire(value))

    @rule(number=NUMBER, requests=st.lists(http_requests, min_size=2, max_size=3))
    def send_pipelined(self, number: int, requests: list[HttpInference | OtherHttp]) -> None:
        self.http[number].send(b"".join(request.wire(number) for request in requests))

    @rule(number=NUMBER, request=http_requests, cut=st.floats(0, 1))
    def send_in_parts(self, number: int, request: HttpInference, cut: float) -> None:
        data = request.wire(number)
        at = int(cut * len(data))
        self.http[number].send(data[:at], data[at:])

    @rule(target=grpc_requests, numbers=TIMES, request=GRPC_REQUESTS)
    def infer_new(self, numbers: list[int], request: GrpcInference) -> GrpcInference:
        self.infer(numbers, request)
        return request

    @rule(numbers=TIMES, request=grpc_requests, change=CHANGES)
    def infer_before_and_after_a_change(
        self, numbers: list[int], request: GrpcInference, change: tuple[str, int, int]
    ) -> None:
        self.infer(numbers, request)
        self.change(change)
        self.infer(numbers, request)

    @rule(numbers=TIMES, request=grpc_requests, headers=HEADERS)
    def infer_with_other_metadata(self, numbers: list[int], request: GrpcInference, headers: frozenset[str]) -> None:
        self.infer(numbers, request)
        self.infer(numbers, request.with_headers(headers))

    def infer(self, numbers: list[int], request: GrpcInference) -> None:
        """Send an inference request over gRPC on connections, one after the other."""
        for value, number in enumerate(numbers):
            self.grpc[number].infer(request, value)

    def change(self, change: tuple[str, int, int]) -> None:
        """Change the models, the regions, or the connections."""
        kind, version, config = change
        if kind == "load":
            self.load(config, version)
        elif kind == "unload":
            for side in self.sides:
                side.models.unload("echo", version)
        elif kind == "lose":
            self.http[config % 3].lose()
        elif kind == "register":
            self.register()
        else:
            for side in self.sides:
                side.models.shared_memory.unregister(SystemRegion)

    def load(self, config: int, version: int) -> None:
        """Load a version of the model with one of the configurations."""
        for side in self.sides:
            side.models.load(CONFIGS[config], version)

    def register(self) -> None:
        """Register the regions, which requests unregister."""
        for name, memory in zip((READ, WRITTEN), self.memory, strict=True):
            document = {"key": memory.name, "offset": 0, "byte_size": 4096}
            for side in self.sides:
                side.connect_http().feed(post(f"/v2/systemsharedmemory/region/{name}/register", document).data)

    @invariant()
    def answers_are_the_same(self) -> None:
        if not hasattr(self, "http"):
            return
        self.errors.check()
        for client in (*self.http, *self.grpc):
            known, fresh = ((connection.wire.sent, connection.wire.state) for connection in client.connections)
            assert known == fresh
        known_requests, fresh_requests = (side.models.accepted for side in self.sides)
        assert known_requests == fresh_requests

    def teardown(self) -> None:
        if hasattr(self, "errors"):
            self.errors.__exit__(None, None, None)
            self.loop.close()
            for memory in self.memory:
                memory.close()
                memory.unlink()


TestCacheLaws = pytest.mark.timeout(600)(CacheLaws.TestCase)
#: Fewer than by default: tools/fuzz searches the same histories, guided by coverage.
TestCacheLaws.settings = law(50, stateful_step_count=40)
