"""One inference over gRPC, unary or on a stream: read, submitted, answered, cancelled."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Any

from tritonnb.core.errors import InternalError, InvalidArgumentError, TritonError, UnsupportedError
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.endpoints.grpc.infer_request import read_request, wants_empty_final
from tritonnb.endpoints.grpc.infer_response import response_message
from tritonnb.runtime.engine import Engine

logger = logging.getLogger(__name__)

_LEADING_NUMBER = re.compile(r"\s*([+-]?\d+)")

Take = Callable[["Inference", InferResponse], None]


class Inference:
    """A request that was submitted.

    Parameters
    ----------
    engine : Engine
    given : inference.ModelInferRequest
    take : callable
        ``take(inference, response)`` is called on the loop, once for each response.
    streaming : bool
        Whether the answer may be any number of responses.
    headers : mapping of str to str, optional
        Forwarded as request parameters.

    Attributes
    ----------
    ordered : bool
        On a stream, the answer keeps its place among those of the other requests.
    wants_empty_final : bool
        The client wants to hear of the end.
    done : bool
        The final response is there.

    Raises
    ------
    TritonError
        If the request is refused at once.
    """

    def __init__(
        self, engine: Engine, given: Any, take: Take, *, streaming: bool, headers: dict[str, str] | None = None
    ) -> None:
        self.given = given
        self.done = False
        self._take = take
        self._served = served = engine.model(given.model_name, version_number(given.model_version))
        if served.decoupled and not streaming:
            raise UnsupportedError("ModelInfer RPC doesn't support models with decoupled transaction policy")
        self.ordered = not served.decoupled
        self.wants_empty_final = streaming and wants_empty_final(given)
        self.request, self._answer = read_request(
            given, served.spec, served.version, engine.shared_memory, self._responded
        )
        if headers:
            self.request.parameters.update(headers)
        self._trace = engine.tracer.sample(served.name) if engine.tracer.active else None
        if self._trace is None:
            served.submit(self.request)
            return
        now = time.monotonic_ns()
        self._trace.stamp("GRPC_WAITREAD_START", now)
        self._trace.stamp("GRPC_WAITREAD_END", now)
        try:
            self._trace.submit(served, self.request)
        except TritonError:
            self._trace.finish()
            raise

    def message(self, response: InferResponse) -> Any:
        """The ``ModelInferResponse`` of a response.

        Raises
        ------
        TritonError
            The error that it is, or why it cannot be written the way the client wants it.
        """
        if self._trace is not None:
            self._trace.stamp("GRPC_SEND_START", time.monotonic_ns())
        try:
            if response.error is not None:
                raise response.error
            return response_message(self._served, self.request, response, self._answer, self.given)
        except TritonError:
            raise
        except Exception as error:
            logger.error("an inference response could not be written", exc_info=error)
            raise InternalError(f"{type(error).__name__}: {error}") from error

    def sent(self, final: bool) -> None:
        """A response has been handed to the transport."""
        if self._trace is not None:
            self._trace.stamp("GRPC_SEND_END", time.monotonic_ns())
            if final:
                self._trace.finish()
                self._trace = None

    def cancel(self) -> None:
        """The client went away."""
        self._served.cancel(self.request)

    def _responded(self, request: InferRequest, response: InferResponse) -> None:
        if self._trace is not None:
            self._trace.responded(response, time.monotonic_ns())
        self.done = response.final
        self._take(self, response)


def version_number(text: str) -> int:
    """The version that a request names; -1 where it names none. What follows the digits does not count.

    Raises
    ------
    InvalidArgumentError
    """
    if not text:
        return -1
    found = _LEADING_NUMBER.match(text)
    number = int(found.group(1)) if found else None
    if number is None or not -(2**63) <= number < 2**63:
        raise InvalidArgumentError(
            f"failed to get model version from specified version string '{text}' (details: stol), version should "
            "be an integral value > 0"
        )
    if number < 0:
        raise InvalidArgumentError(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return number
