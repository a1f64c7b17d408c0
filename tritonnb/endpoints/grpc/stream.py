"""``ModelStreamInfer``: any number of requests and responses on one stream.

Answers of models that are not decoupled keep the order of their requests; those of decoupled models are sent
as they come. An error concerns its request only, unless the client asked for the stream to end with it
(metadata ``triton_grpc_error``).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tritonnb.core.errors import TritonError, UnavailableError, strip_traceback
from tritonnb.core.messages import InferResponse
from tritonnb.endpoints.client_errors import log_failed
from tritonnb.endpoints.grpc.inference import Inference
from tritonnb.runtime.engine import Engine

_FINAL = "triton_final_response"


class Stream:
    """One stream.

    Parameters
    ----------
    engine : Engine
    requests : async iterator of inference.ModelInferRequest
    metadata : mapping of str to str
        Of the call.
    headers : dict of str to str
        Forwarded as parameters of every request.
    errors_end_it : bool
        The first error of a model ends the stream.
    """

    def __init__(
        self,
        engine: Engine,
        requests: AsyncIterator[Any],
        metadata: Mapping[str, str],
        headers: dict[str, str],
        errors_end_it: bool,
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._metadata = metadata
        self._headers = headers
        self._errors_end_it = errors_end_it
        self._outgoing: asyncio.Queue[Any] = asyncio.Queue()
        # Of requests that keep their order, by number; the message is there when the request is answered.
        self._places: OrderedDict[int, Any] = OrderedDict()
        self._numbers = itertools.count()
        self._unanswered: set[Inference] = set()
        self._reading: asyncio.Task[None] | None = None
        self._all_read = False
        self._finishing = False

    async def responses(self) -> AsyncGenerator[Any, None]:
        """The messages to be sent, as they come; ends when everything is answered.

        Raises
        ------
        TritonError
            The error that ends the stream.
        """
        self._reading = asyncio.get_running_loop().create_task(self._read())
        try:
            while (message := await self._outgoing.get()) is not None:
                if isinstance(message, TritonError):
                    raise message.fresh()
                yield message
        finally:
            self._reading.cancel()
            for inference in list(self._unanswered):
                inference.cancel()

    def finish(self) -> None:
        """The server stops: the stream ends, for its client to know, when what was accepted is answered."""
        self._finishing = True
        self._end_if_done()

    async def _read(self) -> None:
        try:
            async for given in self._requests:
                self._begin(given)
        finally:
            self._all_read = True
            self._end_if_done()

    def _begin(self, given: Any) -> None:
        place = next(self._numbers)
        self._places[place] = None  # the answer may be there before it is known whether the request keeps its order

        def take(inference: Inference, response: InferResponse) -> None:
            self._take(place, inference, response)

        try:
            inference = Inference.begin(
                self._engine, given, take, streaming=True, metadata=self._metadata, headers=self._headers
            )
        except TritonError as error:
            log_failed(given.id, error)
            message = pb.ModelStreamInferResponse(error_message=error.message)
            message.infer_response.id = given.id
            self._answer(place, message)
            return
        if not inference.done:
            self._unanswered.add(inference)
        if not inference.ordered:
            self._places.pop(place, None)

    def _take(self, place: int, inference: Inference, response: InferResponse) -> None:
        message = self._message(inference, response)
        self._unanswered.discard(inference)
        if not response.final:
            self._unanswered.add(inference)
        if inference.ordered:
            self._answer(place, message)
        else:
            self._places.pop(place, None)
            if message is not None:
                self._outgoing.put_nowait(message)
            self._end_if_done()
        inference.sent(response.final)

    def _message(self, inference: Inference, response: InferResponse) -> Any:
        """What is sent for a response; None for nothing, an error for the end of the stream."""
        given = inference.given
        if response.empty:
            if not inference.wants_empty_final:
                return None
            message = pb.ModelStreamInferResponse()
            _identify(message.infer_response, given)
        else:
            try:
                message = pb.ModelStreamInferResponse(infer_response=inference.message(response))
            except TritonError as error:
                if self._errors_end_it:
                    return strip_traceback(error)
                message = pb.ModelStreamInferResponse(error_message=error.message)
                _identify(message.infer_response, given)
        message.infer_response.parameters[_FINAL].bool_param = response.final
        return message

    def _answer(self, place: int, message: Any) -> None:
        self._places[place] = message
        while next(iter(self._places.values()), None) is not None:
            self._outgoing.put_nowait(self._places.popitem(last=False)[1])
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._unanswered or self._places:
            return
        if self._all_read:
            self._outgoing.put_nowait(None)
        elif self._finishing:
            self._outgoing.put_nowait(UnavailableError("Server is stopping"))


def _identify(response: Any, given: Any) -> None:
    """Say what a response without outputs is for, in the words of the request."""
    response.model_name = given.model_name
    response.model_version = given.model_version
    response.id = given.id
