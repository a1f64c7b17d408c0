"""Loads of decoupled models: each response is measured when it arrives, in this process and over the network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tornado.iostream import StreamClosedError

import tritonnb as tnb
from tests.lab.conftest import MODELS
from tritonnb.endpoints.http.handlers.generate import GenerateHandler
from tritonnb.lab.load.http_target import read_events
from tritonnb.lab.load.result import COMPLETED, FIRST, SENT, TOKENS
from tritonnb.server.server import Server

WAYS = ["process", "http", "grpc"]
CONFIG = """
name: "%s"
backend: "python"
max_batch_size: 4
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true }
]
output [
  { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ 1 ] }
]
model_transaction_policy { decoupled: %s }
"""
#: Sends as many tokens as asked for, two with each response; after those of "fail" comes an error, and after those of
#: "endless" more of them until the request is cancelled.
STREAMING = """
import json
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            asked = pb_utils.get_input_tensor_by_name(request, "sampling_parameters").as_numpy()
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0, 0]
            sender = request.get_response_sender()
            most = json.loads(asked[0, 0])["max_tokens"]
            count = 0
            while count < most or (text == b"endless" and not request.is_cancelled()):
                count += 2
                time.sleep(0.001)
                sender.send(pb_utils.InferenceResponse([
                    pb_utils.Tensor("text_output", np.array([[b"token"]], object)),
                    pb_utils.Tensor("num_output_tokens", np.array([[count]], np.uint32)),
                ]))
            if text == b"fail":
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("out of memory")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
WHOLE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor("text_output", np.array([[b"all"]], object)),
            pb_utils.Tensor("num_output_tokens", np.array([[8]], np.uint32)),
        ]) for _ in requests]
"""


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with ``streaming``, ``whole`` (which sends all tokens at once) and ``countdown``."""
    repository = tmp_path_factory.mktemp("models")
    for name, decoupled, code in (("streaming", "true", STREAMING), ("whole", "false", WHOLE)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(CONFIG % (name, decoupled))
        (repository / name / "1" / "model.py").write_text(code)
    options: dict[str, Any] = {
        "model_control_mode": "explicit",
        "load_models": ["streaming", "whole", "countdown"],
    }
    with Server([repository, MODELS], port=0, grpc_port=0, **options) as server:
        yield server


@pytest.mark.parametrize("over", WAYS)
def test_times_of_tokens_are_measured(streaming: Server, over: str) -> None:
    inputs = tnb.prompts(["one", "two"], count=6, tokens=8, spread=0)
    result = tnb.load(streaming["streaming"], clients=2, requests=12, inputs=inputs, over=over).wait(60)
    assert result.errors == {}
    assert result.responses[:, TOKENS].tolist() == [8] * 12  # as the model counts, not the number of responses
    assert (result.responses[:, SENT] < result.responses[:, FIRST]).all()
    assert (result.responses[:, FIRST] <= result.responses[:, COMPLETED]).all()
    summary = result.summary()
    assert summary["tokens"] == 96
    assert 0 < summary["time_to_first_token_p50_ms"] <= summary["latency_max_ms"]
    assert summary["time_per_output_token_p50_ms"] >= 0
    assert "time to first token p50" in result.verdict()


@pytest.mark.parametrize("over", WAYS)
def test_responses_are_counted_if_the_model_does_not_count_its_tokens(streaming: Server, over: str) -> None:
    inputs = [{"COUNT": np.array([count], np.int32)} for count in (5, 0, 1)]
    result = tnb.load(streaming["countdown"], clients=1, requests=3, inputs=inputs, over=over).wait(60)
    assert result.errors == {}
    assert result.responses[:, TOKENS].tolist() == [5, 0, 1]
    assert result.token_times.tokens == [5]


@pytest.mark.parametrize("over", WAYS)
def test_error_after_the_first_tokens_fails_the_request(streaming: Server, over: str) -> None:
    inputs = tnb.prompts(["fail"], count=1, tokens=4, spread=0)
    result = tnb.load(streaming["streaming"], clients=1, requests=2, inputs=inputs, over=over).wait(60)
    assert result.errors == {"out of memory": 2}
    assert result.token_times.count == 0


@pytest.mark.parametrize("over", WAYS)
def test_cancelled_generation_ends_on_the_server(streaming: Server, over: str) -> None:
    endless, other = (tnb.prompts([text], count=1, tokens=4, spread=0) for text in ("endless", "one"))
    model = streaming["streaming"]
    arrivals = [tnb.Arrival(0, cancel_us=100_000)]
    assert tnb.load(model, arrivals=arrivals, inputs=endless, over=over).wait(60).requests == 1
    assert tnb.load(model, clients=1, requests=1, inputs=other).wait(60).errors == {}  # its only instance is free


def test_generation_ends_if_writing_to_the_disconnected_client_fails(
    streaming: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = GenerateHandler.flush

    def flush_later(handler: GenerateHandler, include_footers: bool = False) -> asyncio.Future[None]:
        monkeypatch.setattr(GenerateHandler, "flush", flush)
        raise StreamClosedError

    monkeypatch.setattr(GenerateHandler, "flush", flush_later)
    endless, other = (tnb.prompts([text], count=1, tokens=4, spread=0) for text in ("endless", "one"))
    model = streaming["streaming"]
    tnb.load(model, clients=1, requests=1, inputs=endless, over="http").wait(60)
    assert tnb.load(model, clients=1, requests=1, inputs=other).wait(20).errors == {}  # its only instance is free


@pytest.mark.parametrize("over", WAYS)
def test_model_that_sends_all_tokens_at_once_has_no_token_times(streaming: Server, over: str) -> None:
    inputs = tnb.prompts(["one"], count=1, tokens=8, spread=0)
    result = tnb.load(streaming["whole"], clients=1, requests=2, inputs=inputs, over=over).wait(60)
    assert result.errors == {}
    assert "time_to_first_token_p50_ms" not in result.summary()
    assert "model 'whole' is not decoupled, it sends all tokens in one response" in result.verdict()


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_refused_request_has_the_text_of_the_server(streaming: Server, over: str) -> None:
    load = tnb.load(streaming["streaming"], clients=1, requests=1, inputs={"text_input": [["one"]]}, over=over)
    (message,) = load.wait(60).errors
    assert "NoneType" in message  # the model misses its sampling parameters


def test_http_streams_no_sequences_and_priorities(streaming: Server) -> None:
    @streaming.model(max_batch_size=4, sequence_batching={}, model_transaction_policy={"decoupled": True})
    def stateful(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X

    with pytest.raises(tnb.TritonError, match="generate_stream sends no sequences: use over='grpc'"):
        tnb.load(streaming["stateful"], clients=1, requests=1, over="http")
    inputs = tnb.prompts(["one"], count=1, tokens=4, spread=0)
    arrivals = [tnb.Arrival(0, priority=1)]
    result = tnb.load(streaming["streaming"], arrivals=arrivals, inputs=inputs, over="http").wait(60)
    assert result.errors == {"generate_stream sends no sequences, priorities or timeouts: use over='grpc'": 1}


def test_server_without_the_generate_extension_is_named() -> None:
    config = {"name": "m", "model_transaction_policy": {"decoupled": True}, "input": [
        {"name": "X", "data_type": "TYPE_FP32", "dims": ["1"]}]}  # fmt: skip

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        content = json.dumps(config).encode() if head.startswith(b"GET") else b""
        status = b"200 OK" if content else b"404 Not Found"
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(content), content))
        writer.close()

    async def run() -> tnb.LoadResult:
        listening = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v2/models/m"
        load = await asyncio.to_thread(tnb.load, url, clients=1, requests=1)
        result = await asyncio.wait_for(load, 60)
        listening.close()
        return result

    assert asyncio.run(run()).errors == {
        "HTTP status 404: the server has no generate extension, use over='grpc'": 1,
    }


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_tracker_accepts_events_in_parts(size: int) -> None:
    stream = b'data: {"a": 1}\n\n: comment\ndata: {"b": "x\\n"}\n\ndata: [1]\n\ndata: {"c'
    events: list[Any] = []
    rest = b""
    for at in range(0, len(stream), size):
        new, rest = read_events(rest + stream[at : at + size])
        events += new
    assert events == [{"a": 1}, {"b": "x\n"}]
