"""NVIDIA's ``perf_analyzer`` against this server: every mode ends well, and its figures are the server's.

The program is named by the environment variable ``PERF_ANALYZER``: that of the wheel of tritonclient 2.51.0, which
``make test-perf-analyzer`` installs, or that of the package ``perf-analyzer``, which needs glibc 2.38.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tritonnb.endpoints.metrics.families import MetricsOptions
from tritonnb.server.server import Server

HERE = Path(__file__).parent
REPOSITORIES = [HERE / "models", HERE.parent / "models", HERE.parents[1] / "model_repository"]
MODELS = ["accumulate", "addsub", "cached", "chain", "countdown", "identity_fp32", "string_upper"]
PROGRAM = os.environ.get("PERF_ANALYZER", "")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="make test-perf-analyzer runs these tests")

REQUESTS = 100
FILES = {
    "addsub.json": {"data": [{"INPUT0": [1, 2, 3, 4], "INPUT1": {"b64": "AQAAAAIAAAADAAAABAAAAA=="}}]},
    "checked.json": {
        "data": [{"INPUT0": [1, 2, 3, 4], "INPUT1": [5, 6, 7, 8]}],
        "validation_data": [{"OUTPUT0": [6, 8, 10, 12], "OUTPUT1": [-4, -4, -4, -4]}],
    },
    "countdown.json": {"data": [{"COUNT": [3]}, {"COUNT": [1]}]},
    "sequences.json": {"data": [[{"INPUT0": [1]}, {"INPUT0": [2]}, {"INPUT0": [3]}], [{"INPUT0": [10]}]]},
    "texts.json": {"data": [{"TEXT": ["hello"]}, {"TEXT": ["grüße"]}]},
}
CALLS = [
    "addsub --concurrency-range 1",
    "addsub --concurrency-range 8 -a",
    "addsub --concurrency-range 4 --sync",
    "addsub --concurrency-range 2 -b 4",
    "addsub --concurrency-range 2 --input-data zero",
    "addsub --concurrency-range 2 --input-data addsub.json",
    "addsub --concurrency-range 2 --input-data checked.json",
    "addsub --concurrency-range 2 --shared-memory system",
    "addsub --concurrency-range 2 --shared-memory system --output-shared-memory-size 1024 -b 2",
    "addsub --request-rate-range 100",
    "addsub --request-rate-range 100 --request-distribution poisson",
    "addsub --request-intervals intervals.txt",
    "addsub --concurrency-range 2 --collect-metrics --metrics-url {metrics} --metrics-interval 20",
    "identity_fp32 --concurrency-range 2 --shape INPUT0:100000",
    "string_upper --concurrency-range 2 --string-length 40",
    "string_upper --concurrency-range 2 --input-data texts.json",
    "string_upper --concurrency-range 2 --shared-memory system --output-shared-memory-size 1024",
    "accumulate --concurrency-range 4 --num-of-sequences 4 --sequence-length 5 --input-data zero",
    "accumulate --request-rate-range 100 --num-of-sequences 4 --sequence-length 5 --input-data zero",
    "accumulate --request-rate-range 100 --num-of-sequences 2 --serial-sequences --input-data sequences.json",
    "chain --concurrency-range 4",
    "cached --concurrency-range 2",
]
OVER_GRPC = [
    "addsub --concurrency-range 4 --streaming",
    "addsub --concurrency-range 2 --streaming --shared-memory system",
    "addsub --concurrency-range 2 --grpc-compression-algorithm gzip",
    "addsub --concurrency-range 2 --request-parameter priority:0:int",
    "accumulate --concurrency-range 4 --streaming --num-of-sequences 4 --sequence-length 5 --input-data zero",
    "countdown --concurrency-range 2 --streaming --input-data countdown.json",
    "countdown --request-rate-range 100 --streaming --input-data countdown.json",
]
OVER_HTTP = ["addsub --concurrency-range 2 --input-tensor-format json --output-tensor-format json"]
RUNS = [
    *((protocol, call) for call in CALLS for protocol in ("http", "grpc")),
    *(("grpc", call) for call in OVER_GRPC),
    *(("http", call) for call in OVER_HTTP),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    explicit: dict[str, Any] = {
        "model_control_mode": "explicit",
        "load_models": MODELS,
        "cache_config": {"local": {"size": "1048576"}},
        "allow_client_shm": True,
    }
    ports: dict[str, Any] = {"port": 0, "grpc_port": 0, "metrics_port": 0, "metrics": MetricsOptions()}
    with Server(REPOSITORIES, **ports, **explicit) as server:
        assert not server.load_errors
        yield server


@pytest.mark.parametrize(("protocol", "call"), RUNS, ids=[" ".join(run) for run in RUNS])
def test_dashboard_values_equal_the_servers(server: Server, protocol: str, call: str, tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "intervals.txt").write_text("5000\n2000\n3000\n")
    model, *arguments = call.replace("{metrics}", f"127.0.0.1:{server.metrics_port}/metrics").split()
    port = server.grpc_port if protocol == "grpc" else server.port
    before = counts(server, model)
    command = [PROGRAM, "-m", model, "-i", protocol, "-u", f"127.0.0.1:{port}", *arguments, "-v"]
    command += ["--request-count", str(REQUESTS), "-f", "figures.csv", "--verbose-csv"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    report = process.stdout + process.stderr
    assert process.returncode == 0, report[-2000:]
    after = counts(server, model)
    assert after["fail"] == before["fail"]
    sent = after["success"] - before["success"]
    # The program ends the sequences that are open when it has enough, and counts that no more.
    assert 0 <= sent - figure(report, "Client", r"Request count: (\d+)") <= 4 * ("sequences" in call)
    # It asks the server for its figures while the first requests may already be on their way.
    assert sent - 8 <= figure(report, "Server", r"equest count: (\d+)") <= sent
    assert figure(report, "Server", r"latency: (\d+)") <= figure(report, "Client", r"latency: (\d+)")
    assert len((tmp_path / "figures.csv").read_text().splitlines()) == 2


def counts(server: Server, model: str) -> dict[str, int]:
    """Count the successful and the failed requests of a model."""
    durations = server[model].stats()["inference_stats"]
    return {name: int(durations[name]["count"]) for name in ("success", "fail")}


def figure(report: str, side: str, pattern: str) -> int:
    """A number that the program tells of one side."""
    match = re.search(rf"^  {side}: \n(?:    .*\n)*?    .*?{pattern}", report, re.M)
    assert match is not None, report
    return int(match.group(1))
