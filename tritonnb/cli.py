"""The command line: ``tritonnb serve`` with tritonserver's own flags, and ``tritonnb models``."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import threading
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any

from tritonnb.core.errors import InvalidArgumentError, TritonError, UnsupportedError
from tritonnb.core.version import VERSION
from tritonnb.doctor import doctor
from tritonnb.endpoints.grpc.options import COMPRESSION_LEVELS, GrpcOptions
from tritonnb.endpoints.grpc.rpcs import PROTOCOLS
from tritonnb.endpoints.http.endpoint import HttpOptions
from tritonnb.endpoints.listening import DEFAULT_PORT
from tritonnb.endpoints.metrics.families import MetricsOptions
from tritonnb.scheduling.rate_limiter import Resource
from tritonnb.server import Server
from tritonnb.telemetry.log_settings import FORMATS, LogHandler, LogSettings
from tritonnb.telemetry.perfetto import to_perfetto
from tritonnb.telemetry.trace_settings import TraceOptions, levels_of, number_of

logger = logging.getLogger("tritonnb")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    parser = argparse.ArgumentParser(prog="tritonnb", description=__doc__)
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_serve(commands.add_parser("serve", help="serve model repositories", allow_abbrev=False))
    models = commands.add_parser("models", help="put the example models into a repository")
    models.add_argument("directory", nargs="?", default="model_repository", type=Path)
    trace = commands.add_parser("trace", help="turn trace files into a timeline for https://ui.perfetto.dev")
    trace.add_argument("files", nargs="+", type=Path, help="of this server or of a real Triton")
    trace.add_argument("-o", "--output", type=Path, default="trace.perfetto.json")
    commands.add_parser("doctor", help="say what this environment has")
    options = parser.parse_args(arguments)
    if options.command == "serve":
        return _serve(options)
    if options.command == "models":
        return _models(options.directory)
    if options.command == "trace":
        return _trace(options.files, options.output)
    print(doctor())
    return 0


def _add_serve(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model-repository", "--model-store", action="append", type=Path, required=True)
    add("--id", default="triton")
    add("--model-control-mode", choices=["none", "explicit", "poll"], default="none")
    add("--repository-poll-secs", type=float, default=15.0)
    add("--allow-file-override", type=_boolean, metavar="BOOL",
        help="whether load requests may bring model files (code); by default only from this machine")  # fmt: skip
    add("--load-model", action="append", default=[])
    add("--model-load-thread-count", type=int, default=4)
    add("--model-config-name", default="")
    add("--disable-auto-complete-config", action="store_true")
    add("--strict-readiness", type=_boolean, default=True)
    add("--exit-on-error", type=_boolean, default=True)
    add("--exit-timeout-secs", type=int, default=30)
    add("--backend-config", action="append", default=[], type=_backend_setting)
    add("--rate-limit", choices=["off", "execution_count"], default="off")
    add("--rate-limit-resource", action="append", default=[], type=_resource, metavar="NAME:COUNT[:DEVICE]")
    add("--cache-config", action="append", default=[], type=_backend_setting, metavar="local,size=BYTES")
    add("--http-address", default="127.0.0.1")
    add("--http-port", type=int, default=DEFAULT_PORT)
    add("--http-max-input-size", type=int, default=HttpOptions().max_input_size)
    add("--http-restricted-api", action="append", default=[], type=_restriction,
        metavar="API[,API...]:KEY=VALUE")  # fmt: skip
    add("--http-header-forward-pattern", default="")
    add("--http-allow-foreign", type=_boolean, default=False, metavar="BOOL",
        help="answer requests whose Host or Origin is not this machine")  # fmt: skip
    add("--allow-grpc", type=_boolean, default=True)
    add("--grpc-address", default="")
    add("--grpc-port", type=int, default=8001)
    for field in fields(GrpcOptions):
        if field.name not in ("restricted_protocol", "infer_response_compression_level", "transport"):
            kind: Any = {"bool": _boolean, "int": int}.get(str(field.type), str)
            add(f"--grpc-{field.name.replace('_', '-')}", type=kind, default=field.default)
    add("--grpc-infer-response-compression-level", choices=COMPRESSION_LEVELS, default="none")
    add("--grpc-restricted-protocol", action="append", default=[], type=_restriction,
        metavar="PROTOCOL[,PROTOCOL...]:KEY=VALUE")  # fmt: skip
    add("--allow-metrics", type=_boolean, default=True)
    add("--allow-cpu-metrics", type=_boolean, default=True)
    add("--allow-gpu-metrics", type=_boolean, default=True)
    add("--metrics-address", default="")
    add("--metrics-port", type=int, default=8002)
    add("--metrics-config", action="append", default=[], type=_setting)
    add("--log-verbose", type=int, default=0)
    add("--log-info", type=_boolean, default=True)
    add("--log-warning", type=_boolean, default=True)
    add("--log-error", type=_boolean, default=True)
    add("--log-format", choices=FORMATS, default="default")
    add("--log-file", default="")
    add("--trace-config", action="append", default=[], type=_setting, metavar="[MODE,]SETTING=VALUE")


def _serve(options: argparse.Namespace) -> int:
    log = _set_up_logging(options)
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        server = Server(
            options.model_repository,
            host=options.http_address,
            port=options.http_port,
            http=_http_options(options),
            grpc_port=options.grpc_port if options.allow_grpc else None,
            grpc_host=options.grpc_address,
            grpc=_grpc_options(options),
            metrics_port=options.metrics_port if options.allow_metrics else None,
            metrics_host=options.metrics_address,
            metrics=_metrics_options(options),
            server_id=options.id,
            model_control_mode=options.model_control_mode,
            repository_poll_secs=options.repository_poll_secs,
            allow_file_override=_allows_files(options),
            load_models=options.load_model,
            model_load_threads=options.model_load_thread_count,
            model_config_name=options.model_config_name,
            auto_complete_config=not options.disable_auto_complete_config,
            strict_readiness=options.strict_readiness,
            backend_config=_grouped(options.backend_config),
            cache_config=_grouped(options.cache_config),
            rate_limit=options.rate_limit,
            rate_limit_resources=options.rate_limit_resource,
            exit_timeout=options.exit_timeout_secs,
            trace=_trace_options(options.trace_config),
            log=log,
        )
    except TritonError as error:
        logger.error("error: creating server: %s - %s", error.status.label, error)
        return 1
    if server.load_errors and options.exit_on_error:
        logger.error("error: creating server: Internal - failed to load all models")
        server.stop()
        return 1
    logger.info("Started HTTPService at %s:%d", options.http_address, server.port)
    if server.endpoints.grpc is not None:
        grpc = server.endpoints.grpc
        logger.info("Started GRPCInferenceService at %s:%d", grpc.host, grpc.port)
    if server.endpoints.metrics is not None:
        metrics = server.endpoints.metrics
        logger.info("Started Metrics Service at %s:%d", metrics.host, metrics.port)
    stopped.wait()
    logger.info("Signal received: draining")
    try:
        server.stop()
    except TritonError as error:
        logger.error("%s", error)
        return 1
    return 0


def _allows_files(options: argparse.Namespace) -> bool:
    if options.allow_file_override is not None:
        return bool(options.allow_file_override)
    return options.http_address in ("127.0.0.1", "::1", "localhost") and not options.http_allow_foreign


def _models(directory: Path) -> int:
    from tritonnb.model_zoo import materialize

    print(materialize(directory))
    return 0


def _trace(files: Sequence[Path], output: Path) -> int:
    entries = [entry for file in files for entry in json.loads(file.read_text("utf-8"))]
    output.write_text(json.dumps(to_perfetto(entries)), "utf-8")
    print(output)
    return 0


def _set_up_logging(options: argparse.Namespace) -> LogSettings:
    settings = LogSettings(
        options.log_file, options.log_info, options.log_warning, options.log_error, options.log_verbose,
        options.log_format,
    )  # fmt: skip
    logger.addHandler(LogHandler(settings))
    logger.setLevel(logging.DEBUG)
    return settings


def _trace_options(given: list[tuple[str, str]]) -> TraceOptions:
    """``--trace-config``: ``level``, ``rate``, ``count``, ``mode``; ``triton,file`` and ``triton,log-frequency``."""
    chosen: dict[str, Any] = {}
    levels: list[str] = []
    for name, value in given:
        if name == "level":
            levels.append(value)
        elif name in ("rate", "count"):
            chosen[name] = number_of(f"trace_{name}", value)
        elif name == "triton,file":
            chosen["file"] = value
        elif name == "triton,log-frequency":
            chosen["log_frequency"] = number_of("log_frequency", value)
        elif (name, value) != ("mode", "triton"):
            raise UnsupportedError(f"trace setting '{name}={value}' is not supported")
    trace = TraceOptions(levels=levels_of(levels) or frozenset(), **chosen)
    trace.check()
    return trace


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "1"):
        return True
    if text.lower() in ("false", "0"):
        return False
    raise argparse.ArgumentTypeError(f"expected true or false, got '{text}'")


def _http_options(options: argparse.Namespace) -> HttpOptions:
    return HttpOptions(
        max_input_size=options.http_max_input_size,
        allow_foreign=options.http_allow_foreign,
        restricted_api=tuple(each for several in options.http_restricted_api for each in several),
        header_forward_pattern=options.http_header_forward_pattern,
    )


def _grpc_options(options: argparse.Namespace) -> GrpcOptions:
    names = (field.name for field in fields(GrpcOptions) if field.name != "transport")
    chosen = {name: getattr(options, f"grpc_{name}") for name in names}
    chosen["restricted_protocol"] = tuple(each for several in options.grpc_restricted_protocol for each in several)
    return GrpcOptions(**chosen)


def _restriction(text: str) -> list[tuple[str, str, str]]:
    """``<protocol>[,<protocol>...]:<key>=<value>``."""
    protocols, colon, pair = text.partition(":")
    key, equals, value = pair.partition("=")
    unknown = set(protocols.split(",")) - PROTOCOLS.keys()
    if not colon or not equals or unknown:
        raise argparse.ArgumentTypeError(f"expected <protocols>:<key>=<value>, got '{text}'")
    return [(each, key, value) for each in protocols.split(",")]


def _metrics_options(options: argparse.Namespace) -> MetricsOptions:
    settings = dict(options.metrics_config)
    chosen: dict[str, Any] = {
        name: _boolean(settings.pop(name))
        for name in ("counter_latencies", "summary_latencies", "histogram_latencies")
        if name in settings
    }
    if "summary_quantiles" in settings:
        pairs = settings.pop("summary_quantiles").split(",")
        chosen["quantiles"] = tuple(float(each.partition(":")[0]) for each in pairs)
    if settings:
        raise InvalidArgumentError(f"Invalid metrics configuration key '{min(settings)}' specified")
    return MetricsOptions(options.allow_cpu_metrics, options.allow_gpu_metrics, **chosen)


def _setting(text: str) -> tuple[str, str]:
    """``<setting>=<value>``."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected <setting>=<value>, got '{text}'")
    return name, value


def _grouped(settings: Sequence[tuple[str, str, str]]) -> dict[str, dict[str, str]]:
    grouped: dict[str, dict[str, str]] = {}
    for group, name, value in settings:
        grouped.setdefault(group, {})[name] = value
    return grouped


def _resource(text: str) -> Resource:
    """``<name>:<count>[:<device>]``."""
    name, *numbers = text.split(":")
    if not name or len(numbers) not in (1, 2) or not all(each.isdigit() for each in numbers):
        raise argparse.ArgumentTypeError(f"expected <name>:<count>[:<device>], got '{text}'")
    return Resource(name, *map(int, numbers))


def _backend_setting(text: str) -> tuple[str, str, str]:
    """``<backend>,<setting>=<value>``, or ``<setting>=<value>`` for all backends."""
    left, equals, value = text.partition("=")
    backend, comma, name = left.rpartition(",")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected [<backend>,]<setting>=<value>, got '{text}'")
    return (backend if comma else ""), name, value
