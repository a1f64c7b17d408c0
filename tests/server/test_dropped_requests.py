"""Decoupled models that drop a request: the client gets an error, where a real Triton leaves it waiting."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.waiting import wait_for
from tritonnb.core.errors import InternalError
from tritonnb.server.server import Server

DROPPED = "the model dropped the request and its response senders without the final flag"
DIVIDED = "ZeroDivisionError"

#: What `execute` does with its request, and the error that the client gets; "" for a response.
CASES = {
    "never asks for a sender": ("pass", DROPPED),
    "drops its sender": ("request.get_response_sender()", DROPPED),
    "drops it after a response": ("request.get_response_sender().send(answer)", DROPPED),
    "drops one of two senders": ("request.get_response_sender(); request.get_response_sender().send(answer, 1)", ""),
    "keeps the request and drops it in the next call": ("self.kept, request = request, None", DROPPED),
    "keeps the request and asks later": ("threading.Timer(0.05, later, [request, answer]).start()", ""),
    "keeps the sender": ("threading.Timer(0.05, end, [request.get_response_sender(), answer]).start()", ""),
    "loses the sender on a thread": (
        "threading.Thread(target=id, args=[request.get_response_sender()]).start()",
        DROPPED,
    ),
    "loses it in a cycle": ("cycle = [request]; cycle.append(cycle); del cycle, request; gc.collect()", DROPPED),
    "raises": ("sender = request.get_response_sender(); 1 / 0", DIVIDED),
    "raises after a thread has the sender": ("threading.Timer(9, id, [request.get_response_sender()]); 1 / 0", DIVIDED),
    "returns a response": ("return [answer]", "the execute function must return None"),
    "is a coroutine that drops its sender": ("await asyncio.sleep(0); request.get_response_sender()", DROPPED),
    "is a coroutine that raises": ("await asyncio.sleep(0); request.get_response_sender(); 1 / 0", DIVIDED),
    "is executed again": (
        "self.calls += 1; request.set_release_flags(2) if self.calls < 3 else later(request, answer)",
        "",
    ),
    "is executed again, and then drops it": (
        "self.calls += 1; self.calls < 3 and request.set_release_flags(2)",
        DROPPED,
    ),
}

MODEL = """
import asyncio, gc, threading
import numpy as np
import triton_python_backend_utils as pb_utils

def end(sender, answer):
    sender.send(answer)
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

def later(request, answer):
    end(request.get_response_sender(), answer)

class TritonPythonModel:
    calls = 0
    kept = None

    {define} execute(self, requests):
        if self.kept is not None:  # the request that wakes the model
            end(requests[0].get_response_sender(), pb_utils.InferenceResponse([]))
            self.kept = None
            return
        request = requests.pop()
        answer = pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones((1, 1), np.float32))])
        {body}
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
ITERATIVE = "sequence_batching { iterative_sequence: true }"


@pytest.mark.parametrize(("body", "error"), CASES.values(), ids=CASES)
def test_dropped_request_ends_with_an_error(
    write_model: Callable[..., Path], isolate: bool, body: str, error: str
) -> None:
    source = MODEL.format(define="async def" if "await" in body else "def", body=body)
    config = f"{DECOUPLED} {ITERATIVE if 'release' in body else ''}"
    x = np.ones((1, 1), np.float32)
    with (
        Server(write_model("m", source, config), port=None, isolate=isolate) as server,
        ThreadPoolExecutor(1) as client,
    ):
        waiting = client.submit(server["m"].infer_all, X=x)
        if "self.kept" in body:
            wait_for(lambda: server["m"].stats()["execution_count"] == 1)
            server["m"].infer_all(X=x)
        if error:
            with pytest.raises(InternalError, match=error):
                waiting.result()
        else:
            assert [outputs["Y"].item() for outputs in waiting.result()] == [1]
