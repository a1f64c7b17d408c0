"""The generations of one client: their requests in flight, and what their responses add to each choice."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from tritonnb.core.errors import TritonError
from tritonnb.core.json_types import Json
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.endpoints.openai.errors import from_triton
from tritonnb.endpoints.openai.generation_request import GenerationRequest
from tritonnb.endpoints.openai.infer_request import generation_requests
from tritonnb.runtime.models.served_model import ServedModel
from tritonnb.telemetry.tracing import Trace


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
        """Append what a response adds."""
        self.text += other.text
        self.logprobs += other.logprobs
        self.finish_reason = other.finish_reason or self.finish_reason
        self.prompt_tokens = self.prompt_tokens if other.prompt_tokens is None else other.prompt_tokens
        self.completion_tokens = self.completion_tokens if other.completion_tokens is None else other.completion_tokens


class Generations:
    """The requests of one client in flight.

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
        self._requests = generation_requests(served, asked, prompts, self._on_response)
        self._indexes = {request: index for index, request in enumerate(self._requests)}
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in self._requests]
        self._responses: asyncio.Queue[tuple[int, InferResponse]] = asyncio.Queue()
        self._traces: dict[InferRequest, Trace | None] = {}
        self._served = served
        self.choices = [Choice(index) for index in range(len(self._requests))]

    def submit(self, trace: Callable[[], Trace | None]) -> None:
        """Send the requests to the model.

        Parameters
        ----------
        trace : callable
            Returns the trace of a request, which ends with its last response; None if it is not traced.

        Raises
        ------
        OpenAiError
            If one is rejected; the others are cancelled.
        """
        try:
            for request in self._requests:
                self._traces[request] = trace()
                self._served.submit(request, self._traces[request])
        except TritonError as error:
            self.cancel()
            raise from_triton(error) from None

    def cancel(self) -> None:
        """Cancel the requests that are not complete."""
        for request in list(self._indexes):
            if request.accepted_by is not None:
                request.cancel()

    async def deltas(self) -> AsyncIterator[Choice]:
        """What each response adds to its choice, until all choices are complete.

        Raises
        ------
        OpenAiError
            If a generation fails; the others are cancelled.
        """
        running = len(self._requests)
        while running:
            index, response = await self._responses.get()
            if response.error is not None:
                self.cancel()
                raise from_triton(response.error)
            running -= response.final
            delta = self._read(index, response)
            self.choices[index].add(delta)
            if delta.text or delta.finish_reason:
                yield delta

    def _on_response(self, request: InferRequest, response: InferResponse) -> None:
        index = self._indexes[request]
        if response.final:
            del self._indexes[request]
            started = self._traces.pop(request, None)
            if started is not None:
                started.finish()
        self._responses.put_nowait((index, response))

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
