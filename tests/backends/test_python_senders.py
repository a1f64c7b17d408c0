"""Response senders and coroutines of the Python backend: responses before, while and after ``execute`` returns."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.backends.models import Loaded, request, rows
from tests.backends.python_models import HEAD, SCRIPTED, Load, load_model, run, value_of
from tests.waiting import wait_for
from tritonnb.backends.isolation import codec
from tritonnb.backends.isolation.codec import Encoded, Packer, encode_request
from tritonnb.core.errors import InternalError
from tritonnb.core.messages import InferRequest

DECOUPLED = "model_transaction_policy { decoupled: true }"
CLOSED = "Unable to send response. Response sender has been closed."
SECOND = "cannot send more than one response"


# --- decoupled models -----------------------------------------------------------------------------


def test_decoupled_model_sends_any_number_of_responses(load: Load, tmp_path: Path) -> None:
    body = (
        HEAD
        + """    def execute(self, requests):
        sender, other = (request.get_response_sender() for request in requests)
        for value in (1, 2):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", np.array([[value]], np.float32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        try:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        except pb_utils.TritonModelException as error:
            other.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))), 1)
"""
    )
    loaded = load(tmp_path, body, extra=DECOUPLED)
    assert loaded.run(request(IN0=rows(0)), request(IN0=rows(0))) == [None, None]
    *answers, (_, closed) = loaded.streamed
    assert [answer.outputs[0].array.item() for _, answer in answers[:2]] == [1, 2]
    assert [(answer.final, answer.empty) for _, answer in answers] == [(False, False), (False, False), (True, True)]
    assert str(closed.error) == CLOSED


def test_decoupled_model_that_returns_responses_is_refused(load: Load, tmp_path: Path) -> None:
    body = HEAD + "    def execute(self, requests):\n        return []\n"
    loaded = load(tmp_path, body, extra=DECOUPLED)
    with pytest.raises(InternalError) as caught:
        loaded.run(request(IN0=rows(1)))
    assert str(caught.value) == (
        "Failed to process the request(s) for model 'm_0_0', message: Python model 'm_0_0' is using the decoupled mode "
        "and the execute function must return None."
    )


# --- models that are not decoupled ----------------------------------------------------------------


def test_model_sends_its_response_before_or_after_execute_returns(load: Load, tmp_path: Path) -> None:
    loaded = load(tmp_path, SCRIPTED)
    keep = "self.sender, self.answer = senders[1], answers[1]"
    assert run(loaded, f"{keep}; senders[0].send(answers[0], FINAL); returned = [None, None]", 1, 2) == [None, None]
    assert value_of(loaded, "raised(self.sender.send, self.answer)") == ""
    assert SECOND in str(value_of(loaded, "raised(self.sender.send, self.answer)"))
    assert value_of(loaded, "raised(self.sender.send, flags=FINAL)") == ""
    assert value_of(loaded, "raised(self.sender.send, flags=FINAL)") == CLOSED
    assert [(answer.outputs[0].array.item(), answer.final) for _, answer in loaded.streamed] == [(1, True), (2, True)]


def test_dropped_response_sender_sends_an_error(load: Load, tmp_path: Path) -> None:
    loaded = load(tmp_path, SCRIPTED)
    assert run(loaded, "self.sender = senders[0]; returned = [None]") == [None]
    assert loaded.streamed == []
    assert value_of(loaded, "delattr(self, 'sender') or ''") == ""
    ((_, answer),) = loaded.streamed
    assert answer.final
    assert str(answer.error) == "the model dropped the response sender without a response"


def test_model_that_returns_and_sends_a_response_is_refused(load: Load, tmp_path: Path) -> None:
    loaded = load(tmp_path, SCRIPTED)
    (answer,) = run(loaded, "self.sender, self.answer = senders[0], answers[0]; returned = answers", 1)
    assert answer is not None
    assert answer.outputs[0].array.item() == 1
    assert SECOND in str(value_of(loaded, "raised(self.sender.send, self.answer)"))
    with pytest.raises(InternalError, match=f"Non-decoupled model {SECOND}"):
        run(loaded, "senders[0].send(answers[0]); returned = answers")
    assert len(loaded.streamed) == 1


def test_final_flag_needs_a_response_and_unknown_flags_are_refused(load: Load, tmp_path: Path) -> None:
    loaded = load(tmp_path, SCRIPTED)
    with pytest.raises(InternalError, match="cannot send complete final before sending a response"):
        run(loaded, "senders[0].send(flags=FINAL)")
    with pytest.raises(InternalError, match="Unsupported flag provided"):
        run(loaded, "senders[0].send(answers[0], 2)")


LATER = """
import asyncio
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    async def execute(self, requests):
        self.task = asyncio.create_task(self.later(requests[0].get_response_sender(), requests[0].inputs()[0]))
        return None

    async def later(self, sender, x):
        await asyncio.sleep(0)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", x.as_numpy())]), 1)
"""


def test_unawaited_tasks_of_a_coroutine_continue(load: Load, tmp_path: Path) -> None:
    loaded = load(tmp_path, LATER)
    for value in (1, 2):
        loaded.run(request(IN0=rows(value)))
        wait_for(lambda count=value: len(loaded.streamed) == count)  # type: ignore[misc]
    assert [answer.outputs[0].array.item() for _, answer in loaded.streamed] == [1, 2]


# --- cancellation ---------------------------------------------------------------------------------


def cancel(loaded: Loaded, cancelled: InferRequest) -> None:
    """Cancel a request that an instance executes, as the server does."""
    cancelled.cancelled = True
    loaded.instance.cancel(cancelled)


WAITING = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        senders = [request.get_response_sender() for request in requests]
        senders[1].send(pb_utils.InferenceResponse([]), 1)  # the execution has begun
        while not (requests[0].is_cancelled() and senders[0].is_cancelled()):
            time.sleep(0.001)
        cancelled = [request.is_cancelled() for request in requests]
        senders[0].send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(cancelled))), 1)
        return [None, None]
"""


def test_model_sees_cancellation_during_execution(load: Load, tmp_path: Path) -> None:
    loaded = load(tmp_path, WAITING)
    requests = request(IN0=rows(0)), request(IN0=rows(0))
    with ThreadPoolExecutor(1) as instance:
        execution = instance.submit(loaded.run, *requests)
        wait_for(lambda: len(loaded.streamed) == 1)
        cancel(loaded, requests[0])
        assert execution.result() == [None, None]
    assert str(loaded.streamed[1][1].error) == "[True, False]"


def test_model_sees_cancellation_before_execution(load: Load, tmp_path: Path) -> None:
    loaded = load(tmp_path, WAITING)
    requests = request(IN0=rows(0)), request(IN0=rows(0))
    cancel(loaded, requests[0])
    assert loaded.run(*requests) == [None, None]


def test_cancellation_that_arrives_before_its_batch_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Isolated only: nothing can overtake a batch in this process."""
    loaded = load_model(tmp_path, WAITING, isolated=True)
    requests = request(IN0=rows(0)), request(IN0=rows(0))

    def encode_late(encoded: InferRequest, packer: Packer) -> Encoded:
        fields = encode_request(encoded, packer)
        if encoded is requests[0]:
            cancel(loaded, encoded)
        return fields

    monkeypatch.setattr(codec, "encode_request", encode_late)
    assert loaded.run(*requests) == [None, None]
    loaded.instance.finalize()


KEPT = """
import threading
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        threading.Thread(target=self.respond, args=(requests[0].get_response_sender(),)).start()
        return [None]

    def respond(self, sender):
        while not sender.is_cancelled():
            time.sleep(0.001)
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("cancelled")), 1)
"""


def test_kept_response_sender_reports_the_cancellation(load: Load, tmp_path: Path) -> None:
    loaded = load(tmp_path, KEPT)
    kept = request(IN0=rows(0))
    assert loaded.run(kept) == [None]
    cancel(loaded, kept)
    wait_for(lambda: len(loaded.streamed) == 1)
    assert str(loaded.streamed[0][1].error) == "cancelled"
