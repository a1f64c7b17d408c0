"""The gRPC targets of a load, for the server of this process or any other server of the v2 protocol.

There is one call for each request, or one stream for each request to a decoupled model.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from threading import RLock
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonnb.client.address import ModelAddress
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.profile.examples import Tensors
from tritonnb.profile.targets import TOKEN_COUNT, Parameters, PendingRequest, RemoteTarget

_CANCELLED = "cancelled by the client"


class GrpcTarget(RemoteTarget[service_pb2.ModelInferRequest]):
    """A model reached over gRPC: one channel, and a ``ModelInfer`` call per request."""

    def __init__(self, model: ModelAddress, config: pb.ModelConfig) -> None:
        super().__init__(model, config)
        self._version = "" if model.version == -1 else str(model.version)
        self._channel = model.access.channel(model.scheme, model.authority)
        self._metadata = model.access.metadata
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        # The requests of each sequence that wait for the one in flight, because concurrent calls have no order.
        self._lock = RLock()
        self._waiting: dict[int | str, deque[PendingRequest]] = {}

    def send(self, pending: PendingRequest) -> None:
        """Send the request, or keep it until the previous request of its sequence is complete."""
        sequence = pending.arrival.sequence_id
        with self._lock:
            if sequence and sequence in self._waiting:
                self._waiting[sequence].append(pending)
                return
            if sequence:
                self._waiting[sequence] = deque()
            self._call(pending)

    def cancel(self, pending: PendingRequest) -> None:
        """Cancel the call; a request that was not sent yet completes at once."""
        with self._lock:
            if pending.handle is not None:
                assert isinstance(pending.handle, grpc.Future)
                pending.handle.cancel()
                return
            self._waiting[pending.arrival.sequence_id].remove(pending)
        pending.on_complete(pending, time.monotonic_ns(), _CANCELLED)

    def close(self) -> None:
        """Close the channel, which cancels the calls in flight."""
        self._channel.close()

    def _call(self, pending: PendingRequest) -> None:
        pending.handle = call = self._stub.ModelInfer.future(self.request(pending), metadata=self._metadata)
        call.add_done_callback(lambda done: self._done(pending, done))

    def _done(self, pending: PendingRequest, call: grpc.Future, error: str = "") -> None:
        """Complete the request with the status of its call, or with another error; called on a gRPC thread."""
        now = time.monotonic_ns()
        if call.code() is not grpc.StatusCode.OK:
            error = call.details() or call.code().name
        cancelled = call.code() is grpc.StatusCode.CANCELLED
        pending.on_complete(pending, now, _CANCELLED if cancelled else error)
        with self._lock:
            waiting = self._waiting.get(pending.arrival.sequence_id)
            if waiting:
                self._call(waiting.popleft())
            else:
                self._waiting.pop(pending.arrival.sequence_id, None)

    def encode(self, inputs: Tensors, parameters: Parameters) -> service_pb2.ModelInferRequest:
        """Return the message of a request."""
        request = service_pb2.ModelInferRequest(model_name=self.spec.name, model_version=self._version)
        for name, array in inputs.items():
            datatype = self.spec.inputs[name].datatype
            request.inputs.add(name=name, datatype=datatype.name, shape=array.shape)
            request.raw_input_contents.append(datatype.encode(array))
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


class GrpcStreamTarget(GrpcTarget):
    """A decoupled model reached over gRPC: one channel, and a ``ModelStreamInfer`` call per request.

    A dedicated stream can be cancelled without the others, and ends after the last response of its request.
    """

    def _call(self, pending: PendingRequest) -> None:
        requests = iter((self.request(pending),))
        pending.handle = call = self._stub.ModelStreamInfer(requests, metadata=self._metadata)
        threading.Thread(target=self._receive, args=(pending, call), name="tritonnb-load-stream", daemon=True).start()

    def _receive(self, pending: PendingRequest, call: Any) -> None:
        """Receive the responses, on a thread of the request."""
        error = ""
        try:
            for message in call:
                now = time.monotonic_ns()
                if message.error_message:
                    error = message.error_message
                elif message.infer_response.outputs:
                    pending.add_response(now, _counted_tokens(message.infer_response))
        except grpc.RpcError:
            pass  # the call has its status
        self._done(pending, call, error)


def _counted_tokens(response: Any) -> int:
    for output, content in zip(response.outputs, response.raw_output_contents, strict=False):
        if output.name == TOKEN_COUNT:
            return int.from_bytes(content, "little")
    return 0
