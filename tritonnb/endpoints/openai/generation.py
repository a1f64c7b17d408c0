"""The generations of one client: their inference requests, and what their responses add to each choice.

A generative model has the tensors of Triton's vLLM backend: the input ``text_input`` and the output ``text_output``. It
may have the inputs ``stream``, ``sampling_parameters`` (JSON), ``exclude_input_in_output`` and ``return_...``; a model
without ``sampling_parameters`` gets the sampling parameters as request parameters.
"""

from __future__ import annotations

import codecs
import functools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tritonnb.core.datatypes import BOOL, BYTES, FP16, FP32, FP64, DataType
from tritonnb.core.json_types import Json
from tritonnb.core.messages import InferRequest, InferResponse, Respond, Tensor
from tritonnb.endpoints.http.handlers.inference import PendingRequests
from tritonnb.endpoints.openai.errors import OpenAiError
from tritonnb.endpoints.openai.requests import GenerationRequest
from tritonnb.model_config.schema import ModelSpec, TensorSpec
from tritonnb.runtime.models.served_model import ServedModel

#: Inputs that ask a model for additional outputs.
_RETURNED = ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")


def generates(spec: ModelSpec) -> bool:
    """Return whether a model generates text from a prompt."""
    prompt, text = spec.inputs.get("text_input"), spec.outputs.get("text_output")
    return prompt is not None and text is not None and prompt.datatype is BYTES and text.datatype is BYTES


def embeds(spec: ModelSpec) -> bool:
    """Return whether a model maps a string to a vector: one required input of strings, one output of real numbers."""
    return _text_input(spec) is not None and _returns_vector(spec)


def _returns_vector(spec: ModelSpec) -> bool:
    return [output.datatype for output in spec.outputs.values()] in ([FP16], [FP32], [FP64])


def _text_input(spec: ModelSpec) -> TensorSpec | None:
    required = [tensor for tensor in spec.inputs.values() if not tensor.optional]
    return required[0] if len(required) == 1 and required[0].datatype is BYTES else None


def generation_requests(
    served: ServedModel, asked: GenerationRequest, prompts: list[str], respond: Respond
) -> list[InferRequest]:
    """Return the requests for all choices: ``n`` for each prompt.

    Each choice of a prompt has its own seed, counted from that of the client.

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
    return [
        _generation_request(served, asked, prompt, choice, respond) for prompt in prompts for choice in range(asked.n)
    ]


def _generation_request(
    served: ServedModel, asked: GenerationRequest, prompt: str, choice: int, respond: Respond
) -> InferRequest:
    spec, sampling = served.spec, dict(asked.sampling)
    if "seed" in sampling:
        sampling["seed"] += choice
    values: dict[str, object] = {
        "text_input": prompt.encode("utf-8", "surrogatepass"),
        "stream": asked.stream,
        "exclude_input_in_output": not asked.echo,
        "sampling_parameters": json.dumps(sampling).encode(),
        **dict.fromkeys(_RETURNED, True),
        "return_logprobs": asked.logprobs is not None,
    }
    inputs = {name: _tensor(spec, spec.inputs[name], value) for name, value in values.items() if name in spec.inputs}
    request = InferRequest(spec.name, inputs, respond, model_version=served.version)
    if "sampling_parameters" not in spec.inputs:
        request.parameters = {
            name: value if isinstance(value, str | int | bool | float) else json.dumps(value)
            for name, value in sampling.items()
        }
    return request


def embedding_request(served: ServedModel, text: str, respond: Respond) -> InferRequest:
    """Return the request for the vector of one text; the model's scheduler batches those of several texts.

    Raises
    ------
    OpenAiError
        If the model does not return vectors.
    """
    tensor = _text_input(served.spec)
    if tensor is None or not _returns_vector(served.spec):
        raise OpenAiError(
            f"model '{served.name}' expected to have one input of strings and one output of floating-point numbers",
            "model",
        )
    inputs = {tensor.name: _tensor(served.spec, tensor, text.encode("utf-8", "surrogatepass"))}
    return InferRequest(served.spec.name, inputs, respond, model_version=served.version)


def _tensor(spec: ModelSpec, tensor: TensorSpec, value: object) -> Tensor:
    """Return a tensor with one element."""
    datatype: DataType = tensor.datatype
    shape = (*((1,) if spec.max_batch_size > 0 else ()), *(1 for _ in tensor.dims))
    array: Any = np.empty(shape, BOOL.numpy if datatype is BOOL else np.object_)
    array.fill(value)
    return Tensor(tensor.name, datatype, array)


@dataclass
class Choice:
    """One choice, or what a response adds to it.

    Attributes
    ----------
    index : int
    text : str
    finish_reason : str or None
        None if it is not complete.
    logprobs : list of dict
        One entry for each token, as vLLM writes them: the chosen token first.
    prompt_tokens, completion_tokens : int or None
        As the model counted them, with its last response.
    """

    index: int
    text: str = ""
    finish_reason: str | None = None
    logprobs: list[Json] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    def add(self, other: Choice) -> None:
        """Append the contents of a response."""
        self.text += other.text
        self.logprobs += other.logprobs
        self.finish_reason = other.finish_reason or self.finish_reason
        self.prompt_tokens = self.prompt_tokens if other.prompt_tokens is None else other.prompt_tokens
        self.completion_tokens = self.completion_tokens if other.completion_tokens is None else other.completion_tokens


class Generations(PendingRequests):
    """The generations of one client.

    Parameters
    ----------
    served : ServedModel
    asked : GenerationRequest
    prompts : list of str

    Raises
    ------
    OpenAiError
        If the model cannot do what is asked for.
    """

    def __init__(self, served: ServedModel, asked: GenerationRequest, prompts: list[str]) -> None:
        super().__init__(served, functools.partial(generation_requests, served, asked, prompts))
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in self.requests]
        self.choices = [Choice(index) for index in range(len(self.requests))]

    async def deltas(self) -> AsyncIterator[Choice]:
        """Yield the addition of each response to its choice, until all choices are complete; errors as `successes`."""
        async for index, response in self.successes():
            delta = self._read(index, response)
            self.choices[index].add(delta)
            if delta.text or delta.finish_reason:
                yield delta

    def _read(self, index: int, response: InferResponse) -> Choice:
        outputs = {tensor.name: tensor.array.reshape(-1) for tensor in response.outputs if tensor.array.size}
        raw = outputs["text_output"][0] if "text_output" in outputs else b""
        text = self._decoders[index].decode(raw, response.final)
        reason = outputs["finish_reason"][0].decode() if "finish_reason" in outputs else ""
        if response.final and not reason and self.choices[index].finish_reason is None:
            reason = "stop"  # the model does not say why it ended
        return Choice(
            index,
            text,
            reason or None,
            json.loads(outputs["logprobs"][0]) if "logprobs" in outputs else [],
            int(outputs["num_input_tokens"][0]) if "num_input_tokens" in outputs else None,
            int(outputs["num_output_tokens"][0]) if "num_output_tokens" in outputs else None,
        )
