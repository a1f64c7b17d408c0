"""Models that call models, ensembles, iterative sequences and warm-up: every execution has its own arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.server.ownership.conftest import REVERSE, write_python_model
from tests.server.ownership.ways import Way, in_process, over_http
from tritonnb.server.server import Server

CALLER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            call = pb_utils.InferenceRequest(
                model_name="reverse_py", requested_output_names=["Y"], inputs=[pb_utils.Tensor("X", x)]
            )
            first, second = await call.async_exec(), await call.async_exec()
            answers = [pb_utils.get_output_tensor_by_name(response, "Y").as_numpy() for response in (first, second)]
            answers[0][...] = 0
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.concatenate([x, *answers]))]))
        return responses
"""


DIAMOND = """
    name: "diamond" platform: "ensemble"
    input { name: "X" data_type: TYPE_FP32 dims: -1 }
    output { name: "Y" data_type: TYPE_FP32 dims: -1 }
    output { name: "M" data_type: TYPE_FP32 dims: -1 }
    ensemble_scheduling {
        step { model_name: "reverse_py" model_version: -1 input_map { key: "X" value: "X" }
               output_map { key: "Y" value: "M" } }
        step { model_name: "second" model_version: -1 input_map { key: "X" value: "M" }
               output_map { key: "Y" value: "Y" } }
    }
"""


@pytest.fixture(scope="module", params=[False, True], ids=["in_process", "isolated"])
def composed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("composed")
    write_python_model(repository, "reverse_py", REVERSE)
    write_python_model(repository, "second", REVERSE)
    write_python_model(repository, "caller", CALLER)
    (repository / "diamond" / "1").mkdir(parents=True)
    (repository / "diamond" / "config.pbtxt").write_text(DIAMOND)
    with Server(repository, port=0, isolate=request.param) as server:
        yield server


@pytest.mark.parametrize("way", [in_process, over_http])
def test_model_that_another_model_calls_writes_to_its_own_arrays(composed: Server, way: Way) -> None:
    x = np.array([1, 2], np.float32)
    assert way(composed, "caller", x).tolist() == [1, 2, 0, 0, 2, 1]
    assert x.tolist() == [1, 2]


def test_steps_of_an_ensemble_write_to_separate_arrays(composed: Server) -> None:
    x = np.array([1, 2], np.float32)
    answer = composed["diamond"](X=x)
    assert answer["M"].tolist() == [2, 1]
    assert answer["Y"].tolist() == [1, 2]
    answer["M"][:] = answer["Y"][:] = 0  # both may be written to, as any answer
    assert x.tolist() == [1, 2]


ITERATIVE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.runs = 0

    def execute(self, requests):
        [request] = requests
        self.runs += 1
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        x += 1
        if self.runs < 3:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return [None]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])]
"""


def test_rescheduled_request_has_its_original_inputs(tmp_path: Path, isolate: bool) -> None:
    write_python_model(tmp_path, "iterative", ITERATIVE, "sequence_batching { iterative_sequence: true }")
    with Server(tmp_path, port=0, isolate=isolate) as server:
        assert server["iterative"](X=[1.0])["Y"].tolist() == [2.0]


WARMED = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.seen = []

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            self.seen.append(float(x[0]))
            x += 1
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array(self.seen, np.float32))]))
        return responses
"""


def test_random_warmup_sample_is_reproducible(tmp_path: Path, isolate: bool) -> None:
    sample = 'inputs { key: "X" value { data_type: TYPE_FP32 dims: 1 zero_data: true } }'
    warm_up = f'model_warmup {{ name: "w" batch_size: 1 count: 3 {sample} }}'
    write_python_model(tmp_path, "warmed", WARMED, warm_up)
    with Server(tmp_path, port=0, isolate=isolate) as server:
        assert server["warmed"](X=[9.0])["Y"].tolist() == [0, 0, 0, 9]
