"""The v2 protocol over HTTP in front of replicas, as an ASGI application.

An inference goes to one replica: that of its sequence, or the least loaded one. What reads state is sent to all
replicas and summed; what changes state is applied on all, also on later ones. Bodies and responses pass as bytes.

Beyond the protocol there are:

- ``GET /v2/replicas``: their state, and the sequences that live on them;
- ``GET /v2/models/stats?replica=ID``: the statistics of one replica; ``*``: of each, by ID;
- ``POST /v2/replicas/events``: the events of every replica since the last request, for recordings;
- ``GET /metrics`` with the label ``replica``.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

from tritonnb.core.errors import InvalidArgumentError, Status, TritonError, UnavailableError
from tritonnb.endpoints.http.handlers.metadata import JSON, TEXT, error_body
from tritonnb.endpoints.http.host_origin_check import HostOriginCheck
from tritonnb.endpoints.http.inference import response_bytes
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.http.raw_path import routed_path
from tritonnb.endpoints.metrics.exposition import CONTENT_TYPE
from tritonnb.scale.coordinator import Change
from tritonnb.scale.dispatch import Dispatcher, ReplicaDiedError, ReplicaGoneError, first_refusal
from tritonnb.scale.groups import NO_SHARED_MEMORY, Groups
from tritonnb.scale.merge import merge_index, merge_metrics, sum_statistics
from tritonnb.scale.sequence_fields import http_sequence

Scope: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/\d+)?(?:/(\w+))?", re.ASCII)
_CONTROL = re.compile(r"/v2/repository(?:/[^/]+)?/models/([^/]+)/(load|unload)", re.ASCII)
_SETTINGS = re.compile(r"/v2/(?:models/([^/]+)/)?(?:trace/setting|logging)", re.ASCII)
_INDEX = re.compile(r"/v2/repository(?:/[^/]+)?/index", re.ASCII)
_SHARED_MEMORY = re.compile(r"/v2/(?:system|cuda)sharedmemory(?:/region/[^/]+)?/(?:un)?register", re.ASCII)
#: Headers of a connection, which are not passed on.
_OF_CONNECTION = (b"connection", b"transfer-encoding", b"keep-alive")


class HttpRequest:
    """One request, complete.

    Attributes
    ----------
    method, target : str
        The target is the path as it was sent, with the query.
    headers : list of (bytes, bytes)
    body : bytes
    """

    def __init__(self, scope: Scope, body: bytes) -> None:
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        root: str = scope.get("root_path", "")
        query: bytes = scope.get("query_string", b"")
        text = path.decode("latin-1").removeprefix(root) or "/"
        self.method: str = scope["method"]
        self.target = f"{text}?{query.decode('latin-1')}" if query else text
        self.headers: list[tuple[bytes, bytes]] = [
            (bytes(name), bytes(value)) for name, value in scope["headers"] if name not in _OF_CONNECTION
        ]
        self.body = body

    @property
    def path(self) -> str:
        """The path that is matched, without the query."""
        return routed_path(self.target).partition("?")[0]

    def header(self, name: bytes) -> str | None:
        """The value of a header, or None."""
        return next((value.decode("latin-1") for other, value in self.headers if other == name), None)

    @property
    def arguments(self) -> tuple[str, str, list[tuple[bytes, bytes]], bytes]:
        """The arguments of `Replica.http`."""
        return self.method, self.target, self.headers, self.body


class HttpIngress:
    """The ASGI application.

    Parameters
    ----------
    groups : Groups
        The replicas by model.
    options : HttpOptions, optional
    bound : str, optional
        The address that the proxies listen on: requests whose ``Host`` or ``Origin`` header names another machine are
        refused. By default any are accepted.
    """

    def __init__(self, groups: Groups, options: HttpOptions | None = None, bound: str | None = None) -> None:
        self._groups = groups
        self._options = options or HttpOptions()
        self._check = None if bound is None else HostOriginCheck(bound, self._options.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        if scope["type"] != "http":
            return
        body = await _read_body(receive, self._options.max_body_size)
        if body is None:
            await _send(send, response_bytes(400, TEXT, b""))
            return
        request = HttpRequest(scope, body)
        refusal = self._check.refusal(request.header(b"host"), request.header(b"origin")) if self._check else None
        if refusal is not None:
            await _send(send, response_bytes(403, JSON, error_body(refusal)))
            return
        try:
            if request.method == "POST" and request.path.endswith("/generate_stream"):
                await _send_parts(send, self._stream(request))
            else:
                await _send(send, await self._respond(request))
        except TritonError as error:
            await _send(send, response_bytes(error.status.http, JSON, error_body(error.message)))

    # --- routes -------------------------------------------------------------------------------

    async def _respond(self, request: HttpRequest) -> bytes:
        path = request.path
        if match := _MODEL.fullmatch(path):
            if path == "/v2/models/stats":
                return await self._statistics(request, "")
            model, action = match.groups()
            if action == "stats":
                return await self._statistics(request, model)
            return await self._infer(request, model, action)
        if path == "/metrics":
            return await self._metrics()
        if path == "/v2/replicas":
            return response_bytes(200, JSON, json.dumps(await self._groups.replicas()).encode())
        if path == "/v2/replicas/events" and request.method == "POST":
            return await self._events(request)
        if path == "/v2/health/ready":
            return await self._ready(request)
        if _INDEX.fullmatch(path):
            return await self._index(request)
        return await self._change(request)

    async def _infer(self, request: HttpRequest, model: str, action: str | None) -> bytes:
        sequence = None
        if action == "infer":
            sequence = http_sequence(
                model,
                request.body,
                request.header(b"inference-header-content-length"),
                request.header(b"content-encoding"),
                self._options.max_input_size,
            )
        response: bytes = await self._groups.of(model).call(sequence, "http", *request.arguments)
        return response

    async def _stream(self, request: HttpRequest) -> AsyncIterator[bytes]:
        match = _MODEL.fullmatch(request.path)
        group = self._groups.of(match[1] if match else "")
        async for part in group.stream(None, "http_stream", *request.arguments):
            yield part

    async def _change(self, request: HttpRequest) -> bytes:
        """Every other path: one that changes state is applied everywhere, any other is answered by one replica."""
        path = request.path
        if request.method == "POST":
            if match := _CONTROL.fullmatch(path):
                change = Change(f"model {match[1]}", request.method, request.target, request.body)
                reply: bytes = await self._groups.of(match[1]).change(change)
                return reply
            if match := _SETTINGS.fullmatch(path):
                names = _names(request.body)
                change = Change.of_settings(request.method, request.target, request.body, match[1] or "", names)
                groups = [self._groups.of(match[1])] if match[1] else self._groups.all
                replies: list[bytes] = [await group.change(change) for group in groups]
                return first_refusal(replies) or replies[0]
            if _SHARED_MEMORY.fullmatch(path):
                raise TritonError(NO_SHARED_MEMORY, Status.UNSUPPORTED)
        response: bytes = await self._groups.default.call(None, "http", *request.arguments)
        return response

    async def _ready(self, request: HttpRequest) -> bytes:
        replies: list[bytes] = [await group.call(None, "http", *request.arguments) for group in self._groups.all]
        return first_refusal(replies) or replies[0]

    async def _statistics(self, request: HttpRequest, model: str) -> bytes:
        groups = [self._groups.of(model)] if model else self._groups.all
        target, _, query = request.target.partition("?")
        replica = query.removeprefix("replica=") if query.startswith("replica=") else ""
        arguments = request.method, target, request.headers, request.body
        if replica not in ("", "*"):
            return await self._statistics_of(replica, groups, arguments)
        replies = await self._from_all(arguments, groups)
        refusal = first_refusal(replies.values())
        if refusal is not None:
            return refusal
        documents = {name: _document(reply) for name, reply in replies.items()}
        return _json({"replicas": documents} if replica else sum_statistics(documents.values()))

    async def _statistics_of(self, replica: str, groups: list[Dispatcher], arguments: Any) -> bytes:
        members = {name: group for group in groups for name in group.pool.members().all}
        if replica not in members:
            raise InvalidArgumentError(f"expected one of the replicas {', '.join(sorted(members))}, got '{replica}'")
        try:
            response: bytes = await members[replica].pool.call("http", *arguments, replica=replica)
        except (ReplicaGoneError, ReplicaDiedError):
            raise UnavailableError(f"the replica '{replica}' is gone") from None
        return response

    async def _events(self, request: HttpRequest) -> bytes:
        try:
            document = json.loads(request.body)
            arguments = str(document["recording"]), list(map(str, document["models"])), str(document["stage"])
        except (ValueError, TypeError, KeyError):
            raise InvalidArgumentError(
                "/v2/replicas/events expected an object with 'recording', 'models' and 'stage'"
            ) from None
        taken: dict[str, str] = {}
        for group in self._groups.all:
            taken |= await group.call_all("events", *arguments)
        nodes = {str(replica["replica"]): str(replica["node"]) for replica in await self._groups.replicas()}
        members = (
            f"{json.dumps(name)}:{{{json.dumps('node')}:{json.dumps(nodes.get(name, ''))},{document[1:]}"
            for name, document in taken.items()
        )
        return response_bytes(200, JSON, f"{{{','.join(members)}}}".encode())

    async def _index(self, request: HttpRequest) -> bytes:
        rows: dict[str, list[dict[str, str]]] = {}
        for group in self._groups.all:
            replies = await self._from_all(request.arguments, [group])
            refusal = first_refusal(replies.values())
            if refusal is not None:
                return refusal
            for replica, reply in replies.items():
                rows[replica] = [row for row in _document(reply) if self._groups.of(row["name"]) is group]
        return _json(merge_index(rows))

    async def _metrics(self) -> bytes:
        texts: dict[str, str] = {}
        for group in self._groups.all:
            texts |= await group.call_all("metrics")
        return response_bytes(200, CONTENT_TYPE, merge_metrics(texts).encode())

    async def _from_all(self, arguments: Any, groups: list[Dispatcher]) -> dict[str, bytes]:
        """The responses of all replicas."""
        replies: dict[str, bytes] = {}
        for group in groups:
            replies |= await group.call_all("http", *arguments)
        return replies


def _names(body: bytes) -> list[str]:
    """The members of a JSON object; none if it is another value, which every replica refuses."""
    try:
        document = json.loads(body)
    except ValueError:
        return []
    return list(document) if isinstance(document, dict) else []


def _document(response: bytes) -> Any:
    return json.loads(response.partition(b"\r\n\r\n")[2] or b"null")


def _json(value: object) -> bytes:
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return response_bytes(200, JSON, body.encode("utf-8", "surrogateescape"))


async def _read_body(receive: Receive, limit: int) -> bytes | None:
    """The body; None if it exceeds the limit."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise UnavailableError("the client has closed the connection")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            return None
        if not message.get("more_body"):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def _send(send: Send, response: bytes) -> None:
    """Send a complete response."""
    await _start(send, head := response.partition(b"\r\n\r\n"))
    await send({"type": "http.response.body", "body": head[2]})


async def _send_parts(send: Send, parts: AsyncIterator[bytes]) -> None:
    """Send a response whose first part begins with the status line and headers."""
    begun = False
    async for part in parts:
        if not begun:
            begun = True
            await _start(send, head := part.partition(b"\r\n\r\n"))
            part = head[2]
        if part:
            await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _start(send: Send, head: tuple[bytes, bytes, bytes]) -> None:
    line, *lines = head[0].split(b"\r\n")
    headers = [tuple(text.split(b": ", 1)) for text in lines]
    await send(
        {
            "type": "http.response.start",
            "status": int(line.split(b" ", 2)[1]),
            "headers": [(name.lower(), value) for name, value in headers if name.lower() not in _OF_CONNECTION],
        }
    )
