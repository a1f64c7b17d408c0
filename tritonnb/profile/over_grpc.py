"""A load over gRPC: to the server of this process, or to any other of the v2 protocol."""

from __future__ import annotations

import time
from collections import deque
from threading import RLock
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonnb.core.datatypes import BYTES, encode_bytes
from tritonnb.model_config.schema import ModelSpec
from tritonnb.profile.over_http import request_parameters
from tritonnb.profile.remote import RemoteModel
from tritonnb.profile.targets import PendingRequest, is_stateful

_CANCELLED = "cancelled by the client"


class OverGrpc:
    """A model behind gRPC: one channel, a ``ModelInfer`` for each request.

    Parameters
    ----------
    model : RemoteModel

    Raises
    ------
    InvalidArgumentError
        If the server does not know the model.
    UnavailableError
        If no server answers there.
    """

    alive = True

    def __init__(self, model: RemoteModel) -> None:
        config = model.config()
        self.spec = ModelSpec.from_config(config)
        self.stateful = is_stateful(config, lambda *step: model.sibling(*step).config())
        self._version = "" if model.version == -1 else str(model.version)
        self._channel = model.channel()
        self._infer = service_pb2_grpc.GRPCInferenceServiceStub(self._channel).ModelInfer
        self._encoded: dict[int, service_pb2.ModelInferRequest] = {}
        # Of each sequence the requests that wait for the one that is under way: calls do not keep their order.
        self._lock = RLock()
        self._waiting: dict[int | str, deque[PendingRequest]] = {}

    def send(self, shot: PendingRequest) -> None:
        """Send the request, or keep it until the previous one of its sequence is answered."""
        sequence = shot.arrival.sequence_id
        with self._lock:
            if sequence and sequence in self._waiting:
                self._waiting[sequence].append(shot)
                return
            if sequence:
                self._waiting[sequence] = deque()
            self._call(shot)

    def cancel(self, shot: PendingRequest) -> None:
        """Cancel the call; a request that was not sent yet is answered at once."""
        with self._lock:
            if shot.sent is not None:
                shot.sent.cancel()
                return
            self._waiting[shot.arrival.sequence_id].remove(shot)
        shot.answered(shot, time.monotonic_ns(), _CANCELLED)

    def close(self) -> None:
        """Close the channel, and with it what is under way."""
        self._channel.close()

    def _call(self, shot: PendingRequest) -> None:
        shot.sent = self._infer.future(self._request(shot))
        shot.sent.add_done_callback(lambda call: self._done(shot, call))

    def _done(self, shot: PendingRequest, call: Any) -> None:
        """Take the response; called on a thread of gRPC."""
        now = time.monotonic_ns()
        error = "" if call.code() is grpc.StatusCode.OK else call.details() or call.code().name
        cancelled = call.code() is grpc.StatusCode.CANCELLED
        shot.answered(shot, now, _CANCELLED if cancelled else error)
        with self._lock:
            waiting = self._waiting.get(shot.arrival.sequence_id)
            if waiting:
                self._call(waiting.popleft())
            else:
                self._waiting.pop(shot.arrival.sequence_id, None)

    def _request(self, shot: PendingRequest) -> service_pb2.ModelInferRequest:
        """The message; of requests without parameters every example is encoded once."""
        parameters = request_parameters(shot.arrival)
        if parameters:
            return self._encode(shot, parameters)
        if id(shot.inputs) not in self._encoded:
            self._encoded[id(shot.inputs)] = self._encode(shot, parameters)
        return self._encoded[id(shot.inputs)]

    def _encode(self, shot: PendingRequest, parameters: dict[str, Any]) -> service_pb2.ModelInferRequest:
        request = service_pb2.ModelInferRequest(model_name=self.spec.name, model_version=self._version)
        for name, array in shot.inputs.items():
            datatype = self.spec.inputs[name].datatype
            request.inputs.add(name=name, datatype=datatype.name, shape=array.shape)
            request.raw_input_contents.append(encode_bytes(array) if datatype is BYTES else array.tobytes())
        for name, value in parameters.items():
            if isinstance(value, bool):
                request.parameters[name].bool_param = value
            elif isinstance(value, str):
                request.parameters[name].string_param = value
            elif name == "priority":
                request.parameters[name].uint64_param = value
            else:
                request.parameters[name].int64_param = value
        return request
