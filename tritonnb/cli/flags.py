"""The flags of ``tritonnb serve``: those of ``tritonserver``, and those for Ray.

A command line that starts Triton starts this server, too: flags for things that this server does not have (memory
pools, thread counts, directories of libraries) are checked and have no effect.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tritonnb.cli import flag_values
from tritonnb.cli.flag_help import add_flag
from tritonnb.endpoints.endpoint_set import DEFAULT_PORT
from tritonnb.endpoints.grpc.options import COMPRESSION_LEVELS, GrpcOptions
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.runtime.options import CONTROL_MODES, RATE_LIMITS

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
    """The warnings about flags that are deprecated or have no effect."""
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
    """The value of a flag, which is named without the dashes."""
    return getattr(options, flag.replace("-", "_"))
