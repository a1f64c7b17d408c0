"""Batches of an isolated model, one after another, and the end of its process between two of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import cast

import pytest

from tests.server.isolated import ISOLATED, ask, parameter, write
from tritonnb.backends.isolation import codec
from tritonnb.backends.isolation.instance import IsolatedInstance
from tritonnb.core.errors import InternalError
from tritonnb.core.messages import InferRequest
from tritonnb.server.server import Server

NOT_HEALTHY = "Stub process 'm_0' is not healthy."

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


def test_batch_that_cannot_be_encoded_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "m", ISOLATED)

    def fail(request: InferRequest, packer: codec.Packer) -> None:
        raise OverflowError("Integer value out of range")

    with Server(tmp_path, port=0) as server:
        with monkeypatch.context() as patched:
            patched.setattr(codec, "encode_request", fail)
            with pytest.raises(InternalError, match="OverflowError: Integer value out of range"):
                ask(server["m"])
        (instance,) = server.engine.model("m").instances
        child = cast("IsolatedInstance", instance.backend_instance)._child
        assert child is not None
        assert child.model_calls.current is None
        assert ask(server["m"]) == 0.0


def test_child_exit_is_detected_even_if_a_grandchild_holds_its_sockets(tmp_path: Path) -> None:
    write(tmp_path, "m", body=ORPHAN)
    with Server(tmp_path, port=0, isolate=True) as server:
        with pytest.raises(InternalError, match=NOT_HEALTHY):
            ask(server["m"], x=1.0)
        os.kill(int((tmp_path / "m" / "1" / "child").read_text()), signal.SIGKILL)
        assert ask(server["m"]) == 0.0


@pytest.mark.parametrize("limit", ["", parameter("EXECUTION_TIMEOUT", 600)])
@pytest.mark.parametrize("do", ["talk", "enlarge"])
def test_batches_with_calls_and_large_tensors_between_small_ones_are_executed(
    tmp_path: Path, do: str, limit: str
) -> None:
    write(tmp_path, "m", ISOLATED + limit)
    with Server(tmp_path, port=0) as server:
        model = server["m"]
        for number, what in enumerate(("", do, "", do, do, "")):
            assert ask(model, what, size=10) == number
        assert ask(model, size=1 << 20) == 6
