"""The JSON of responses and of the chunks of a stream, for completions and chat completions."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence

from tritonnb.core.json_types import Json
from tritonnb.endpoints.openai.generation import Choice
from tritonnb.endpoints.openai.requests import GenerationRequest


class ResponseForm(ABC):
    """The form of the responses to a request."""

    def __init__(self, asked: GenerationRequest, prefix: str, kind: str) -> None:
        self._asked = asked
        self._head: Json = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": asked.model,
        }

    def response(self, choices: Sequence[Choice]) -> Json:
        """Return the complete response."""
        return {**self._head, "choices": [self._complete(choice) for choice in choices], "usage": _total(choices)}

    def first_chunks(self, count: int) -> list[Json]:
        """Return the chunks of a stream before the first text of each of ``count`` choices."""
        return []

    def chunk(self, delta: Choice) -> Json:
        """Return a chunk of a stream."""
        return self._chunk(self._part(delta))

    def usage_chunk(self, choices: Sequence[Choice]) -> Json:
        """Return the chunk with the usage of the whole request, which has no choices."""
        return {**self._head, "choices": [], "usage": _total(choices)}

    @abstractmethod
    def _complete(self, choice: Choice) -> Json:
        """Return a choice of the complete response."""

    @abstractmethod
    def _part(self, choice: Choice) -> Json:
        """Return what a chunk adds to a choice."""

    def _chunk(self, choice: Json) -> Json:
        # With `stream_options.include_usage` every chunk has the field; it is null in all but the last chunk.
        return {**self._head, "choices": [choice], **({"usage": None} if self._asked.include_usage else {})}


class CompletionForm(ResponseForm):
    """Completions: ``text_completion``."""

    def __init__(self, asked: GenerationRequest) -> None:
        super().__init__(asked, "cmpl", "text_completion")
        self._lengths: dict[int, int] = {}

    def _complete(self, choice: Choice) -> Json:
        offset = self._lengths.get(choice.index, 0)
        self._lengths[choice.index] = offset + len(choice.text)
        return {
            "index": choice.index,
            "text": choice.text,
            "logprobs": None if self._asked.logprobs is None else _completion_logprobs(choice, offset),
            "finish_reason": choice.finish_reason,
        }

    # A completion has one form for the whole text and for its parts; only the chat has deltas.
    _part = _complete


class ChatForm(ResponseForm):
    """Chat completions: ``chat.completion`` and ``chat.completion.chunk``."""

    def __init__(self, asked: GenerationRequest) -> None:
        super().__init__(asked, "chatcmpl", "chat.completion.chunk" if asked.stream else "chat.completion")

    def first_chunks(self, count: int) -> list[Json]:
        """Return the role of each choice."""
        role = {"role": "assistant", "content": "", "refusal": None}
        return [self._chunk(self._choice(Choice(index), delta=role)) for index in range(count)]

    def _complete(self, choice: Choice) -> Json:
        return self._choice(choice, message={"role": "assistant", "content": choice.text, "refusal": None})

    def _part(self, choice: Choice) -> Json:
        return self._choice(choice, delta={"content": choice.text} if choice.text else {})

    def _choice(self, choice: Choice, **content: Json) -> Json:
        logprobs = None if self._asked.logprobs is None else _chat_logprobs(choice, self._asked.logprobs)
        return {"index": choice.index, **content, "logprobs": logprobs, "finish_reason": choice.finish_reason}


def model_object(name: str, created: int) -> Json:
    """Return a model of the list of models."""
    return {"id": name, "object": "model", "created": created, "owned_by": "tritonnb"}


def usage(prompt_tokens: int, completion_tokens: int | None = None) -> Json:
    """Return the field ``usage``; embeddings have no completion."""
    completion = {} if completion_tokens is None else {"completion_tokens": completion_tokens}
    return {"prompt_tokens": prompt_tokens, **completion, "total_tokens": prompt_tokens + (completion_tokens or 0)}


def _total(choices: Sequence[Choice]) -> Json:
    """Return the usage of all choices. The prompt counts once for each, because each is a separate request."""
    return usage(sum(choice.prompt_tokens for choice in choices), sum(choice.completion_tokens for choice in choices))


def _completion_logprobs(choice: Choice, offset: int) -> Json:
    entries, offsets = choice.logprobs, []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry[0][0])
    return {
        "tokens": [entry[0][0] for entry in entries],
        "token_logprobs": [entry[0][1] for entry in entries],
        "top_logprobs": [dict(entry) for entry in entries],
        "text_offset": offsets,
    }


def _chat_logprobs(choice: Choice, most: int) -> Json:
    content = []
    for tokens in choice.logprobs:
        chosen, logprob = tokens[0]
        # vLLM adds the chosen token even if it is not among the most probable ones, so that there may be one entry more
        # than asked for.
        top = sorted(tokens, key=lambda token: -token[1])[:most]
        content.append({**_token(chosen, logprob), "top_logprobs": [_token(*token) for token in top]})
    return {"content": content, "refusal": None}


def _token(text: str, logprob: float) -> Json:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
