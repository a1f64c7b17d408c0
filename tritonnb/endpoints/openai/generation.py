"""The generations of one client: their inference requests, and what their responses add to each choice.

A generative model has the tensors of Triton's vLLM backend: the input ``text_input`` and the output ``text_output``. It
may have the inputs ``stream``, ``sampling_parameters`` (JSON), ``exclude_input_in_output`` and ``return_...``; a model
without ``sampling_parameters`` gets the sampling parameters as request parameters.
"""

from __future__ import annotations

import codecs
import functools
import itertools
import json
import math
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tritonnb.core.datatypes import BOOL, BYTES, FP16, FP32, FP64, DataType
from tritonnb.core.errors import InternalError
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.core.texts import encodable, printable
from tritonnb.endpoints.back_pressure import StreamingCalls
from tritonnb.endpoints.http.handlers.inference import PendingRequests
from tritonnb.endpoints.long_work import LONG
from tritonnb.endpoints.openai.errors import OpenAiError
from tritonnb.endpoints.openai.requests import GenerationRequest
from tritonnb.endpoints.openai.stop_strings import StopString, TextEnd
from tritonnb.endpoints.tensors import response_size
from tritonnb.engine.execution.loop import run_in_thread
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.model_config.schema import ModelSpec, TensorSpec

#: Inputs that ask a model for additional outputs.
_RETURNED = ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")
#: Finish reasons of responses before the last response; the vLLM backend writes Python's None.
_NOT_FINISHED = ("", "None", "null")
#: A word, with the space in front of it.
_WORD = re.compile(r"\s*\S+")
#: The least log probability, as vLLM's server writes it: JSON has neither infinity nor NaN.
_LEAST_LOGPROB = -9999.0


def generates(spec: ModelSpec) -> bool:
    """Return whether a model generates text from a prompt."""
    prompt, text = spec.inputs.get("text_input"), spec.outputs.get("text_output")
    return prompt is not None and text is not None and prompt.datatype is BYTES and text.datatype is BYTES


def embeds(spec: ModelSpec) -> bool:
    """Return whether a model maps a string to a vector: one required input of strings, one output of real numbers.

    It may have the output ``num_input_tokens``, like models that generate text.
    """
    return _text_input(spec) is not None and _vector_output(spec) is not None


def _vector_output(spec: ModelSpec) -> TensorSpec | None:
    outputs = [output for output in spec.outputs.values() if output.name != "num_input_tokens"]
    return outputs[0] if [output.datatype for output in outputs] in ([FP16], [FP32], [FP64]) else None


def _text_input(spec: ModelSpec) -> TensorSpec | None:
    required = [tensor for tensor in spec.inputs.values() if not tensor.optional]
    return required[0] if len(required) == 1 and required[0].datatype is BYTES else None


@dataclass(frozen=True)
class Prompt:
    """A prompt; all its choices share the bytes. Long ones take a while to make.

    Attributes
    ----------
    raw : bytes
        In UTF-8.
    length : int
        Characters.
    words : int
    """

    raw: bytes
    length: int
    words: int

    @classmethod
    def of(cls, text: str) -> Prompt:
        """Make the prompt of a text."""
        return cls(text.encode("utf-8", "surrogatepass"), len(text), count_words(text))  # a template may write anything


def generation_requests(served: ServedModel, asked: GenerationRequest, prompts: list[Prompt]) -> list[InferRequest]:
    """Return the requests for all choices: ``n`` for each prompt.

    Each choice of a prompt has its own seed, counted from the seed of the client.

    Raises
    ------
    OpenAiError
        If the model does not continue texts, or cannot do what is asked for.
    """
    spec = served.spec
    if not generates(spec):
        raise OpenAiError(
            f"model '{served.name}' expected to have the input text_input and the output text_output, of strings",
            "model",
        )
    if asked.logprobs is not None and "logprobs" not in spec.outputs:
        raise OpenAiError(f"model '{served.name}' does not return log probabilities", "logprobs")
    return [_generation_request(served, asked, prompt, choice) for prompt in prompts for choice in range(asked.n)]


def _generation_request(served: ServedModel, asked: GenerationRequest, prompt: Prompt, choice: int) -> InferRequest:
    spec, sampling = served.spec, dict(asked.sampling)
    if "seed" in sampling:
        # With one seed for all choices, a deterministic model would return the same text for each.
        sampling["seed"] += choice
    values: dict[str, object] = {
        "text_input": prompt.raw,
        "stream": asked.stream,
        "exclude_input_in_output": not asked.echo,
        # One string of JSON, because that is the vLLM backend's interface; Triton's front end talks to its models in
        # the same way.
        "sampling_parameters": json.dumps(sampling).encode(),
        **dict.fromkeys(_RETURNED, True),
        "return_logprobs": asked.logprobs is not None,
    }
    inputs = {name: _tensor(spec, spec.inputs[name], value) for name, value in values.items() if name in spec.inputs}
    request = InferRequest(spec.name, inputs, model_version=served.version)
    if "sampling_parameters" not in spec.inputs:
        request.parameters = {
            name: value if isinstance(value, str | int | bool | float) else json.dumps(value)
            for name, value in sampling.items()
        }
    return request


def vector_output(served: ServedModel) -> str:
    """Return the name of the output that contains the vector of a text.

    Raises
    ------
    OpenAiError
        If the model does not return vectors.
    """
    output = _vector_output(served.spec)
    if output is None or not embeds(served.spec):
        raise OpenAiError(
            f"model '{served.name}' expected to have one input of strings and one output of floating-point numbers",
            "model",
        )
    return output.name


def embedding_request(served: ServedModel, text: str) -> InferRequest:
    """Return the request for the vector of one text; the model's scheduler batches the requests for several texts."""
    tensor = _text_input(served.spec)
    assert tensor is not None  # `vector_output` has checked it
    inputs = {tensor.name: _tensor(served.spec, tensor, text.encode())}
    return InferRequest(served.spec.name, inputs, model_version=served.version)


def _tensor(spec: ModelSpec, tensor: TensorSpec, value: object) -> Tensor:
    """Return a tensor with one element."""
    datatype: DataType = tensor.datatype
    shape = (*((1,) if spec.max_batch_size > 0 else ()), *(1 for _ in tensor.dims))
    array: Any = np.empty(shape, BOOL.numpy if datatype is BOOL else np.object_)
    array.fill(value)
    return Tensor(tensor.name, datatype, array)


TokenLogprobs = list[tuple[str, float]]


@dataclass
class Choice:
    """One choice, or what a response adds to it.

    Attributes
    ----------
    index : int
    text : str
    finish_reason : str or None
        None if it is not complete.
    logprobs : list of list of (str, float)
        For each token the chosen one first, and the most probable ones, with their log probabilities.
    prompt_tokens, completion_tokens : int
        As the model counted them. For a model that does not count them: the words of the prompt, and the words of each
        response, at least one.
    """

    index: int
    text: str = ""
    finish_reason: str | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _ChoiceReader:
    """Reads the responses for one choice, and ends it at a stop string or at the token limit if the model does not.

    Parameters
    ----------
    choice : Choice
        The responses are added to it.
    asked : GenerationRequest
    end : TextEnd
    counts_tokens : bool
        The model has the output ``num_output_tokens``; otherwise the words of a response are its tokens, at least one:
        that is right for models that send each token, and defined for models that send more.

    Attributes
    ----------
    is_cut : bool
        The text has ended before the model did.
    """

    def __init__(self, choice: Choice, asked: GenerationRequest, end: TextEnd, counts_tokens: bool) -> None:
        self._choice = choice
        self._max_tokens = asked.sampling["max_tokens"]
        self._is_limit_asked = asked.is_limit_asked
        self._end = end
        self._counts_tokens = counts_tokens
        # A model may divide a character between two responses.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tokens = 0
        self._counted: int | None = None
        self._reason = ""
        self._logprobs: deque[tuple[int, TokenLogprobs]] = deque()
        self._text_length = self._prompt_left = end.ignored
        self._returns_logprobs = asked.logprobs is not None
        self.is_cut = False

    def read(self, response: InferResponse) -> Choice:
        """Return what a response adds to the choice.

        Raises
        ------
        InternalError
            If the model has written what its outputs cannot be.
        """
        try:
            return self._read(response)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            text = f"{type(error).__name__}: {printable(error)}"
            raise InternalError(
                f"unable to read the outputs of the model; expected the outputs of Triton's vLLM backend, got {text}"
            ) from error

    def _read(self, response: InferResponse) -> Choice:
        outputs = {tensor.name: tensor.array.reshape(-1) for tensor in response.outputs if tensor.array.size}
        raw = outputs["text_output"][0] if "text_output" in outputs else b""
        # A text that came whole is not cut by the default: nobody asked for it, and it would save nothing.
        limit = math.inf if response.final and not self._is_limit_asked else self._max_tokens
        text = self._take_tokens(raw, response.final, math.inf if self._counts_tokens else limit)
        self._read_counts(outputs)
        reason = printable(outputs["finish_reason"][0]) if "finish_reason" in outputs else ""
        self._reason = self._reason if reason in _NOT_FINISHED else reason
        if self._returns_logprobs and "logprobs" in outputs:
            self._hold_logprobs(outputs["logprobs"][0])
        tokens = (self._counted or 0) if self._counts_tokens else self._tokens
        is_limited = tokens >= limit
        # A model that has given its reason ends by itself, and may still send its counts.
        is_last = response.final or (is_limited and not self._reason)
        text = self._end.add(text + self._decoder.decode(b"", is_last))
        if is_last:
            text += self._end.finish()
        self.is_cut = not response.final and (is_last or self._end.reached)
        reason = "stop" if self._end.reached else self._reason or ("length" if is_limited else "stop")
        return self._add(text, reason if is_last or self._end.reached else None)

    def _take_tokens(self, raw: bytes, is_final: bool, limit: float) -> str:
        """Decode the text of a response, count its words as tokens, and return the text of those within the limit."""
        text = self._decoder.decode(raw, is_final)
        prompt = min(self._prompt_left, len(text))
        self._prompt_left -= prompt
        left = limit - self._tokens
        self._tokens += max(count_words(text[prompt:]), bool(raw))
        if self._tokens <= limit:
            return text
        self._tokens = int(limit)
        self._decoder.reset()  # the rest of its bytes is beyond the limit
        end = prompt  # nothing is left if the model goes on after its finish reason
        for word in itertools.islice(_WORD.finditer(text, prompt), int(left)):
            end = word.end()
        return text[:end]

    def _read_counts(self, outputs: Mapping[str, Any]) -> None:
        if "num_output_tokens" in outputs:  # of this response, as the vLLM backend counts
            self._counted = (self._counted or 0) + int(outputs["num_output_tokens"][0])
        if "num_input_tokens" in outputs:
            self._choice.prompt_tokens = int(outputs["num_input_tokens"][0])
        # A model that counts at its end may have been cut before.
        self._choice.completion_tokens = self._tokens if self._counted is None else self._counted

    def _hold_logprobs(self, raw: bytes) -> None:
        """Keep log probabilities until the text of their token is certain."""
        for entry in json.loads(raw):
            # `max` in this order also replaces NaN.
            tokens = [
                (encodable(token["decoded_token"]), max(_LEAST_LOGPROB, float(token["logprob"])))
                for token in entry.values()
            ]
            self._logprobs.append((self._text_length, tokens))
            # The chosen token is the first of its entry, as vLLM writes it.
            self._text_length += len(tokens[0][0])

    def _add(self, text: str, reason: str | None) -> Choice:
        choice = self._choice
        choice.text += text
        choice.finish_reason = reason
        logprobs = []
        # Log probabilities of text that a stop string may still remove are held back like the text.
        while self._logprobs and (self._logprobs[0][0] < len(choice.text) or (reason and not self._end.reached)):
            logprobs.append(self._logprobs.popleft()[1])
        choice.logprobs += logprobs
        return Choice(choice.index, text, reason, logprobs)


class Generations(PendingRequests):
    """The generations of one client.

    Parameters
    ----------
    served : ServedModel
    asked : GenerationRequest
    prompts : list of Prompt
    calls : StreamingCalls
        Of the endpoint.

    Raises
    ------
    OpenAiError
        If the model cannot do what is asked for.
    """

    def __init__(
        self, served: ServedModel, asked: GenerationRequest, prompts: list[Prompt], calls: StreamingCalls
    ) -> None:
        super().__init__(served, functools.partial(generation_requests, served, asked, prompts), calls)
        stops = [StopString(text) for text in asked.sampling.get("stop", [])]
        # The model returns the prompt in front of the text, and stop strings end only what follows.
        returns_prompt = asked.echo and "exclude_input_in_output" in served.spec.inputs
        counts_tokens = "num_output_tokens" in served.spec.outputs
        self.choices = []
        self._readers = []
        for index, prompt in enumerate(prompt for prompt in prompts for _ in range(asked.n)):
            choice = Choice(index, prompt_tokens=prompt.words)
            self.choices.append(choice)
            end = TextEnd(stops, prompt.length if returns_prompt else 0)
            self._readers.append(_ChoiceReader(choice, asked, end, counts_tokens))

    async def deltas(self) -> AsyncIterator[Choice]:
        """Yield the addition of each response to its choice, until all choices are complete; errors as `successes`.

        A request that the model continues after the end of its choice is cancelled.
        """
        async for index, response in self.successes():
            reader = self._readers[index]
            read = functools.partial(reader.read, response)
            delta = await run_in_thread(read) if response_size(response) > LONG else read()
            if reader.is_cut:
                self.abandon(index)
            # A response may add nothing, if its text is held back: an empty event would tell the client nothing.
            if delta.text or delta.finish_reason:
                yield delta


def count_words(text: str) -> int:
    """Return the number of tokens of a text for a model that does not count them: its words.

    Examples
    --------
    >>> count_words("two words")
    2
    """
    words = 0
    is_in_word = False
    for start in range(0, len(text), LONG):  # in parts, since each call holds Python's lock
        part = text[start : start + LONG]
        words += len(part.split()) - (is_in_word and not part[0].isspace())
        is_in_word = not part[-1].isspace()
    return words
