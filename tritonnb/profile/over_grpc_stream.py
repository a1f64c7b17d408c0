"""The gRPC target of a load of a decoupled model: a stream for each request, with a message for each response."""

from __future__ import annotations

import threading
import time
from typing import Any

import grpc

from tritonnb.profile.over_grpc import GrpcTarget
from tritonnb.profile.targets import TOKEN_COUNT, PendingRequest


class GrpcStreamTarget(GrpcTarget):
    """A decoupled model reached over gRPC: one channel, and a ``ModelStreamInfer`` call per request.

    A stream of its own can be cancelled without the others, and ends after the last response of its request.
    """

    def _call(self, pending: PendingRequest) -> None:
        requests = iter((self._request(pending),))
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
