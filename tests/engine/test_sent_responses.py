"""Threads of models send responses no faster than the event loop passes them on."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from tritonnb import FP32
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.engine.execution import sent_responses
from tritonnb.engine.execution.sent_responses import SentResponses
from tritonnb.errors import UnavailableError

LARGE = InferResponse([Tensor("Y", FP32, np.zeros(3 << 20, np.float32))], final=False)
SMALL = InferResponse([Tensor("Y", FP32, np.zeros(1, np.float32))], final=False)


def request() -> InferRequest:
    return InferRequest("m", {})


@pytest.mark.parametrize(("response", "most"), [(LARGE, 1), (SMALL, 128)], ids=["bytes", "number"])
def test_sender_waits_for_the_event_loop(response: InferResponse, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_responses, "_LONGEST_WAIT_S", 60.0)
    loop = asyncio.new_event_loop()
    received: list[int] = []
    sent: list[int] = []
    full = threading.Event()
    responses = SentResponses(loop, lambda request, response: received.append(len(sent) - len(received)))

    def send() -> None:
        for number in range(3 * most):
            sent.append(number)
            if len(sent) == most + 1:
                full.set()
            responses.send(request(), response)

    sender = threading.Thread(target=send)
    sender.start()
    assert full.wait(60)
    while sender.is_alive():
        loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    assert len(received) == 3 * most
    assert max(received) <= most + 2
    loop.close()


def test_thread_of_the_event_loop_does_not_wait_for_itself() -> None:
    async def send() -> None:
        responses = SentResponses(asyncio.get_running_loop(), lambda request, response: received.append(response))
        for _ in range(500):
            responses.send(request(), SMALL)
        assert received == []
        await asyncio.sleep(0)

    received: list[InferResponse] = []
    asyncio.run(send())
    assert len(received) == 500


def test_sender_after_the_end_of_the_server_gets_an_error() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(UnavailableError, match="model 'm': the server has stopped"):
        SentResponses(loop, lambda request, response: None).send(request(), LARGE)
