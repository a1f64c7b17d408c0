"""The flags of ``tritonnb serve``, which are those of ``tritonserver``, and the options of `Server` that they set.

A command line that starts Triton starts this server, too: flags for things that this server does not have (memory
pools, thread counts, directories of libraries) are checked and have no effect.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from tritonnb.cli import flag_values
from tritonnb.cli.flag_help import add_flag
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.endpoints.grpc.options import COMPRESSION_LEVELS, GrpcOptions
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.listeners import DEFAULT_PORT
from tritonnb.endpoints.metrics.families import MetricsOptions
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.runtime.options import CONTROL_MODES, RATE_LIMITS
from tritonnb.telemetry.spans import BATCHING
from tritonnb.telemetry.trace_settings import OPENTELEMETRY, TraceOptions, levels_of

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
#: gRPC options whose flags have other names or value formats.
_OTHER_GRPC_OPTIONS = ("restricted_protocol", "infer_response_compression_level", "reuse_port", "transport")
#: Deprecated flags, and the trace setting that each of them sets.
_OLD_TRACE_FLAGS = {
    "trace-file": "triton,file",
    "trace-level": "level",
    "trace-rate": "rate",
    "trace-count": "count",
    "trace-log-frequency": "triton,log-frequency",
}


class FlagParser(argparse.ArgumentParser):
    """Parses a command line as Triton does, with its error messages."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line; unlike with argparse, the value of a flag may begin with a dash."""
        remaining = list(sys.argv[1:] if args is None else args)
        joined: list[str] = []
        while remaining:
            argument = remaining.pop(0)
            action = self._option_string_actions.get(argument)
            takes_value = action is not None and action.nargs is None
            joined.append(f"{argument}={remaining.pop(0)}" if takes_value and remaining else argument)
        return super().parse_known_args(joined, namespace)

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
    add("--log-verbose", type=flag_values.verbosity, default=0)
    for level in ("info", "warning", "error"):
        add(f"--log-{level}", type=flag_values.boolean, default=True)
    add("--log-format", type=flag_values.log_format, default="default")
    add("--log-file", default="")
    add("--trace-config", action="append", default=[], type=flag_values.trace_setting, metavar="[MODE,]SETTING=VALUE")
    for flag, setting in _OLD_TRACE_FLAGS.items():
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
    add("--metrics-port", type=flag_values.integer, default=8002)
    add("--metrics-config", action="append", default=[], type=flag_values.metrics_setting)
    add("--allow-openai", type=flag_values.boolean, default=True)
    add("--openai-address", default="")
    add("--openai-port", type=flag_values.integer)
    add("--openai-api-key", default="", metavar="KEY")


def warnings(options: argparse.Namespace) -> list[str]:
    """The warnings about flags that are deprecated or have no effect."""
    messages = [
        f"'--{flag}' has been deprecated and will be removed in future releases. Please use '--trace-config "
        f"{setting}=<value>' instead."
        for flag, setting in _OLD_TRACE_FLAGS.items()
        if _of(options, flag)
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
    messages += [f"'--{flag}' has no effect here" for flag in WITHOUT_EFFECT if _of(options, flag) is not None]
    return messages


def server_options(options: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `Server` that the flags set.

    Raises
    ------
    InvalidArgumentError
        If flags contradict each other.
    """
    _check(options)
    return {
        "model_repository": list(dict.fromkeys(options.model_repository)),
        "host": options.http_address if options.allow_http else "127.0.0.1",
        "port": options.http_port,
        "allow_http": options.allow_http,
        "http": _http_options(options),
        "grpc_port": options.grpc_port if options.allow_grpc else None,
        "grpc_host": options.grpc_address,
        "grpc": _grpc_options(options),
        "metrics_port": options.metrics_port if options.allow_metrics else None,
        "metrics_host": options.metrics_address,
        "metrics": _metrics_options(options),
        "openai_port": options.openai_port,
        "openai_host": options.openai_address,
        "openai": OpenAiOptions(options.allow_openai, options.openai_api_key),
        "server_id": options.id,
        "model_control_mode": options.model_control_mode,
        "repository_poll_secs": max(0, options.repository_poll_secs),
        "allow_file_override": _allows_files(options),
        "allow_client_shm": options.allow_client_shm,
        "load_models": options.load_model,
        "model_load_threads": options.model_load_thread_count,
        "model_load_retries": options.model_load_retry_count,
        "model_config_name": options.model_config_name or "",
        "auto_complete_config": not (options.disable_auto_complete_config or options.strict_model_config),
        "isolate": _isolate(options),
        "strict_readiness": options.strict_readiness,
        "backend_directory": options.backend_directory,
        "backend_config": _grouped(options.backend_config),
        "cache_config": _cache_config(options),
        "rate_limit": options.rate_limit,
        "rate_limit_resources": options.rate_limit_resource,
        "exit_timeout": max(0, options.exit_timeout_secs),
        "wait_for_sequences": True,
        "trace": _trace_options(options),
    }


def _check(options: argparse.Namespace) -> None:
    if options.load_model and options.model_control_mode != "explicit":
        raise InvalidArgumentError(
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
        )
    if options.response_cache_byte_size is not None and options.cache_config:
        raise InvalidArgumentError(
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide "
            "one or the other."
        )
    services = []
    if options.allow_http:
        services.append(("HTTP", options.http_address, options.http_port))
    if options.allow_grpc:
        services.append(("GRPC", options.grpc_address or options.http_address, options.grpc_port))
    if options.allow_metrics:
        services.append(("metrics", options.metrics_address or options.http_address, options.metrics_port))
    if options.allow_openai and options.openai_port is not None:
        services.append(("OpenAI", options.openai_address or options.http_address, options.openai_port))
    for index, (name, *place) in enumerate(services):
        for other, *elsewhere in services[index + 1 :]:
            if place == elsewhere and place[1] != 0:
                raise InvalidArgumentError(
                    f"The server cannot listen to {name} requests and {other} requests at the same address and port "
                    f"{place[0]}:{place[1]}"
                )


def _allows_files(options: argparse.Namespace) -> bool:
    if options.allow_file_override is not None:
        return bool(options.allow_file_override)
    return options.http_address in ("127.0.0.1", "::1", "localhost") and not options.http_allow_foreign


def _isolate(options: argparse.Namespace) -> bool | list[str]:
    models = [name for group in options.isolate_models for name in group]
    return True if "*" in models else models


def _cache_config(options: argparse.Namespace) -> dict[str, dict[str, str]]:
    if options.response_cache_byte_size is not None:
        return {"local": {"size": str(options.response_cache_byte_size)}}
    return _grouped(options.cache_config)


def _trace_options(options: argparse.Namespace) -> TraceOptions:
    """``--trace-config``: ``level``, ``rate``, ``count``, ``mode``; trace files, or the destination of spans."""
    settings = [(setting, value) for flag, setting in _OLD_TRACE_FLAGS.items() for value in _of(options, flag)]
    settings += [(f"{mode},{name}" if mode else name, value) for mode, name, value in options.trace_config]
    chosen: dict[str, Any] = {}
    levels: list[str] = []
    exporting: list[tuple[str, str]] = []
    batching: dict[str, str] = {}
    for setting, value in settings:
        try:
            if setting == "level":
                levels.append(flag_values.trace_level(value))
            elif setting in ("rate", "count"):
                chosen[setting] = flag_values.integer(value)
            elif setting == "triton,file":
                chosen["file"] = value
            elif setting == "triton,log-frequency":
                chosen["log_frequency"] = flag_values.integer(value)
            elif setting == "mode":
                chosen["mode"] = flag_values.trace_mode(value)
            elif setting in ("opentelemetry,url", "opentelemetry,resource"):
                exporting.append((setting.partition(",")[2], value))
            elif setting.removeprefix("opentelemetry,") in BATCHING:
                batching[setting.partition(",")[2]] = str(flag_values.integer(value))
            else:
                raise argparse.ArgumentTypeError(f"trace setting '{setting}={value}' is not supported")
        except argparse.ArgumentTypeError as error:
            raise InvalidArgumentError(f'Bad option: "--trace-config {setting}".\n{error}') from None
    off = "OFF" in levels
    if chosen.get("mode") == OPENTELEMETRY:
        defaults = {name: _batching_default(name) for name in BATCHING if name not in batching}
        chosen["exporting"] = (*exporting, *batching.items(), *defaults.items())
    trace = TraceOptions(levels=frozenset() if off else levels_of(levels) or frozenset(), **chosen)
    if trace.rate or trace.mode != OPENTELEMETRY:  # with a rate of 0, only requests that clients select are traced
        trace.check()
    return trace


def _batching_default(name: str) -> str:
    variable = f"OTEL_{name.upper()}"
    try:
        return str(flag_values.integer(os.environ.get(variable, BATCHING[name])))
    except argparse.ArgumentTypeError as error:
        raise InvalidArgumentError(f'Bad option: "{variable}".\n{error}') from None


def _http_options(options: argparse.Namespace) -> HttpOptions:
    return HttpOptions(
        max_input_size=options.http_max_input_size,
        reuse_port=options.reuse_http_port,
        allow_foreign=options.http_allow_foreign,
        restricted_api=_restrictions("api", options.http_restricted_api),
        header_forward_pattern=options.http_header_forward_pattern,
    )


def _grpc_options(options: argparse.Namespace) -> GrpcOptions:
    names = (field.name for field in fields(GrpcOptions) if field.name not in ("transport", "reuse_port"))
    chosen = {name: getattr(options, f"grpc_{name}") for name in names}
    chosen["reuse_port"] = options.reuse_grpc_port
    chosen["restricted_protocol"] = _restrictions("protocol", options.grpc_restricted_protocol)
    return GrpcOptions(**chosen)


def _restrictions(kind: str, groups: Sequence[list[tuple[str, str, str]]]) -> tuple[tuple[str, str, str], ...]:
    every = tuple(member for group in groups for member in group)
    names = [name for name, _, _ in every]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"restricted {kind} '{name}' can not be specified in multiple config groups")
    return every


def _metrics_options(options: argparse.Namespace) -> MetricsOptions:
    chosen: dict[str, Any] = {}
    for name, value in options.metrics_config:
        try:
            if name in ("counter_latencies", "summary_latencies", "histogram_latencies"):
                chosen[name] = flag_values.boolean(value)
            elif name == "summary_quantiles":
                chosen["quantiles"] = tuple(flag_values.number(part.partition(":")[0]) for part in value.split(","))
            else:
                raise InvalidArgumentError(f"Invalid metrics configuration key '{name}' specified")
        except argparse.ArgumentTypeError as error:
            raise InvalidArgumentError(f'Bad option: "--metrics-config {name}".\n{error}') from None
    return MetricsOptions(options.allow_cpu_metrics, options.allow_gpu_metrics, **chosen)


def _grouped(settings: Sequence[tuple[str, str, str]]) -> dict[str, dict[str, str]]:
    grouped: dict[str, dict[str, str]] = {}
    for group, name, value in settings:
        grouped.setdefault(group, {})[name] = value
    return grouped


def _of(options: argparse.Namespace, flag: str) -> Any:
    return getattr(options, flag.replace("-", "_"))
