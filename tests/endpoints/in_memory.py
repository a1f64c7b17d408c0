"""Endpoints with connections in memory, and models that respond at once; with caches or without them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

from google.protobuf import text_format

from tests.endpoints.http1_peer import Loop, Server, Wire
from tests.endpoints.served import Echo, OneModel
from tritonnb.core.errors import NotFoundError
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.endpoints.back_pressure import Turns
from tritonnb.endpoints.caches import BoundedCache
from tritonnb.endpoints.grpc.dispatch import RpcDispatcher
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.grpc.transport.fast_server import Http2Server
from tritonnb.endpoints.grpc.transport.framing import HeaderBlocks
from tritonnb.endpoints.grpc.transport.http2 import Http2Connection
from tritonnb.endpoints.http.endpoint import HttpEndpoint
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.http.request_reader import RequestReader
from tritonnb.endpoints.http.transport.connection import Http1Connection
from tritonnb.endpoints.http.transport.request_parser import HeadCache
from tritonnb.endpoints.long_work import LongWork
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.engine.engine import Engine
from tritonnb.engine.models.validation import RequestValidator
from tritonnb.engine.options import EngineOptions
from tritonnb.model_config.schema import ModelSpec

T = TypeVar("T")
#: Passes of the event loop after which every request is answered: handlers of Tornado take a few.
_PASSES = 8


class Identity(Echo):
    """A model that returns its inputs and, as models may, changes its requests afterwards.

    Attributes
    ----------
    accepted : list of tuple
        What the requests were.
    """

    def __init__(self, config: str, version: int, accepted: list[tuple[object, ...]]) -> None:
        super().__init__()
        self.config = text_format.Parse(config, pb.ModelConfig())
        self.spec = ModelSpec.from_config(self.config)
        self.name, self.version = self.spec.name, version
        self.decoupled = self.config.model_transaction_policy.decoupled
        self._validator = RequestValidator(self.spec)
        self._accepted = accepted

    def submit(self, request: InferRequest, trace: Any = None) -> None:
        """Accept a request, respond, and change the request."""
        request.model_name, request.model_version = self.name, self.version
        super().submit(request, trace)
        request.flags, request.priority, request.correlation_id = 3, 99, "changed"
        request.parameters["changed"] = True

    def answer(self, request: InferRequest) -> None:
        """Respond to a request."""
        self._accepted.append(_facts(request))
        outputs = [Tensor(name, tensor.datatype, tensor.array) for name, tensor in request.inputs.items()]
        wanted = request.requested_outputs
        chosen = outputs if wanted is None else [output for output in outputs if output.name in wanted]
        request.answer(InferResponse(chosen))


def _facts(request: InferRequest) -> tuple[object, ...]:
    inputs = [(name, tensor.shape, tensor.array.tolist()) for name, tensor in request.inputs.items()]
    return (
        request.model_name, request.model_version, request.id, repr(inputs), request.requested_outputs,
        dict(request.parameters), request.priority, request.timeout_us, request.correlation_id, request.flags,
        request.batch_size, request.batch_key,
    )  # fmt: skip


class Models(OneModel):
    """An engine with models that respond at once; everything else is done by a real engine without models.

    Attributes
    ----------
    accepted : list of tuple
        What the requests were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.accepted: list[tuple[object, ...]] = []
        self._models: dict[tuple[str, int], Identity] = {}
        self._engine = Engine(EngineOptions(allow_client_shm=True))
        self.shared_memory = self._engine.shared_memory

    def load(self, config: str, version: int = 1, make: Callable[..., Identity] = Identity) -> None:
        """Load a version of a model, or load it again."""
        model = make(config, version, self.accepted)
        self._models[model.name, version] = model

    def unload(self, name: str, version: int = 1) -> None:
        """Unload a version of a model if it is loaded."""
        self._models.pop((name, version), None)

    def get(self, name: str, version: int = -1) -> Any:
        """A model, for inference."""
        loaded = [number for model, number in self._models if model == name and version in (-1, number)]
        if not loaded:
            raise NotFoundError(f"Request for unknown model: '{name}' version {version} is not found")
        return self._models[name, max(loaded)]

    model = get

    def is_loaded(self, name: str) -> bool:
        """Whether a version of a model is loaded."""
        return any(model == name for model, _ in self._models)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class LongWorkAtOnce(LongWork):
    """Long work without a thread, for which the passes of the loop would not wait."""

    async def run(self, function: Callable[[], T]) -> T:
        return function()


class Endpoints:
    """The HTTP and the gRPC endpoint of one engine.

    Parameters
    ----------
    loop : Loop
    http : HttpOptions, optional
    grpc : GrpcOptions, optional
    openai : OpenAiOptions, optional
        The HTTP endpoint also serves OpenAI's API.
    caches : bool
        Whether anything is remembered of requests.
    turn : float
        Seconds for which a connection is handled without a break: by default without an end, whatever the machine does.

    Attributes
    ----------
    models : Models
    """

    def __init__(
        self,
        loop: Loop,
        http: HttpOptions | None = None,
        grpc: GrpcOptions | None = None,
        *,
        openai: OpenAiOptions | None = None,
        caches: bool = True,
        turn: float = math.inf,
    ) -> None:
        http, grpc = http or HttpOptions(), grpc or GrpcOptions()
        self.loop = loop
        self.models = Models()
        self._caches = caches
        engine = cast(Any, self.models)
        endpoint = HttpEndpoint(engine, host="127.0.0.1", options=http, openai=openai)
        rpcs = RpcDispatcher(engine, grpc)
        work = LongWorkAtOnce()
        endpoint.services.long_work = endpoint._application.settings["long_work"] = rpcs._long_work = work
        self._http = Server(loop)
        self._http.start_request = endpoint.start_request
        self._http.max_body_size = http.max_body_size
        self._grpc = Http2Server(rpcs, grpc)
        self._grpc.run_on(loop)
        rpcs.turns = Turns(loop, turn)
        self._grpc.turns.seconds = self._http.turns.seconds = turn
        if not caches:
            self._http.heads = HeadCache(limit=0)
            shared_memory = self.models.shared_memory
            endpoint.services.reader = RequestReader(shared_memory, http.max_input_size, limit=0)
            endpoint.admission._accepted = BoundedCache(limit=0)

    def connect_http(self) -> Connection:
        """Open an HTTP connection."""
        return self._connect(Http1Connection(self._http))

    def connect_grpc(self) -> Connection:
        """Open a gRPC connection."""
        connection = Http2Connection(self._grpc)
        if not self._caches:
            connection._blocks = HeaderBlocks(limit=0)
        return self._connect(connection)

    def _connect(self, protocol: Http1Connection | Http2Connection) -> Connection:
        connection = Connection(self.loop, protocol)
        self.loop.call_soon(protocol.connection_made, cast(asyncio.BaseTransport, connection.wire))
        self.loop.pass_time(0)
        return connection

    @property
    def leftovers(self) -> tuple[object, ...]:
        """The remaining state of connections and calls; empty after all connections were lost."""
        return (*self._http.connections, *self._grpc.connections, *self._grpc.rpcs._streams)


class Connection:
    """A connection of a client.

    Attributes
    ----------
    wire : Wire
        What was sent to the client, and the state of the transport.
    protocol : Http1Connection or Http2Connection
    """

    def __init__(self, loop: Loop, protocol: Any) -> None:
        self.wire = Wire()
        self.protocol = protocol
        self._loop = loop

    def feed(self, *parts: bytes) -> None:
        """Have bytes arrive, and run the event loop until they are handled."""
        self.begin(*parts)
        while self._loop.is_busy:  # a slow machine needs several turns
            self._loop.pass_time(0)

    def begin(self, *parts: bytes) -> None:
        """Have bytes arrive, and run a few passes of the event loop."""
        for part in parts:
            self._loop.call_soon(self._receive, part)
        for _ in range(_PASSES):
            self._loop.pass_time(0)

    def _receive(self, part: bytes) -> None:
        if self.wire.state in ("open", "shut"):  # a transport that is closed does not read
            self.protocol.data_received(part)

    def lose(self) -> None:
        """Have the client disconnect."""
        self._loop.call_soon(self.protocol.connection_lost, None)
        for _ in range(_PASSES):
            self._loop.pass_time(0)
