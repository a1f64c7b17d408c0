"""What each flag of ``tritonnb serve`` is for, as ``--help`` tells it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from tritonnb.cli import flag_values

#: By flag, without the dashes.
HELP: Mapping[str, str] = {
    "model-repository": "a directory of models; may be given several times",
    "model-control-mode": "none: serve every model; explicit: only --load-model, and what clients load; "
    "poll: follow what changes on disk",
    "repository-poll-secs": "how often poll looks, in seconds; 0 for never",
    "allow-file-override": "whether load requests may bring model files (code); by default only from this machine",
    "load-model": "with explicit: a model to load at start, or * for all; may be given several times",
    "model-load-thread-count": "models that are loaded at the same time",
    "model-load-retry-count": "how often a model that cannot be loaded is tried again",
    "model-config-name": "use configs/NAME.pbtxt of a model where it has one",
    "disable-auto-complete-config": "take configurations as they are written",
    "strict-model-config": "older than --disable-auto-complete-config; true is the same",
    "strict-readiness": "ready only when every model is",
    "exit-on-error": "end if a model cannot be loaded at start",
    "id": "the server's name in its metadata",
    "exit-timeout-secs": "how long a stopping server waits for accepted requests, in seconds",
    "backend-directory": "a folder in it with a model.py is a backend of its name",
    "backend-config": "a setting of a backend, or of all of them if none is named; may be given several times",
    "rate-limit": "execution_count: instances share resources by their priorities; off: they do not",
    "rate-limit-resource": "how much there is of a resource; may be given several times",
    "cache-config": "keep answers of models with response_cache in so much memory",
    "response-cache-byte-size": "older than --cache-config",
    "allow-http": "serve HTTP",
    "http-address": "where to listen; 0.0.0.0 for every interface",
    "http-port": "port of HTTP",
    "reuse-http-port": "share the port with servers that say the same",
    "http-max-input-size": "largest body of a request, in bytes",
    "http-restricted-api": "answer these APIs only where the header KEY has this value",
    "http-header-forward-pattern": "headers with this in their names become request parameters",
    "http-allow-foreign": "answer requests whose Host or Origin is not this machine",
    "allow-grpc": "serve gRPC",
    "grpc-address": "where to listen; as HTTP unless given",
    "grpc-port": "port of gRPC",
    "reuse-grpc-port": "share the port with servers that say the same",
    "grpc-use-ssl": "TLS",
    "grpc-use-ssl-mutual": "TLS with certificates of the clients, too",
    "grpc-server-cert": "PEM file of the certificate",
    "grpc-server-key": "PEM file of the key",
    "grpc-root-cert": "PEM file of the authority that signed the clients' certificates",
    "grpc-keepalive-time": "milliseconds of silence after which a connection is pinged",
    "grpc-keepalive-timeout": "milliseconds that its answer may take",
    "grpc-keepalive-permit-without-calls": "ping also while no call is open",
    "grpc-http2-max-pings-without-data": "pings that may be sent without data between them",
    "grpc-http2-min-recv-ping-interval-without-data": "milliseconds between two pings of a client",
    "grpc-http2-max-ping-strikes": "pings that came too soon before a connection is closed; 0 for any number",
    "grpc-max-connection-age": "milliseconds that a connection may last; 0 for no limit",
    "grpc-max-connection-age-grace": "milliseconds that its calls are given then; 0 for no limit",
    "grpc-header-forward-pattern": "metadata with this in their keys become request parameters",
    "grpc-infer-response-compression-level": "none, low, medium or high",
    "grpc-restricted-protocol": "answer these RPCs only where the metadata KEY has this value",
    "allow-metrics": "serve Prometheus metrics",
    "allow-cpu-metrics": "publish those of the processor, too",
    "allow-gpu-metrics": "publish those of GPUs, too",
    "metrics-address": "where to listen; as HTTP unless given",
    "metrics-port": "port of the metrics",
    "metrics-config": "a setting of the metrics, such as summary_latencies=true; may be given several times",
    "log-verbose": "0 for nothing more, 1 and above for details",
    "log-info": "log what happens",
    "log-warning": "log warnings",
    "log-error": "log errors",
    "log-format": "default or ISO8601",
    "log-file": "write the log there instead of to the terminal",
    "trace-config": "what is traced: level=TIMESTAMPS, rate=1, triton,file=PATH, mode=opentelemetry, ...; "
    "may be given several times",
}

#: What stands for a value of each kind.
_PLACEHOLDERS = {flag_values.boolean: "BOOL", flag_values.integer: "N", flag_values.number: "NUMBER"}


def add_flag(parser: argparse.ArgumentParser, *names: str, **options: Any) -> None:
    """Add a flag with its words, and what it is by default.

    Parameters
    ----------
    parser : ArgumentParser
    *names : str
        The flag, the newest name first.
    **options
        As for `argparse.ArgumentParser.add_argument`. Where ``help`` is not among them, it is `HELP`.
    """
    words = options.pop("help", None) or HELP[names[0].removeprefix("--")]
    default = options.get("default")
    if default not in (None, "", []):
        shown = str(default).lower() if isinstance(default, bool) else default
        words += f"; {shown} by default"
    if "metavar" not in options and options.get("type") in _PLACEHOLDERS:
        options["metavar"] = _PLACEHOLDERS[options["type"]]
    parser.add_argument(*names, help=words.replace("%", "%%"), **options)
