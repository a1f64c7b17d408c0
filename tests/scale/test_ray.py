"""A Ray cluster of three node processes: the protocol, sequences, and replicas that come and go.

Ray is not part of the extra ``all``: ``make test-ray`` runs these tests in a dedicated environment.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ray: Any = pytest.importorskip("ray", reason="make test-ray installs Ray Serve and runs these tests")

import grpc  # noqa: E402
import tritonclient.grpc as triton_grpc  # noqa: E402
import tritonclient.http as triton_http  # noqa: E402

import tritonnb as tnb  # noqa: E402
from tests.client_examples.test_client_examples import CHECKOUT, EXAMPLES, scripts  # noqa: E402
from tests.endpoints.newer_release import recordings  # noqa: E402
from tests.endpoints.replay import differences, send  # noqa: E402
from tests.endpoints.test_grpc_transcripts import ask  # noqa: E402
from tests.perf_analyzer.test_perf_analyzer import PROGRAM  # noqa: E402
from tests.scale.not_alike import GRPC_NOT_ALIKE, NOT_ALIKE  # noqa: E402
from tests.server.serve_process import serving, x_input  # noqa: E402
from tools.ray_chaos import DRAIN_TIMEOUT_S, allow_idle_sequences, chaos, kill_one, start_cluster  # noqa: E402
from tritonnb.core.errors import UnavailableError  # noqa: E402
from tritonnb.endpoints.openai.options import OpenAiOptions  # noqa: E402
from tritonnb.telemetry.trace_settings import TraceOptions  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "tests" / "models"
ACCUMULATORS = ROOT / "model_repository"
PERF_ANALYZER_CALLS = [
    "http addsub --concurrency-range 2",
    "grpc addsub --concurrency-range 2",
    "http accumulate --concurrency-range 2 --num-of-sequences 2 --sequence-length 5 --input-data zero",
    "grpc accumulate --concurrency-range 2 --num-of-sequences 2 --sequence-length 5 --input-data zero",
    "grpc accumulate --concurrency-range 2 --num-of-sequences 2 --sequence-length 5 --input-data zero --streaming",
]
EXAMPLE_MODELS = ROOT / "tests" / "client_examples" / "models"


@pytest.fixture(scope="module")
def deployment() -> Iterator[tnb.ScaledServer]:
    """Two replicas of all models, behind two ingress replicas, on three nodes."""
    cluster = start_cluster()
    names = [model.name for model in MODELS.iterdir() if model.name not in ("probe", "wont_load")]
    names += ["accumulator", "add_sub", *(model.name for model in EXAMPLE_MODELS.iterdir())]
    server = tnb.scale(
        [MODELS, ACCUMULATORS, EXAMPLE_MODELS],
        address=cluster.address,
        port=0,
        grpc_port=0,
        replicas=2,
        ingress_replicas=2,
        exit_timeout=DRAIN_TIMEOUT_S,
        ray_actor_options={"num_cpus": 0.1},
        load_models=names,
        direct=True,
        trace=TraceOptions("trace.json"),
        openai=OpenAiOptions(allow=False),  # Triton has no paths under /v1
    )
    yield server
    server.stop()
    ray.shutdown()
    cluster.shutdown()


def number(client: Any, value: int) -> list[Any]:
    tensor = client.InferInput("INPUT", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    return [tensor]


def test_http_responses_are_the_recorded_ones(deployment: tnb.ScaledServer) -> None:
    exchanges = recordings("transcripts.json")
    differing = {
        (exchange["area"], exchange["id"]): different
        for exchange in exchanges
        if (different := differences(exchange, *send(deployment.port, exchange["request"])))
    }
    expected = set().union(*NOT_ALIKE.values())
    assert {key: different for key, different in differing.items() if key[1] not in expected} == {}


def test_grpc_responses_are_the_recorded_ones(deployment: tnb.ScaledServer) -> None:
    differing = {}
    with grpc.insecure_channel(deployment.grpc_url) as channel:
        for case in recordings("grpc_transcripts.json"):
            answered, recorded = ask(channel, case), case["answer"]
            if case.get("volatile_text"):
                for response in answered.get("responses", ()):
                    response.pop("errorMessage", "")
            # The index and the statistics are recorded from a server without other models and requests.
            if case["rpc"] in ("RepositoryIndex", "ModelStatistics") and "response" in recorded:
                answered, recorded = _comparable(answered, recorded), _comparable(recorded, recorded)
            if {name: answered.get(name) for name in recorded} != recorded:
                differing[case["id"]] = answered
    assert {name: answer for name, answer in differing.items() if name not in GRPC_NOT_ALIKE} == {}
    assert {name: differing[name]["code"] for name in GRPC_NOT_ALIKE} == dict.fromkeys(GRPC_NOT_ALIKE, "UNIMPLEMENTED")


def _comparable(answered: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    """An answer with the recorded models only, and without counts."""
    names = {row["name"] for rows in recorded["response"].values() for row in rows}
    rows = {
        kind: [
            {name: row.get(name) for name in ("name", "version", "state", "reason")}
            for row in rows
            if row["name"] in names
        ]
        for kind, rows in answered.get("response", {}).items()
    }
    return {**answered, "response": rows}


@pytest.mark.parametrize("id", [7, 2**40])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_sequence_accumulates_one_sum(deployment: tnb.ScaledServer, protocol: str, id: int) -> None:
    module, url = (
        (triton_http, deployment.url.removeprefix("http://"))
        if protocol == "http"
        else (triton_grpc, deployment.grpc_url)
    )
    client = module.InferenceServerClient(url)
    sums = [
        client.infer(
            "accumulator", number(module, step), sequence_id=id, sequence_start=step == 1, sequence_end=step == 5
        )
        .as_numpy("OUTPUT")
        .item()
        for step in range(1, 6)
    ]
    assert sums == [1, 3, 6, 10, 15]
    client.close()


@pytest.mark.skipif(not CHECKOUT, reason="TRITON_CLIENT_CHECKOUT names no checkout of NVIDIA's client")
@pytest.mark.parametrize("command", [command for command in scripts() if "sequence" in command[0]], ids=" ".join)
def test_nvidias_sequence_examples_pass(deployment: tnb.ScaledServer, command: tuple[str, ...]) -> None:
    name, *arguments = command
    url = deployment.grpc_url if "grpc" in name else deployment.url.removeprefix("http://")
    run = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments, "-u", url],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]


@pytest.mark.skipif(not PROGRAM, reason="PERF_ANALYZER names no perf_analyzer")
@pytest.mark.parametrize("call", PERF_ANALYZER_CALLS)
def test_perf_analyzer_completes(deployment: tnb.ScaledServer, call: str, tmp_path: Path) -> None:
    protocol, model, *arguments = call.split()
    url = deployment.grpc_url if protocol == "grpc" else deployment.url.removeprefix("http://")
    limits = "--measurement-mode count_windows --measurement-request-count 20 --max-trials 3 --stability-percentage 999"
    run = subprocess.run(
        [PROGRAM, "-m", model, "-i", protocol, "-u", url, *arguments, *limits.split(), "-f", "figures.csv"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    assert len((tmp_path / "figures.csv").read_text().splitlines()) == 2


def test_deployment_view_shows_all_replicas(deployment: tnb.ScaledServer) -> None:
    with deployment.connect() as remote:
        before = remote.stats("add_sub")["model_stats"][0]["inference_count"]
        inputs = {name: np.ones((1, 4), np.float32) for name in ("INPUT0", "INPUT1")}
        for _ in range(10):
            remote["add_sub"](**inputs)
        assert remote.stats("add_sub")["model_stats"][0]["inference_count"] == before + 10
        replicas = deployment.replicas()
        assert [replica["state"] for replica in replicas] == ["RUNNING", "RUNNING"]
        entries = [entry for entries in remote.replica_stats().values() for entry in entries]
        assert sum(entry["inference_count"] for entry in entries if entry["name"] == "add_sub") == before + 10
        assert {f'replica="{replica["replica"]}"' in "".join(remote.metrics()) for replica in replicas} == {True}
        with remote.record("add_sub") as recording:
            for _ in range(20):
                remote["add_sub"](**inputs)
        assert len(recording.requests) == 20
        assert recording.replicas == sorted(replica["replica"] for replica in replicas)
        view = remote.dashboard()
        assert all(replica["replica"] in view.replicas.value for replica in replicas)
        view.close()
    with tnb.connect(str(replicas[0]["url"])) as direct:  # past Ray's proxy
        assert direct["add_sub"](**inputs)["OUTPUT0"].tolist() == [[2.0] * 4]


def test_scaling_moves_no_sequence_and_a_lost_replica_ends_its_sequences(
    deployment: tnb.ScaledServer,
) -> None:
    client = triton_http.InferenceServerClient(deployment.url.removeprefix("http://"), network_timeout=60)

    def add(id: int, value: int, **flags: bool) -> int:
        answer = client.infer("accumulator", number(triton_http, value), sequence_id=id, **flags)
        return int(answer.as_numpy("OUTPUT").item())

    allow_idle_sequences(deployment.url)  # reaches the replicas that are added, too
    ids = range(100, 108)
    assert [add(id, id, sequence_start=True) for id in ids] == list(ids)
    deployment.scale_to(3)
    assert [add(id, 1) for id in ids] == [id + 1 for id in ids]
    idle = client.get_model_config("accumulator")["sequence_batching"]["max_sequence_idle_microseconds"]
    urls = [str(replica["url"]).removeprefix("http://") for replica in deployment.replicas()]
    assert len(urls) == 3
    configs = [triton_http.InferenceServerClient(url).get_model_config("accumulator") for url in urls]
    assert {config["sequence_batching"]["max_sequence_idle_microseconds"] for config in configs} == {idle}
    kill_one(deployment.name, random.Random(0))
    as_documented = 0
    for id in ids:
        try:
            total = add(id, 1)
        except triton_http.InferenceServerException as error:
            as_documented += (
                "must specify the START flag" in error.message() or "its replica was lost" in error.message()
            )
        else:
            as_documented += total == id + 2  # on another replica
    assert as_documented == len(ids)
    client.close()


def test_sums_are_correct_while_replicas_are_added_and_removed(deployment: tnb.ScaledServer) -> None:
    result = chaos(deployment, seconds=30, sequences=12, length=10, period=6)
    assert result.promises_kept, result.to_dict()
    assert result.completed > 0
    assert result.stateless["answered"] > 0


def test_running_ray_serve_and_missing_cluster_are_errors(deployment: tnb.ScaledServer) -> None:
    with pytest.raises(UnavailableError, match="Ray Serve is running on this cluster already"):
        tnb.scale(MODELS)
    command = [sys.executable, "-m", "tritonnb", "serve", "--ray", "--address=127.0.0.1:1"]
    run = subprocess.run(
        [*command, f"--model-repository={MODELS}"], capture_output=True, text=True, check=False, timeout=120, cwd=ROOT
    )
    assert run.returncode == 1
    assert "no Ray cluster responds at 127.0.0.1:1" in run.stderr


#: Opens a pipe when it begins, and another one before it ends.
HELD = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.directory = os.path.dirname(args["model_repository"])

    def execute(self, requests):
        open(os.path.join(self.directory, "begun"), "w").close()
        open(os.path.join(self.directory, "gate")).close()
        arrays = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]) for array in arrays]
"""


def test_serve_with_ray_has_the_restrictions_of_serve_and_answers_before_it_stops(tmp_path: Path) -> None:
    (tmp_path / "held" / "1").mkdir(parents=True)
    (tmp_path / "held" / "1" / "model.py").write_text(HELD)
    tensors = 'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'
    (tmp_path / "held" / "config.pbtxt").write_text(f'backend: "python" max_batch_size: 8 {tensors}')
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    os.mkfifo(begun)
    os.mkfifo(gate)
    restricted = ["--http-restricted-api=inference:key=secret", "--grpc-restricted-protocol=inference:key=secret"]
    ports = ["--http-port=0", "--grpc-port=0"]
    with serving("--ray", f"--model-repository={tmp_path}", *restricted, ports=ports) as process:
        http = process.wait_for(r"Started HTTPService at (127\.0\.0\.1:\d+)")[1]
        port = process.wait_for(r"Started GRPCInferenceService at 127\.0\.0\.1:(\d+)")[1]
        with triton_http.InferenceServerClient(http) as client:
            with pytest.raises(triton_http.InferenceServerException, match="This API is restricted"):
                client.infer("held", [x_input()])
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
            assert client.is_server_live()
            with pytest.raises(triton_http.InferenceServerException, match="This protocol is restricted"):
                client.infer("held", [])
        answers: list[Any] = []

        def ask_once() -> None:
            with triton_http.InferenceServerClient(http, network_timeout=60) as client:
                answers.append(client.infer("held", [x_input()], headers={"key": "secret"}).as_numpy("Y").tolist())

        asking = threading.Thread(target=ask_once)
        asking.start()
        begun.open().close()
        process.tell(signal.SIGTERM)
        process.wait_for("Waiting for in-flight requests")
        process.wait_for("Deleting app")
        while _status(http) != 404:  # the deployment does not accept requests any more
            pass
        gate.open("w").close()
        asking.join()
        assert answers == [[[1.0]]]
        assert process.exit_status() == 0


def _status(address: str) -> int:
    """The status of the health probe."""
    connection = HTTPConnection(address, timeout=30)
    connection.request("GET", "/v2/health/live")
    status = connection.getresponse().status
    connection.close()
    return status
