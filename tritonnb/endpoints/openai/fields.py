"""The fields of a request's JSON: read by name, with OpenAI's rules for unknown fields and the ranges of values.

Requests are checked against tables of the fields that are read, ignored or refused, and the reference page of the
endpoint is generated from them.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonnb.core.errors import InternalError
from tritonnb.endpoints.http import json_reader
from tritonnb.endpoints.long_work import LONG
from tritonnb.endpoints.openai.errors import OpenAiError
from tritonnb.endpoints.openai.options import OpenAiOptions

#: What OpenAI's API allows.
MOST_CHOICES, MOST_STOPS, MOST_PROMPTS, MOST_LOGPROBS, MOST_TOP_LOGPROBS = 128, 4, 2048, 5, 20


@dataclass(frozen=True)
class RequestFields:
    """The fields of the requests of a route.

    Attributes
    ----------
    read : mapping of str to str
        What a field does.
    ignored : frozenset of str
        They concern accounts, caches and safety of OpenAI's service, not the response.
    unsupported : mapping of str to tuple
        Fields that no model here supports, with the values that ask for nothing and are accepted.
    extensions : frozenset of str
        The fields of ``read`` that OpenAI does not have.
    response, chunk : str
        The type of a response in the ``openai`` package, and of each part of a streamed response.
    """

    read: Mapping[str, str]
    ignored: frozenset[str]
    response: str
    chunk: str = ""
    unsupported: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    extensions: frozenset[str] = frozenset()

    @property
    def known(self) -> frozenset[str]:
        """The fields that are accepted with any valid value."""
        return self.ignored | self.read.keys()


_MAX_TOKENS = f"sampling parameter, {OpenAiOptions().default_max_tokens} by default (`default_max_tokens`)"
_EXTENSIONS = {
    "top_k": "sampling parameter `top_k`",
    "ignore_eos": "sampling parameter `ignore_eos`: generate up to the limit",
}
_SAMPLED = {
    "model": "name of the model, required",
    "n": f"choices for each prompt, 1 to {MOST_CHOICES}, at most {MOST_PROMPTS} in all: as many requests to the model, "
    "with the seeds `seed`, `seed + 1`, …",
    "stream": "server-sent events, the last one `[DONE]`",
    "stream_options": "`include_usage`: a last chunk with the usage; `include_obfuscation` has no effect",
    "stop": f"a string, or up to {MOST_STOPS}: the text ends before the first of them",
    "temperature": "sampling parameter, 0 to 2",
    "top_p": "sampling parameter, 0 to 1",
    "seed": "sampling parameter",
    **_EXTENSIONS,
}
#: Fields that no model here supports, with the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
}

# pydantic was tried in place of these tables: 126 lines less, but 14 of 18 error texts changed, and its import takes
# 220 ms of each start.
COMPLETION = RequestFields(
    read={
        **_SAMPLED,
        "prompt": f"a string, or up to {MOST_PROMPTS}; arrays of tokens are refused",
        "max_tokens": _MAX_TOKENS,
        "echo": "the prompt precedes the text",
        "logprobs": f"log probabilities of the tokens and of the 0 to {MOST_LOGPROBS} most probable ones, if the model "
        "returns them",
    },
    ignored=frozenset({"user"}),
    unsupported={**_UNSUPPORTED, "suffix": ("",), "best_of": (1,)},
    extensions=frozenset(_EXTENSIONS),
    response="openai.types.Completion",
    chunk="openai.types.Completion",
)
CHAT = RequestFields(
    read={
        **_SAMPLED,
        "messages": "texts with the roles `developer`, `system`, `user`, `assistant` and `tool`: the chat template of "
        "the model makes a prompt of them",
        "max_tokens": f"{_MAX_TOKENS}; the old name of the next",
        "max_completion_tokens": "as `max_tokens`, not together with it",
        "logprobs": "whether to return log probabilities, if the model returns them",
        "top_logprobs": f"with `logprobs`: those of the 0 to {MOST_TOP_LOGPROBS} most probable tokens, too",
    },
    # Refused, they would stop clients that work with OpenAI: a library may set them without being asked.
    ignored=frozenset(
        {
            "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
            "prompt_cache_retention", "service_tier",
        }
    ),
    unsupported={
        **_UNSUPPORTED,
        "audio": (),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "moderation": (),
        # Either value asks for nothing, since there are no tools.
        "parallel_tool_calls": (True, False),
        "prediction": (),
        "reasoning_effort": ("none",),
        "response_format": ({"type": "text"},),
        "store": (False,),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "verbosity": ("medium",),
        "web_search_options": (),
    },
    extensions=frozenset(_EXTENSIONS),
    response="openai.types.chat.ChatCompletion",
    chunk="openai.types.chat.ChatCompletionChunk",
)  # fmt: skip
EMBEDDING = RequestFields(
    read={
        "model": "name of the model, required",
        "input": f"a string, or up to {MOST_PROMPTS}, required; arrays of tokens are refused",
        "encoding_format": "`float` or `base64`",
        "dimensions": "the length of the vectors of the model; others are refused",
    },
    ignored=frozenset({"user"}),
    response="openai.types.CreateEmbeddingResponse",
)
#: By the path of the route.
ROUTES: Mapping[str, RequestFields] = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/v1/embeddings": EMBEDDING,
}


_TYPE_NAMES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


class Fields:
    """The fields of a request; a field that is null counts as absent.

    Parameters
    ----------
    body : bytes
    fields : RequestFields
        The fields of the route.

    Raises
    ------
    OpenAiError
        If the body is not a JSON object, or has other fields.
    """

    def __init__(self, body: bytes, fields: RequestFields) -> None:
        try:
            _check_utf8(body)  # the reader accepts any bytes in strings, which no text of OpenAI's API can have
            document = json_reader.parse(body)
        except (UnicodeDecodeError, InternalError) as error:
            reason = str(error).removeprefix("failed to parse the request JSON buffer: ")
            raise OpenAiError(f"We could not parse the JSON body of your request: {reason}") from None
        if not isinstance(document, dict):
            raise OpenAiError(f"expected a JSON object, got {_type_name(document)}")
        # Most parameters of OpenAI's API are nullable, and null means that they are not set.
        self._values = {name: value for name, value in document.items() if value is not None}
        for name, value in self._values.items():
            if name in fields.unsupported:
                if value not in fields.unsupported[name]:
                    raise OpenAiError(f"'{name}' is not supported by this server", name, code="unsupported_parameter")
            # OpenAI refuses unknown fields, and so does this server, unlike Triton's front end: a misspelt parameter
            # would be ignored silently.
            elif name not in fields.known:
                raise OpenAiError(f"Unrecognized request argument supplied: {name}", name, code="unknown_parameter")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def value(self, name: str, types: tuple[type, ...], default: Any = None) -> Any:
        """Return a field that has one of these types; the default if it is absent.

        Raises
        ------
        OpenAiError
            If it has another type.
        """
        if name not in self._values:
            return default
        value = self._values[name]
        # To Python, `true` is an integer.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise self._wrong(name, " or ".join(_TYPE_NAMES[kind] for kind in types), _type_name(value))
        return value

    def required(self, name: str, types: tuple[type, ...]) -> Any:
        """Return a field that must be there.

        Raises
        ------
        OpenAiError
            If it is absent, or has another type.
        """
        if name not in self._values:
            raise OpenAiError(f"you must provide a '{name}' parameter", name, code="missing_required_parameter")
        return self.value(name, types)

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int | None:
        """Return an integer in a range.

        Raises
        ------
        OpenAiError
            If the value is not an integer, or out of range.
        """
        value = self.value(name, (int,), default)
        if value is not None and not low <= value <= high:
            raise self._wrong(name, f"an integer from {low} to {high}", value)
        return None if value is None else int(value)

    def number(self, name: str, low: float, high: float) -> float | None:
        """Return a number in a range.

        Raises
        ------
        OpenAiError
            If the value is not a number, or out of range.
        """
        value = self.value(name, (int, float))
        if value is not None and not low <= value <= high:
            raise self._wrong(name, f"a number from {low:g} to {high:g}", value)
        return None if value is None else float(value)

    def strings(self, name: str, least: int, most: int, default: str | None = None, failure: str = "") -> list[str]:
        """Return a string, or a list of strings.

        Parameters
        ----------
        name : str
        least, most : int
            The number of strings.
        default : str, optional
            If the field is absent; by default there are no strings.
        failure : str, optional
            The text of an error about the strings.

        Raises
        ------
        OpenAiError
            If it is neither, or has another number of strings.
        """
        value = self.value(name, (str, list), [] if default is None else default)
        values = [value] if isinstance(value, str) else value
        if not all(isinstance(entry, str) for entry in values) or not least <= len(values) <= most:
            expected = f"a string or an array of at most {most} strings, got {_type_name(value)}"
            raise OpenAiError(f"Invalid '{name}': expected {failure or expected}", name, code="invalid_value")
        return list(values)

    def _wrong(self, name: str, expected: str, got: object) -> OpenAiError:
        return OpenAiError(f"Invalid '{name}': expected {expected}, got {got}", name, code="invalid_value")


def _check_utf8(body: bytes) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(body), LONG):  # in parts, since each call holds Python's lock
            decoder.decode(body[start : start + LONG], start + LONG >= len(body))
    except UnicodeDecodeError:
        body.decode()  # the error has the offset in the whole body


def _type_name(value: object) -> str:
    return _TYPE_NAMES.get(type(value), type(value).__name__)
