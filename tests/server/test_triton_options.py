"""Every option of ``tritonserver`` (release 26.11), in the forms that NVIDIA's test programs use, is accepted."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tritonnb.cli.flags import FlagParser, add_flags, warnings
from tritonnb.cli.server_options import server_options

BOOLEANS = ("true", "false", "True", "0", "1")
#: By option: values that ``tritonserver`` accepts. Those of features that are not supported here are disabling ones.
OPTIONS: dict[str, tuple[str, ...]] = {
    "allow-client-shm": BOOLEANS,
    "allow-cpu-metrics": BOOLEANS,
    "allow-gpu-metrics": BOOLEANS,
    "allow-grpc": BOOLEANS,
    "allow-http": BOOLEANS,
    "allow-metrics": BOOLEANS,
    "allow-sagemaker": ("false", "0"),
    "allow-vertex-ai": ("false", "0"),
    "backend-config": (
        "tensorrt,plugins=plugin.so",
        "tensorrt,version-compatible=true",
        "tensorrt,additional-dependency-dirs=/opt/a;/opt/b;",
        "python,shm-default-byte-size=5242880",
        "default-max-batch-size=4",
        "triton-backend-memory-tracker=true",
    ),
    "backend-directory": ("/opt/tritonserver/backends",),
    "buffer-manager-thread-count": ("2",),
    "cache-config": ("local,size=1048576",),
    "cache-directory": ("/opt/tritonserver/caches",),
    "cuda-memory-pool-byte-size": ("0:0", "0:2147483648"),
    "cuda-virtual-address-size": ("0:1073741824",),
    "enable-peer-access": BOOLEANS,
    "exit-on-error": BOOLEANS,
    "exit-timeout-secs": ("0", "120"),
    "grpc-address": ("127.0.0.2",),
    "grpc-header-forward-pattern": (".*", "(?-i)MY_HEADER.*"),
    "grpc-http2-max-ping-strikes": ("0",),
    "grpc-http2-max-pings-without-data": ("1",),
    "grpc-http2-min-recv-ping-interval-without-data": ("1000",),
    "grpc-infer-allocation-pool-size": ("128",),
    "grpc-infer-response-compression-level": ("none", "low", "medium", "high"),
    "grpc-infer-thread-count": ("2", "128"),
    "grpc-keepalive-permit-without-calls": BOOLEANS,
    "grpc-keepalive-time": ("10000",),
    "grpc-keepalive-timeout": ("1000",),
    "grpc-max-connection-age": ("5000",),
    "grpc-max-connection-age-grace": ("5000",),
    "grpc-max-response-pool-size": ("1",),
    "grpc-port": ("8003",),
    "grpc-restricted-protocol": ("model-repository,health:k1=v1", "inference:infer-key=infer-value"),
    "grpc-root-cert": ("ca.crt",),
    "grpc-server-cert": ("server.crt",),
    "grpc-server-key": ("server.key",),
    "grpc-use-ssl": BOOLEANS,
    "grpc-use-ssl-mutual": BOOLEANS,
    "host-policy": ("gpu_0,numa-node=0", "cpu,cpu-cores=0-1"),
    "http-address": ("0.0.0.0",),
    "http-header-forward-pattern": (".*", "MY_HEADER.*"),
    "http-max-input-size": ("128", "134217728"),
    "http-port": ("8007",),
    "http-restricted-api": ("model-repository,health:k1=v1", "model-repository:X-SM-Auth=secret"),
    "http-thread-count": ("1",),
    "id": ("server",),
    "load-model": ("*",),
    "log-error": BOOLEANS,
    "log-file": ("server.log",),
    "log-format": ("default", "ISO8601"),
    "log-info": BOOLEANS,
    "log-verbose": ("0", "1", "2"),
    "log-warning": BOOLEANS,
    "metrics-address": ("127.0.0.1",),
    "metrics-config": (
        "counter_latencies=false",
        "histogram_latencies=true",
        "summary_latencies=true",
        "summary_quantiles=0.1:0.0.1,0.7:0.01,0.75:0.01",
    ),
    "metrics-interval-ms": ("500", "2000"),
    "metrics-port": ("8004",),
    "min-supported-compute-capability": ("6.0",),
    "model-config-name": ("custom_config",),
    "model-control-mode": ("none", "poll", "explicit"),
    "model-load-gpu-limit": ("0:0.6",),
    "model-load-retry-count": ("2",),
    "model-load-thread-count": ("1",),
    "model-namespacing": ("false", "0"),
    "model-repository": ("/models",),
    "model-store": ("/models",),
    "pinned-memory-pool-byte-size": ("0", "268435456"),
    "rate-limit": ("off", "execution_count"),
    "rate-limit-resource": ("resource1:4", "resource1:10:10", "R1:10"),
    "repoagent-directory": ("/opt/tritonserver/repoagents",),
    "repository-poll-secs": ("0", "1"),
    "response-cache-byte-size": ("8192",),
    "reuse-grpc-port": BOOLEANS,
    "reuse-http-port": BOOLEANS,
    "sagemaker-port": ("8080",),
    "sagemaker-safe-port-range": ("8080-9090",),
    "sagemaker-thread-count": ("8",),
    "strict-model-config": BOOLEANS,
    "strict-readiness": BOOLEANS,
    "trace-config": (
        "level=TIMESTAMPS",
        "level=TENSORS",
        "level=OFF",
        "rate=6",
        "count=-1",
        "mode=triton",
        "triton,file=global_trace.log",
        "triton,log-frequency=2",
        "opentelemetry,url=localhost:4318/v1/traces",
        "opentelemetry,resource=service.name=test_triton",
        "opentelemetry,bsp_schedule_delay=0",
        "opentelemetry,bsp_max_queue_size=1",
        "opentelemetry,bsp_max_export_batch_size=1",
    ),
    "trace-count": ("-1", "6"),
    "trace-file": ("trace.log",),
    "trace-level": ("OFF", "MIN", "MAX", "TIMESTAMPS"),
    "trace-log-frequency": ("2",),
    "trace-rate": ("1",),
    "vertex-ai-default-model": ("simple",),
    "vertex-ai-port": ("8080",),
    "vertex-ai-thread-count": ("8",),
}
#: Options without a value.
SWITCHES = ("disable-auto-complete-config",)
#: What an option needs beside it.
ALSO = {
    "load-model": ("--model-control-mode=explicit",),
    "trace-config": ("--trace-config=triton,file=trace.log",),
    "trace-level": ("--trace-config=triton,file=trace.log",),
}


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    parser = FlagParser()
    add_flags(parser)
    return parser


@pytest.mark.parametrize("option", [*OPTIONS, *SWITCHES])
def test_option_of_triton_is_accepted(parser: argparse.ArgumentParser, tmp_path: Path, option: str) -> None:
    for value in OPTIONS.get(option, ("",)):
        for flag in ([f"--{option}={value}"], [f"--{option}", value]) if value else ([f"--{option}"],):
            options = parser.parse_args([f"--model-repository={tmp_path}", *ALSO.get(option, ()), *flag])
            assert server_options(options)
            assert all(option in text for text in warnings(options))
