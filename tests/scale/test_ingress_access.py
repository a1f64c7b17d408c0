"""Requests to an ingress pass the checks of a single server: restrictions, limits, hosts and keys."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.scale.asgi import send
from tests.scale.deployment import LOCAL
from tests.scale.local import LocalPool, ask_of
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.endpoints.effects import Effect
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.grpc.rpcs import EFFECTS, PROTOCOLS, RPC_NAMES, STREAM_INFER
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.http.routes import ROUTES, find_route
from tritonnb.scale.coordinator import Coordinator
from tritonnb.scale.dispatch import Dispatcher
from tritonnb.scale.endpoint_settings import EndpointSettings, check_grpc_host
from tritonnb.scale.groups import Groups
from tritonnb.scale.grpc_ingress import GrpcIngress
from tritonnb.scale.http_ingress import HttpIngress
from tritonnb.scale.replica import RpcReply

#: A path of each route of an ingress.
PATHS = {
    "replicas": "/v2/replicas",
    "replica-events": "/v2/replicas/events",
    "metrics": "/metrics",
    "live": "/v2/health/live",
    "ready": "/v2/health/ready",
    "server-metadata": "/v2",
    "openapi": "/v2/openapi.json",
    "statistics": "/v2/models/stats",
    "model-metadata": "/v2/models/m",
    "model-ready": "/v2/models/m/versions/1/ready",
    "model-config": "/v2/models/m/config",
    "model-statistics": "/v2/models/m/stats",
    "infer": "/v2/models/m/infer",
    "generate": "/v2/models/m/versions/2/generate",
    "generate-stream": "/v2/models/m/generate_stream",
    "index": "/v2/repository/index",
    "load": "/v2/repository/models/m/load",
    "unload": "/v2/repository/r/models/m/unload",
    "trace-setting": "/v2/trace/setting",
    "logging": "/v2/logging",
    "system-status": "/v2/systemsharedmemory/status",
    "cuda-status": "/v2/cudasharedmemory/region/r/status",
    "system-register": "/v2/systemsharedmemory/region/r/register",
    "cuda-register": "/v2/cudasharedmemory/region/r/register",
    "unregister": "/v2/systemsharedmemory/unregister",
    "openai-models": "/v1/models",
    "openai-model": "/v1/models/m",
    "openai-completions": "/v1/completions",
    "openai-chat-completions": "/v1/chat/completions",
    "openai-embeddings": "/v1/embeddings",
    "openai-unknown": "/v1/files",
    "openai-without-v1": "/chat/completions",
}


class Recorder:
    """A replica that records what it is asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def http(self, method: str, target: str, *arguments: object) -> bytes:
        self.calls.append("read")
        body = b"[]" if "index" in target else b'{"model_stats":[],"data":[]}'
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + body

    async def http_stream(self, *arguments: object) -> AsyncIterator[bytes]:
        self.calls.append("read")
        yield b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{}"

    async def rpc(self, *arguments: object) -> RpcReply:
        self.calls.append("read")
        return RpcReply(b"")

    async def stream_rpc(self, *arguments: object) -> AsyncIterator[RpcReply]:
        self.calls.append("read")
        yield RpcReply(b"")

    async def query(self, *arguments: object) -> RpcReply:
        self.calls.append("read")
        return RpcReply(b"{}")

    async def metrics(self) -> str:
        self.calls.append("read")
        return ""

    async def events(self, *arguments: object) -> str:
        self.calls.append("read")
        return "{}"

    async def apply(self, number: int, change: object) -> bytes | RpcReply:
        self.calls.append("change")
        return RpcReply(b"") if not getattr(change, "method", "") else b"HTTP/1.1 200 OK\r\n\r\n"


class Recorded:
    """Two replicas that record what they are asked, behind an ingress."""

    def __init__(self, settings: EndpointSettings | None = None) -> None:
        pool, ask = LocalPool(), ask_of(Coordinator())
        self.replicas = [Recorder(), Recorder()]
        pool.running = {"r1": self.replicas[0], "r2": self.replicas[1]}
        groups, settings = Groups(Dispatcher(pool, ask), {}), settings or EndpointSettings()
        self.http, self.grpc = HttpIngress(groups, settings), GrpcIngress(groups, settings)

    @property
    def calls(self) -> list[list[str]]:
        return [replica.calls for replica in self.replicas]

    def send(self, method: str, path: str, **headers: str | list[str]) -> tuple[int, dict[str, str], str]:
        request = {"method": method, "path": path, "body_text": "{}", "headers": headers}
        status, answered, body = asyncio.run(send(self.http, request))
        return status, answered, body.decode()

    def rpc(self, name: str, peer: str = LOCAL, **metadata: str) -> RpcReply:
        async def call() -> RpcReply:
            if name != STREAM_INFER:
                message = pb.TraceSettingRequest() if name == "TraceSetting" else pb.LogSettingsRequest()
                message.settings["log_info" if name == "LogSettings" else "trace_rate"].SetInParent()
                body = message.SerializeToString() if name in ("TraceSetting", "LogSettings") else b""
                return await self.grpc.call(name, body, metadata, peer)
            return await anext(self.grpc.stream(one(b""), metadata, peer))

        return asyncio.run(call())


async def one(message: bytes) -> AsyncIterator[bytes]:
    yield message


ROUTE_OF = {route.name: route for route in Recorded().http.routes}
APIS = sorted({route.api for route in ROUTE_OF.values()} - {""})
POSTED = {
    Effect.READ: [["read"]],
    Effect.INFER: [["read"]],
    Effect.CHANGE: [["change"], ["change"]],
    Effect.MEMORY: [],
}


def test_ingress_knows_every_route_of_a_server() -> None:
    assert set(ROUTES) <= set(ROUTE_OF.values())
    assert PATHS.keys() == ROUTE_OF.keys()
    assert Recorded().http.merges.keys() == {name for name, route in ROUTE_OF.items() if route.effect is Effect.MERGE}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_restricted_api_requires_its_header_on_every_path(api: str, method: str) -> None:
    restricted = HttpOptions(restricted_api=((api, "X-Key", "secret"),))
    for name, path in PATHS.items():
        for target in (path, f"{path}?x=1"):
            recorded = Recorded(EndpointSettings(http=restricted))
            for headers in ({}, {"X-Key": "wrong"}):
                status, _, body = recorded.send(method, target, **headers)
                if ROUTE_OF[name].api == api:
                    assert (status, recorded.calls) == (403, [[], []]), target
                    assert "This API is restricted, expecting header 'X-Key'" in body
                else:
                    assert status != 403, target
            assert recorded.send(method, target, **{"x-key": "secret"})[0] != 403, target


@pytest.mark.parametrize(
    ("header", "values"),
    [
        ("X-Key", ["secret", "wrong"]),
        ("X-Key", ["secret", "secret"]),
        ("Host", ["localhost", "evil.example"]),
        ("Origin", ["http://localhost", "http://evil.example"]),
    ],
)
def test_all_values_of_a_repeated_header_are_used(header: str, values: list[str]) -> None:
    options = HttpOptions(restricted_api=(("inference", "X-Key", "secret"),))
    recorded = Recorded(EndpointSettings("127.0.0.1", http=options))
    headers: dict[str, str | list[str]] = {"X-Key": "secret", "Host": "localhost", "Origin": "http://localhost"}
    assert recorded.send("POST", PATHS["infer"], **headers)[0] == 200
    assert recorded.send("POST", PATHS["infer"], **(headers | {header: values}))[0] == 403
    assert sum(map(len, recorded.calls)) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_restricted_protocol_requires_its_metadata_for_every_rpc(protocol: str) -> None:
    settings = EndpointSettings(grpc=GrpcOptions(restricted_protocol=((protocol, "key", "secret"),)))
    for name in EFFECTS:
        recorded = Recorded(settings)
        for metadata in ({}, {"triton-grpc-protocol-key": "wrong"}):
            reply = recorded.rpc(name, **metadata)
            if name in PROTOCOLS[protocol]:
                text = "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"
                assert (reply.status, reply.error, recorded.calls) == ("UNAVAILABLE", text, [[], []])
            else:
                assert "restricted" not in reply.error
        assert "restricted" not in recorded.rpc(name, **{"triton-grpc-protocol-key": "secret"}).error


@pytest.mark.parametrize("name", PATHS)
def test_effect_of_a_route_decides_which_replicas_a_request_reaches(name: str) -> None:
    recorded, effect = Recorded(), ROUTE_OF[name].effect
    recorded.send("POST", PATHS[name])
    if effect is Effect.MERGE:
        assert "change" not in list(itertools.chain(*recorded.calls))
    else:
        assert [calls for calls in recorded.calls if calls] == POSTED[effect]
    recorded = Recorded()
    recorded.send("GET", PATHS[name])
    assert "change" not in list(itertools.chain(*recorded.calls))


@pytest.mark.parametrize("name", EFFECTS)
def test_effect_of_an_rpc_decides_which_replicas_a_call_reaches(name: str) -> None:
    recorded, effect = Recorded(), EFFECTS[name]
    recorded.rpc(name)
    if effect is Effect.MERGE:
        assert name in recorded.grpc.merges
        assert "change" not in list(itertools.chain(*recorded.calls))
    else:
        assert [calls for calls in recorded.calls if calls] == POSTED[effect]


def test_every_rpc_of_the_service_has_an_effect_and_a_protocol() -> None:
    assert set(RPC_NAMES.values()) == EFFECTS.keys()
    assert sorted(name for rpcs in PROTOCOLS.values() for name in rpcs) == sorted(EFFECTS)


@pytest.mark.parametrize("path", ["/v2/made/up", "/v2/models/m/reset", "/v3", "/"])
def test_unknown_path_is_404(path: str) -> None:
    recorded = Recorded()
    recorded.send("POST", path)
    assert [calls for calls in recorded.calls if calls] == [["read"]]
    assert find_route(path) is None


@pytest.mark.parametrize(
    ("host", "peer", "accepted"),
    [
        ("127.0.0.1", "ipv4:127.0.0.1:5000", True),
        ("127.0.0.1", "ipv6:[::1]:5000", True),
        ("127.0.0.1", "ipv6:%5B::1%5D:5000", True),
        ("localhost", "ipv6:[::ffff:127.0.0.1]:5000", True),
        ("::1", "unix:/run/socket", True),
        ("127.0.0.1", "ipv4:192.0.2.7:5000", False),
        ("127.0.0.1", "ipv6:%5B2001:db8::1%5D:5000", False),
        ("127.0.0.1", "ipv6:[::ffff:192.0.2.7]:5000", False),
        ("127.0.0.1", "", False),
        ("localhost", "localhost", False),
        ("0.0.0.0", "ipv4:192.0.2.7:5000", True),
        ("::", "ipv4:192.0.2.7:5000", True),
        (None, "ipv4:192.0.2.7:5000", True),
    ],
)
def test_grpc_on_the_loopback_interface_accepts_calls_from_this_machine(
    host: str | None, peer: str, accepted: bool
) -> None:
    recorded = Recorded(EndpointSettings(grpc_host=host))
    for name in ("ServerLive", STREAM_INFER):
        reply = recorded.rpc(name, peer)
        assert (not reply.status) is accepted, reply
    if not accepted:
        assert recorded.calls == [[], []]
        assert f"gRPC is served on {host} only" in reply.error


@pytest.mark.parametrize(
    ("host", "accepted"),
    [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", True), ("::", True), ("192.0.2.7", False), ("node1", False)],
)
def test_grpc_address_of_a_single_external_interface_is_refused(host: str, accepted: bool) -> None:
    if accepted:
        check_grpc_host(host)
    else:
        with pytest.raises(InvalidArgumentError, match=rf"--grpc-address.*expected 127.* or 0.0.0.0, got '{host}'"):
            check_grpc_host(host)
