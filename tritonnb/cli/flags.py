"""The flags of ``tritonnb serve``: those of ``tritonserver``, and those for Ray.

A command line for Triton works for this server, too: flags for features that it does not have (memory pools, thread
counts, library directories) are checked and have no effect.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from tritonnb.cli import flag_values
from tritonnb.core.suggestions import did_you_mean
from tritonnb.endpoints.endpoint_set import DEFAULT_PORT
from tritonnb.endpoints.grpc.options import COMPRESSION_LEVELS, GrpcOptions
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.runtime.options import CONTROL_MODES, RATE_LIMITS

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
    "isolate-models": "models whose instances run in dedicated processes, or * for all; may be repeated",
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

#: Flags without effect here, with the parsers of their values.
WITHOUT_EFFECT: Mapping[str, Callable[[str], object]] = {
    "buffer-manager-thread-count": flag_values.integer,
    "cache-directory": str,
    "cuda-memory-pool-byte-size": flag_values.pair(flag_values.integer, flag_values.integer),
    "cuda-virtual-address-size": flag_values.pair(flag_values.integer, flag_values.integer),
    "enable-peer-access": flag_values.boolean,
    "grpc-infer-allocation-pool-size": flag_values.integer,
    "grpc-infer-thread-count": flag_values.grpc_infer_thread_count,
    "grpc-max-response-pool-size": flag_values.positive("grpc-max-response-pool-size"),
    "host-policy": flag_values.host_policy,
    "http-thread-count": flag_values.integer,
    "metrics-interval-ms": flag_values.integer,
    "min-supported-compute-capability": flag_values.number,
    "model-load-gpu-limit": flag_values.gpu_limit,
    "pinned-memory-pool-byte-size": flag_values.integer,
    "repoagent-directory": str,
    "sagemaker-port": flag_values.integer,
    "sagemaker-safe-port-range": str,
    "sagemaker-thread-count": flag_values.integer,
    "vertex-ai-default-model": str,
    "vertex-ai-port": flag_values.integer,
    "vertex-ai-thread-count": flag_values.integer,
}
#: Features of Triton that are not supported: their flags accept only the value that disables them.
_NOT_BUILT = {
    "allow-sagemaker": (False, "the Sagemaker endpoint is not supported"),
    "allow-vertex-ai": (False, "the Vertex AI endpoint is not supported"),
    "model-namespacing": (False, "models of one name in several repositories are not supported"),
}
#: Flags that need ``--ray``.
RAY_FLAGS = ("address", "replicas", "every-node")
#: gRPC options whose flags have other names or value formats.
_OTHER_GRPC_OPTIONS = ("restricted_protocol", "infer_response_compression_level", "reuse_port", "transport")
#: Deprecated flags, and the trace setting that each of them sets.
OLD_TRACE_FLAGS = {
    "trace-file": "triton,file",
    "trace-level": "level",
    "trace-rate": "rate",
    "trace-count": "count",
    "trace-log-frequency": "triton,log-frequency",
}


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


class FlagParser(argparse.ArgumentParser):
    """A command-line parser with Triton's rules and error messages."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line; unlike with argparse, the value of a flag may begin with a dash."""
        remaining = list(sys.argv[1:] if args is None else args)
        joined: list[str] = []
        while remaining:
            argument = remaining.pop(0)
            action = self._option_string_actions.get(argument)
            takes_value = action is not None and action.nargs is None
            joined.append(f"{argument}={remaining.pop(0)}" if takes_value and remaining else argument)
        if self._subparsers is None:  # else the flags are those of the command
            self._refuse_unknown(joined)
        return super().parse_known_args(joined, namespace)

    def _refuse_unknown(self, arguments: Sequence[str]) -> None:
        """Report a misspelled flag, rather than a required one that is missing because of it."""
        for argument in itertools.takewhile(lambda argument: argument != "--", arguments):
            flag, known = argument.partition("=")[0], self._option_string_actions
            if flag.startswith("--") and not any(option.startswith(flag) for option in known):
                self.error(f"unrecognized arguments: {argument}{did_you_mean(flag, known)}")

    def error(self, message: str) -> NoReturn:
        """Print which flag is invalid, and exit."""
        bad = re.match(r"argument (--[\w-]+)[^:]*: (.*)", message, re.DOTALL)
        text = f'Bad option: "{bad[1]}".\n{bad[2]}' if bad else message
        self.exit(1, f"Usage: {self.prog} [options]; {self.prog} --help lists them\n{text}\n")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``tritonnb serve``."""
    parser.usage = f"{parser.prog} --model-repository PATH [options]"
    add = functools.partial(add_flag, parser)
    _add_repository_flags(add)
    add("--id", default="triton")
    add("--exit-timeout-secs", type=flag_values.integer, default=30)
    add("--backend-directory", type=Path, metavar="PATH")
    add("--backend-config", action="append", default=[], type=flag_values.backend_setting)
    add("--rate-limit", type=flag_values.choice("rate-limit", *RATE_LIMITS), default="off")
    add("--rate-limit-resource", action="append", default=[], type=flag_values.resource, metavar="NAME:COUNT[:DEVICE]")
    add("--cache-config", action="append", default=[], type=flag_values.cache_setting, metavar="local,size=BYTES")
    add("--response-cache-byte-size", type=flag_values.integer)
    _add_endpoint_flags(add)
    _add_ray_flags(add)
    add("--log-verbose", type=flag_values.verbosity, default=0)
    for level in ("info", "warning", "error"):
        add(f"--log-{level}", type=flag_values.boolean, default=True)
    add("--log-format", type=flag_values.log_format, default="default")
    add("--log-file", default="")
    add("--trace-config", action="append", default=[], type=flag_values.trace_setting, metavar="[MODE,]SETTING=VALUE")
    for flag, setting in OLD_TRACE_FLAGS.items():
        add(f"--{flag}", action="append", default=[], help=f"older than --trace-config={setting}=VALUE")
    for flag, (wanted, reason) in _NOT_BUILT.items():
        metavar = str(wanted).lower()
        add(f"--{flag}", type=flag_values.only(wanted, reason), default=wanted, metavar=metavar, help=reason)
    for flag, kind in WITHOUT_EFFECT.items():
        add(f"--{flag}", type=kind, action="append", help="has no effect here")


def _add_repository_flags(add: Callable[..., object]) -> None:
    add("--model-repository", "--model-store", action="append", type=Path, required=True, metavar="PATH")
    add("--model-control-mode", type=flag_values.choice("model-control-mode", *CONTROL_MODES), default="none")
    add("--repository-poll-secs", type=flag_values.number, default=15.0)
    add("--allow-file-override", type=flag_values.boolean)
    add("--allow-client-shm", type=flag_values.boolean, default=False)
    add("--load-model", action="append", default=[])
    add("--model-load-thread-count", type=flag_values.integer, default=4)
    add("--model-load-retry-count", type=flag_values.integer, default=0)
    add("--model-config-name", type=flag_values.config_name)
    add("--isolate-models", action="append", default=[], type=flag_values.names, metavar="NAME[,NAME...]")
    add("--disable-auto-complete-config", action="store_true")
    add("--strict-model-config", type=flag_values.boolean)
    add("--strict-readiness", type=flag_values.boolean, default=True)
    add("--exit-on-error", type=flag_values.boolean, default=True)


def _add_endpoint_flags(add: Callable[..., object]) -> None:
    add("--allow-http", type=flag_values.boolean, default=True)
    add("--http-address", default="127.0.0.1")
    add("--http-port", type=flag_values.integer, default=DEFAULT_PORT)
    add("--reuse-http-port", type=flag_values.boolean, default=False)
    add(
        "--http-max-input-size",
        type=flag_values.positive("http-max-input-size"),
        metavar="N",
        default=HttpOptions().max_input_size,
    )
    add("--http-restricted-api", action="append", default=[],
        type=flag_values.restriction("http-restricted-api", "api"), metavar="API[,API...]:KEY=VALUE")  # fmt: skip
    add("--http-header-forward-pattern", default="")
    add("--http-allow-foreign", type=flag_values.boolean, default=False)
    add("--allow-grpc", type=flag_values.boolean, default=True)
    add("--grpc-address", default="")
    add("--grpc-port", type=flag_values.integer, default=8001)
    add("--reuse-grpc-port", type=flag_values.boolean, default=False)
    for field in fields(GrpcOptions):
        if field.name not in _OTHER_GRPC_OPTIONS:
            kind: object = {"bool": flag_values.boolean, "int": flag_values.integer}.get(str(field.type), str)
            add(f"--grpc-{field.name.replace('_', '-')}", type=kind, default=field.default)
    add("--grpc-infer-response-compression-level", default="none",
        type=flag_values.choice("grpc_infer_response_compression_level", *COMPRESSION_LEVELS))  # fmt: skip
    add("--grpc-restricted-protocol", action="append", default=[],
        type=flag_values.restriction("grpc-restricted-protocol", "protocol"),
        metavar="PROTOCOL[,PROTOCOL...]:KEY=VALUE")  # fmt: skip
    add("--allow-metrics", type=flag_values.boolean, default=True)
    add("--allow-cpu-metrics", type=flag_values.boolean, default=True)
    add("--allow-gpu-metrics", type=flag_values.boolean, default=True)
    add("--metrics-address", default="")
    add("--metrics-port", type=flag_values.integer)
    add("--metrics-config", action="append", default=[], type=flag_values.metrics_setting)
    add("--allow-openai", type=flag_values.boolean, default=True)
    add("--openai-address", default="")
    add("--openai-port", type=flag_values.integer)
    add("--openai-api-key", default="", metavar="KEY")
    add(
        "--default-max-tokens",
        type=flag_values.positive("default-max-tokens"),
        metavar="N",
        default=OpenAiOptions().default_max_tokens,
    )


def _add_ray_flags(add: Callable[..., object]) -> None:
    add("--ray", action="store_true")
    add("--address", metavar="ADDRESS")
    add("--replicas", type=flag_values.positive("replicas"), metavar="N")
    add("--every-node", action="store_true")


def warnings(options: argparse.Namespace) -> list[str]:
    """Return the warnings about flags that are deprecated or have no effect."""
    messages = [
        f"'--{flag}' has been deprecated and will be removed in future releases. Please use '--trace-config "
        f"{setting}=<value>' instead."
        for flag, setting in OLD_TRACE_FLAGS.items()
        if flag_value(options, flag)
    ]
    if options.response_cache_byte_size is not None:
        messages.append(
            "'--response-cache-byte-size' has been deprecated! This will default to the 'local' cache implementation "
            "with the provided byte size for its config. Please use '--cache-config' instead. The equivalent "
            f"--cache-config CLI args would be: '--cache-config=local,size={options.response_cache_byte_size}'"
        )
    if options.strict_model_config is not None:
        messages.append(
            "'--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead."
        )
        if options.disable_auto_complete_config and not options.strict_model_config:
            messages.append(
                "Overriding deprecated '--strict-model-config' from False to True in favor of "
                "'--disable-auto-complete-config'!"
            )
    messages += [f"'--{flag}' has no effect here" for flag in WITHOUT_EFFECT if flag_value(options, flag) is not None]
    return messages


def flag_value(options: argparse.Namespace, flag: str) -> Any:
    """Return the value of a flag, which is named without the dashes."""
    return getattr(options, flag.replace("-", "_"))
