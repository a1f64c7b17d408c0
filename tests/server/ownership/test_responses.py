"""Responses own their outputs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritonnb as tnb
from tests.server.ownership.conftest import serve, write_python_model
from tests.server.ownership.ways import Way, in_process, over_grpc, over_http
from tritonnb.server.server import Server


def test_two_outputs_from_one_array_are_separate_in_the_response(server: Server) -> None:
    @server.model(name="both")
    def both(X: tnb.FP32[2]) -> {"A": tnb.FP32[2], "B": tnb.FP32[2]}:  # type: ignore[misc]  # noqa: F821, UP037
        return {"A": X, "B": X}

    answer = server["both"](X=np.ones(2, np.float32))
    answer["A"][:] = 5
    assert answer["B"].tolist() == [1, 1]


@pytest.mark.parametrize("way", [in_process, over_http, over_grpc])
def test_changing_a_returned_response_does_not_change_the_cached_one(server: Server, way: Way) -> None:
    model = serve(server, "cached", "FP32", "no batches", lambda x: x, response_cache={"enable": True})
    x = np.array([1, 2], np.float32)
    for _ in range(3):
        answer = model(X=x)["Y"]
        assert answer.tolist() == [1, 2]
        answer[:] = 7
    assert way(server, "cached", x).tolist() == [1, 2]


@pytest.mark.parametrize("way", [in_process, over_http, over_grpc])
def test_response_does_not_change_when_the_model_reuses_its_buffer(server: Server, way: Way) -> None:
    """The next execution begins before the answers of the one before are written."""
    buffer = np.zeros(2, np.float32)

    def compute(x: Any) -> Any:
        buffer[:] = x
        return buffer

    serve(server, "reusing", "FP32", "no batches", compute)
    answers = {}

    def ask(number: int) -> None:
        answers[number] = way(server, "reusing", np.full(2, number, np.float32)).tolist()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: [number, number] for number in range(16)}


def test_responses_of_a_decoupled_model_are_separate_arrays(tmp_path: Path, isolate: bool) -> None:
    body = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        buffer = np.zeros(1, np.float32)
        for request in requests:
            sender = request.get_response_sender()
            for number in range(3):
                buffer[:] = number
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", buffer)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    write_python_model(tmp_path, "count", body, "model_transaction_policy { decoupled: true }")
    with Server(tmp_path, port=0, isolate=isolate) as server:
        answers = server["count"].infer_all(X=[0.0])
    assert [answer["Y"].tolist() for answer in answers] == [[0], [1], [2]]
