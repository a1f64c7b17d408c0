"""The v2 protocol and OpenAI's API over HTTP in front of replicas, as an ASGI application.

The effect of a request's route (`tritonnb.endpoints.http.routes`) decides what happens to it. An inference goes to one
replica: that of its sequence, or the least loaded one. Responses that differ between replicas are merged. Changes of
state are applied on all replicas, including those that are added later. A request with the same response from every
replica is sent to one. Bodies and responses pass as bytes.

Beyond the protocols there are:

- ``GET /v2/replicas``: their state, and the sequences that live on them;
- ``GET /v2/models/stats?replica=ID``: the statistics of one replica; ``*``: of each, by ID;
- ``POST /v2/replicas/events``: the events of every replica since the last request, for recordings;
- ``GET /metrics`` with the label ``replica``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

from tritonnb.core.errors import InvalidArgumentError, Status, TritonError, UnavailableError
from tritonnb.endpoints.effects import Effect
from tritonnb.endpoints.http.admission import Admission
from tritonnb.endpoints.http.handlers.metadata import JSON, error_body
from tritonnb.endpoints.http.inference import response_bytes
from tritonnb.endpoints.http.options import RAISE_BODY_SIZE, too_large
from tritonnb.endpoints.http.routes import OPENAI_PATHS, OPENAI_ROUTES, V2_ROUTES, Route, find_route, routed_path
from tritonnb.endpoints.metrics.exposition import CONTENT_TYPE
from tritonnb.endpoints.openai.errors import OpenAiError, error_bytes, from_triton
from tritonnb.endpoints.openai.handlers import AccessRules
from tritonnb.scale.coordinator import DeploymentChange
from tritonnb.scale.dispatch import Dispatcher, ReplicaDiedError, ReplicaGoneError, first_refusal
from tritonnb.scale.endpoint_settings import EndpointSettings
from tritonnb.scale.groups import NO_SHARED_MEMORY, Groups
from tritonnb.scale.merge import merge_index, merge_metrics, sum_statistics
from tritonnb.scale.sequences import SequenceRequest, http_sequence

Scope: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: Headers of a connection, which are not passed on.
_OF_CONNECTION = (b"connection", b"transfer-encoding", b"keep-alive")
#: The routes that only an ingress has.
_OWN_ROUTES = (
    Route("replicas", "/v2/replicas", "statistics", Effect.MERGE),
    Route("replica-events", "/v2/replicas/events", "trace", Effect.MERGE),
)
_METRICS = Route("metrics", "/metrics", "statistics", Effect.MERGE)
#: Requests with these methods change nothing.
_SAFE = ("GET", "HEAD", "OPTIONS")


class HttpRequest:
    """One request, complete.

    Attributes
    ----------
    method, target : str
        The target is the path as it was sent, with the query.
    headers : dict of bytes to bytes
        By name in lower case; the values of a repeated header are joined by commas, as on a single server.
    body : bytes
    """

    def __init__(self, scope: Scope, body: bytes) -> None:
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        root: str = scope.get("root_path", "")
        query: bytes = scope.get("query_string", b"")
        text = path.decode("latin-1").removeprefix(root) or "/"
        self.method: str = scope["method"]
        self.target = f"{text}?{query.decode('latin-1')}" if query else text
        self.headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name not in _OF_CONNECTION:
                earlier = self.headers.get(bytes(name))
                self.headers[bytes(name)] = bytes(value) if earlier is None else earlier + b"," + bytes(value)
        self.body = body

    @property
    def path(self) -> str:
        """The path that is matched, without the query."""
        return routed_path(self.target)

    def header(self, name: str) -> str | None:
        """Return the value of a header, or None."""
        value = self.headers.get(name.lower().encode("latin-1", "replace"))
        return None if value is None else value.decode("latin-1")

    @property
    def arguments(self) -> tuple[str, str, dict[bytes, bytes], bytes]:
        """The arguments of `Replica.http`."""
        return self.method, self.target, self.headers, self.body


_Merge = Callable[[HttpRequest, str], Awaitable[bytes]]


class HttpIngress:
    """The ASGI application.

    Parameters
    ----------
    groups : Groups
        The replicas by model.
    settings : EndpointSettings
        The checks and limits of the HTTP endpoint, and whether there are metrics and OpenAI's API.

    Attributes
    ----------
    routes : tuple of Route
    merges : mapping of str to callable
        By name of the route: how the responses of the replicas are merged, for each with the effect `Effect.MERGE`.
    """

    def __init__(self, groups: Groups, settings: EndpointSettings) -> None:
        self._groups = groups
        self._options = settings.http
        self.routes = (
            *_OWN_ROUTES,
            *([_METRICS] if settings.metrics is not None else []),
            *V2_ROUTES,
            *(OPENAI_ROUTES if settings.openai.allow else []),
        )
        self._admission = Admission(settings.http, settings.host, self.routes)
        self._openai = AccessRules(self._admission, settings.openai.api_key) if settings.openai.allow else None
        self.merges: Mapping[str, _Merge] = {
            "metrics": self._metrics,
            "replicas": self._replicas,
            "replica-events": self._events,
            "ready": self._ready,
            "statistics": self._statistics,
            "model-statistics": self._statistics,
            "index": self._index,
            "openai-models": self._openai_models,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        if scope["type"] != "http":
            return
        body = await _read_body(receive, self._options.max_body_size)
        if body is None:
            text = too_large(self._options.max_body_size, 0, RAISE_BODY_SIZE)
            await _send_response(send, response_bytes(413, JSON, error_body(text)))
            return
        request = HttpRequest(scope, body)
        openai = self._openai if OPENAI_PATHS.fullmatch(request.path) else None
        try:
            response = await self._respond(request, openai)
            if isinstance(response, bytes):
                await _send_response(send, response)
            else:
                await _send_parts(send, response)
        except TritonError as error:
            if openai is None:
                await _send_response(send, response_bytes(error.status.http, JSON, error_body(error.message)))
            else:
                await _send_response(send, _openai_error(from_triton(error)))
        except OpenAiError as error:
            await _send_response(send, _openai_error(error))

    # --- routes -------------------------------------------------------------------------------

    async def _respond(self, request: HttpRequest, openai: AccessRules | None) -> bytes | AsyncIterator[bytes]:
        """Return the complete response, or its parts; ``openai`` are the rules of a path of OpenAI's API."""
        if openai is not None:
            openai.check(request.target, request.header)
        elif (refusal := self._admission.refusal(request.target, request.header)) is not None:
            text, content_type = refusal
            return response_bytes(403, content_type, error_body(text))
        match = find_route(request.target, self.routes)
        if match is None:  # the replicas do not know the path, either
            return await self._forward(request, self._groups.default)
        route, groups = match
        model = groups.get("model", "")
        if route.effect is Effect.MERGE:
            return await self.merges[route.name](request, model)
        if route.effect is Effect.READ or request.method in _SAFE:
            return await self._forward(request, self._groups.dispatcher(model))
        if route.effect is Effect.INFER:
            return await self._infer(request, route, model)
        if route.effect is Effect.CHANGE:
            return await self._change(request, route, model)
        raise TritonError(NO_SHARED_MEMORY, Status.UNSUPPORTED)

    async def _forward(self, request: HttpRequest, group: Dispatcher, sequence: SequenceRequest | None = None) -> bytes:
        """Return the response of the replica of a sequence, or of any."""
        response: bytes = await group.call(sequence, "http", *request.arguments)
        return response

    async def _infer(self, request: HttpRequest, route: Route, model: str) -> bytes | AsyncIterator[bytes]:
        if route in OPENAI_ROUTES:
            named = _members(request.body).get("model")
            model = named if isinstance(named, str) else ""  # which every replica refuses
        group = self._groups.dispatcher(model)
        if route in OPENAI_ROUTES or route.name == "generate-stream":
            return group.stream(None, "http_stream", *request.arguments)
        sequence = None
        if route.name == "infer":
            sequence = http_sequence(model, request.body, request.header, self._options.max_input_size)
        return await self._forward(request, group, sequence)

    async def _change(self, request: HttpRequest, route: Route, model: str) -> bytes:
        """Apply a change on the replicas that have the model, or on all."""
        method, target, body = request.method, request.target, request.body
        if route.name in ("load", "unload"):
            change = DeploymentChange(f"model {model}", method, target, body)
        else:
            change = DeploymentChange.of_settings(method, target, body, model, _members(body))
        response: bytes = await self._groups.change(model, change)
        return response

    # --- merged responses ---------------------------------------------------------------------

    async def _ready(self, request: HttpRequest, model: str) -> bytes:
        replies: list[bytes] = await self._groups.call_each("http", *request.arguments)
        return first_refusal(replies) or replies[0]

    async def _replicas(self, request: HttpRequest, model: str) -> bytes:
        return response_bytes(200, JSON, json.dumps(await self._groups.replicas()).encode())

    async def _openai_models(self, request: HttpRequest, model: str) -> bytes:
        replies: list[bytes] = await self._groups.call_each("http", *request.arguments)
        if (refusal := first_refusal(replies)) is not None:
            return refusal
        return _json({"object": "list", "data": [entry for reply in replies for entry in _document(reply)["data"]]})

    async def _statistics(self, request: HttpRequest, model: str) -> bytes:
        target, _, query = request.target.partition("?")
        replica = query.removeprefix("replica=") if query.startswith("replica=") else ""
        arguments = request.method, target, request.headers, request.body
        if replica not in ("", "*"):
            return await self._statistics_of(replica, model, arguments)
        replies: dict[str, bytes] = await self._groups.call_all(model, "http", *arguments)
        if (refusal := first_refusal(replies.values())) is not None:
            return refusal
        documents = {name: _document(reply) for name, reply in replies.items()}
        return _json({"replicas": documents} if replica else sum_statistics(documents.values()))

    async def _statistics_of(self, replica: str, model: str, arguments: Any) -> bytes:
        members = {name: group for group in self._groups.of(model) for name in group.pool.members().all}
        if replica not in members:
            raise InvalidArgumentError(f"expected one of the replicas {', '.join(sorted(members))}, got '{replica}'")
        try:
            response: bytes = await members[replica].pool.call("http", *arguments, replica=replica)
        except (ReplicaGoneError, ReplicaDiedError):
            raise UnavailableError(f"the replica '{replica}' is gone") from None
        return response

    async def _events(self, request: HttpRequest, model: str) -> bytes:
        try:
            document = json.loads(request.body)
            arguments = str(document["recording"]), list(map(str, document["models"])), str(document["stage"])
        except (ValueError, TypeError, KeyError):
            raise InvalidArgumentError(
                "/v2/replicas/events expected an object with 'recording', 'models' and 'stage'"
            ) from None
        taken: dict[str, str] = await self._groups.call_all("", "events", *arguments)
        nodes = {str(replica["replica"]): str(replica["node"]) for replica in await self._groups.replicas()}
        members = (
            f"{json.dumps(name)}:{{{json.dumps('node')}:{json.dumps(nodes.get(name, ''))},{document[1:]}"
            for name, document in taken.items()
        )
        return response_bytes(200, JSON, f"{{{','.join(members)}}}".encode())

    async def _index(self, request: HttpRequest, model: str) -> bytes:
        rows: dict[str, list[dict[str, str]]] = {}
        for group in self._groups.of():
            replies: dict[str, bytes] = await group.call_all("http", *request.arguments)
            if (refusal := first_refusal(replies.values())) is not None:
                return refusal
            for replica, reply in replies.items():
                rows[replica] = [row for row in _document(reply) if self._groups.dispatcher(row["name"]) is group]
        return _json(merge_index(rows))

    async def _metrics(self, request: HttpRequest, model: str) -> bytes:
        texts = await self._groups.call_all("", "metrics")
        return response_bytes(200, CONTENT_TYPE, merge_metrics(texts).encode())


# --- ASGI ---------------------------------------------------------------------------------------


async def _read_body(receive: Receive, limit: int) -> bytes | None:
    """Return the body; None if it exceeds the limit."""
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


async def _send_response(send: Send, response: bytes) -> None:
    """Send a complete response: status line, headers, and body."""
    await _start(send, head := response.partition(b"\r\n\r\n"))
    await send({"type": "http.response.body", "body": head[2]})


async def _send_parts(send: Send, parts: AsyncIterator[bytes]) -> None:
    """Send a response; its first part begins with the status line and headers."""
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


# --- responses ----------------------------------------------------------------------------------


def _openai_error(error: OpenAiError) -> bytes:
    headers = tuple(f"{name}: {value}" for name, value in error.headers.items())
    return response_bytes(error.status, JSON, error_bytes(error), headers)


def _members(body: bytes) -> dict[str, Any]:
    """Return the members of a JSON object; none if it is another value, which every replica refuses."""
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _document(response: bytes) -> Any:
    return json.loads(response.partition(b"\r\n\r\n")[2] or b"null")


def _json(value: object) -> bytes:
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return response_bytes(200, JSON, body.encode("utf-8", "surrogateescape"))
