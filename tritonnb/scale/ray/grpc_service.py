"""The gRPC service that Ray Serve's proxy listens for: the RPCs of Triton, with messages as bytes.

The proxy takes the methods from a function like this one and calls the method of the ingress deployment with the name
of the RPC. Without deserializers the messages pass through it unparsed.
"""

from __future__ import annotations

from typing import Any

import grpc

from tritonnb.endpoints.grpc.rpcs import HEALTH, HEALTH_PATH, MESSAGES_OF, SERVICE, STREAM_INFER

#: What ``gRPCOptions.grpc_servicer_functions`` needs.
SERVICER_FUNCTIONS = [f"{__name__}:{name}" for name in ("add_service", "add_health")]


def add_service(servicer: Any, server: Any) -> None:
    """Register ``inference.GRPCInferenceService``."""
    handlers = {
        name: (grpc.stream_stream_rpc_method_handler if name == STREAM_INFER else grpc.unary_unary_rpc_method_handler)(
            getattr(servicer, name)
        )
        for name in MESSAGES_OF
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def add_health(servicer: Any, server: Any) -> None:
    """Register ``grpc.health.v1.Health``."""
    service = HEALTH_PATH.split("/")[1]
    handlers = {HEALTH: grpc.unary_unary_rpc_method_handler(getattr(servicer, HEALTH))}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
