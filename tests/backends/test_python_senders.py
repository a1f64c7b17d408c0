"""Response senders of models of the Python backend, decoupled and not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.models import request, rows
from tests.backends.python_models import HEAD, Load, load_in_process
from tritonnb.backends.python.pb_utils import TritonModelException
from tritonnb.core.errors import InternalError


def test_a_decoupled_model_sends_any_number_of_responses(tmp_path: Path) -> None:
    body = (
        HEAD
        + """    def execute(self, requests):
        sender = requests[0].get_response_sender()
        for value in (1, 2):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", np.array([[value]], np.float32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        try:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        except pb_utils.TritonModelException as error:
            self.error = str(error)
"""
    )
    loaded = load_in_process(tmp_path, body, extra="model_transaction_policy { decoupled: true }")
    assert loaded.run(request(IN0=rows(0))) == [None]
    answers = [answer for _, answer in loaded.streamed]
    assert [answer.outputs[0].array.item() for answer in answers[:2]] == [1, 2]
    assert [(answer.final, answer.empty) for answer in answers] == [(False, False), (False, False), (True, True)]
    assert loaded.instance._model.error == "Unable to send response. Response sender has been closed."


def test_a_decoupled_model_that_returns_something_is_refused(load: Load, tmp_path: Path) -> None:
    body = HEAD + "    def execute(self, requests):\n        return []\n"
    loaded = load(tmp_path, body, extra="model_transaction_policy { decoupled: true }")
    with pytest.raises(InternalError) as caught:
        loaded.run(request(IN0=rows(1)))
    assert str(caught.value) == (
        "Failed to process the request(s) for model 'm_0_0', message: Python model 'm_0_0' is using the decoupled mode "
        "and the execute function must return None."
    )


SENDING = """
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def execute(self, requests):
        self.senders = [request.get_response_sender() for request in requests]
        self.answers = [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", request.inputs()[0].as_numpy())])
            for request in requests
        ]
        {body}
"""


def test_a_model_sends_its_response_before_or_after_execute_returns(tmp_path: Path) -> None:
    loaded = load_in_process(
        tmp_path, SENDING.format(body="self.senders[0].send(self.answers[0], FINAL); return [None, None]")
    )
    assert loaded.run(request(IN0=rows(1)), request(IN0=rows(2))) == [None, None]
    model = loaded.instance._model
    model.senders[1].send(model.answers[1])
    with pytest.raises(TritonModelException, match="cannot send more than one response"):
        model.senders[1].send(model.answers[1])
    model.senders[1].send(flags=1)
    with pytest.raises(TritonModelException, match="Response sender has been closed"):
        model.senders[1].send(flags=1)
    assert [(answer.outputs[0].array.item(), answer.final) for _, answer in loaded.streamed] == [(1, True), (2, True)]


def test_a_sender_that_a_model_drops_without_a_response_sends_an_error(tmp_path: Path) -> None:
    loaded = load_in_process(tmp_path, SENDING.format(body="return [None]"))
    assert loaded.run(request(IN0=rows(1))) == [None]
    assert loaded.streamed == []
    loaded.instance._model.senders.clear()
    ((_, answer),) = loaded.streamed
    assert answer.final
    assert answer.error.message == "the model dropped the response sender without a response"


def test_a_model_may_return_the_response_or_send_it_but_not_both(tmp_path: Path) -> None:
    loaded = load_in_process(tmp_path, SENDING.format(body="return self.answers"))
    assert loaded.run(request(IN0=rows(1)))[0].outputs[0].array.item() == 1
    with pytest.raises(TritonModelException, match="cannot send more than one response"):
        loaded.instance._model.senders[0].send(loaded.instance._model.answers[0])
    loaded = load_in_process(
        tmp_path, SENDING.format(body="self.senders[0].send(self.answers[0]); return self.answers")
    )
    with pytest.raises(InternalError, match="Non-decoupled model cannot send more than one response"):
        loaded.run(request(IN0=rows(1)))
    assert len(loaded.streamed) == 1


def test_a_final_flag_needs_a_response_and_a_flag_must_be_known(load: Load, tmp_path: Path) -> None:
    loaded = load(tmp_path, SENDING.format(body="self.senders[0].send(flags=FINAL)"))
    with pytest.raises(InternalError, match="cannot send complete final before sending a response"):
        loaded.run(request(IN0=rows(1)))
    loaded = load(tmp_path, SENDING.format(body="self.senders[0].send(self.answers[0], 2)"))
    with pytest.raises(InternalError, match="Unsupported flag provided"):
        loaded.run(request(IN0=rows(1)))


LATER = """
import asyncio
import threading
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    done = threading.Event()

    async def execute(self, requests):
        self.task = asyncio.create_task(self.later(requests[0].get_response_sender(), requests[0].inputs()[0]))
        return None

    async def later(self, sender, x):
        await asyncio.sleep(0)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", x.as_numpy())]), 1)
        self.done.set()
"""


def test_tasks_that_a_coroutine_has_not_awaited_continue(tmp_path: Path) -> None:
    loaded = load_in_process(tmp_path, LATER)
    for value in (1, 2):
        loaded.run(request(IN0=rows(value)))
        assert loaded.instance._model.done.wait(30)
        loaded.instance._model.done.clear()
    loaded.instance.finalize()
    assert [answer.outputs[0].array.item() for _, answer in loaded.streamed] == [1, 2]
