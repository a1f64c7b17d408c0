"""The requests for completions, chat completions and embeddings, as read from their JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

from tritonnb.core.json_types import Json
from tritonnb.endpoints.openai.errors import OpenAiError
from tritonnb.endpoints.openai.fields import (
    CHAT,
    COMPLETION,
    EMBEDDING,
    MOST_CHOICES,
    MOST_LOGPROBS,
    MOST_PROMPTS,
    MOST_STOPS,
    MOST_TOP_LOGPROBS,
    Fields,
)

_MOST_TOKENS = 2**31 - 1
_SEED = 2**63
#: The fields that limit the tokens of a text: the second is the old name in chats, and the name in completions.
_LIMITS = ("max_completion_tokens", "max_tokens")
#: The roles of messages, with their names in a prompt without a chat template.
ROLES = {"developer": "System", "system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}
_STRINGS = f"a string or an array of 1 to {MOST_PROMPTS} strings"


@dataclass(frozen=True)
class GenerationRequest:
    """A request for completions or for a chat completion.

    Attributes
    ----------
    model : str
    prompts : list of str
        Of a completion; a chat has ``messages`` in their place.
    messages : list of dict
        Roles and contents, which are strings.
    n : int
        Choices for each prompt.
    stream, include_usage, echo : bool
    is_limit_asked : bool
        The client has set ``max_tokens``; otherwise it is the server's default.
    logprobs : int or None
        Number of most probable tokens to return for each position; None for no log probabilities.
    sampling : dict
        ``max_tokens``, and the other sampling parameters that the client has set, with the names of vLLM's
        ``SamplingParams``.
    """

    model: str
    n: int
    stream: bool
    include_usage: bool
    is_limit_asked: bool
    logprobs: int | None
    sampling: Json
    prompts: list[str] = field(default_factory=list)
    messages: list[Json] = field(default_factory=list)
    echo: bool = False


def read_completion(body: bytes, default_max_tokens: int) -> GenerationRequest:
    """Read the body of ``POST /v1/completions``.

    Raises
    ------
    OpenAiError
        If it is invalid.
    """
    fields = Fields(body, COMPLETION)
    logprobs = fields.integer("logprobs", 0, MOST_LOGPROBS)
    prompts = fields.strings("prompt", 1, MOST_PROMPTS, "", f"{_STRINGS}, and no tokens")
    common = _common(fields)
    if len(prompts) * common["n"] > MOST_PROMPTS:
        got = f"{len(prompts)} prompts with {common['n']} choices each"
        raise OpenAiError(f"Invalid 'n': expected at most {MOST_PROMPTS} choices in all, got {got}", "n")
    sampling = _sampling(fields, fields.integer("max_tokens", 1, _MOST_TOKENS, default_max_tokens), logprobs)
    return GenerationRequest(
        **common,
        logprobs=logprobs,
        sampling=sampling,
        prompts=prompts,
        echo=fields.value("echo", (bool,), False),
    )


def read_chat(body: bytes, default_max_tokens: int) -> GenerationRequest:
    """Read the body of ``POST /v1/chat/completions``.

    Raises
    ------
    OpenAiError
        If it is invalid.
    """
    fields = Fields(body, CHAT)
    # OpenAI renamed `max_tokens` for chats; with both, neither meaning is certain.
    if all(name in fields for name in _LIMITS):
        raise OpenAiError(f"'{_LIMITS[1]}' cannot be combined with '{_LIMITS[0]}'", _LIMITS[1], code="invalid_value")
    limit = next((fields.integer(name, 1, _MOST_TOKENS) for name in _LIMITS if name in fields), default_max_tokens)
    most = fields.integer("top_logprobs", 0, MOST_TOP_LOGPROBS)
    wanted = fields.value("logprobs", (bool,), False)
    if most is not None and not wanted:
        raise OpenAiError("'top_logprobs' expected 'logprobs' to be true", "top_logprobs", code="invalid_value")
    logprobs = (most or 0) if wanted else None
    return GenerationRequest(
        **_common(fields), logprobs=logprobs, sampling=_sampling(fields, limit, logprobs), messages=_messages(fields)
    )


def _common(fields: Fields) -> Json:
    stream = fields.value("stream", (bool,), False)
    options = fields.value("stream_options", (dict,), {})
    if options and not stream:
        raise OpenAiError("'stream_options' expected 'stream' to be true", "stream_options", code="invalid_value")
    for name in options.keys() - {"include_usage", "include_obfuscation"}:
        raise OpenAiError(f"Unrecognized request argument supplied: stream_options.{name}", "stream_options")
    return {
        "model": fields.required("model", (str,)),
        "n": fields.integer("n", 1, MOST_CHOICES, 1),
        "stream": stream,
        "include_usage": options.get("include_usage") is True,
        "is_limit_asked": any(name in fields for name in _LIMITS),
    }


def _sampling(fields: Fields, max_tokens: int | None, logprobs: int | None) -> Json:
    stop = fields.strings("stop", 0, MOST_STOPS)
    # An empty string is found at once, so that each text would be empty.
    if "" in stop:
        raise OpenAiError("Invalid 'stop': expected at least one character, got an empty string", "stop")
    values = {
        "max_tokens": max_tokens,
        "temperature": fields.number("temperature", 0, 2),
        "top_p": fields.number("top_p", 0, 1),
        "seed": fields.integer("seed", -_SEED, _SEED - 1),
        "stop": stop or None,
        "top_k": fields.integer("top_k", -1, _MOST_TOKENS),
        "ignore_eos": fields.value("ignore_eos", (bool,)),
        "logprobs": logprobs,
    }
    return {name: value for name, value in values.items() if value is not None}


def _messages(fields: Fields) -> list[Json]:
    messages = fields.required("messages", (list,))
    if not messages:
        raise OpenAiError("Invalid 'messages': expected at least one message, got an empty array", "messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: object, where: str) -> Json:
    if not isinstance(message, dict) or message.get("role") not in tuple(ROLES):
        raise OpenAiError(f"Invalid '{where}': expected an object with a role of {', '.join(ROLES)}", where)
    if message.get("tool_calls") or message.get("audio"):
        raise OpenAiError(f"Invalid '{where}': expected text, got tool calls or audio", where)
    return {**message, "content": _content(message.get("content"), f"{where}.content")}


def _content(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    # An assistant's message without content is valid: it had tool calls, or refused.
    parts = [] if content is None else content
    if not isinstance(parts, list):
        raise OpenAiError(f"Invalid '{where}': expected a string or an array of parts", where)
    texts = []
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise OpenAiError(f"Invalid '{where}': expected parts of type 'text'", where, code="invalid_value")
        texts.append(part["text"])
    return "".join(texts)


@dataclass(frozen=True)
class EmbeddingRequest:
    """A request for embeddings.

    Attributes
    ----------
    model : str
    texts : list of str
    base64 : bool
        Return each vector as Base64 of its 32-bit floating-point numbers, as the ``openai`` package asks for.
    dimensions : int or None
        The length that the client expects.
    """

    model: str
    texts: list[str]
    base64: bool
    dimensions: int | None


def read_embedding(body: bytes) -> EmbeddingRequest:
    """Read the body of ``POST /v1/embeddings``.

    Raises
    ------
    OpenAiError
        If it is invalid.
    """
    fields = Fields(body, EMBEDDING)
    fields.required("input", (str, list))
    texts = fields.strings("input", 1, MOST_PROMPTS, failure=f"{_STRINGS}; tokens are not supported")
    encoding = fields.value("encoding_format", (str,), "float")
    if encoding not in ("float", "base64"):
        raise OpenAiError(f"Invalid 'encoding_format': expected float or base64, got {encoding}", "encoding_format")
    return EmbeddingRequest(
        fields.required("model", (str,)), texts, encoding == "base64", fields.integer("dimensions", 1, 2**31 - 1)
    )
