"""Warm-up: what an instance runs before its model is ready."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.server.server import Server

Write = Callable[..., Path]

#: Remembers what it saw and tells it when asked with a negative number.
MEMORY = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.seen = []

    def execute(self, requests):
        self.seen.append([[tensor.as_numpy().ravel().tolist() for tensor in request.inputs()] for request in requests])
        answers = []
        for request in requests:
            x = request.inputs()[0].as_numpy()
            if x.ravel()[0] == 13:
                raise ValueError("unlucky")
            text = np.array([[repr(self.seen).encode()]], object)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", text)]))
        return answers
"""
TENSORS = """
input { name: "X" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] }
"""


@pytest.fixture
def server(tmp_path: Path, isolate: bool) -> Iterator[Server]:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "warmup").mkdir()
    (tmp_path / "m" / "1" / "model.py").write_text(MEMORY)
    with Server(tmp_path, port=0, model_control_mode="explicit", isolate=isolate) as server:
        yield server


def load(server: Server, warmup: str, extra: str = "", tensors: str = TENSORS, batch: int = 8) -> None:
    directory = Path(server.engine.options.model_repositories[0]) / "m"
    text = f'backend: "python" max_batch_size: {batch} {tensors} {extra} {warmup}'
    (directory / "config.pbtxt").write_text(text)
    server.load("m")


def seen(server: Server) -> list[Any]:
    """Per execution and request the inputs; without the last execution, which asks."""
    return eval(server["m"](X=np.zeros((1, 2), np.float32))["SEEN"].item())[:-1]


def sample(data: str, fields: str = "batch_size: 1", name: str = "X", type_: str = "TYPE_FP32", dims: str = "2") -> str:
    inputs = f'inputs {{ key: "{name}" value {{ data_type: {type_} dims: [ {dims} ] {data} }} }}'
    return f'model_warmup {{ name: "w" {fields} {inputs} }}'


def test_warmup_sample_runs_its_configured_number_of_times_and_is_counted(server: Server) -> None:
    load(server, sample("zero_data: true", "batch_size: 3 count: 2"))
    (stats,) = server.stats("m")["model_stats"]
    assert (stats["inference_count"], stats["execution_count"]) == (6, 2)
    assert [entry["batch_size"] for entry in stats["batch_stats"]] == [3]
    assert seen(server) == [[[[0.0, 0.0]]] * 3] * 2


def test_each_run_of_a_sample_is_in_the_verbose_log(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "tritonnb")
    load(server, sample("zero_data: true", "batch_size: 1 count: 2"))
    head = "model 'm' instance m_0 is running warmup sample 'w' for iteration "
    assert [text.removeprefix(head) for text in caplog.messages if text.startswith(head)] == ["1", "2"]


def test_every_instance_is_warmed_up_before_the_model_is_ready(server: Server) -> None:
    load(server, sample("zero_data: true"), "instance_group { count: 2 }")
    assert server.stats("m")["model_stats"][0]["execution_count"] == 2


def test_rows_of_random_warmup_data_differ(server: Server) -> None:
    load(server, sample("random_data: true", "batch_size: 2"))
    ((first, second),) = seen(server)
    assert first != second


def test_inputs_are_read_from_a_file(server: Server) -> None:
    directory = Path(server.engine.options.model_repositories[0]) / "m" / "warmup"
    (directory / "x").write_bytes(struct.pack("<3f", 1, 2, 3))
    load(server, sample('input_data_file: "x"'))
    assert seen(server) == [[[[1.0, 2.0]]]]


def test_warmup_strings_are_read_from_a_file_in_wire_format(server: Server) -> None:
    directory = Path(server.engine.options.model_repositories[0]) / "m" / "warmup"
    (directory / "x").write_bytes(struct.pack("<I", 2) + b"ab" + struct.pack("<I", 1) + b"c")
    tensors = TENSORS.replace("TYPE_FP32", "TYPE_STRING")
    load(server, sample('input_data_file: "x"', type_="TYPE_STRING"), tensors=tensors)
    executed = server["m"](X=np.array([["a", "b"]], object))["SEEN"].item()
    assert eval(executed)[0] == [[[b"ab", b"c"]]]


def test_dims_are_the_whole_shape_without_batching(server: Server) -> None:
    load(server, sample("zero_data: true"), batch=0, tensors=TENSORS.replace("SEEN", "SEEN"))
    assert eval(server["m"](X=np.zeros(2, np.float32))["SEEN"].item())[:-1] == [[[[0.0, 0.0]]]]


def test_control_tensors_of_a_sample_are_passed_to_a_sequence_model_unchanged(server: Server) -> None:
    control = 'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'
    inputs = "".join(
        f'inputs {{ key: "{name}" value {{ data_type: {type_} dims: [ {dims} ] zero_data: true }} }}'
        for name, type_, dims in (("X", "TYPE_FP32", 2), ("START", "TYPE_INT32", 1))
    )
    load(server, f'model_warmup {{ name: "w" batch_size: 1 {inputs} }}', f"sequence_batching {{ {control} }}")
    executed = server["m"](X=np.zeros((1, 2), np.float32), sequence_id=1, sequence_start=True)["SEEN"].item()
    assert eval(executed)[0] == [[[0.0, 0.0], [0]]]


def test_statistics_entry_without_batch_size_is_ignored(server: Server) -> None:
    load(server, sample("", "batch_size: 0"))
    assert seen(server) == []


def test_unload_ends_a_warmup_that_would_take_for_ever(server: Server) -> None:
    warmup = sample("zero_data: true", "batch_size: 1 count: 2147483647")
    with ThreadPoolExecutor() as threads:
        loading = threads.submit(load, server, warmup)
        while [entry.get("state") for entry in server.index()] != ["LOADING"]:
            assert not loading.done()
        server.unload("m")
        with pytest.raises(InvalidArgumentError, match="it was interrupted, since the model is to be unloaded"):
            loading.result(30)
    load(server, sample("zero_data: true"))
    assert len(seen(server)) == 1


def test_failing_warmup_sample_fails_the_load(server: Server) -> None:
    directory = Path(server.engine.options.model_repositories[0]) / "m" / "warmup"
    (directory / "x").write_bytes(struct.pack("<2f", 13, 0))
    with pytest.raises(InvalidArgumentError) as caught:
        load(server, sample('input_data_file: "x"', "batch_size: 2"))
    text = str(caught.value)
    assert text.startswith(
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid argument: failed to run warmup sample "
        "'w': Failed to process the request(s) for model 'm_0', message: ValueError: unlucky"
    )
    assert text.count("unlucky") == 2


def test_sample_that_contradicts_the_configuration_is_refused_like_a_request(server: Server) -> None:
    with pytest.raises(InvalidArgumentError, match=r"\[request id: <id_unknown>\] unexpected shape for input 'X'"):
        load(server, sample("zero_data: true", dims="3"))


def test_samples_are_checked_one_after_the_other_before_the_states(server: Server) -> None:
    with pytest.raises(InvalidArgumentError, match="expected 1 inputs but got 0 inputs"):
        load(server, "model_warmup { batch_size: 1 }" + sample("", dims="-1"))
    state = 'state { input_name: "S" output_name: "T" initial_state { } }'
    with pytest.raises(InvalidArgumentError, match="expected 1 inputs but got 0 inputs"):
        load(server, "model_warmup { batch_size: 1 }", f"sequence_batching {{ {state} }}")


def test_warmup_sample_without_dims_does_not_read_its_file(server: Server, tmp_path: Path) -> None:
    (tmp_path / "m" / "warmup" / "short").write_bytes(b"123")
    with pytest.raises(InvalidArgumentError, match="unexpected shape for input 'X'"):
        load(server, sample('input_data_file: "short"', dims=""))
    with pytest.raises(InvalidArgumentError, match="warmup setting expects 8 bytes, but the data provided from short"):
        load(server, sample('input_data_file: "short"', type_="TYPE_INVALID"))


def test_error_of_initialize_takes_precedence(server: Server, tmp_path: Path) -> None:
    (tmp_path / "m" / "1" / "model.py").write_text(MEMORY.replace("self.seen = []", "raise ValueError('no')"))
    with pytest.raises(InvalidArgumentError, match="ValueError: no"):
        load(server, sample("", dims="-1"))


def test_passive_instances_are_initialized_and_do_nothing_else(server: Server, tmp_path: Path) -> None:
    group = "instance_group [ { kind: KIND_CPU passive: true }, { kind: KIND_CPU } ]"
    load(server, sample("zero_data: true"), group)
    for _ in range(3):
        assert len(seen(server)) >= 1  # always the same one, which was warmed up
    assert len(seen(server)) == 4
    load(server, sample("", dims="-1"), "instance_group { kind: KIND_CPU passive: true }")
    broken = MEMORY.replace("self.seen = []", "if args['model_instance_name'] == 'm_0_0': raise ValueError('passive')")
    (tmp_path / "m" / "1" / "model.py").write_text(broken)
    with pytest.raises(InvalidArgumentError, match="ValueError: passive"):
        load(server, "", group)


def test_stopping_waits_for_decoupled_models(server: Server, write_model: Write) -> None:
    body = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request.get_response_sender(),)).start()

    def answer(self, sender):
        for _ in range(3):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros((1, 1), np.float32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    policy = "model_transaction_policy { decoupled: true }"
    write_model("late", body, f"{policy} {sample('zero_data: true', 'batch_size: 2', dims='1')}")
    server.load("late")
    assert server.stats("late")["model_stats"][0]["inference_count"] == 2


def test_first_invalid_input_of_a_sample_by_name_is_reported(server: Server) -> None:
    inputs = "".join(f'inputs {{ key: "{name}" value {{ data_type: TYPE_FP32 dims: [ -1 ] }} }}' for name in "ZXY")
    with pytest.raises(InvalidArgumentError, match="variable-size dimensions are specified for input 'X'"):
        load(server, f'model_warmup {{ name: "w" batch_size: 1 {inputs} }}')


def test_incomplete_string_is_reported_as_a_failure_of_the_sample_as_by_triton(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "warmup").mkdir()
    (tmp_path / "m" / "1" / "model.py").write_text(MEMORY)
    (tmp_path / "m" / "warmup" / "raw").write_bytes(b"hello world")
    (tmp_path / "m" / "config.pbtxt").write_text(
        'backend: "python" max_batch_size: 4 input { name: "X" data_type: TYPE_STRING dims: [ 1 ] } '
        'output { name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] } model_warmup { name: "w" batch_size: 1 '
        'inputs { key: "X" value { data_type: TYPE_STRING dims: [ 1 ] input_data_file: "raw" } } }'
    )
    with Server(tmp_path, port=0) as server:
        assert (
            "Invalid argument: failed to run warmup sample 'w': incomplete string data for inference input 'X', "
            "expecting string of length 1819043176 but only 7 bytes available; "
        ) in str(server.load_errors["m"])
