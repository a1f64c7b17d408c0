"""The help texts of the flags of ``tritonnb serve``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from tritonnb.cli import flag_values

#: The help texts by flag, without the dashes.
HELP: Mapping[str, str] = {
    "model-repository": "a directory of models; may be repeated",
    "model-control-mode": "none: serve every model; explicit: only --load-model, and models that clients load; "
    "poll: follow changes on disk",
    "repository-poll-secs": "seconds between two checks in mode poll; 0 for none",
    "allow-file-override": "whether load requests may contain model files (code); by default only from this machine",
    "allow-client-shm": "whether clients may register shared memory regions for their tensors",
    "load-model": "in mode explicit: a model to load at start, or * for all; may be repeated",
    "model-load-thread-count": "number of models to load at the same time",
    "model-load-retry-count": "number of retries for a model that fails to load",
    "model-config-name": "use configs/NAME.pbtxt of a model if it exists",
    "isolate-models": "models whose instances run in processes of their own, or * for all; may be repeated",
    "disable-auto-complete-config": "do not complete configurations automatically",
    "strict-model-config": "deprecated form of --disable-auto-complete-config",
    "strict-readiness": "report readiness only when every model is ready",
    "exit-on-error": "exit if a model fails to load at start",
    "id": "the name of the server in its metadata",
    "exit-timeout-secs": "seconds that a stopping server waits for accepted requests",
    "backend-directory": "a directory of backends written in Python: NAME/model.py is the backend NAME",
    "backend-config": "a setting of a backend, or of all backends if none is named; may be repeated",
    "rate-limit": "execution_count: instances share resources by priority; off: no rate limiting",
    "rate-limit-resource": "the amount of a resource; may be repeated",
    "cache-config": "the size of the cache for models with response_cache, in bytes",
    "response-cache-byte-size": "deprecated form of --cache-config, in bytes",
    "allow-http": "serve HTTP",
    "http-address": "address to listen on; 0.0.0.0 for every interface",
    "http-port": "HTTP port",
    "reuse-http-port": "share the port with other servers that set this flag",
    "http-max-input-size": "maximum size of a request body, in bytes",
    "http-restricted-api": "accept these APIs only if the header KEY has this value",
    "http-header-forward-pattern": "headers whose names match this pattern become request parameters",
    "http-allow-foreign": "accept requests whose Host or Origin is another machine",
    "allow-grpc": "serve gRPC",
    "grpc-address": "address to listen on; by default that of HTTP",
    "grpc-port": "gRPC port",
    "reuse-grpc-port": "share the port with other servers that set this flag",
    "grpc-use-ssl": "use TLS",
    "grpc-use-ssl-mutual": "use TLS with client certificates",
    "grpc-server-cert": "PEM file of the server certificate",
    "grpc-server-key": "PEM file of the server key",
    "grpc-root-cert": "PEM file of the authority that signed the clients' certificates",
    "grpc-keepalive-time": "milliseconds without data after which a ping is sent",
    "grpc-keepalive-timeout": "milliseconds to wait for the answer to a ping",
    "grpc-keepalive-permit-without-calls": "send pings even without open calls",
    "grpc-http2-max-pings-without-data": "maximum number of pings without data between them",
    "grpc-http2-min-recv-ping-interval-without-data": "minimum milliseconds between two pings of a client",
    "grpc-http2-max-ping-strikes": "number of early pings after which a connection is closed; 0 for no limit",
    "grpc-max-connection-age": "maximum milliseconds that a connection may last; 0 for no limit",
    "grpc-max-connection-age-grace": "milliseconds that its open calls may still take; 0 for no limit",
    "grpc-header-forward-pattern": "metadata whose keys match this pattern become request parameters",
    "grpc-infer-response-compression-level": "none, low, medium or high",
    "grpc-restricted-protocol": "accept these RPCs only if the metadata KEY has this value",
    "allow-metrics": "serve Prometheus metrics",
    "allow-cpu-metrics": "publish CPU metrics",
    "allow-gpu-metrics": "publish GPU metrics",
    "metrics-address": "address to listen on; by default that of HTTP",
    "metrics-port": "metrics port; default 8002",
    "metrics-config": "a setting of the metrics, such as summary_latencies=true; may be repeated",
    "allow-openai": "serve OpenAI's API",
    "openai-address": "address to listen on if --openai-port is set; by default that of HTTP",
    "openai-port": "port of OpenAI's API; by default the HTTP port, under /v1",
    "openai-api-key": "require this key from users of OpenAI's API",
    "default-max-tokens": "the max_tokens of requests to OpenAI's API that set none",
    "ray": "serve with Ray Serve: every replica is a whole server",
    "address": "with --ray: the Ray cluster, such as auto or HOST:6379; by default one is started",
    "replicas": "with --ray: the number of servers; default 1",
    "every-node": "with --ray: listen on every node, not only on the head node",
    "log-verbose": "0 for no verbose messages, 1 and above for verbose messages",
    "log-info": "log messages of level INFO",
    "log-warning": "log messages of level WARNING",
    "log-error": "log messages of level ERROR",
    "log-format": "default or ISO8601",
    "log-file": "write the log to this file instead of the terminal",
    "trace-config": "trace settings: level=TIMESTAMPS, rate=1, triton,file=PATH, mode=opentelemetry, ...; "
    "may be repeated",
}

#: The placeholder for values of each type.
_PLACEHOLDERS = {flag_values.boolean: "BOOL", flag_values.integer: "N", flag_values.number: "NUMBER"}


def add_flag(parser: argparse.ArgumentParser, *names: str, **options: Any) -> None:
    """Add a flag with its help text and default.

    Parameters
    ----------
    parser : ArgumentParser
    *names : str
        The names of the flag, the current one first.
    **options
        As for `argparse.ArgumentParser.add_argument`. By default ``help`` is taken from `HELP`.
    """
    text = options.pop("help", None) or HELP[names[0].removeprefix("--")]
    default = options.get("default")
    if default not in (None, "", []):
        shown = str(default).lower() if isinstance(default, bool) else default
        text += f"; default {shown}"
    if "metavar" not in options and options.get("type") in _PLACEHOLDERS:
        options["metavar"] = _PLACEHOLDERS[options["type"]]
    parser.add_argument(*names, help=text.replace("%", "%%"), **options)
