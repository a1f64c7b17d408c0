"""The `ServerCalls` of a model in a child: each call is a message to the server's process."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.backends.isolation.child.metrics import ChildMetrics
from tritonnb.backends.isolation.child.outbox import Outbox
from tritonnb.backends.isolation.codec import decode_response, encode_request
from tritonnb.backends.isolation.packer import Packer
from tritonnb.core.messages import InferRequest
from tritonnb.telemetry.custom_metrics import CustomMetrics


class ChildServerCalls:
    """Calls from the model to the server; allowed from any thread.

    Parameters
    ----------
    outbox : Outbox
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._metrics = ChildMetrics(outbox)
        self._numbers = itertools.count(1)
        self._requests: dict[int, InferRequest] = {}

    @property
    def metrics(self) -> CustomMetrics:
        """Custom metrics that models define."""
        return self._metrics

    def infer(self, request: InferRequest, *, decoupled: bool, cause: InferRequest | None = None) -> None:
        """Run a request; its responses are passed to ``request.respond`` on the thread that reads ``calls``."""
        number = next(self._numbers)
        self._requests[number] = request
        packer = Packer()
        encoded = encode_request(request, packer)
        self._outbox.send(["infer", number, encoded, decoupled, 0 if cause is None else cause.serial], packer)

    def cancel(self, request: InferRequest) -> None:
        """Cancel a request."""
        number = next((number for number, sent in list(self._requests.items()) if sent is request), None)
        if number is not None:
            self._outbox.send(["cancel", number])

    def load_model(self, name: str, parameters: Mapping[str, str | bytes]) -> None:
        """Load a model."""
        files = {key: base64.b64encode(value).decode() for key, value in parameters.items() if isinstance(value, bytes)}
        texts = {key: value for key, value in parameters.items() if isinstance(value, str)}
        self._outbox.ask("load_model", name, texts, files)

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Unload a model."""
        self._outbox.ask("unload_model", name, unload_dependents)

    def is_model_ready(self, name: str, version: int) -> bool:
        """Whether a model is ready."""
        return bool(self._outbox.ask("is_model_ready", name, version))

    def receive(self, number: int, encoded: list[Any], was_accepted: bool, payload: npt.NDArray[np.uint8]) -> None:
        """Pass on a response to a request that the model sent."""
        request = self._requests[number]
        response = decode_response(encoded, payload, copy=False)
        if response.final:
            del self._requests[number]
        request.accepted_by = _ACCEPTED if was_accepted else None
        request.answer(response)


class _Accepted:
    """Stands for the served model, in another process, that accepted a request."""

    def cancel(self, request: InferRequest) -> None:
        """Do nothing: `ChildServerCalls.cancel` cancels it."""


_ACCEPTED = _Accepted()
