"""The routes of the v2 protocol for health, metadata, statistics and the model repository.

The method is checked before the model, and responses have Triton's content types.
"""

from __future__ import annotations

import asyncio
import base64
import json
import string
from collections.abc import Callable
from typing import Any, TypeVar

from tornado import httputil, web

from tritonnb.core.errors import InternalError, InvalidArgumentError, TritonError
from tritonnb.endpoints.http import json_fields, json_reader
from tritonnb.endpoints.long_work import LONG, LongWork
from tritonnb.endpoints.request_rules import client_text, refuse_repository, version_number
from tritonnb.engine.engine import Engine
from tritonnb.model_config.to_json import config_to_json

T = TypeVar("T")
_NOT_BASE64 = bytes(set(range(256)) - set(string.ascii_letters.encode() + string.digits.encode() + b"+/"))
#: Base64 digits that are decoded in one call; a multiple of 4.
_PART = 1 << 20
JSON = "application/json"
TEXT = "text/plain"
#: Reason phrases where Triton's differ from the usual ones.
_REASONS = {405: "Not Allowed"}


#: Bytes of the statistics of a model, at least.
_STATISTICS_SIZE = 400


def compact_json(value: object) -> str:
    """Return JSON without spaces, as Triton writes it: in UTF-8 without escapes."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def error_body(message: str) -> bytes:
    """Return ``{"error": ...}`` as Triton writes it."""
    return compact_json({"error": message}).encode("utf-8", "surrogateescape")


class Handler(web.RequestHandler):
    """The base class of all routes; responses and errors have its `content_type`."""

    content_type = JSON

    def initialize(self, engine: Engine, max_input_size: int) -> None:
        """Store the arguments of the route (Tornado's interface)."""
        self.engine = engine
        self.max_input_size = max_input_size
        # Every body is JSON, also if its type is a form, as curl says: Tornado would read the fields of the form, and
        # refuse more than a thousand.
        self.request.headers.pop("Content-Type", None)

    def clear(self) -> None:
        """Clear the headers: Triton sends neither Date nor Server."""
        # Tornado's own `clear` would add both, and format the date for each response.
        self._headers = httputil.HTTPHeaders({"Content-Type": self.content_type})
        self._write_buffer: list[bytes] = []
        self._status_code = 200
        self._reason = "OK"

    def compute_etag(self) -> None:
        """Return None: there are no conditional requests."""

    def write_error(self, status_code: int, **details: Any) -> None:
        """Respond with the exception that was raised (Tornado's interface)."""
        error = details.get("exc_info", (None, None, None))[1]
        if isinstance(error, TritonError):
            self.set_status(error.status.http)
            self.finish(error_body(client_text(error)))
            return
        self.set_status(status_code, _REASONS.get(status_code))
        texts = {404: "Not Found", 405: "Method Not Allowed"}
        self.finish(error_body(texts.get(status_code, f"{type(error).__name__}: {error}")))

    def log_exception(self, kind: Any, error: Any, trace: Any) -> None:
        """Log exceptions, except Triton errors, which are responses (Tornado's interface)."""
        if not isinstance(error, (TritonError, web.HTTPError)):
            super().log_exception(kind, error, trace)

    def respond_json(self, value: object) -> None:
        """Respond with JSON."""
        self.finish(compact_json(value))

    async def outcome(self, size: int, function: Callable[[], T]) -> Callable[[], T]:
        """Read or write a document, on a worker thread if its size is long.

        Returns
        -------
        callable
            Returns what the function returned, or raises what it raised.
        """
        if size <= LONG:
            return function
        long_work: LongWork = self.settings["long_work"]
        work = asyncio.ensure_future(long_work.run(function))
        await asyncio.wait([work])
        return work.result

    async def json_body(self, read: Callable[[object], T]) -> T:
        """Return what a function reads from the request's JSON.

        Parameters
        ----------
        read : callable
            Called with the document, on a worker thread if the body is long.

        Raises
        ------
        InvalidArgumentError
            If the body exceeds ``--http-max-input-size``.
        InternalError
            If the body is not JSON.
        """
        body, limit = self.request.body, self.max_input_size
        return (await self.outcome(len(body), lambda: read(json_reader.parse_request(body, limit))))()

    async def optional_json_body(self, read: Callable[[object], T]) -> T:
        """Return what a function reads from the request's JSON, as `json_body`; an empty body is an empty object."""
        return await self.json_body(read) if self.request.body else read({})


class LiveHandler(Handler):
    """``/v2/health/live``."""

    content_type = TEXT

    def get(self) -> None:
        """Return whether the server is live: 200 if it is."""
        # 400 and not 503: Triton's status for a server that is not live.
        self.set_status(200 if self.engine.is_live else 400)


class ReadyHandler(Handler):
    """``/v2/health/ready``."""

    content_type = TEXT

    async def get(self) -> None:
        """Return whether the server and its models are ready: 200, else 400."""
        self.set_status(200 if await self.engine.is_ready() else 400)


class ModelReadyHandler(Handler):
    """``/v2/models/M[/versions/V]/ready``."""

    content_type = TEXT

    async def get(self, model: str, version: str | None = None) -> None:
        """Return whether the model is ready: 200 if it is."""
        if not await self.engine.model_ready(model, version_number(version)):
            raise InvalidArgumentError("Model version not ready")


class ServerMetadataHandler(Handler):
    """``/v2``."""

    def get(self) -> None:
        """Return the server metadata."""
        self.respond_json(self.engine.metadata())


class ModelMetadataHandler(Handler):
    """``/v2/models/M[/versions/V]``."""

    def get(self, model: str, version: str | None = None) -> None:
        """Return the model metadata."""
        self.respond_json(self.engine.model_metadata(model, version_number(version)))


class ModelConfigurationHandler(Handler):
    """``/v2/models/M[/versions/V]/config``."""

    def get(self, model: str, version: str | None = None) -> None:
        """Return the model's configuration with all defaults."""
        self.finish(config_to_json(self.engine.model(model, version_number(version)).config))


class StatisticsHandler(Handler):
    """``/v2/models/M[/versions/V]/stats`` and ``/v2/models/stats``."""

    async def get(self, model: str = "", version: str | None = None) -> None:
        """Return the statistics of a model, or of every model."""
        statistics = await self.engine.statistics_in_pieces(model, version_number(version))
        size = _STATISTICS_SIZE * len(statistics["model_stats"])
        self.finish((await self.outcome(size, lambda: compact_json(statistics)))())


class RepositoryIndexHandler(Handler):
    """``/v2/repository[/R]/index``."""

    async def post(self, repository: str | None = None) -> None:
        """Return every model and its state."""
        # A body that is no object has no member, so everything is listed: to Triton, a missing member and a missing
        # object are the same.
        ready = await self.optional_json_body(
            lambda body: body.get("ready", False) if isinstance(body, dict) else False
        )
        if not isinstance(ready, bool):
            raise InvalidArgumentError("Invalid value for 'ready': expected a boolean")
        self.respond_json(await self.engine.index(ready))


class RepositoryLoadHandler(Handler):
    """``/v2/repository[/R]/models/M/load``."""

    async def post(self, model: str, repository: str | None = None) -> None:
        """Load or reload a model."""
        refuse_repository(repository)
        # Before the model control mode is checked, as on Triton: a malformed request is malformed in any mode.
        parameters = await self.optional_json_body(_load_parameters)
        self.engine.check_model_control()
        await self.engine.load(model, parameters)


class RepositoryUnloadHandler(Handler):
    """``/v2/repository[/R]/models/M/unload``."""

    async def post(self, model: str, repository: str | None = None) -> None:
        """Unload a model; it need not exist."""
        refuse_repository(repository)
        parameters = await self.optional_json_body(
            lambda body: body.get("parameters") if isinstance(body, dict) else None
        )
        # Triton unloads the model even if a member has another type.
        dependents = isinstance(parameters, dict) and parameters.get("unload_dependents") is True
        self.engine.check_model_control()
        await self.engine.unload(model, dependents)


class InferHandler(Handler):
    """``/v2/models/M[/versions/V]/infer`` with a wrong method; POST takes the fast path."""

    content_type = TEXT


class UnknownPathHandler(Handler):
    """Every other path."""

    content_type = TEXT

    def prepare(self) -> None:
        """Respond with 404 to every method."""
        raise web.HTTPError(404)


def _load_parameters(body: object) -> dict[str, str | bytes]:
    values = body.get("parameters", {}) if isinstance(body, dict) else {}
    parameters: dict[str, str | bytes] = {}
    for name in json_fields.names(values):
        text = json_fields.string(values[name])
        if name == "config":
            parameters[name] = text
        elif name.startswith("file:"):
            parameters[name] = _decoded(text)
        else:
            raise InternalError("unexpected error on creating Triton parameter")
    return parameters


def _decoded(text: str) -> bytes:
    """Decode Base64 as Triton does: other characters and missing padding are ignored."""
    digits = text.encode("ascii", "ignore").translate(None, _NOT_BASE64)
    digits = digits[: len(digits) - (len(digits) % 4 == 1)]
    digits += b"=" * (-len(digits) % 4)
    # In parts, because each call holds Python's lock.
    return b"".join([base64.b64decode(digits[start : start + _PART]) for start in range(0, len(digits), _PART)])
