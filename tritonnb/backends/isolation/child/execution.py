"""The execution of a batch in the child."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.backends.execution import Execution, ResponseSender, accepted
from tritonnb.backends.isolation.channel import Payload
from tritonnb.backends.isolation.codec import Packer, SharedOutput, decode_request, encode_response
from tritonnb.core.datatypes import datatype_of
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.messages import InferRequest, InferResponse, Tensor, discard_response

#: Sends a response: the number of the batch, the index of the request, the request, the response.
Send = Callable[[int, int, InferRequest, InferResponse], None]


class ChildExecution(Execution):
    """A batch that packs responses as soon as they are set.

    Parameters
    ----------
    header : list
        ``["execute", number, size, requests]``.
    payload : numpy.ndarray of uint8
        The tensors.
    state_names : mapping of str to str
        The ``input_name`` of each implicit state of the model, by its ``output_name``.
    output : SharedOutput
        Gets the large tensors of the responses.
    send : callable
        Sends the responses of response senders.
    """

    __slots__ = ("_encoded", "_send", "packer", "updates")

    def __init__(
        self,
        header: list[Any],
        payload: Payload,
        state_names: Mapping[str, str],
        output: SharedOutput,
        send: Send,
    ) -> None:
        _, number, size, encoded = header
        self.packer = Packer(output)
        self.updates: list[list[Any]] = []
        self._send = send
        requests = []
        for index, fields in enumerate(encoded):
            request, states = decode_request(fields, payload, discard_response)
            if states is not None:
                request.states = _States(states, state_names, functools.partial(self._update, index))
            requests.append(request)
        super().__init__(requests, size, discard_response, number)
        self._encoded: list[list[Any] | None] = [None] * len(requests)

    def answer(self, index: int, response: InferResponse) -> None:
        """Set the response to a request; its tensors are copied."""
        if self.responses[index] is None:
            response = accepted(self.requests[index], response)
            self._encoded[index] = encode_response(response, self.packer)
            response = InferResponse(error=response.error)  # the contents are no longer needed
        super().answer(index, response)

    def sender(self, index: int) -> ResponseSender:
        """Return the response sender of request ``index``."""
        if index not in self.senders:
            send = functools.partial(self._send, self.number, index)
            self.senders[index] = ResponseSender(self.requests[index], send)
        return self.senders[index]

    def _update(self, index: int, state: Tensor) -> None:
        self.updates.append([index, self.packer.add(state)])

    def result(self, senders: list[int]) -> list[Any]:
        """Return the result as a part of a message; its tensors are in `packer`."""
        return [
            self._encoded,
            sorted(self.rescheduled),
            self.updates,
            senders,
            [self.exec_start_ns, self.compute_start_ns, self.compute_end_ns, self.exec_end_ns],
            [[index, success] for index, success in self.reported.items()],
        ]


class _States:
    """The implicit states of a request; updates are part of the result of the batch."""

    def __init__(self, states: Sequence[Tensor], names: Mapping[str, str], update: Callable[[Tensor], None]) -> None:
        self.inputs = {state.name: state for state in states}
        self._names = names
        self._update = update

    def update(self, output_name: str, array: npt.NDArray[np.generic]) -> None:
        """Make an output of the model the next state."""
        name = self._names.get(output_name)
        if name is None:
            raise InvalidArgumentError(f"state '{output_name}' is not a valid state name.")
        # Triton adopts the datatype of an update, even if the configuration has another.
        values = np.asarray(array)
        datatype = self.inputs[name].datatype
        self._update(
            Tensor(output_name, datatype if values.dtype == datatype.numpy else datatype_of(values.dtype), values)
        )
