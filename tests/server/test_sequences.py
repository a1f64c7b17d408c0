"""Stateful models, live: the sequence batcher in front of real backends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.server.conftest import python_model
from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.server.server import Server

MODELS = Path(__file__).parents[1] / "models"

STATEFUL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            total = pb_utils.get_input_tensor_by_name(request, "TOTAL_IN").as_numpy() + x
            tensors = [pb_utils.Tensor("TOTAL_OUT", total), pb_utils.Tensor("Y", total)]
            answers.append(pb_utils.InferenceResponse(tensors))
        return answers
"""
STATE = 'state { input_name: "TOTAL_IN" output_name: "TOTAL_OUT" data_type: TYPE_FP32 dims: 1 }'


@pytest.fixture
def accumulate(isolate: bool) -> Iterator[Server]:
    with Server(MODELS, port=0, model_control_mode="explicit", load_models=["accumulate"], isolate=isolate) as server:
        yield server


def add(server: Server, value: int, sequence_id: int | str, **flags: Any) -> int:
    outputs = server["accumulate"](INPUT0=[[value]], sequence_id=sequence_id, **flags)
    return int(outputs["TOTAL"][0, 0])


def test_sequences_keep_their_own_totals(accumulate: Server) -> None:
    assert add(accumulate, 1, 7, sequence_start=True) == 1
    assert add(accumulate, 10, 8, sequence_start=True) == 10
    assert add(accumulate, 2, 7) == 3
    assert add(accumulate, 20, 8, sequence_end=True) == 30
    assert add(accumulate, 3, 7, sequence_end=True) == 6


def test_stopping_server_ends_with_the_last_sequence(isolate: bool) -> None:
    options: dict[str, Any] = {
        "isolate": isolate,
        "model_control_mode": "explicit",
        "load_models": ["accumulate"],
        "wait_for_sequences": True,
    }
    server = Server(MODELS, port=0, **options)
    for sequence_id in (7, 8):
        add(server, 1, sequence_id, sequence_start=True)
    model = server["accumulate"]
    stopped = threading.Thread(target=server.stop)
    stopped.start()
    assert int(model(INPUT0=[[2]], sequence_id=7, sequence_end=True)["TOTAL"][0, 0]) == 3
    assert int(model(INPUT0=[[3]], sequence_id=8)["TOTAL"][0, 0]) == 4
    assert stopped.is_alive()
    assert int(model(INPUT0=[[4]], sequence_id=8, sequence_end=True)["TOTAL"][0, 0]) == 8
    stopped.join(30)
    assert not stopped.is_alive()


def test_stopping_server_does_not_wait_for_sequences_that_were_idle_for_too_long(
    write_model: Callable[..., Path], isolate: bool
) -> None:
    config = "sequence_batching { max_sequence_idle_microseconds: 50000 }"
    server = Server(write_model("m", python_model("x"), config), port=0, wait_for_sequences=True, isolate=isolate)
    server["m"](X=[[1.0]], sequence_id=7, sequence_start=True)
    server.stop()
    assert not server.alive


def test_request_of_an_unknown_sequence_needs_the_start_flag(accumulate: Server) -> None:
    with pytest.raises(InvalidArgumentError, match="sequence 9 to model 'accumulate' must specify the START flag"):
        add(accumulate, 1, 9)
    with pytest.raises(InvalidArgumentError, match="non-zero or non-empty correlation ID"):
        add(accumulate, 1, 0, sequence_start=True)
    assert accumulate["accumulate"].stats()["inference_stats"]["fail"]["count"] == 0


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
def test_python_model_can_use_implicit_state(write_model: Callable[..., Path], strategy: str, isolate: bool) -> None:
    repository = write_model("m", STATEFUL, f"sequence_batching {{ {strategy} {STATE} }}")
    with Server(repository, port=0, isolate=isolate) as server:

        def step(value: float, sequence: int, **flags: Any) -> float:
            return server["m"](X=[[value]], sequence_id=sequence, **flags)["Y"].item()

        assert step(1, 1, sequence_start=True) == 1
        assert step(5, 2, sequence_start=True) == 5
        assert step(1, 1) == 2
        assert step(5, 2) == 10
        assert step(1, 1, sequence_start=True) == 1


RESIZED = STATEFUL.replace('"TOTAL_OUT", total)', '"TOTAL_OUT", np.ones((1, int(x[0, 0])), np.float32))').replace(
    "import triton", "import numpy as np\nimport triton", 1
)
SAME_BUFFER = "use_same_buffer_for_input_output: true"


@pytest.mark.parametrize("field", ["", SAME_BUFFER, SAME_BUFFER + " use_growable_memory: true"])
def test_state_that_changes_its_size_is_kept_or_is_the_error_of_its_request(
    write_model: Callable[..., Path], field: str, isolate: bool
) -> None:
    state = STATE.replace("dims: 1", f"dims: -1 {field}")
    repository = write_model("m", RESIZED, f"sequence_batching {{ oldest {{ }} {state} }}")
    with Server(repository, port=0, isolate=isolate) as server:

        def step(value: float, sequence: int, **flags: Any) -> list[float]:
            outputs: list[list[float]] = server["m"](X=[[value]], sequence_id=sequence, **flags)["Y"].tolist()
            return outputs[0]

        assert step(1, 1, sequence_start=True) == [1]
        with ThreadPoolExecutor() as pool:
            steps = [pool.submit(step, value, value, sequence_start=True) for value in (1, 3)]
        assert steps[0].result() == [1]
        if field == SAME_BUFFER:
            with pytest.raises(InvalidArgumentError, match="state 'TOTAL_OUT': expected the size of input 'TOTAL_IN'"):
                steps[1].result()
            assert step(1, 3) == [1]  # an error leaves the state as it was
        else:
            assert steps[1].result() == [3]
            assert step(1, 3) == [2, 2, 2]
        assert step(1, 1) == [2]


def write_onnx_total(repository: Path, dims: int, strategy: str) -> None:
    """A model ``m`` that adds up what it gets, of ``dims`` numbers, in an implicit state."""
    from onnx import TensorProto, helper, save_model

    def value(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "n" if dims < 0 else dims])

    add_node = helper.make_node("Add", ["X", "TOTAL_IN"], ["TOTAL_OUT"])
    same = helper.make_node("Identity", ["TOTAL_OUT"], ["Y"])
    total = value("TOTAL_IN") if dims > 0 else helper.make_tensor_value_info("TOTAL_IN", TensorProto.FLOAT, ["b", "k"])
    graph = helper.make_graph([add_node, same], "g", [value("X"), total], [value("Y"), value("TOTAL_OUT")])
    (repository / "m" / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save_model(model, repository / "m/1/model.onnx")
    (repository / "m" / "config.pbtxt").write_text(
        f"""
        backend: "onnxruntime" max_batch_size: 4
        input {{ name: "X" data_type: TYPE_FP32 dims: {dims} }}
        output {{ name: "Y" data_type: TYPE_FP32 dims: {dims} }}
        sequence_batching {{ {strategy} {STATE.replace("dims: 1", f"dims: {dims}")} }}
        instance_group {{ count: 1 }}
        """
    )


def test_onnx_model_can_use_implicit_state(tmp_path: Path, isolate: bool) -> None:
    write_onnx_total(tmp_path, 1, "direct { }")
    with Server(tmp_path, port=0, isolate=isolate) as server:
        assert not server.load_errors
        totals = [
            server["m"](X=[[k]], sequence_id=s, sequence_start=k == 1)["Y"].item()
            for k in (1, 2, 3)
            for s in ("a", "b")
        ]
    assert totals == [1, 1, 3, 3, 6, 6]


@pytest.mark.parametrize(("strategy", "held"), [("direct { }", 12), ("oldest { max_candidate_sequences: 4 }", 4)])
def test_sequences_of_an_onnx_model_that_differ_in_shape_do_not_share_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, held: int
) -> None:
    lengths, values = {1: 2, 2: 2, 3: 1, 4: 3}, (1, 2, 3)
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", str(held))
    write_onnx_total(tmp_path, -1, strategy)

    async def ask_all(server: Server) -> list[list[list[float]]]:
        # With the oldest strategy, the fourth request that is held is the first one of the last sequence.
        requests = [
            server["m"].infer_async(
                X=np.full((1, length), value, np.float32),
                sequence_id=sequence,
                sequence_start=value == values[0],
                sequence_end=value == values[-1],
            )
            for sequence, length in lengths.items()
            for value in values
        ]
        return [answer["Y"].tolist() for answer in await asyncio.gather(*requests)]

    with Server(tmp_path, port=0) as server:
        assert not server.load_errors
        totals = asyncio.run(ask_all(server))
        stats = server["m"].stats()
    assert totals == [[[float(total)] * length] for length in lengths.values() for total in (1, 3, 6)]
    assert (stats["inference_count"], stats["execution_count"]) == (12, 9)


def test_server_of_a_notebook_waits_for_requests_but_not_for_sequences(
    write_model: Callable[..., Path], isolate: bool
) -> None:
    forever = "max_sequence_idle_microseconds: 3600000000"
    repository = write_model("m", STATEFUL, f"sequence_batching {{ {forever} direct {{ }} {STATE} }}")
    server = Server(repository, port=0, isolate=isolate)
    server["m"](X=[[1.0]], sequence_id=1, sequence_start=True)
    assert server["m"].served.open_sequences == 1
    server.stop()
    assert not server.alive


ITERATIVE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.steps = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            wanted = int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()[0, 0])
            key = request.correlation_id()
            self.steps[key] = self.steps.get(key, 0) + 1
            if self.steps[key] < wanted:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                answers.append(None)
            else:
                done = pb_utils.Tensor("Y", np.array([[self.steps[key]]], np.float32))
                answers.append(pb_utils.InferenceResponse([done]))
        return answers
"""


def test_iterative_sequence_runs_until_the_model_releases_it(write_model: Callable[..., Path], isolate: bool) -> None:
    repository = write_model("m", ITERATIVE, "sequence_batching { iterative_sequence: true }")
    with Server(repository, port=0, isolate=isolate) as server:
        with server.record() as rec:
            assert server["m"](X=[[4.0]])["Y"].item() == 4
        assert len(rec.batches) == 4
        counted = server["m"].stats()
        assert counted["inference_count"] == 4
        assert counted["inference_stats"]["fail"]["count"] == 0
        assert server["m"](X=[[1.0]])["Y"].item() == 1


STRATEGIES = [
    "",
    "direct { }",
    "direct { max_queue_delay_microseconds: 2000 minimum_slot_utilization: 1 }",
    "oldest { }",
]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_end_flag_does_not_end_an_iterative_request(write_model: Callable[..., Path], strategy: str) -> None:
    """Triton does not answer a request with START and END that is released to be executed again."""
    batching = f"sequence_batching {{ iterative_sequence: true {strategy} }}"
    with Server(write_model("m", ITERATIVE, batching), port=0) as server:
        model = server["m"]
        for number in range(3):  # the ID can be used again
            steps = 4 + number * 4  # the model counts on
            answer = model(X=[[float(steps)]], sequence_id=7, sequence_start=True, sequence_end=True)
            assert answer["Y"].item() == steps
        assert model.served.open_sequences == 0
        assert model.served.live_sequences() == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_end_on_a_later_request_does_not_end_the_iterative_one_before_it(
    write_model: Callable[..., Path], strategy: str
) -> None:
    batching = f"sequence_batching {{ iterative_sequence: true {strategy} }}"

    async def ask_both(server: Server) -> list[float]:
        first = server["m"].infer_async(X=[[50.0]], sequence_id=8, sequence_start=True)
        second = server["m"].infer_async(X=[[60.0]], sequence_id=8, sequence_end=True)
        return [answer["Y"].item() for answer in await asyncio.gather(first, second)]

    with Server(write_model("m", ITERATIVE, batching), port=0) as server:
        first, second = asyncio.run(ask_both(server))
        assert (first >= 50, second >= 60) == (True, True)
        assert server["m"].served.open_sequences == 0


BOTH = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", requests[0].inputs()[0].as_numpy())])]
"""


def test_batch_that_fails_does_not_run_again(write_model: Callable[..., Path], isolate: bool) -> None:
    repository = write_model("m", BOTH, "sequence_batching { iterative_sequence: true }")
    with Server(repository, port=0, isolate=isolate) as server:
        with server.record() as rec:
            for _ in range(2):
                with pytest.raises(TritonError, match="Expected a None object in the execute function return list"):
                    server["m"](X=[[4.0]])
        assert len(rec.batches) == 2


def test_only_an_iterative_model_may_reschedule(write_model: Callable[..., Path], isolate: bool) -> None:
    refused = pytest.raises(InvalidArgumentError, match="TRITONSERVER_REQUEST_RELEASE_RESCHEDULE")
    with Server(write_model("m", ITERATIVE, "dynamic_batching { }"), port=0, isolate=isolate) as server, refused:
        server["m"](X=[[4.0]])


def test_recording_shows_the_slot_of_every_request(accumulate: Server) -> None:
    add(accumulate, 1, 1, sequence_start=True)
    with accumulate.record() as rec:
        add(accumulate, 1, 2, sequence_start=True)
    (batch,) = rec.batches
    assert (batch.requests[0], batch.size) == (None, 2)
    assert batch.why
    assert np.isfinite(batch.queue_ns)
