"""The flags of ``tritonnb serve``: the flags of ``tritonserver``, and some for Ray.

A command line for Triton also works for this server: flags for features that it does not have (memory pools, thread
counts, library directories) are checked and have no effect.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tritonnb.cli import flag_values
from tritonnb.cli.flag_values import boolean, integer, number
from tritonnb.core.suggestions import did_you_mean
from tritonnb.endpoints.endpoint_set import DEFAULT_PORTS
from tritonnb.endpoints.grpc.options import COMPRESSION_LEVELS, GrpcOptions
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.engine.options import CONTROL_MODES, RATE_LIMITS

#: The placeholder for values of each type.
_PLACEHOLDERS = {boolean: "BOOL", integer: "N", number: "NUMBER", Path: "PATH"}

#: Flags without effect here, with the parsers of their values.
WITHOUT_EFFECT: Mapping[str, Callable[[str], object]] = {
    "buffer-manager-thread-count": integer,
    "cache-directory": str,
    "cuda-memory-pool-byte-size": partial(flag_values.pair, integer),
    "cuda-virtual-address-size": partial(flag_values.pair, integer),
    "enable-peer-access": boolean,
    "grpc-infer-allocation-pool-size": integer,
    "grpc-infer-thread-count": flag_values.grpc_infer_thread_count,
    "grpc-max-response-pool-size": partial(flag_values.positive, "grpc-max-response-pool-size"),
    "host-policy": flag_values.host_policy,
    "http-thread-count": integer,
    "metrics-interval-ms": integer,
    "min-supported-compute-capability": number,
    "model-load-gpu-limit": flag_values.gpu_limit,
    "pinned-memory-pool-byte-size": integer,
    "repoagent-directory": str,
    "sagemaker-port": integer,
    "sagemaker-safe-port-range": str,
    "sagemaker-thread-count": integer,
    "vertex-ai-default-model": str,
    "vertex-ai-port": integer,
    "vertex-ai-thread-count": integer,
}
#: Features of Triton that are not supported: their flags accept only false, which disables them.
_NOT_BUILT = {
    "allow-sagemaker": "the Sagemaker endpoint is not supported",
    "allow-vertex-ai": "the Vertex AI endpoint is not supported",
    "model-namespacing": "models of one name in several repositories are not supported",
}
#: Flags that need ``--ray``.
RAY_FLAGS = ("address", "replicas", "every-node")
#: The flags with the names, types and defaults of `GrpcOptions`.
_GRPC_OPTIONS = {
    "use_ssl": "use TLS",
    "use_ssl_mutual": "use TLS with client certificates",
    "server_cert": "PEM file of the server certificate",
    "server_key": "PEM file of the server key",
    "root_cert": "PEM file of the authority that signed the clients' certificates",
    "keepalive_time": "milliseconds without data after which a ping is sent",
    "keepalive_timeout": "milliseconds to wait for the answer to a ping",
    "keepalive_permit_without_calls": "send pings even without open calls",
    "http2_max_pings_without_data": "maximum number of pings without data between them",
    "http2_min_recv_ping_interval_without_data": "minimum milliseconds between two pings of a client",
    "http2_max_ping_strikes": "number of early pings after which a connection is closed; 0 for no limit",
    "max_connection_age": "maximum milliseconds that a connection may last; 0 for no limit",
    "max_connection_age_grace": "milliseconds that its open calls may still take; 0 for no limit",
    "header_forward_pattern": "metadata whose keys match this pattern become request parameters",
}
#: Deprecated flags, and the trace setting that each of them sets.
OLD_TRACE_FLAGS = {
    "trace-file": "triton,file",
    "trace-level": "level",
    "trace-rate": "rate",
    "trace-count": "count",
    "trace-log-frequency": "triton,log-frequency",
}


def _add_flag(
    parser: argparse.ArgumentParser,
    name: str,
    kind: Callable[[str], object] | None,
    default: object,
    text: str,
    *,
    alias: str = "",
    **options: Any,
) -> None:
    """Add a flag.

    Parameters
    ----------
    parser : ArgumentParser
    name : str
        Without the dashes.
    kind : callable or None
        Parses the value; None for a flag without a value.
    default : object
        An empty list for a flag that may be repeated.
    text : str
        The help text; the default is appended.
    alias : str, optional
        Another name.
    **options
        As for `argparse.ArgumentParser.add_argument`.
    """
    if kind is None:
        options["action"] = "store_true"
    else:
        options |= {"type": kind, "default": default}
        options.setdefault("metavar", _PLACEHOLDERS.get(kind, name.replace("-", "_").upper()))
    if default == []:
        options["action"] = "append"
    elif default not in (None, ""):
        text += f"; default {str(default).lower() if isinstance(default, bool) else default}"
    names = [f"--{name}", f"--{alias}"] if alias else [f"--{name}"]
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
        if self._subparsers is None:  # else the flags belong to the command
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


# fmt: off
def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``tritonnb serve``; a flag whose destination is a keyword of `Server` sets it."""
    parser.usage = f"{parser.prog} --model-repository PATH [options]"
    add = partial(_add_flag, parser)
    _add_repository_flags(add)
    add("id", str, "triton", "the name of the server in its metadata", dest="server_id")
    add("exit-timeout-secs", integer, 30, "seconds that a stopping server waits for accepted requests")
    add("backend-directory", Path, None,
        "a directory of backends: NAME/model.py or NAME/libtriton_NAME.so is the backend NAME; default "
        "/opt/tritonserver/backends")
    add("backend-config", partial(flag_values.optionally_named, "backend-config", "backend", "backend name"), [],
        "a setting of a backend, or of all backends if none is named; may be repeated")
    add("rate-limit", partial(flag_values.choice, "rate-limit", RATE_LIMITS), "off",
        "execution_count: instances share resources by priority; off: no rate limiting")
    add("rate-limit-resource", flag_values.resource, [], "the amount of a resource; may be repeated",
        dest="rate_limit_resources", metavar="NAME:COUNT[:DEVICE]")
    add("cache-config", flag_values.cache_setting, [], "the size of the cache for models with response_cache, in bytes",
        metavar="local,size=BYTES")
    add("response-cache-byte-size", integer, None, "deprecated form of --cache-config, in bytes")
    _add_http_flags(add)
    _add_grpc_flags(add)
    _add_metrics_flags(add)
    _add_openai_flags(add)
    _add_ray_flags(add)
    add("log-verbose", flag_values.verbosity, 0, "0 for no verbose messages, 1 and above for verbose messages",
        dest="log_verbose_level")
    for level in ("info", "warning", "error"):
        add(f"log-{level}", boolean, True, f"log messages of level {level.upper()}")
    add("log-format", flag_values.log_format, "default", "default or ISO8601")
    add("log-file", str, "", "write the log to this file instead of the terminal")
    add("trace-config", partial(flag_values.optionally_named, "trace-config", "trace mode", "trace mode"), [],
        "trace settings: level=TIMESTAMPS, rate=1, triton,file=PATH, mode=opentelemetry, ...; may be repeated",
        metavar="[MODE,]SETTING=VALUE")
    for flag, setting in OLD_TRACE_FLAGS.items():
        add(flag, str, [], f"older than --trace-config={setting}=VALUE")
    for flag, reason in _NOT_BUILT.items():
        add(flag, partial(flag_values.only_false, reason), False, reason, metavar="false")
    for flag, kind in WITHOUT_EFFECT.items():
        add(flag, kind, None, "has no effect here", action="append")


def _add_repository_flags(add: Callable[..., object]) -> None:
    add("model-repository", Path, [], "a directory of models; may be repeated", alias="model-store", required=True)
    add("model-control-mode", partial(flag_values.choice, "model-control-mode", CONTROL_MODES), "none",
        "none: serve every model; explicit: only --load-model, and models that clients load; poll: follow changes on "
        "disk")
    add("repository-poll-secs", number, 15.0, "seconds between two checks in mode poll; 0 for none")
    add("allow-file-override", boolean, None,
        "whether load requests may contain model files (code); by default only from this machine")
    add("allow-client-shm", boolean, False, "whether clients may register shared memory regions for their tensors")
    add("load-model", str, [], "in mode explicit: a model to load at start, or * for all; may be repeated",
        dest="load_models")
    add("model-load-thread-count", integer, 4, "number of models to load at the same time", dest="model_load_threads")
    add("model-load-retry-count", integer, 0, "number of retries for a model that fails to load",
        dest="model_load_retries")
    add("model-config-name", flag_values.config_name, None, "use configs/NAME.pbtxt of a model if it exists")
    add("isolate-models", flag_values.names, [],
        "models whose instances run in dedicated processes, or * for all; may be repeated", metavar="NAME[,NAME...]")
    add("disable-auto-complete-config", None, None, "do not complete configurations automatically")
    add("strict-model-config", boolean, None, "deprecated form of --disable-auto-complete-config")
    add("strict-readiness", boolean, True, "report readiness only when every model is ready")
    add("exit-on-error", boolean, True, "exit if a model fails to load at start")


def _add_http_flags(add: Callable[..., object]) -> None:
    add("allow-http", boolean, True, "serve HTTP")
    add("http-address", str, "127.0.0.1", "address to listen on; 0.0.0.0 for every interface")
    add("http-port", integer, DEFAULT_PORTS[0], "HTTP port", dest="port")
    add("reuse-http-port", boolean, False, "share the port with other servers that set this flag")
    add("http-max-input-size", partial(flag_values.positive, "http-max-input-size"), HttpOptions().max_input_size,
        "maximum size of a request body, in bytes", metavar="N")
    add("http-restricted-api", partial(flag_values.restriction, "http-restricted-api", "api"), [],
        "accept these APIs only if the header KEY has this value", metavar="API[,API...]:KEY=VALUE")
    add("http-header-forward-pattern", str, "", "headers whose names match this pattern become request parameters")
    add("http-allow-foreign", boolean, False, "accept requests whose Host or Origin is another machine")


def _add_grpc_flags(add: Callable[..., object]) -> None:
    add("allow-grpc", boolean, True, "serve gRPC")
    add("grpc-address", str, "", "address to listen on; by default that of HTTP", dest="grpc_host")
    add("grpc-port", integer, 8001, "gRPC port")
    add("reuse-grpc-port", boolean, False, "share the port with other servers that set this flag")
    defaults = GrpcOptions()
    for option, text in _GRPC_OPTIONS.items():
        default = getattr(defaults, option)
        kind = {bool: boolean, int: integer}.get(type(default), str)
        add(f"grpc-{option.replace('_', '-')}", kind, default, text)
    add("grpc-infer-response-compression-level",
        partial(flag_values.choice, "grpc_infer_response_compression_level", COMPRESSION_LEVELS), "none",
        "none, low, medium or high")
    add("grpc-restricted-protocol", partial(flag_values.restriction, "grpc-restricted-protocol", "protocol"), [],
        "accept these RPCs only if the metadata KEY has this value", metavar="PROTOCOL[,PROTOCOL...]:KEY=VALUE")


def _add_metrics_flags(add: Callable[..., object]) -> None:
    add("allow-metrics", boolean, True, "serve Prometheus metrics")
    add("allow-cpu-metrics", boolean, True, "publish CPU metrics")
    add("allow-gpu-metrics", boolean, True, "publish GPU metrics")
    add("metrics-address", str, "", "address to listen on; by default that of HTTP", dest="metrics_host")
    add("metrics-port", integer, None, "metrics port; default 8002")
    add("metrics-config", flag_values.metrics_setting, [],
        "a setting of the metrics, such as summary_latencies=true; may be repeated")


def _add_openai_flags(add: Callable[..., object]) -> None:
    add("allow-openai", boolean, True, "serve OpenAI's API")
    add("openai-address", str, "", "address to listen on if --openai-port is set; by default that of HTTP",
        dest="openai_host")
    add("openai-port", integer, None, "port of OpenAI's API; by default the HTTP port, under /v1")
    add("openai-api-key", str, "", "require this key from users of OpenAI's API", metavar="KEY")
    add("default-max-tokens", partial(flag_values.positive, "default-max-tokens"), OpenAiOptions().default_max_tokens,
        "the max_tokens of requests to OpenAI's API that set none", metavar="N")


def _add_ray_flags(add: Callable[..., object]) -> None:
    add("ray", None, None, "serve with Ray Serve: every replica is a whole server")
    add("address", str, None, "with --ray: the Ray cluster, such as auto or HOST:6379; by default one is started",
        metavar="ADDRESS")
    add("replicas", partial(flag_values.positive, "replicas"), None, "with --ray: the number of servers; default 1",
        metavar="N")
    add("every-node", None, None, "with --ray: listen on every node, not only on the head node")
# fmt: on


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
    _, ignored = flag_values.metrics_choices(options.metrics_config)
    messages += [f"'--metrics-config={setting}' has no effect" for setting in ignored]
    return messages


def flag_value(options: argparse.Namespace, flag: str) -> Any:
    """Return the value of a flag, which is named without the dashes."""
    return getattr(options, flag.replace("-", "_"))
