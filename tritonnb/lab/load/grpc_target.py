"""The gRPC targets of a load, for the server of this process or any other server of the v2 protocol.

There is one call for each request, or one stream for each request to a decoupled model.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonnb.client.address import ModelAddress
from tritonnb.client.infer_requests import grpc_message
from tritonnb.client.options import is_from_no_server
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.load.examples import Tensors
from tritonnb.lab.load.targets import CANCELLED, TOKEN_COUNT, Parameters, PendingRequest, RemoteTarget


class GrpcTarget(RemoteTarget[service_pb2.ModelInferRequest]):
    """A model reached over gRPC: one channel, and a ``ModelInfer`` call per request."""

    def __init__(self, model: ModelAddress, config: pb.ModelConfig) -> None:
        super().__init__(model, config)
        self._version = model.version
        server = model.server
        self._channel = server.access.channel(server.scheme, server.authority)
        self._metadata = server.access.metadata
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def abort(self, pending: PendingRequest) -> None:
        """Cancel the call."""
        assert isinstance(pending.handle, grpc.Future)
        pending.handle.cancel()

    def close(self) -> None:
        """Close the channel, which cancels the calls in flight."""
        self._channel.close()

    def begin(self, pending: PendingRequest) -> None:
        """Begin the call."""
        pending.handle = call = self._stub.ModelInfer.future(self.request(pending), metadata=self._metadata)
        call.add_done_callback(lambda done: self._done(pending, done))

    def _done(self, pending: PendingRequest, call: grpc.Future, error: str = "") -> None:
        """Complete the request with the status of its call, or with another error; called on a gRPC thread."""
        now = time.monotonic_ns()
        if call.code() is not grpc.StatusCode.OK:
            error = call.details() or call.code().name
        cancelled = call.code() is grpc.StatusCode.CANCELLED
        self.complete(pending, now, CANCELLED if cancelled else error, is_connected=not is_from_no_server(call))

    def encode(self, inputs: Tensors, parameters: Parameters) -> service_pb2.ModelInferRequest:
        """Return the message of a request."""
        return grpc_message(self.spec.name, self._version, self.tensors(inputs), parameters)


class GrpcStreamTarget(GrpcTarget):
    """A decoupled model reached over gRPC: one channel, and a ``ModelStreamInfer`` call per request.

    A dedicated stream can be cancelled without the others, and ends after the last response of its request.
    """

    def begin(self, pending: PendingRequest) -> None:
        """Begin the call, and receive its responses on a thread."""
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
