"""Calls of decoupled models, and models whose ``execute`` is a coroutine."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.server.bls.conftest import Write
from tests.waiting import wait_for
from tritonnb.core.errors import TritonError
from tritonnb.server.server import Server

IN_PAIRS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    waiting = []

    def execute(self, requests):
        self.waiting += [request.get_response_sender() for request in requests]
        if len(self.waiting) == 2:
            for sender in self.waiting:
                response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones((1, 1), np.float32))])
                sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_decoupled_responses_are_yielded_one_by_one_and_the_last_is_empty(
    scripted: Callable[..., Callable[[float], list[float]]],
) -> None:
    ask = scripted('return [len(response.output_tensors()) for response in ask("count", x).exec(decoupled=True)]')
    assert ask(3) == [1, 1, 1, 0]
    assert ask(0) == [0]


MOODY = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        sender = requests[0].get_response_sender()
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("not now")))
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones((1, 1), np.float32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_error_between_responses_of_a_decoupled_model_is_returned(
    server: Server, write_model: Write, scripted: Callable[..., Callable[[float], list[float]]]
) -> None:
    write_model("moody", MOODY, "model_transaction_policy { decoupled: true }")
    server.load("moody")
    model = scripted('return [response.has_error() for response in ask("moody", x).exec(decoupled=True)]')
    assert model(0) == [True, False, False]


ENDLESS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            while not sender.is_cancelled():
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones((1, 1), np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_model_cancels_a_call_whose_other_responses_it_does_not_need(
    server: Server, write_model: Write, scripted: Callable[..., Callable[[float], list[float]]]
) -> None:
    write_model("endless", ENDLESS, "model_transaction_policy { decoupled: true }")
    server.load("endless")
    ask = scripted(
        """
responses = ask("endless", x).exec(decoupled=True)
first = value(next(responses))
responses.cancel()
return first
"""
    )
    assert ask(0) == [1]
    while server["endless"].stats()["inference_stats"]["success"]["count"] == 0:  # until the model sees it
        pass


def test_responses_can_be_iterated_again(scripted: Callable[..., Callable[[float], list[float]]]) -> None:
    ask = scripted(
        """
responses = ask("count", x).exec(decoupled=True)
return [sum(1 for _ in responses), sum(1 for _ in responses)]
"""
    )
    assert ask(2) == [3, 3]


def test_decoupled_model_answers_async_exec(scripted: Callable[..., Callable[[float], list[float]]]) -> None:
    ask = scripted(
        """
async def count():
    return [response for response in await ask("count", x).async_exec(decoupled=True)]
return [len(response.output_tensors()) for response in asyncio.run(count())]
"""
    )
    assert ask(2) == [1, 1, 0]


def test_responses_are_a_response_iterator_as_on_triton(
    scripted: Callable[..., Callable[[float], list[float]]],
) -> None:
    ask = scripted(
        """
responses = ask("count", x).exec(decoupled=True)
public = [name for name in dir(responses) if not name.startswith("_")]
return [type(responses).__name__ == "ResponseIterator", public == ["cancel"]]
"""
    )
    assert ask(2) == [1, 1]


def test_second_iteration_of_responses_continues_after_the_first(
    scripted: Callable[..., Callable[[float], list[float]]],
) -> None:
    ask = scripted(
        """
responses = ask("count", x).exec(decoupled=True)
first = value(next(responses))
return [first] + [value(response) for response in responses if response.output_tensors()]
"""
    )
    assert ask(3) == [0, 1, 2]


def test_async_exec_of_a_decoupled_model_lets_others_run_before_its_first_response(
    server: Server, write_model: Callable[..., Path], scripted: Callable[..., Callable[[float], list[float]]]
) -> None:
    write_model("pairs", IN_PAIRS, "model_transaction_policy { decoupled: true }")
    server.load("pairs")
    ask = scripted(
        """
async def first(number):
    return [value(response) for response in await ask("pairs", number).async_exec(decoupled=True)]
async def both():
    return await asyncio.gather(first(0), first(1))
return asyncio.run(both())
"""
    )
    assert ask(0) == [1, 1]


ASYNC = """
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    async def execute(self, requests):
        async def one(request):
            x = request.inputs()[0]
            call = pb_utils.InferenceRequest(model_name="double", requested_output_names=["Y"], inputs=[x])
            answer = await call.async_exec()
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", answer.output_tensors()[0].as_numpy())])
        return await asyncio.gather(*map(one, requests))
"""


ASYNC_DECOUPLED = """
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.waiting = []

    async def execute(self, requests):
        for request in requests:
            x = float(request.inputs()[0].as_numpy()[0, 0])
            if x < 0:
                raise ValueError("negative")
            sender = request.get_response_sender()
            if x == 0:
                self.event = asyncio.Event()
                await self.event.wait()
            else:
                self.event.set()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 1), x, np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_execute_may_be_a_coroutine(server: Server, write_model: Write) -> None:
    write_model("coroutine", ASYNC)
    server.load("coroutine")
    assert server["coroutine"](X=np.array([[2]], np.float32))["Y"].item() == 4


def test_decoupled_coroutine_serves_other_requests_while_waiting(server: Server, write_model: Write) -> None:
    write_model("coroutine", ASYNC_DECOUPLED, "model_transaction_policy { decoupled: true }")
    server.load("coroutine")
    handle = server["coroutine"]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(handle.infer_all, X=np.array([[0]], np.float32))
        wait_for(lambda: server.stats("coroutine")["model_stats"][0]["execution_count"])
        assert [response["Y"].item() for response in handle.infer_all(X=np.array([[5]], np.float32))] == [5]
        assert [response["Y"].item() for response in first.result(timeout=30)] == [0]


def test_exception_of_a_decoupled_coroutine_is_the_response(server: Server, write_model: Write) -> None:
    write_model("coroutine", ASYNC_DECOUPLED, "model_transaction_policy { decoupled: true }")
    server.load("coroutine")
    with pytest.raises(TritonError, match="ValueError: negative"):
        list(server["coroutine"].infer_all(X=np.array([[-1]], np.float32)))
