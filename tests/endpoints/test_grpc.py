"""gRPC with NVIDIA's own clients, sync and asyncio: streams, TLS, compression, cancellation, who may call."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import shutil
import struct
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as aioclient
import tritonclient.utils.shared_memory as shm
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

import tritonnb as tnb
from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.core.events import RequestArrived, RequestCancelled
from tritonnb.core.packed_events import Packed, unpack
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.server.server import Server

MODELS = Path(__file__).parents[1] / "models"
ONE = grpcclient.InferInput("X", [1, 1], "FP32")
ONE.set_data_from_numpy(np.ones((1, 1), np.float32))
Start = Callable[..., Server]


@pytest.fixture(params=["fast", "grpcio"])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    servers: list[Server] = []

    def start(*models: str, repository: Path = MODELS, grpc: GrpcOptions | None = None, **options: Any) -> Server:
        grpc = grpc or GrpcOptions()
        options["grpc"] = grpc if grpc.grpcio_options else replace(grpc, transport=request.param)
        served = {"model_control_mode": "explicit", "load_models": models or ("addsub",), "grpc_port": 0, **options}
        servers.append(Server(repository, port=0, **served))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def address(server: Server) -> str:
    return f"127.0.0.1:{server.grpc_port}"


def client_of(server: Server, **options: Any) -> grpcclient.InferenceServerClient:
    return grpcclient.InferenceServerClient(address(server), **options)


def input_of(name: str, *values: int, rows: bool = True) -> grpcclient.InferInput:
    array = np.array([values] if rows else values, np.int32)
    tensor = grpcclient.InferInput(name, list(array.shape), "INT32")
    tensor.set_data_from_numpy(array)
    return tensor


def both(*values: int) -> list[grpcclient.InferInput]:
    return [input_of("INPUT0", *values), input_of("INPUT1", *values)]


class Answers:
    """The callbacks of a stream of the sync client."""

    def __init__(self, client: grpcclient.InferenceServerClient, **options: Any) -> None:
        self._answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: self._answers.put(error or result), **options)

    def next(self) -> Any:
        return self._answers.get(timeout=60)


def final(result: Any) -> bool:
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


def test_synchronous_client_runs_inference(start: Start) -> None:
    with client_of(start()) as client:
        answer = client.infer("addsub", both(1, 2, 3, 4), request_id="r")
        assert answer.as_numpy("OUTPUT0").tolist() == [[2, 4, 6, 8]]
        assert answer.get_response().id == "r"
        assert client.is_server_ready()
        assert client.get_model_metadata("addsub").platform == "python"
        assert client.get_inference_statistics("addsub").model_stats[0].inference_count == 1


def test_aio_client_runs_concurrent_inferences(start: Start) -> None:
    async def main(server: Server) -> list[int]:
        async with aioclient.InferenceServerClient(address(server)) as client:
            answers = await asyncio.gather(*(client.infer("addsub", both(n, n, n, n)) for n in range(50)))
            return [int(response.as_numpy("OUTPUT0")[0, 0]) for response in answers]

    assert asyncio.run(main(start())) == [2 * n for n in range(50)]


def test_aio_client_stream_can_contain_requests_for_several_models(start: Start) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "addsub", "inputs": both(1, 1, 1, 1), "request_id": "add"}
        yield {"model_name": "countdown", "inputs": [input_of("COUNT", 2, rows=False)], "request_id": "count"}

    async def main(server: Server) -> dict[str, list[Any]]:
        results: dict[str, list[Any]] = {}
        async with aioclient.InferenceServerClient(address(server)) as client:
            async for result, error in client.stream_infer(requests()):
                assert error is None
                results.setdefault(result.get_response().id, []).append(result)
        return results

    results = asyncio.run(main(start("addsub", "countdown")))
    assert results["add"][0].as_numpy("OUTPUT0").tolist() == [[2, 2, 2, 2]]
    assert [result.as_numpy("LEFT").tolist() for result in results["count"]] == [[1], [0]]


def test_responses_on_a_stream_keep_the_order_of_their_requests(start: Start) -> None:
    gate = threading.Event()
    server = start()
    serve_gated(server, gate)

    @server.model(name="fast", max_batch_size=8)
    def fast(X: tnb.FP32[1]) -> tnb.FP32[1]:
        gate.set()
        return X

    with client_of(server) as client:
        answers = Answers(client)
        for name in ("slow", "fast"):  # the fast one opens the gate of the slow one
            client.async_stream_infer(name, [ONE], request_id=name)
        assert [answers.next().get_response().id for _ in range(2)] == ["slow", "fast"]


def serve_gated(server: Server, gate: threading.Event) -> None:
    """Serve a model ``slow`` that answers when the gate is open."""

    @server.model(name="slow", max_batch_size=8)
    def slow(X: tnb.FP32[1]) -> tnb.FP32[1]:
        gate.wait()
        return X


def test_empty_final_response_is_sent_if_requested(start: Start) -> None:
    with client_of(start("countdown")) as client:
        answers = Answers(client)
        count = [input_of("COUNT", 2, rows=False)]
        client.async_stream_infer("countdown", count, enable_empty_final_response=True)
        first, second, last = (answers.next() for _ in range(3))
        assert [final(response) for response in (first, second, last)] == [False, False, True]
        assert last.as_numpy("LEFT") is None


def test_error_on_a_stream_affects_only_its_request(start: Start) -> None:
    with client_of(start()) as client:
        answers = Answers(client)
        client.async_stream_infer("nosuch", both(1, 1, 1, 1))
        client.async_stream_infer("addsub", both(1, 1, 1, 1))
        assert "Request for unknown model: 'nosuch' is not found" in str(answers.next())
        assert answers.next().as_numpy("OUTPUT0").tolist() == [[2, 2, 2, 2]]


def test_sequence_is_read_from_parameters(start: Start) -> None:
    steps: tuple[tuple[int, dict[str, bool]], ...] = (
        (1, {"sequence_start": True}),
        (2, {}),
        (3, {"sequence_end": True}),
    )
    with client_of(start("accumulate")) as client:
        answers = [client.infer("accumulate", [input_of("INPUT0", n)], sequence_id=7, **flags) for n, flags in steps]
    assert [response.as_numpy("TOTAL").item() for response in answers] == [1, 3, 6]


def test_tensors_are_sent_in_shared_memory(start: Start) -> None:
    pytest.importorskip("_posixshmem")
    key = f"/tritonnb_test_grpc_{os.getpid()}"
    handle = shm.create_shared_memory_region("region", key, 64)
    try:
        shm.set_shared_memory_region(handle, [np.arange(8, dtype=np.int32)])
        with client_of(start(allow_client_shm=True)) as client:
            client.register_system_shared_memory("region", key, 64)
            assert client.get_system_shared_memory_status().regions["region"].byte_size == 64
            inputs = [grpcclient.InferInput(f"INPUT{n}", [1, 4], "INT32") for n in range(2)]
            for n, tensor in enumerate(inputs):
                tensor.set_shared_memory("region", 16, offset=16 * n)
            wanted = grpcclient.InferRequestedOutput("OUTPUT0")
            wanted.set_shared_memory("region", 16, offset=32)
            answer = client.infer("addsub", inputs, outputs=[wanted])
            assert answer.get_response().raw_output_contents == [b""]
            assert shm.get_contents_as_numpy(handle, np.int32, [1, 4], offset=32).tolist() == [[4, 6, 8, 10]]
            client.unregister_system_shared_memory()
    finally:
        shm.destroy_shared_memory_region(handle)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("level", ["none", "high"])
def test_compressed_requests_are_read_and_responses_compressed_as_configured(
    start: Start, algorithm: str, level: str
) -> None:
    server = start(grpc=GrpcOptions(infer_response_compression_level=level))
    with client_of(server) as client:
        answer = client.infer("addsub", both(1, 2, 3, 4), compression_algorithm=algorithm)
        assert answer.as_numpy("OUTPUT0").tolist() == [[2, 4, 6, 8]]


def test_large_tensors_are_sent_in_both_directions(start: Start) -> None:
    server = start()

    @server.model(max_batch_size=8)
    def echo(X: tnb.FP32[-1]) -> tnb.FP32[-1]:
        return X

    array = np.random.default_rng(0).random((1, 4_000_000), np.float32)
    tensor = grpcclient.InferInput("X", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    with client_of(server) as client:
        assert np.array_equal(client.infer("echo", [tensor]).as_numpy("OUTPUT"), array)


def test_disconnected_client_cancels_its_request(start: Start) -> None:
    gate = threading.Event()
    server = start()
    serve_gated(server, gate)
    events: queue.Queue[Packed] = queue.Queue()
    server.call(server.engine.stream.attach, events.put)
    with client_of(server) as client:
        unary = client.async_infer("slow", [ONE], lambda result, error: None)
        serial = _next(events, RequestArrived).serial
        unary.cancel()
        assert _next(events, RequestCancelled).serial == serial
        Answers(client)
        client.async_stream_infer("slow", [ONE])
        serial = _next(events, RequestArrived).serial
        client.stop_stream(cancel_requests=True)
        assert _next(events, RequestCancelled).serial == serial
    gate.set()


def _next(events: queue.Queue[Packed], kind: type[Any]) -> Any:
    while not isinstance(event := unpack(events.get(timeout=60)), kind):
        pass
    return event


def test_health_service_reports_readiness(start: Start) -> None:
    with grpc.insecure_channel(address(start())) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"") == b"\x08\x01"
        assert check(b"\x0a\x03any") == b"\x08\x01"


def test_unknown_method_is_unimplemented(start: Start) -> None:
    with grpc.insecure_channel(address(start())) as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary("/inference.GRPCInferenceService/NoSuch")(b"")
    assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, "")


@pytest.mark.parametrize("method", ["ModelInfer", "ServerLive"])
def test_invalid_protobuf_request_is_refused(start: Start, method: str) -> None:
    with grpc.insecure_channel(address(start())) as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(b"\xff")
    assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.INTERNAL, "Unable to parse request")


def test_malformed_bytes_end_a_stream_after_earlier_requests(start: Start) -> None:
    good = pb.ModelInferRequest(model_name="countdown", raw_input_contents=[struct.pack("<i", 2)])
    good.inputs.add(name="COUNT", datatype="INT32", shape=[1])
    with grpc.insecure_channel(address(start("countdown"))) as channel:
        converse = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        sent = good.SerializeToString()
        answers = [message.infer_response.raw_output_contents[0] for message in converse(iter([sent, b"\xff", sent]))]
    assert answers == [struct.pack("<i", 1), struct.pack("<i", 0)]


def test_restricted_protocol_needs_its_header(start: Start) -> None:
    restricted = GrpcOptions(restricted_protocol=(("inference", "key", "secret"), ("health", "key", "secret")))
    with client_of(start(grpc=restricted)) as client:
        for call in (lambda **more: client.infer("addsub", both(1, 1, 1, 1), **more), client.is_server_live):
            with pytest.raises(InferenceServerException) as raised:
                call()
            assert raised.value.status() == "StatusCode.UNAVAILABLE"
            assert raised.value.message() == (
                "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"
            )
            assert call(headers={"triton-grpc-protocol-key": "secret"})
        assert client.get_server_metadata().name == "triton"


def test_headers_that_match_become_parameters(start: Start) -> None:
    server = start("parameters", grpc=GrpcOptions(header_forward_pattern="X-"))
    with client_of(server) as client:
        headers = {"x-one": "1", "other": "2"}
        seen = client.infer("parameters", [input_of("INPUT0", 1, rows=False)], headers=headers).as_numpy("SEEN").item()
    assert b"x-one" in seen
    assert b"other" not in seen


def test_request_with_reserved_metadata_is_refused(start: Start) -> None:
    server = start("parameters", grpc=GrpcOptions(header_forward_pattern="."))
    with client_of(server) as client:
        with pytest.raises(InferenceServerException) as raised:
            client.infer("parameters", [input_of("INPUT0", 1, rows=False)], headers={"priority": "1"})
    assert raised.value.message() == "Header 'priority' is reserved for Triton usage and cannot be forwarded."
    assert raised.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_taken_port_is_refused(start: Start) -> None:
    taken = int(address(start()).split(":")[1])
    with pytest.raises(UnavailableError, match=f"GRPC service cannot listen on .*:{taken}: .*in use; .*grpc_port=0"):
        start(grpc_port=taken)


def test_stopping_ends_an_idle_stream_and_informs_its_client(start: Start) -> None:
    server = start(exit_timeout=60)
    with client_of(server) as client:
        answers = Answers(client)
        client.async_stream_infer("addsub", both(1, 1, 1, 1))
        answers.next()
        server.stop()
        end = answers.next()
    assert (end.status(), end.message()) == ("StatusCode.UNAVAILABLE", "Server is stopping")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of localhost that signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing")
    directory = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out cert.pem"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command.split(), *names], cwd=directory, check=True, capture_output=True)
    return directory


def test_client_finds_its_certificates_from_another_directory(
    start: Start, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(grpc=_tls(certificates, mutual=False))
    monkeypatch.chdir(certificates)
    with tnb.connect(f"grpcs://localhost:{server.grpc_port}", ssl="cert.pem") as remote:
        model = next(iter(remote))
        monkeypatch.chdir(tmp_path)
        assert tnb.load(remote[model], clients=1, requests=1, sequence_length=0).wait(60).failed == 0


@pytest.mark.parametrize("mutual", [False, True])
def test_grpc_works_over_tls(start: Start, certificates: Path, mutual: bool) -> None:
    certificate, key = str(certificates / "cert.pem"), str(certificates / "key.pem")
    server = start(grpc=_tls(certificates, mutual))
    own = {"private_key": key, "certificate_chain": certificate}
    with client_of(server, ssl=True, root_certificates=certificate, **(own if mutual else {})) as client:
        assert client.is_server_live()


def test_mutual_tls_refuses_a_client_without_a_certificate(start: Start, certificates: Path) -> None:
    server = start(grpc=_tls(certificates, mutual=True))
    with client_of(server, ssl=True, root_certificates=str(certificates / "cert.pem")) as client:
        with pytest.raises(InferenceServerException):
            client.is_server_live()


def _tls(certificates: Path, mutual: bool) -> GrpcOptions:
    certificate, key = str(certificates / "cert.pem"), str(certificates / "key.pem")
    return GrpcOptions(
        use_ssl=True, use_ssl_mutual=mutual, server_cert=certificate, server_key=key, root_cert=certificate
    )


def test_missing_tls_files_are_an_error(start: Start) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot read the files for TLS"):
        start(grpc=GrpcOptions(use_ssl=True, server_cert="/nowhere", server_key="/nowhere"))


def test_keep_alive_options_are_applied(start: Start) -> None:
    options = GrpcOptions(keepalive_time=1000, keepalive_timeout=500, max_connection_age=60_000)
    keepalive = grpcclient.KeepAliveOptions(keepalive_time_ms=1000, keepalive_permit_without_calls=True)
    with client_of(start(grpc=options), keepalive_options=keepalive) as client:
        assert client.is_server_live()


def test_verbose_log_lists_refused_requests(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start()
    caplog.set_level(logging.DEBUG, "tritonnb")
    with client_of(server) as client, pytest.raises(InferenceServerException):
        client.infer("addsub", [input_of("WHAT", 1)], request_id="7")
    said = "[request id: 7] Infer failed: [request id: 7] expected 2 inputs but got 1 inputs for model 'addsub'"
    assert [message for message in caplog.messages if message.startswith(said)]
