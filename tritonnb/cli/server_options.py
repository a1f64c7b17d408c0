"""The options of `Server` that the flags of ``tritonnb serve`` set."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import fields
from itertools import combinations
from typing import Any, TypeVar, get_type_hints

from tritonnb.cli import flag_values
from tritonnb.cli.flags import OLD_TRACE_FLAGS, RAY_FLAGS, flag_value
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.metrics.families import MetricsOptions
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.server.options import KeywordsWithPort
from tritonnb.telemetry.log_settings import LogSettings
from tritonnb.telemetry.spans import BATCHING
from tritonnb.telemetry.trace_settings import OPENTELEMETRY, TraceOptions, levels_of

Options = TypeVar("Options", HttpOptions, GrpcOptions)

_METRICS_PORT = 8002
#: Options of the endpoints that no flag sets, or one with another name.
_WITHOUT_FLAG = {"transport", "max_body_size", "max_unread_size", "allowed_hosts", "reuse_port"}
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def server_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `Server` that the flags set.

    Raises
    ------
    InvalidArgumentError
        If flags contradict each other.
    """
    _check(options)
    return {
        **{name: getattr(options, name) for name in get_type_hints(KeywordsWithPort) if name in options},
        "model_repository": list(dict.fromkeys(options.model_repository)),
        "host": options.http_address if options.allow_http else "127.0.0.1",
        "http": _endpoint_options(options, HttpOptions, "http", "api"),
        "grpc_port": options.grpc_port if options.allow_grpc else None,
        "grpc": _endpoint_options(options, GrpcOptions, "grpc", "protocol"),
        "metrics_port": _metrics_port(options) if options.allow_metrics else None,
        "metrics": _metrics_options(options),
        "openai": OpenAiOptions(options.allow_openai, options.openai_api_key, options.default_max_tokens),
        "repository_poll_secs": max(0, options.repository_poll_secs),
        "allow_file_override": _allows_files(options),
        "model_config_name": options.model_config_name or "",
        "auto_complete_config": not (options.disable_auto_complete_config or options.strict_model_config),
        "isolate": _isolate(options),
        "backend_config": _grouped(options.backend_config),
        "cache_config": _cache_config(options),
        "exit_timeout": max(0, options.exit_timeout_secs),
        "wait_for_sequences": True,
        "trace": _trace_options(options),
    }


def log_settings(options: argparse.Namespace) -> LogSettings:
    """Return the log settings that the flags set."""
    return LogSettings(**{field.name: getattr(options, field.name) for field in fields(LogSettings)})


def _check(options: argparse.Namespace) -> None:
    for flag in RAY_FLAGS:
        if not options.ray and flag_value(options, flag):
            raise InvalidArgumentError(f"--{flag} has no effect without --ray: add --ray, or leave it out")
    if options.openai_host and options.openai_port is None:
        raise InvalidArgumentError("--openai-address has no effect without --openai-port: add it, or leave both out")
    if options.load_models and options.model_control_mode != "explicit":
        raise InvalidArgumentError(
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
        )
    if options.response_cache_byte_size is not None and options.cache_config:
        raise InvalidArgumentError(
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide "
            "one or the other."
        )
    address = options.http_address
    services = [
        ("HTTP", options.allow_http, address, options.port),
        ("GRPC", options.allow_grpc, options.grpc_host or address, options.grpc_port),
        ("metrics", options.allow_metrics and not options.ray, options.metrics_host or address, _metrics_port(options)),
        ("OpenAI", options.allow_openai, options.openai_host or address, options.openai_port),  # None: no port
    ]
    for (name, is_served, *place), (other, is_other_served, *elsewhere) in combinations(services, 2):
        if is_served and is_other_served and place == elsewhere and place[1] != 0:
            raise InvalidArgumentError(
                f"The server cannot listen to {name} requests and {other} requests at the same address and port "
                f"{place[0]}:{place[1]}"
            )


def _metrics_port(options: argparse.Namespace) -> int:
    return _METRICS_PORT if options.metrics_port is None else options.metrics_port


def _allows_files(options: argparse.Namespace) -> bool:
    """Return whether load requests may contain files; by default if all endpoints that accept them are local."""
    if options.allow_file_override is not None:
        return bool(options.allow_file_override)
    addresses = [options.http_address] if options.allow_http else []
    if options.allow_grpc:
        addresses.append(options.grpc_host or options.http_address)
    return all(address in _LOOPBACK for address in addresses) and not options.http_allow_foreign


def _isolate(options: argparse.Namespace) -> bool | list[str]:
    models = [name for group in options.isolate_models for name in group]
    return True if "*" in models else models


def _cache_config(options: argparse.Namespace) -> dict[str, dict[str, str]]:
    if options.response_cache_byte_size is not None:
        return {"local": {"size": str(options.response_cache_byte_size)}}
    return _grouped(options.cache_config)


def _trace_options(options: argparse.Namespace) -> TraceOptions:
    """``--trace-config``: ``level``, ``rate``, ``count``, ``mode``; trace files, or the destination of spans."""
    settings = [(setting, value) for flag, setting in OLD_TRACE_FLAGS.items() for value in flag_value(options, flag)]
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


def _endpoint_options(options: argparse.Namespace, kind: type[Options], endpoint: str, restricted: str) -> Options:
    """Return the options of an endpoint: most flags have the name of the endpoint, then the name of the option."""
    names = [field.name for field in fields(kind) if field.name not in _WITHOUT_FLAG]
    chosen = {name: getattr(options, f"{endpoint}_{name}") for name in names}
    chosen["reuse_port"] = getattr(options, f"reuse_{endpoint}_port")
    chosen[f"restricted_{restricted}"] = _restrictions(restricted, chosen[f"restricted_{restricted}"])
    return kind(**chosen)


def _restrictions(kind: str, groups: Sequence[list[tuple[str, str, str]]]) -> tuple[tuple[str, str, str], ...]:
    every = tuple(member for group in groups for member in group)
    names = [name for name, _, _ in every]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"restricted {kind} '{name}' can not be specified in multiple config groups")
    return every


def _metrics_options(options: argparse.Namespace) -> MetricsOptions:
    chosen, _ = flag_values.metrics_choices(options.metrics_config)
    return MetricsOptions(options.allow_cpu_metrics, options.allow_gpu_metrics, **chosen)


def _grouped(settings: Sequence[tuple[str, str, str]]) -> dict[str, dict[str, str]]:
    grouped: dict[str, dict[str, str]] = {}
    for group, name, value in settings:
        grouped.setdefault(group, {})[name] = value
    return grouped
