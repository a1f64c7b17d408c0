"""The event loop waits for small batches of an isolated model, the instance's thread for all others."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.isolated import ISOLATED, ask, parameter, write
from tritonnb.backends.contract import Continues, Ended
from tritonnb.backends.execution import Execution
from tritonnb.backends.isolation.instance import IsolatedInstance
from tritonnb.core.errors import InternalError
from tritonnb.server.server import Server

NOT_HEALTHY = "Stub process 'm_0' is not healthy."


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each batch, whether the event loop has begun to wait for it."""
    outcomes: list[bool] = []
    begin: Callable[..., bool] = IsolatedInstance.begin

    def observed(self: IsolatedInstance, execution: Execution, ended: Ended, continues: Continues) -> bool:
        outcomes.append(begin(self, execution, ended, continues))
        return outcomes[-1]

    monkeypatch.setattr(IsolatedInstance, "begin", observed)
    return outcomes


ORPHAN = """
import os
import signal
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        self.answer(requests[0].inputs()[0].as_numpy()[0])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros(1, np.float32))]) for _ in requests]

    def answer(self, x):
        if x == 0:
            return
        child = os.fork()  # it has the sockets, too
        if child == 0:
            time.sleep(600)
        with open(os.path.join(os.path.dirname(__file__), "child"), "w") as file:
            file.write(str(child))
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_end_of_a_process_is_noticed_although_a_process_that_it_started_has_its_sockets(tmp_path: Path) -> None:
    write(tmp_path, "m", body=ORPHAN)
    with Server(tmp_path, port=0, isolate=True) as server:
        with pytest.raises(InternalError, match=NOT_HEALTHY):
            ask(server["m"], x=1.0)
        os.kill(int((tmp_path / "m" / "1" / "child").read_text()), signal.SIGKILL)
        assert ask(server["m"]) == 0.0


DECOUPLED = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(2):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy())]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.parametrize("limit", ["", parameter("EXECUTION_TIMEOUT", 600)])
@pytest.mark.parametrize("do", ["talk", "enlarge"])
def test_after_a_call_of_the_model_or_a_large_response_the_thread_waits_for_one_batch(
    tmp_path: Path, begun: list[bool], do: str, limit: str
) -> None:
    write(tmp_path, "m", ISOLATED + limit)
    with Server(tmp_path, port=0) as server:
        model = server["m"]
        for number, what in enumerate(("", do, "", "", do, do, "", "")):
            assert ask(model, what, size=10) == number
    assert begun == [True, True, False, True, True, False, False, True]


def test_large_requests_and_decoupled_models_are_left_to_the_thread(tmp_path: Path, begun: list[bool]) -> None:
    write(tmp_path, "m", ISOLATED)
    write(tmp_path, "decoupled", ISOLATED + "model_transaction_policy { decoupled: true }", DECOUPLED)
    with Server(tmp_path, port=0) as server:
        assert ask(server["m"], size=1 << 20) == 0.0
        assert len(server["decoupled"].infer_all(X=[1.0])) == 2
    assert begun == [False, False]
