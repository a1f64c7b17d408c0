"""The backend of models that are not there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tritonnb as tnb
from tests.lab.analysis.test_execution_diagnoses import Machine
from tritonnb.backends.contract import ModelContext
from tritonnb.backends.simulated import ExecutionTimes, SimulatedBackend
from tritonnb.core.datatypes import DATATYPES
from tritonnb.core.events import ResponseSent
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.simulation.simulated_model import responses_of, steps_of, times_of, write_simulated
from tritonnb.model_config.read import read_config
from tritonnb.server.model_handle import ModelHandle

TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: -1 } output { name: "Y" data_type: TYPE_INT64 dims: [ 2, -1 ] }'
CONFIG = f'name: "net" max_batch_size: 4 dynamic_batching {{ }} {TENSORS} instance_group {{ count: 2 kind: KIND_CPU }}'


@given(st.dictionaries(st.integers(1, 64), st.lists(st.floats(0.5, 100), min_size=1, max_size=4), min_size=1))
def test_time_of_a_recorded_size_is_a_recorded_time_and_other_sizes_lie_between(ms: dict[int, list[float]]) -> None:
    times, rng = ExecutionTimes(ms), random.Random(1)
    for rows in range(1, 130):
        drawn = times.draw(rows, 1, rng)
        assert drawn in [pytest.approx(one) for one in ms[rows]] if rows in ms else drawn > 0
    sizes = sorted(ms)
    for before, after in pairwise(sizes):
        low, high = sorted(statistics.fmean(ms[size]) for size in (before, after))
        assert low - 1e-6 <= times._typical((before + after) // 2) <= high + 1e-6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "expected the file .*times.json, got none"),
        ("{", "times.json: Expecting"),
        ("[]", "at least one batch size"),
        ('{"ms": {"1": "12"}}', "expected .*ROWS"),
        ('{"ms": {"1": {"5": 6}}}', "expected .*ROWS"),
        ('{"ms": {"1": [5]}, "slow_down": [1.5]}', "expected .*INSTANCES"),
        ("[" * 100_000, "recursion"),
        ('{"ms": {}}', "at least one batch size"),
        ('{"ms": {"1": []}}', "batch size 1: expected times"),
        ('{"ms": {"0": [1]}}', "batch size 0"),
        ('{"ms": {"1": [-1]}}', "from 0 to 600000 ms"),
        ('{"ms": {"1": [1e400]}}', "from 0 to 600000 ms"),
        ('{"ms": {"1": [NaN]}}', "from 0 to 600000 ms"),
        ('{"ms": {"a": [1]}}', "times.json"),
        ('{"ms": {"1": [5]}, "slow_down": {"2": 0}}', "positive factors"),
        ('{"ms": {"1": 5}}', "times.json"),
        ('{"ms": {"1": [5]}, "responses": 5}', "a list for each request"),
        ('{"ms": {"1": [5]}, "responses": [5]}', "a list for each request"),
        ('{"ms": {"1": [5]}, "responses": [[5, -1]]}', "responses expected times from 0"),
        ('{"ms": {"1": [5]}, "steps": 5}', "with positive numbers"),
        ('{"ms": {"1": [5]}, "steps": [0]}', "with positive numbers"),
        ('{"ms": {"1": [5]}, "steps": [1.5]}', "with positive numbers"),
    ],
)
def test_invalid_times_are_refused_with_their_file(tmp_path: Path, text: str | None, words: str) -> None:
    (tmp_path / "1").mkdir()
    if text is not None:
        (tmp_path / "1" / "times.json").write_text(text)
    model = SimulatedBackend().create_model(ModelContext("net", 1, pb.ModelConfig(), tmp_path))
    with pytest.raises(tnb.TritonError, match=f"model 'net'.*{words}"):
        model.initialize()


def test_no_execution_takes_longer_than_the_longest_time() -> None:
    assert ExecutionTimes({1: [600_000.0]}, {2: 1e300}).draw(1000, 2, random.Random(1)) == 600_000


@pytest.fixture(scope="module")
def recording() -> tnb.Recording:
    """8 ms, twice as long beside another instance; one execution stalls."""
    service = Machine(lambda busy, idle_ns, count: (2.0 if busy > 1 else 1.0) + (5 if count == 50 else 0))
    return tnb.simulate(CONFIG, tnb.poisson(120, 4, seed=3), service)


def test_recorded_times_are_learned_with_stalls_and_without_the_other_instance(recording: tnb.Recording) -> None:
    times = times_of(recording.service())
    assert times.slow_down[2] == pytest.approx(2.0, rel=0.05)
    every = [one for known in times.ms.values() for one in known]
    assert statistics.median(every) == pytest.approx(8.0, rel=0.05)
    assert max(every) > 20


def test_simulated_model_answers_zeros_after_the_recorded_time(recording: tnb.Recording) -> None:
    with tnb.Server(port=0) as server:
        model = server.simulate(recording)
        begin = time.monotonic()
        outputs = model(X=[[1.0, 2.0]] * 3)
        elapsed = time.monotonic() - begin
        assert outputs["Y"].dtype == np.int64
        assert outputs["Y"].tolist() == [[[0], [0]]] * 3
        assert elapsed >= 0.0075
        assert model.stats()["inference_stats"]["compute_infer"]["ns"] >= 7_500_000


def test_busy_instances_slow_a_simulated_model_down(recording: tnb.Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    times = ExecutionTimes({1: [20.0]}, {2: 3.0})
    monkeypatch.setattr("tritonnb.lab.simulation.simulated_model.times_of", lambda learned: times)
    with tnb.Server(port=0) as server, ThreadPoolExecutor(2) as pool:
        model = server.simulate(recording)
        list(pool.map(lambda value: model(X=[[value]]), (1.0, 2.0)))
        # The execution that begins first is alone then.
        assert model.stats()["inference_stats"]["compute_infer"]["ns"] >= (20 + 60) * 1_000_000


def test_function_gives_the_answers(recording: tnb.Recording) -> None:
    with tnb.Server(port=0) as server:
        model = server.simulate(recording, function=lambda X: np.stack([X, X + 1], axis=1).astype(int))
        assert model(X=[[5.0], [7.0]])["Y"].tolist() == [[[5], [6]], [[7], [8]]]


@pytest.mark.parametrize("datatype", DATATYPES, ids=lambda datatype: datatype.name)
def test_every_datatype_has_zeros(datatype: Any) -> None:
    output = f'name: "Y" data_type: {datatype.config_name} dims: [ 2 ] reshape {{ shape: [ 2, 1 ] }}'
    config = f'name: "net" output {{ {output} }}'
    recording = tnb.simulate(config, tnb.constant(100, 0.1), tnb.fixed(0))
    with tnb.Server(port=0) as server:
        assert server.simulate(recording)()["Y"].shape == (2,)


def test_model_of_a_repository_is_written_from_a_recording(tmp_path: Path, recording: tnb.Recording) -> None:
    directory = write_simulated(recording, tmp_path)
    document = json.loads((directory / "1" / "times.json").read_text())
    assert ExecutionTimes.from_json(document).ms.keys() == {batch.size for batch in recording.batches}
    assert read_config(directory / "config.pbtxt").backend == "simulated"


@pytest.mark.parametrize("model", ["bert_large_a30_simulated", "resnet50_a100_simulated", "resnet50_t4_simulated"])
def test_example_names_its_source_and_has_times_up_to_its_batch_size(model: str) -> None:
    directory = Path(__file__).parents[2] / "model_repository" / model
    times = ExecutionTimes.from_json(json.loads((directory / "1" / "times.json").read_text()))
    assert "NVIDIA DeepLearningExamples" in times.source
    assert times.source.endswith("not measured here")
    assert max(times.ms) == read_config(directory / "config.pbtxt").max_batch_size


STREAM = f"""name: "stream" backend: "simulated" max_batch_size: 4 dynamic_batching {{ }} {TENSORS}
    model_transaction_policy {{ decoupled: true }}"""


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """A model that executes for 2 ms, and sends three responses, the last two after that, or none."""
    (tmp_path / "stream" / "1").mkdir(parents=True)
    (tmp_path / "stream" / "config.pbtxt").write_text(STREAM)
    times = {"ms": {"1": [2]}, "responses": [[1, 8, 16]]}
    (tmp_path / "stream" / "1" / "times.json").write_text(json.dumps(times))
    return tmp_path


def sent(recording: tnb.Recording) -> list[tuple[str, bool]]:
    return [(event.outcome, event.final) for event in recording.events if isinstance(event, ResponseSent)]


def test_decoupled_model_sends_its_responses_at_their_times(stream: Path) -> None:
    with tnb.Server(str(stream), port=0) as server, server.record() as recording:
        responses = server["stream"].infer_all(X=[[1.0]])
    assert [response["Y"].tolist() for response in responses] == [[[[0], [0]]]] * 3
    assert sent(recording) == [("success", False)] * 3 + [("empty", True)]
    (times,) = responses_of(recording)
    assert all(measured >= known - 0.5 for measured, known in zip(times, [1, 8, 16], strict=True))
    (batch,) = recording.batches
    assert batch.exec_end_ns - batch.exec_start_ns < (times[-1] - 1) * 1e6  # the instance was free before


def test_decoupled_model_of_a_recording_sends_as_many_responses(stream: Path) -> None:
    with tnb.Server(str(stream), port=0) as server, server.record() as recording:
        server["stream"].infer_all(X=[[1.0]])
    with tnb.Server(port=0) as server, server.record() as simulated:
        server.simulate(recording).infer_all(X=[[1.0]])
    assert sent(simulated) == sent(recording)
    document = json.loads((write_simulated(recording, stream / "copy") / "1" / "times.json").read_text())
    assert ExecutionTimes.from_json(document).responses == responses_of(recording)


@pytest.mark.parametrize("policy", ["", "model_transaction_policy { decoupled: true }"])
def test_requests_of_iterative_sequences_are_executed_in_steps(tmp_path: Path, policy: str) -> None:
    (tmp_path / "net" / "1").mkdir(parents=True)
    scheduling = "sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 4 } }"
    text = CONFIG.replace("dynamic_batching { }", f'backend: "simulated" {scheduling} {policy}').replace(
        "2 kind", "1 kind"
    )
    (tmp_path / "net" / "config.pbtxt").write_text(text)
    (tmp_path / "net" / "1" / "times.json").write_text('{"ms": {"1": [1]}, "steps": [3]}')
    with tnb.Server(str(tmp_path), port=0) as server, server.record() as recording, ThreadPoolExecutor(3) as pool:
        answers = [*pool.map(lambda value: server["net"].infer_all(X=[[value]]), (1.0, 2.0, 3.0))]
    responses = 3 if policy else 1
    assert [len(answer) for answer in answers] == [responses] * 3
    assert steps_of(recording) == [3, 3, 3]
    with tnb.Server(port=0) as server, server.record() as simulated:
        assert len(server.simulate(recording).infer_all(X=[[1.0]])) == responses
    assert steps_of(simulated) == [3]
    document = json.loads((write_simulated(recording, tmp_path / "copy") / "1" / "times.json").read_text())
    assert ExecutionTimes.from_json(document).steps == [3, 3, 3]


LATE = {"ms": {"1": [0]}, "responses": [[0, 600_000]]}


def late(repository: Path, times: dict[str, Any] = LATE, **options: Any) -> tnb.Server:
    """Serve the model with a second response after ten minutes, or other times."""
    (repository / "stream" / "1" / "times.json").write_text(json.dumps(times))
    return tnb.Server(str(repository), port=0, **options)


def senders() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "_send_until" in thread.name}


async def cancelled(model: ModelHandle) -> None:
    """Send a request, and cancel it when its instance is free again."""
    task = asyncio.create_task(model.infer_async(X=[[1.0]]))
    while not model.stats()["execution_count"]:
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def test_cancelled_request_ends_the_wait_for_its_responses(stream: Path) -> None:
    with late(stream) as server:
        asyncio.run(cancelled(server["stream"]))
        for sender in senders():
            sender.join(60)
        assert not senders()
        server.run(server.engine.model("stream").wait_until_drained())


@pytest.mark.parametrize("times", [LATE, {"ms": {"1": [600_000]}}])
@pytest.mark.parametrize("policy", ["true", "false"])
def test_server_that_gives_up_ends_every_wait(stream: Path, times: dict[str, Any], policy: str) -> None:
    (stream / "stream" / "config.pbtxt").write_text(STREAM.replace("decoupled: true", f"decoupled: {policy}"))
    server = late(stream, times, exit_timeout=0)
    before = {thread for thread in threading.enumerate() if thread.name == "tritonnb stream_0"}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server["stream"].infer_all, X=[[1.0]])
        while not server.recent().arrived:
            pass
        with contextlib.suppress(tnb.TritonError):
            server.stop()
        for thread in before | senders():
            thread.join(60)
        assert not senders()
        assert not any(thread.is_alive() for thread in before)
        answer.exception(60)


@pytest.mark.parametrize(
    "scheduling",
    [
        "sequence_batching { }",
        "sequence_batching { oldest { max_candidate_sequences: 4 } }",
        'sequence_batching { state { input_name: "IN" output_name: "OUT" data_type: TYPE_INT32 dims: 1 } }',
        'sequence_batching { control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] '
        '} } control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } } }',
    ],
)
def test_sequences_of_a_simulated_model_are_answered(tmp_path: Path, scheduling: str) -> None:
    (tmp_path / "net" / "1").mkdir(parents=True)
    (tmp_path / "net" / "1" / "times.json").write_text('{"ms": {"1": [0]}}')
    text = CONFIG.replace("dynamic_batching { }", f'backend: "simulated" {scheduling}')
    (tmp_path / "net" / "config.pbtxt").write_text(text)
    with tnb.Server(str(tmp_path), port=0) as server, server.record() as recording:
        for number in range(3):
            server["net"](X=[[1.0]], sequence_id=7, sequence_start=number == 0, sequence_end=number == 2)
    with tnb.Server(port=0) as server:
        model = server.simulate(recording)
        assert model(X=[[1.0]], sequence_id=7, sequence_start=True)["Y"].tolist() == [[[0], [0]]]


def test_ragged_batches_of_a_simulated_model_need_no_batch_inputs() -> None:
    ragged = CONFIG.replace("dims: -1 }", "dims: -1 allow_ragged_batch: true }")
    ragged += 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "N" data_type: TYPE_FP32 source_input: "X" }'
    recording = tnb.simulate(ragged, tnb.constant(100, 0.1), tnb.fixed(1))
    with tnb.Server(port=0) as server, ThreadPoolExecutor(3) as pool:
        model = server.simulate(recording)
        answers = pool.map(lambda elements: model(X=[[1.0] * elements])["Y"].shape, (1, 2, 3))
        assert [*answers] == [(1, 2, 1)] * 3


def test_recording_without_the_model_is_refused_with_its_models(recording: tnb.Recording) -> None:
    with tnb.Server(port=0) as server:
        with pytest.raises(tnb.TritonError, match="model expected one of 'net', got 'other'"):
            server.simulate(recording, model="other")
        recording = tnb.simulate(CONFIG, tnb.constant(100, 0.1), tnb.fixed(1))
        recording.configs["pair"] = pb.ModelConfig(ensemble_scheduling=pb.ModelEnsembling())
        with pytest.raises(tnb.TritonError, match="an ensemble executes nothing itself: simulate its steps"):
            server.simulate(recording, model="pair")
        with pytest.raises(tnb.TritonError, match="recording expected at least one execution, got none"):
            server.simulate(tnb.Recording())
