"""The backend contract, tested with every backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.backends.models import Loaded, config_of, request, rows, save_scripted, write_identity
from tritonnb.core.messages import InferRequest

BACKENDS = ["minimal", "onnxruntime", "openvino", "pytorch", "python"]


@pytest.fixture(params=BACKENDS)
def identity(request: pytest.FixtureRequest, tmp_path: Path) -> Loaded:
    write_identity(request.param, tmp_path)
    return Loaded(config_of(request.param), tmp_path)


def test_every_request_gets_its_own_rows(identity: Loaded) -> None:
    answers = identity.run(request(IN0=rows(1, 2)), request(IN0=rows(3)), request(IN0=rows(4, 5, 6)))
    assert [answer.outputs[0].array.ravel().tolist() for answer in answers] == [[1, 2], [3], [4, 5, 6]]
    assert {answer.outputs[0].name for answer in answers} == {"OUT0"}


def test_single_request_receives_a_response(identity: Loaded) -> None:
    (answer,) = identity.run(request(IN0=np.arange(6, dtype=np.float32).reshape(2, 3)))
    assert answer.outputs[0].shape == (2, 3)
    assert answer.final


def test_outputs_that_were_not_requested_are_omitted(identity: Loaded) -> None:
    (answer,) = identity.run(request((), IN0=rows(1)))
    assert answer.outputs == []


def test_read_only_input_is_accepted(identity: Loaded) -> None:
    array = np.frombuffer(np.ones((1, 2), np.float32).tobytes(), np.float32).reshape(1, 2)
    (answer,) = identity.run(request(IN0=array))
    assert answer.outputs[0].array.tolist() == [[1, 1]]


def test_null_request_consumes_its_rows_without_affecting_others(identity: Loaded) -> None:
    null: InferRequest = request(IN0=rows(0))
    null.is_null = True
    answers = identity.run(null, request(IN0=rows(7)))
    assert answers[1].outputs[0].array.tolist() == [[7]]


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "pytorch"])
def test_error_for_missing_model_file_names_it(backend: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"unable to find '.*1/model.*' for model 'm'"):
        Loaded(config_of(backend), tmp_path)


def test_torchscript_reports_the_memory_of_its_weights(tmp_path: Path) -> None:
    import torch

    save_scripted(torch.nn.Linear(3, 5), tmp_path)
    tensors = """
        input { name: "input" data_type: TYPE_FP32 dims: 3 }
        output { name: "OUT" data_type: TYPE_FP32 dims: 5 }
    """
    loaded = Loaded(config_of("pytorch", tensors=tensors), tmp_path)
    assert loaded.instance.memory_usage() == {("CPU", 0): (3 * 5 + 5) * 4}


def test_onnx_runtime_reports_the_growth_of_the_process(tmp_path: Path) -> None:
    write_identity("onnxruntime", tmp_path)
    ((place, size),) = Loaded(config_of("onnxruntime"), tmp_path).instance.memory_usage().items()
    assert place == ("CPU", 0)
    assert size >= 0
