"""The routes under ``/v1``: who may use them, and what they do."""

from __future__ import annotations

import base64
import functools
import hmac
import itertools
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from tornado import web
from tornado.iostream import StreamClosedError

from tritonnb.core.errors import InvalidArgumentError, NotFoundError, TritonError
from tritonnb.core.json_types import Json
from tritonnb.endpoints.http.admission import Admission
from tritonnb.endpoints.http.handlers.inference import InferenceHandler, PendingRequests
from tritonnb.endpoints.http.handlers.metadata import compact_json
from tritonnb.endpoints.http.options import RAISE_INPUT_SIZE, too_large
from tritonnb.endpoints.http.routes import PARAMETERS
from tritonnb.endpoints.long_work import LONG
from tritonnb.endpoints.openai.errors import OpenAiError, error_bytes, from_triton, unknown_model
from tritonnb.endpoints.openai.generation import (
    Generations,
    Prompt,
    count_words,
    embedding_request,
    embeds,
    generates,
    vector_output,
)
from tritonnb.endpoints.openai.requests import (
    ROLES,
    EmbeddingRequest,
    GenerationRequest,
    read_chat,
    read_completion,
    read_embedding,
)
from tritonnb.endpoints.openai.responses import ChatForm, CompletionForm, ResponseForm, model_object, usage
from tritonnb.engine.engine import Engine
from tritonnb.engine.execution.loop import run_in_thread
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.engine.submission import Submission
from tritonnb.model_config.chat_template import ChatTemplate

T = TypeVar("T")
#: The field of a request that names its model, and the most bytes of a name that is looked for.
_MODEL_NAME = re.compile(rb'"model"\s*:\s*"([^"\\]+)"')
_LONGEST_NAME = 1 << 10
_EVENTS = "text/event-stream; charset=utf-8"
#: The end of a path that has a route under ``/v1``.
_KNOWN_END = re.compile(f"/({PARAMETERS['without_v1']})/?$")


def chat_prompt(template: ChatTemplate | None, messages: list[Json]) -> str:
    """Return the prompt that a model completes with the next message of the assistant.

    Parameters
    ----------
    template : ChatTemplate or None
    messages : list of dict
        With the keys ``role`` and ``content``, which is a string.

    Raises
    ------
    OpenAiError, TritonError
        If the template fails, or is not valid.

    Examples
    --------
    >>> print(chat_prompt(None, [{"role": "user", "content": "Hello"}]))
    User: Hello
    Assistant:
    """
    if template is None:
        # A guess that most base models continue sensibly; a model that was trained on chats should have a template.
        return "".join(f"{ROLES[message['role']]}: {message['content']}\n" for message in messages) + "Assistant:"
    try:
        return template.render(messages)
    except InvalidArgumentError as error:
        raise OpenAiError(f"the chat template failed: {error.message}", "messages") from None


@dataclass(frozen=True)
class AccessRules:
    """The rules that a request must satisfy.

    Attributes
    ----------
    admission : Admission
    api_key : str
        Empty to accept every caller.
    """

    admission: Admission
    api_key: str

    def check(self, path: str, header: Callable[[str], str | None]) -> None:
        """Check a request.

        Parameters
        ----------
        path : str
        header : callable
            Returns the value of a header, or None.

        Raises
        ------
        OpenAiError
            If it is refused.
        """
        refusal = self.admission.refusal(path, header)
        if refusal is not None:
            raise OpenAiError(refusal[0], status=HTTPStatus.FORBIDDEN)
        scheme, _, key = (header("Authorization") or "").partition(" ")
        is_bearer = scheme.lower() == "bearer"
        # In constant time, unlike the restricted APIs: this value is a secret.
        if self.api_key and not (is_bearer and hmac.compare_digest(key.strip().encode(), self.api_key.encode())):
            raise OpenAiError(
                "Incorrect API key provided: expected the header 'Authorization: Bearer KEY' with the server's key",
                status=HTTPStatus.UNAUTHORIZED,
                code="invalid_api_key",
            )


class OpenAiHandler(InferenceHandler):
    """The base class: access rules, and errors in OpenAI's form."""

    def initialize(  # type: ignore[override]
        self, engine: Engine, max_input_size: int, access: AccessRules, default_max_tokens: int, created: int
    ) -> None:
        """Store the arguments of the route (Tornado's interface)."""
        super().initialize(engine, max_input_size)
        self._access = access
        self._default_max_tokens = default_max_tokens
        self._created = created

    def prepare(self) -> None:
        """Check whether the caller may use the route, and the size of the body (Tornado's interface)."""
        self._access.check(self.request.path, self.request.headers.get)
        if len(self.request.body) > self.max_input_size:
            text = too_large(self.max_input_size, len(self.request.body), RAISE_INPUT_SIZE)
            raise OpenAiError(text, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def write_error(self, status_code: int, **details: Any) -> None:
        """Respond with the exception that was raised (Tornado's interface)."""
        error = details.get("exc_info", (None, None, None))[1]
        if isinstance(error, TritonError):
            error = from_triton(error)
        if isinstance(error, web.HTTPError):
            method, path = self.request.method, self.request.path
            error = OpenAiError(f"Invalid URL or method ({method} {path})", status=error.status_code)
        if not isinstance(error, OpenAiError):
            error = OpenAiError(f"{type(error).__name__}: {error}", status=status_code)
        self.set_status(error.status)
        for name, value in error.headers.items():
            self.set_header(name, value)
        self.finish(error_bytes(error))

    def log_exception(self, kind: Any, error: Any, trace: Any) -> None:
        """Log exceptions, except exceptions that are responses (Tornado's interface)."""
        if not isinstance(error, OpenAiError):
            super().log_exception(kind, error, trace)

    def served(self, name: str) -> ServedModel:
        """Return the newest version of a model.

        Raises
        ------
        OpenAiError, TritonError
            If it is not ready.
        """
        try:
            return self.engine.model(name)
        except NotFoundError:
            raise unknown_model(name) from None

    def listed(self) -> list[str]:
        """Return the names of the models that this API can use."""
        names = dict.fromkeys(model.name for model in self.engine.models())
        # The newest version decides, since this API cannot name another.
        specs = {name: self.engine.model(name).spec for name in names}
        return [name for name, spec in specs.items() if generates(spec) or embeds(spec)]


class ModelListHandler(OpenAiHandler):
    """``/v1/models``."""

    def get(self) -> None:
        """Return the models that this API can use."""
        data = [model_object(name, self._created) for name in self.listed()]
        self.respond_json({"object": "list", "data": data})


class ModelHandler(OpenAiHandler):
    """``/v1/models/M``."""

    def get(self, model: str) -> None:
        """Return one model."""
        if model not in self.listed():
            raise unknown_model(model)
        self.respond_json(model_object(model, self._created))


class _Inference(OpenAiHandler):
    """The base class of handlers that run a model: an invalid request is an event of the model that it names."""

    _named: ServedModel | None = None

    def write_error(self, status_code: int, **details: Any) -> None:
        """Respond with the exception that was raised (Tornado's interface)."""
        error = details.get("exc_info", (None, None, None))[1]
        # The model itself reports requests that were submitted.
        is_new = self._pending is None and self._named is not None
        if is_new and isinstance(error, OpenAiError) and error.status == HTTPStatus.BAD_REQUEST:
            Submission(lambda response: None).refuse(InvalidArgumentError(error.message), self._named)
        super().write_error(status_code, **details)

    def served(self, name: str) -> ServedModel:
        """Return the newest version of a model, and remember it for the report of a refusal."""
        self._named = super().served(name)
        return self._named

    async def _read(self, read: Callable[[], T]) -> T:
        """Read the body; if it is refused, remember the model that it names."""
        size = len(self.request.body)
        try:
            return (await self.outcome(size, read))()
        except OpenAiError:
            ready = {model.name: self.engine.model(model.name) for model in self.engine.models()}
            find = functools.partial(_first_name, self.request.body, ready)
            self._named = ready.get((await self.outcome(size, find))())
            raise


def _first_name(body: bytes, names: Container[str]) -> str:
    """Return the first of some names of models that a body has; a guess, since the body may be wrong in any way."""
    for start in range(0, len(body), LONG):  # in parts, since each call holds Python's lock
        for found in _MODEL_NAME.finditer(body, start, start + LONG + _LONGEST_NAME):
            if (name := found[1].decode(errors="replace")) in names:
                return name
    return ""


class _Generation(_Inference):
    """The base class of completions and chat completions."""

    async def generate(self, asked: GenerationRequest, prompts: list[Prompt], form: ResponseForm) -> None:
        """Run the generations and respond."""
        generations = Generations(self.served(asked.model), asked, prompts, self.streaming_calls)
        self.submit(generations, lambda: self.trace(asked.model))
        if asked.stream:
            try:
                await self._stream(generations, form, asked.include_usage)
            except StreamClosedError:  # the client has disconnected, which may not have been reported yet
                self.on_connection_close()
        else:
            async for _ in generations.deltas():
                pass
            self.respond_json(form.response(generations.choices))

    async def _stream(self, generations: Generations, form: ResponseForm, include_usage: bool) -> None:
        """Send an event for each response; an error before the first event has its own status."""
        begun = False
        try:
            async for delta in generations.deltas():
                if not begun:
                    begun = True
                    self.set_header("Content-Type", _EVENTS)
                    self.set_header("Cache-Control", "no-cache")
                    # Headers and roles are sent with the first response and not before, so that an error before it can
                    # have its own status.
                    for chunk in form.first_chunks(len(generations.choices)):
                        self._write_event(chunk)
                self._write_event(form.chunk(delta))
                await self.flush()
        except TritonError as error:
            if not begun:
                raise
            # The status has been sent; OpenAI's clients raise an error that comes as an event.
            self._write_event(from_triton(error).body())
        else:
            if include_usage:
                self._write_event(form.usage_chunk(generations.choices))
        self.write(b"data: [DONE]\n\n")
        await self.flush()

    def _write_event(self, value: Mapping[str, object]) -> None:
        self.write(f"data: {compact_json(value)}\n\n")


class CompletionsHandler(_Generation):
    """``/v1/completions``."""

    async def post(self) -> None:
        """Continue one or more prompts."""
        asked, prompts = await self._read(self._asked)
        await self.generate(asked, prompts, CompletionForm(asked))

    def _asked(self) -> tuple[GenerationRequest, list[Prompt]]:
        asked = read_completion(self.request.body, self._default_max_tokens)
        return asked, [Prompt.of(text) for text in asked.prompts]


class ChatCompletionsHandler(_Generation):
    """``/v1/chat/completions``."""

    async def post(self) -> None:
        """Write the next message of a chat."""
        asked = await self._read(lambda: read_chat(self.request.body, self._default_max_tokens))
        context = self.served(asked.model).context
        template = ChatTemplate.find(context.directory, context.version)
        # A template is code of the model.
        prompt = await run_in_thread(lambda: Prompt.of(chat_prompt(template, asked.messages)))
        await self.generate(asked, [prompt], ChatForm(asked))


class EmbeddingsHandler(_Inference):
    """``/v1/embeddings``."""

    async def post(self) -> None:
        """Return the vectors of one or more texts."""
        asked = await self._read(lambda: read_embedding(self.request.body))
        served = self.served(asked.model)
        vector = vector_output(served)
        requests = PendingRequests(
            served, lambda: [embedding_request(served, text) for text in asked.texts], self.streaming_calls
        )
        self.submit(requests, lambda: None)
        vectors = {index: response async for index, response in requests.successes() if not response.empty}
        if len(vectors) < len(asked.texts):
            raise TritonError("the model sent no response")
        outputs = [{tensor.name: tensor.array for tensor in vectors[index].outputs} for index in sorted(vectors)]
        size = len(self.request.body) + sum(arrays[vector].size for arrays in outputs)
        self.finish((await self.outcome(size, lambda: _embeddings(asked, outputs, vector)))())


class UnknownRouteHandler(OpenAiHandler):
    """Every other path under ``/v1``, and the known paths elsewhere: the base URL of a client is often wrong."""

    def prepare(self) -> None:
        """Respond with 404 to every method; the error names the right path, if the end of this path is known."""
        super().prepare()
        method, path = self.request.method, self.request.path
        # The likely cause is a base URL with `/v1` twice or not at all.
        known = _KNOWN_END.search(path)
        hint = f": expected /v1/{known[1]}, with a base URL of the client that ends with /v1" if known else ""
        raise OpenAiError(f"Invalid URL or method ({method} {path}){hint}", status=HTTPStatus.NOT_FOUND)


def _input_tokens(text: str, outputs: Mapping[str, npt.NDArray[Any]]) -> int:
    """Return the number of tokens of a text, as the model counted them or else its words."""
    counted = outputs.get("num_input_tokens")
    return count_words(text) if counted is None else int(counted.reshape(-1)[0])


def _embeddings(asked: EmbeddingRequest, outputs: list[dict[str, npt.NDArray[Any]]], vector: str) -> str:
    """Write the response; each vector by itself, since a call of the writer holds Python's lock."""
    tokens = sum(itertools.starmap(_input_tokens, zip(asked.texts, outputs, strict=True)))
    vectors = [compact_json(_embedding(asked, index, arrays[vector])) for index, arrays in enumerate(outputs)]
    rest = compact_json({"model": asked.model, "usage": usage(tokens)})
    return f'{{"object":"list","data":[{",".join(vectors)}],{rest[1:]}'


def _embedding(asked: EmbeddingRequest, index: int, array: npt.NDArray[Any]) -> Json:
    # FP16 and FP64 outputs as well: in Base64, OpenAI's vectors are always little-endian FP32.
    vector = np.ascontiguousarray(array, "<f4").reshape(-1)
    if asked.dimensions not in (None, len(vector)):
        raise OpenAiError(
            f"Invalid 'dimensions': expected {len(vector)}, the length of the model's vectors, got {asked.dimensions}",
            "dimensions",
        )
    value = base64.b64encode(vector.tobytes()).decode() if asked.base64 else vector.tolist()
    return {"object": "embedding", "index": index, "embedding": value}
