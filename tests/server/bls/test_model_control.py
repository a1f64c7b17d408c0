"""Models that load and unload other models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.server.bls.conftest import Write
from tests.server.conftest import python_model
from tritonnb.core.errors import TritonError
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.server.server import Server


def test_model_loads_and_unloads_another(
    server: Server, scripted: Callable[..., Callable[[float], list[float]]], write_model: Write
) -> None:
    write_model("late", python_model("x + 100"))
    ask = scripted(
        """
before = pb_utils.is_model_ready("late")
pb_utils.load_model(model_name="late")
answer = value(ask("late", x).exec())
version = pb_utils.is_model_ready("late", "1"), pb_utils.is_model_ready("late", "2")
pb_utils.unload_model("late")
return [before, answer, *version, pb_utils.is_model_ready("late")]
"""
    )
    assert ask(1) == [0, 101, 1, 0, 0]


def test_model_can_load_another_model_with_files(
    server: Server, scripted: Callable[..., Callable[[float], list[float]]]
) -> None:
    ask = scripted(
        f"""
import json
tensor = dict(data_type="TYPE_FP32", dims=[1])
config = dict(backend="python", max_batch_size=8, input=[dict(tensor, name="X")], output=[dict(tensor, name="Y")])
files = {{"file:1/model.py": {python_model("x - 1")!r}.encode()}}
pb_utils.load_model("made", config=json.dumps(config), files=files)
return value(ask("made", x).exec())
"""
    )
    assert ask(5) == [4]
    assert {"name": "made", "version": "1", "state": "READY"} in server.index()


def test_failed_load_raises_in_the_model(scripted: Callable[..., Callable[[float], list[float]]]) -> None:
    ask = scripted(
        """
try:
    pb_utils.load_model("nosuch")
except pb_utils.TritonModelException as error:
    assert "failed to poll" in str(error)
    return 1
"""
    )
    assert ask(0) == [1]


def test_models_cannot_load_others_without_explicit_model_control(
    server: Server, scripted: Callable[..., Callable[[float], list[float]]]
) -> None:
    scripted('pb_utils.load_model("double")')
    with Server(server.engine.options.model_repositories, port=0) as other, pytest.raises(TritonError) as caught:
        other["caller"](X=np.array([[1]], np.float32))
    assert "explicit model load / unload is not allowed" in str(caught.value)


def test_refused_load_by_a_model_names_its_instance(
    server: Server, scripted: Callable[..., Callable[[float], list[float]]]
) -> None:
    refused = pytest.raises(
        TritonError,
        match="Failed to check model readiness: Failed to process the request for model 'caller_0_0', message: failed "
        "to get model version from specified version string 'x'",
    )
    model = scripted('return pb_utils.is_model_ready("double", "x")')
    with refused:
        model(0)
    model = scripted('return pb_utils.is_model_ready("double", 1)')
    with pytest.raises(TritonError, match="TypeError: expected str or bytes, got int"):
        model(0)


def test_call_of_a_server_whose_loop_has_ended_fails() -> None:
    """Such as by a thread of a model that the server did not wait for (`exit_timeout`)."""
    with Server(port=0) as stopped:
        calls = stopped.engine._calls
    with pytest.raises(TritonError, match="the server has been stopped"):
        calls.is_model_ready("m", 1)
    calls.cancel(InferRequest("m", {}))
    answers: list[InferResponse] = []
    calls.infer(InferRequest("m", {}, lambda request, response: answers.append(response)), decoupled=True)
    assert [str(answer.error) for answer in answers] == ["the server has been stopped"]
