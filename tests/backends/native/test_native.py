"""C++ backends: the probe, *probe.cc*, in a server, over HTTP, gRPC and in process."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import queue
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

import tritonnb as tnb
from tests.backends.native.libraries import backend_directory, compiled
from tests.backends.serving import check_batches, one_batch
from tritonnb.backends.native import build, library
from tritonnb.core.errors import TritonError, UnsupportedError
from tritonnb.core.messages import InferRequest
from tritonnb.server.server import Server

TENSORS = """
    input { name: "IN" data_type: TYPE_INT32 dims: -1 }
    output { name: "OUT" data_type: TYPE_INT32 dims: -1 }
"""
STATES = """
    sequence_batching {
      %s
      state { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: 1 }
    }
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
ONE_INSTANCE = "instance_group { count: 1 kind: KIND_CPU }"


def write(repository: Path, mode: str = "", text: str = TENSORS, name: str = "probe") -> None:
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    parameter = f'parameters {{ key: "MODE" value {{ string_value: "{mode}" }} }}' if mode else ""
    (repository / name / "config.pbtxt").write_text(f'backend: "probe" {parameter} {text}')


@pytest.fixture(params=[False, True], ids=["in process", "isolated"])
def isolate(request: pytest.FixtureRequest) -> bool:
    """Return whether the instances run in their own processes."""
    return bool(request.param)


@contextlib.contextmanager
def served(repository: Path, mode: str = "", text: str = TENSORS, **options: Any) -> Iterator[Server]:
    write(repository, mode, text)
    options.setdefault("isolate", False)
    with Server(repository, port=0, grpc_port=0, backend_directory=backend_directory(), **options) as server:
        yield server


def infer_over_grpc(server: Server, values: list[int], **options: Any) -> grpcclient.InferResult:
    tensor = grpcclient.InferInput("IN", [len(values)], "INT32")
    tensor.set_data_from_numpy(np.array(values, np.int32))
    with grpcclient.InferenceServerClient(f"localhost:{server.grpc_port}") as client:
        return client.infer("probe", [tensor], **options)


def concurrently(server: Server, values: Sequence[int]) -> list[int]:
    with ThreadPoolExecutor(len(values)) as pool:
        return list(pool.map(lambda value: server["probe"](IN=[[value]])["OUT"].item(), values))


@pytest.mark.slow
def test_requests_over_http_and_grpc_share_batches(tmp_path: Path) -> None:
    compiled("probe.cc")
    write(tmp_path, text=TENSORS + one_batch(4))
    requests = [{"IN": np.array([[row, 10 * row]], np.int32)} for row in range(4)]
    library_file = backend_directory() / "probe" / "libtriton_probe.so"
    shutil.copy(library_file, tmp_path / "probe" / "1")  # the version directory is searched first
    check_batches(tmp_path, "probe", requests, lambda request: {"OUT": 2 * request["IN"]})


def test_statistics_reported_by_the_backend_are_used(tmp_path: Path, isolate: bool) -> None:
    with served(tmp_path, text=f"max_batch_size: 8 {TENSORS}", isolate=isolate) as server:
        assert server["probe"](IN=[[21]])["OUT"].tolist() == [[42]]
        with pytest.raises(TritonError, match="IN: expected numbers >= 0"):
            server["probe"](IN=[[-1]])
        entry = server["probe"].stats()
    assert entry["inference_stats"]["success"]["count"] == entry["inference_stats"]["fail"]["count"] == 1
    (batch,) = entry["batch_stats"]
    times = {part: batch[part]["ns"] for part in ("compute_input", "compute_infer", "compute_output")}
    assert times == {"compute_input": 2, "compute_infer": 20, "compute_output": 4}
    assert entry["memory_usage"] == [{"type": "CPU", "id": 0, "byte_size": 2000}]  # of two instances


def test_backend_completes_the_configuration_and_the_number_of_instances(tmp_path: Path) -> None:
    with served(tmp_path, text="") as server:
        config = server["probe"].config
        assert (config.max_batch_size, config.input[0].name, config.instance_group[0].count) == (8, "IN", 2)
        assert server["probe"](IN=[[1, 2]])["OUT"].tolist() == [[2, 4]]


@pytest.mark.parametrize("auto_complete_config", [True, False])
def test_model_is_initialised_once_and_its_instances_see_the_validated_configuration(
    tmp_path: Path, isolate: bool, auto_complete_config: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tritonnb")
    text = f"{TENSORS} {ONE_INSTANCE}"
    with served(tmp_path, text=text, isolate=isolate, auto_complete_config=auto_complete_config) as server:
        assert server["probe"](IN=[21])["OUT"].tolist() == [42]
    messages = [record.message for record in caplog.records if record.message.startswith(("the model", '"instance'))]
    # Only the validated configuration has the names of the instance groups.
    assert messages == ["the model is initialised", '"instance_group":[{"name":"probe_0",', "the model is finalised"]


@pytest.mark.parametrize(
    "text",
    [
        'max_batch_size: 4 output { name: "OUT" data_type: TYPE_INVALID dims: 1 }',
        TENSORS + 'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "/nowhere.so" } }'
        "max_batch_size: 2 dynamic_batching { }",
    ],
)
def test_model_that_is_refused_after_its_completion_is_finalised(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tritonnb")
    with served(tmp_path, text=text) as server:
        with pytest.raises(TritonError):
            server.load("probe")
    messages = [record.message for record in caplog.records if record.message.startswith("the model")]
    assert messages == ["the model is initialised", "the model is finalised"] * 2


def test_parameter_types_are_preserved_in_requests_and_responses(tmp_path: Path, isolate: bool) -> None:
    sent = {"text": "ä", "number": -(2**40), "flag": True, "fraction": 0.5}
    with served(tmp_path, "echo", isolate=isolate) as server:
        parameters = infer_over_grpc(server, [1], request_id="seven", parameters=sent).get_response().parameters
    received = {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in parameters.items()}
    assert received == {**sent, "id": "seven", "outputs": 1}


@contextlib.contextmanager
def stream(server: Server) -> Iterator[tuple[grpcclient.InferenceServerClient, queue.Queue[Any]]]:
    responses: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(f"localhost:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: responses.put(error or result))
        yield client, responses


def send(client: grpcclient.InferenceServerClient, *values: int) -> None:
    tensor = grpcclient.InferInput("IN", [len(values)], "INT32")
    tensor.set_data_from_numpy(np.array(values, np.int32))
    client.async_stream_infer("probe", [tensor], enable_empty_final_response=True)


def test_decoupled_backend_sends_responses_after_the_execution(tmp_path: Path) -> None:
    with served(tmp_path, "repeat", TENSORS + DECOUPLED) as server:
        with stream(server) as (client, responses):
            send(client, 3, 1)
            received = [responses.get(timeout=60) for _ in range(4)]
        assert [result.as_numpy("OUT").tolist() for result in received[:3]] == [[0], [1], [2]]
        assert received[3].get_response().parameters["triton_final_response"].bool_param
        assert server["probe"].stats()["response_stats"]["2"]["success"]["count"] == 1


def test_decoupled_backend_sees_the_cancellation_of_its_request(tmp_path: Path, isolate: bool) -> None:
    with served(tmp_path, "repeat", TENSORS + DECOUPLED, isolate=isolate) as server:
        with stream(server) as (client, responses):
            send(client, 1_000_000, 1)
            responses.get(timeout=60)
            client.stop_stream(cancel_requests=True)
    # The server has stopped: the instance waited for the thread that sends the responses.


def test_non_decoupled_model_may_respond_after_execution(tmp_path: Path, isolate: bool) -> None:
    with served(tmp_path, "late", f"max_batch_size: 4 {TENSORS}", isolate=isolate) as server:
        assert concurrently(server, range(8)) == [2 * number for number in range(8)]


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { }"])
def test_implicit_state_is_kept_for_each_sequence(tmp_path: Path, strategy: str) -> None:
    text = f"max_batch_size: 4 {ONE_INSTANCE} {TENSORS.replace('-1', '1')} {STATES % strategy}"
    with served(tmp_path, "sum", text) as server:
        sums = [
            [
                server["probe"](IN=[[scale * value]], sequence_id=scale, sequence_start=value == 1)["OUT"].item()
                for scale in (1, 10)
            ]
            for value in (1, 2, 3)
        ]
    assert sums == [[1, 10], [3, 30], [6, 60]]


def test_rescheduled_request_is_executed_again(tmp_path: Path, isolate: bool) -> None:
    text = f"{TENSORS} {ONE_INSTANCE} sequence_batching {{ iterative_sequence: true }}"
    with served(tmp_path, "again", text, isolate=isolate) as server:
        assert server["probe"](IN=[5])["OUT"].tolist() == [10]
        assert server["probe"].stats()["execution_count"] == 3


def test_violations_of_ownership_are_errors_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(tmp_path, "misuse", TENSORS + ONE_INSTANCE) as server:
        responses = [infer_over_grpc(server, [number]) for number in (1, 2)]
    assert [response.as_numpy("OUT").tolist() for response in responses] == [[2], [4]]
    prefix = "TRITONBACKEND_"
    problems = [
        f"{prefix}ResponseSend: the response was already sent or deleted",
        f"{prefix}ResponseSend: a response was already sent, and the model is not decoupled",
        f"{prefix}ResponseDelete: the response was already sent or deleted",
        "unknown request release flags 0",
        f"{prefix}RequestRelease: the request was already released",
        f"{prefix}InputBuffer: the request was already released",
        f"{prefix}ResponseNew: the request was already released",
        f"{prefix}ResponseFactorySendFlags: the response factory was already deleted",
        f"{prefix}MemoryManagerFree: the buffer is not allocated",
        "GPU memory allocation not supported",
        "TRITONSERVER_MessageDelete: the message belongs to the server",
    ]
    assert responses[1].get_response().parameters["problems"].string_param.splitlines() == problems
    logged = [record.getMessage() for record in caplog.records if record.name == "tritonnb.native"]
    assert {problem for problem in problems if ":" in problem} <= set(logged)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("unsupported", "TRITONSERVER_ServerIsLive is not supported by tritonnb"),
        ("truncate", r"model 'probe': output 'OUT' expected shape \[1,3\] of INT32, got 8 bytes"),
        ("drop", "no response to the request"),
        ("fail", "the execution failed"),
    ],
)
def test_backend_error_is_the_response(tmp_path: Path, mode: str, message: str) -> None:
    with served(tmp_path, mode) as server:
        with pytest.raises(TritonError, match=message):
            server["probe"](IN=[1])
        assert server["probe"].ready


def test_request_dropped_by_decoupled_backend_gets_an_error(tmp_path: Path) -> None:
    with served(tmp_path, "drop", TENSORS + DECOUPLED) as server:
        with stream(server) as (client, responses):
            send(client, 1)
            assert "released the request without a final response" in str(responses.get(timeout=60))


def test_backend_reports_that_an_instance_is_not_ready(tmp_path: Path, isolate: bool) -> None:
    with served(tmp_path, "not_ready", isolate=isolate) as server:
        assert server["probe"].ready
        server["probe"](IN=[1])
        assert not server["probe"].ready


def test_backend_that_refuses_a_model_fails_the_load(tmp_path: Path) -> None:
    with served(tmp_path, "refuse") as server:
        with pytest.raises(TritonError, match="Invalid argument: the model is refused"):
            server.load("probe")


def test_messages_of_the_backend_are_logged_with_their_place(
    tmp_path: Path, isolate: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tritonnb"), served(tmp_path, isolate=isolate):
        pass
    record, *_ = [record for record in caplog.records if record.getMessage() == "the probe is initialised: 100 %"]
    assert (record.filename, record.levelname) == ("probe.cc", "INFO")
    assert any(record.getMessage() == "the probe is finalised" for record in caplog.records)


def test_crash_in_cpp_fails_only_its_request(tmp_path: Path) -> None:
    with served(tmp_path, "crash", TENSORS + ONE_INSTANCE, isolate=()) as server:  # the default
        assert server["probe"](IN=[1])["OUT"].tolist() == [2]
        with pytest.raises(TritonError, match="Stub process 'probe_0_0' is not healthy"):
            server["probe"](IN=[-1])
        assert server["probe"](IN=[3])["OUT"].tolist() == [6]


@pytest.mark.slow
def test_reload_loads_the_replaced_library(tmp_path: Path) -> None:
    source = Path(__file__).with_name("probe.cc").read_text()
    with served(tmp_path) as server:
        assert server["probe"](IN=[1])["OUT"].tolist() == [2]
        changed = tmp_path / "changed.cc"
        changed.write_text(source.replace("int32_t factor = 2", "int32_t factor = 3"))
        build.compile_library([changed], tmp_path / "probe" / "libtriton_probe.so")
        server["probe"].reload()
        assert server["probe"](IN=[1])["OUT"].tolist() == [3]
        changed.write_text(source.replace("int32_t factor = 2", "int32_t factor = 4"))
        build.compile_library([changed], tmp_path / "probe" / "libtriton_probe.so")
        server["probe"].reload()
        assert server["probe"](IN=[1])["OUT"].tolist() == [4]


def test_batching_library_decides_which_requests_share_a_batch(tmp_path: Path) -> None:
    text = TENSORS + one_batch(8)
    write(tmp_path, text=text.replace(f"{20_000_000}", "200000"))
    shutil.copy(compiled("pairs.cc"), tmp_path / "probe" / "batchstrategy.so")
    with Server(tmp_path, port=0, backend_directory=backend_directory()) as server, server.record() as recording:
        concurrently(server, range(6))
    assert [batch.size for batch in recording.batches] == [2, 2, 2]
    assert "batching library excludes the next request" in recording.batches[0].why


def test_batching_library_must_define_all_functions(tmp_path: Path) -> None:
    (tmp_path / "part.cc").write_text(
        '#include "triton/core/tritonbackend.h"\n'
        'extern "C" TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void*) { return nullptr; }'
    )
    compiled("probe.cc")
    write(tmp_path)
    build.compile_library([tmp_path / "part.cc"], tmp_path / "probe" / "batchstrategy.so")
    with Server(tmp_path, port=0, backend_directory=backend_directory(), model_control_mode="explicit") as server:
        with pytest.raises(TritonError, match="does not define all required custom batching functions for model probe"):
            server.load("probe")


def test_model_is_refused_without_shim_and_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_compiler", lambda: None)
    native = tmp_path / "site-packages" / "tritonnb" / "backends" / "native"
    monkeypatch.setattr(build, "INCLUDE", native / "include")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UnsupportedError, match=r"C\+\+ backends .* no C\+\+ compiler was found"):
        library.shim_path()


def test_shim_has_every_function_of_the_interface() -> None:
    compiled("probe.cc")
    shim = library.load_shim()
    names = {
        line.removeprefix("UNSUPPORTED(").removesuffix(")")
        for line in (build.INCLUDE.parent / "shim" / "unsupported.cc").read_text().splitlines()
        if line.startswith("UNSUPPORTED(")
    }
    assert len(names) == 139
    for name in sorted(names):
        function = getattr(shim, name)
        function.restype = ctypes.c_void_p
        error = library.take_error(function())
        assert (error.message, error.status.label) == (f"{name} is not supported by tritonnb", "Unsupported")


def test_several_instances_serve_many_clients(tmp_path: Path) -> None:
    text = f"max_batch_size: 8 {TENSORS} dynamic_batching {{ }} instance_group {{ count: 2 kind: KIND_CPU }}"
    with served(tmp_path, text=text) as server:
        values = [1000 * client + number for client in range(8) for number in range(50)]
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda value: server["probe"](IN=[[value]])["OUT"].item(), values))
        assert results == [2 * value for value in values]
        assert server["probe"].stats()["inference_stats"]["success"]["count"] == 400


def test_cancelled_request_notifies_its_backend() -> None:
    notified: list[str] = []
    request = InferRequest("m", {}, lambda request, response: None)
    request.on_cancel = lambda: notified.append("cancelled")
    request.cancel()
    assert (request.cancelled, notified) == (True, ["cancelled"])


def test_doctor_lists_the_backends_of_a_directory() -> None:
    report = repr(tnb.doctor(backend_directory()))
    assert f"in {backend_directory()}: pairs, probe" in report or f"in {backend_directory()}: probe" in report
