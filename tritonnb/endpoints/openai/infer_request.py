"""The inference requests of a model that has the tensors of Triton's vLLM backend, or that returns vectors.

A generative model has the input ``text_input`` and the output ``text_output``. It may have the inputs ``stream``,
``sampling_parameters`` (JSON), ``exclude_input_in_output`` and ``return_...``; a model without ``sampling_parameters``
gets the sampling parameters as request parameters.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tritonnb.core.datatypes import BOOL, BYTES, FP16, FP32, FP64, DataType
from tritonnb.core.messages import InferRequest, Respond, Tensor
from tritonnb.endpoints.openai.errors import OpenAiError
from tritonnb.endpoints.openai.generation_request import GenerationRequest
from tritonnb.model_config.schema import ModelSpec, TensorSpec
from tritonnb.runtime.models.served_model import ServedModel

#: Inputs that ask a model for additional outputs.
_RETURNED = ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")


def generates(spec: ModelSpec) -> bool:
    """Whether a model generates text from a prompt."""
    prompt, text = spec.inputs.get("text_input"), spec.outputs.get("text_output")
    return prompt is not None and text is not None and prompt.datatype is BYTES and text.datatype is BYTES


def embeds(spec: ModelSpec) -> bool:
    """Whether a model returns a vector for a string: one required input of strings, one output of real numbers."""
    return _text_input(spec) is not None and vector_output(spec) is not None


def vector_output(spec: ModelSpec) -> str | None:
    """The name of the output that is a vector; None if there is not exactly one."""
    names = [name for name, output in spec.outputs.items() if output.datatype in (FP16, FP32, FP64)]
    return names[0] if len(names) == 1 and len(spec.outputs) == 1 else None


def _text_input(spec: ModelSpec) -> TensorSpec | None:
    required = [tensor for tensor in spec.inputs.values() if not tensor.optional]
    return required[0] if len(required) == 1 and required[0].datatype is BYTES else None


def generation_requests(
    served: ServedModel, asked: GenerationRequest, prompts: list[str], respond: Respond
) -> list[InferRequest]:
    """The requests for all choices: ``n`` for each prompt.

    Each choice of a prompt has a seed of its own, counted from that of the client.

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
    """The request for the vector of one text; the model's scheduler batches those of several texts.

    Raises
    ------
    OpenAiError
        If the model does not return vectors.
    """
    tensor = _text_input(served.spec)
    if tensor is None or vector_output(served.spec) is None:
        raise OpenAiError(
            f"model '{served.name}' expected to have one input of strings and one output of floating-point numbers",
            "model",
        )
    inputs = {tensor.name: _tensor(served.spec, tensor, text.encode("utf-8", "surrogatepass"))}
    return InferRequest(served.spec.name, inputs, respond, model_version=served.version)


def _tensor(spec: ModelSpec, tensor: TensorSpec, value: object) -> Tensor:
    """A tensor with one element."""
    datatype: DataType = tensor.datatype
    shape = (*((1,) if spec.max_batch_size > 0 else ()), *(1 for _ in tensor.dims))
    array: Any = np.empty(shape, BOOL.numpy if datatype is BOOL else np.object_)
    array.fill(value)
    return Tensor(tensor.name, datatype, array)
