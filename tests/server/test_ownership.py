"""Who owns arrays: a request owns its inputs and an answer its outputs, whatever way they came and go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.utils import shared_memory

import tritonnb as tnb
from tests.server.isolated import ISOLATED
from tritonnb.core.datatypes import BY_NAME
from tritonnb.core.errors import InternalError
from tritonnb.server.model_handle import ModelHandle
from tritonnb.server.server import Server

DATATYPES = {"FP32": tnb.FP32, "INT64": tnb.INT64, "BOOL": tnb.BOOL, "FP16": tnb.FP16, "BYTES": tnb.BYTES}
SCHEDULING: dict[str, dict[str, Any]] = {
    "no batches": {},
    "default scheduler": {"max_batch_size": 8},
    "dynamic batcher": {"max_batch_size": 8, "dynamic_batching": {}},
}

#: A model that writes to its input, once as *model.py* and once (`reverse`) as a function.
REVERSE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            x[...] = x[..., ::-1].copy()
            again = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", again)]))
        return responses
"""


def write_python_model(repository: Path, name: str, body: str, config: str = "", datatype: str = "TYPE_FP32") -> None:
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(body)
    tensors = "".join(f'{kind} {{ name: "{t}" data_type: {datatype} dims: -1 }} ' for kind, t in XY)
    (repository / name / "config.pbtxt").write_text(f'backend: "python" {tensors} {config}')


XY = (("input", "X"), ("output", "Y"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    for suffix, config in (("", ""), ("_isolated", ISOLATED)):
        write_python_model(repository, f"reverse_py{suffix}", REVERSE, config)
        write_python_model(repository, f"reverse_py_strings{suffix}", REVERSE, config, "TYPE_STRING")
    cache = {"local": {"size": "1000000"}}
    with Server(repository, port=0, grpc_port=0, cache_config=cache, allow_client_shm=True) as server:
        yield server


def reverse(x: Any) -> Any:
    x[...] = x[..., ::-1].copy()
    return x


class Gate:
    """Models whose executions wait until the gate is open."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()

    def through(self, compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def gated(x: Any) -> Any:
            self.entered.release()
            self.open.wait()
            return compute(x)

        return gated


def serve(
    server: Server, name: str, datatype: str, scheduling: str, compute: Callable[[Any], Any], **fields: Any
) -> ModelHandle:
    """Serve ``compute`` as a model with the input X and the output Y of one variable dimension."""
    tensor = DATATYPES[datatype][-1]

    def function(X: Any) -> Any:
        return {"Y": compute(X)}

    function.__annotations__ = {"X": tensor, "return": {"Y": tensor}}
    server.model(name=name, **{**SCHEDULING[scheduling], **fields})(function)
    return server[name]


# --- laws -----------------------------------------------------------------------------------------

ELEMENTS: dict[str, st.SearchStrategy[Any]] = {
    "FP32": st.floats(width=32, allow_nan=False),
    "FP16": st.floats(width=16, allow_nan=False),
    "INT64": st.integers(-(2**63), 2**63 - 1),
    "BOOL": st.booleans(),
    "BYTES": st.binary(max_size=5),
}


Case = tuple[str, str, list[Any]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A datatype, a way of scheduling, and the contents of some requests of one shape."""
    datatype = draw(st.sampled_from(sorted(DATATYPES)))
    scheduling = draw(st.sampled_from(sorted(SCHEDULING)))
    columns = draw(st.integers(1, 4))
    shape = (columns,) if scheduling == "no batches" else (draw(st.integers(1, 3)), columns)
    count = int(np.prod(shape))
    rows = draw(st.lists(st.lists(ELEMENTS[datatype], min_size=count, max_size=count), min_size=2, max_size=5))
    return datatype, scheduling, [np.array(row, BY_NAME[datatype].numpy).reshape(shape) for row in rows]


@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_a_request_has_the_contents_that_its_array_had_when_it_was_made(server: Server, case: Case) -> None:
    datatype, scheduling, contents = case
    gate = Gate()
    model = serve(server, "gated", datatype, scheduling, gate.through(lambda x: x))

    async def ask() -> list[Any]:
        buffer = np.empty_like(contents[0])
        requests = []
        for content in contents:
            buffer[...] = content
            requests.append(asyncio.ensure_future(model.infer_async(X=buffer)))
        await asyncio.get_running_loop().run_in_executor(None, gate.entered.acquire)
        buffer[...] = np.zeros_like(buffer)
        gate.open.set()
        return await asyncio.gather(*requests)

    for content, answer in zip(contents, asyncio.run(ask()), strict=True):
        np.testing.assert_array_equal(answer["Y"], content)


@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_what_a_model_writes_to_its_input_reaches_no_caller_and_no_other_answer(server: Server, case: Case) -> None:
    datatype, scheduling, contents = case
    model = serve(server, "reversing", datatype, scheduling, reverse)
    arrays = [content.copy() for content in contents]

    async def ask() -> list[Any]:
        return await asyncio.gather(*(model.infer_async(X=array) for array in arrays))

    answers = [answer["Y"] for answer in asyncio.run(ask())]
    for content, array, answer in zip(contents, arrays, answers, strict=True):
        np.testing.assert_array_equal(array, content)
        np.testing.assert_array_equal(answer, content[..., ::-1])


@settings(max_examples=60, deadline=None)
@given(case=cases(), computed=st.sampled_from(["the input", "a view of the input", "one buffer", "one row for all"]))
def test_answers_share_memory_with_nothing(server: Server, case: Case, computed: str) -> None:
    datatype, scheduling, contents = case
    kept = np.zeros((64, 64), BY_NAME[datatype].numpy)

    def compute(x: Any) -> Any:
        if computed == "the input":
            return x
        if computed == "a view of the input":
            return x[..., ::-1]
        if computed == "one row for all":
            return np.broadcast_to(x[..., :1], x.shape)
        buffer = kept[tuple(slice(size) for size in x.shape)] if x.ndim == 2 else kept[0, : len(x)]
        buffer[...] = x
        return buffer

    model = serve(server, "aliasing", datatype, scheduling, compute)

    async def ask() -> list[Any]:
        return await asyncio.gather(*(model.infer_async(X=content) for content in contents))

    answers = [answer["Y"] for answer in asyncio.run(ask())]
    expected = [np.array(compute(content)) for content in contents]
    for index, answer in enumerate(answers):
        np.testing.assert_array_equal(answer, expected[index])
        answer[...] = np.zeros_like(answer)
        for later in range(index + 1, len(answers)):
            np.testing.assert_array_equal(answers[later], expected[later])
        assert not np.shares_memory(answer, contents[index])
        assert not np.shares_memory(answer, kept)


# --- every way in ---------------------------------------------------------------------------------


def in_process(server: Server, name: str, x: Any) -> Any:
    return server[name](X=x)["Y"]


def in_process_list(server: Server, name: str, x: Any) -> Any:
    return server[name](X=x.tolist())["Y"]


def over_http(server: Server, name: str, x: Any, binary: bool = True) -> Any:
    tensor = httpclient.InferInput("X", list(x.shape), "BYTES" if x.dtype.kind == "O" else "FP32")
    tensor.set_data_from_numpy(x, binary_data=binary)
    with httpclient.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        return client.infer(name, [tensor]).as_numpy("Y")


def over_http_json(server: Server, name: str, x: Any) -> Any:
    return over_http(server, name, x, binary=False)


def over_grpc(server: Server, name: str, x: Any) -> Any:
    tensor = grpcclient.InferInput("X", list(x.shape), "BYTES" if x.dtype.kind == "O" else "FP32")
    tensor.set_data_from_numpy(x)
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        return client.infer(name, [tensor]).as_numpy("Y")


#: Sends an array to a model and returns what it answers.
Way = Callable[[Server, str, Any], Any]
WAYS: list[Way] = [in_process, in_process_list, over_http, over_http_json, over_grpc]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["reverse_py", "reverse_py_isolated", "reverse_function"])
def test_a_model_may_write_to_its_inputs(server: Server, way: Way, name: str) -> None:
    serve(server, "reverse_function", "FP32", "no batches", reverse)
    x = np.array([1, 2, 3], np.float32)
    for _ in range(2):
        assert way(server, name, x).tolist() == [3, 2, 1]
    assert x.tolist() == [1, 2, 3]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["reverse_py_strings", "reverse_py_strings_isolated", "reverse_strings"])
def test_a_model_may_write_to_its_strings(server: Server, way: Way, name: str) -> None:
    serve(server, "reverse_strings", "BYTES", "no batches", reverse)
    x = np.array([b"a", b"b"], object)
    assert way(server, name, x).tolist() == [b"b", b"a"]
    assert x.tolist() == [b"a", b"b"]


@pytest.mark.parametrize("name", ["reverse_py", "reverse_py_isolated", "reverse_shared"])
def test_a_model_that_writes_to_its_inputs_leaves_shared_memory_alone(server: Server, name: str) -> None:
    serve(server, "reverse_shared", "FP32", "no batches", reverse)
    x = np.array([1, 2, 3], np.float32)
    region = shared_memory.create_shared_memory_region("given", "/tritonnb_ownership", x.nbytes)
    try:
        shared_memory.set_shared_memory_region(region, [x])
        with httpclient.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            client.register_system_shared_memory("given", "/tritonnb_ownership", x.nbytes)
            tensor = httpclient.InferInput("X", [3], "FP32")
            tensor.set_shared_memory("given", x.nbytes)
            assert client.infer(name, [tensor]).as_numpy("Y").tolist() == [3, 2, 1]
            client.unregister_system_shared_memory("given")
        assert shared_memory.get_contents_as_numpy(region, np.float32, [3]).tolist() == [1, 2, 3]
    finally:
        shared_memory.destroy_shared_memory_region(region)


class Lent:
    """Gives NumPy its own memory, as tensors of other libraries do."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.array


class Subclass(np.ndarray):
    """An array of another class, such as a masked one or a matrix."""


def as_subclass(x: Any) -> Any:
    return x.view(Subclass)


def reversed_twice(x: Any) -> Any:
    return np.array(x[:, ::-1])[:, ::-1]


@pytest.mark.parametrize("kind", [Lent, memoryview, as_subclass, reversed_twice, np.asfortranarray])
def test_every_kind_of_input_becomes_a_separate_array(server: Server, kind: Callable[[Any], Any]) -> None:
    received = []

    def compute(x: Any) -> Any:
        received.append(x)
        x += 1
        return x

    model = serve(server, "receiving", "FP32", "default scheduler", compute)
    x = np.array([[1, 2], [3, 4]], np.float32)
    assert model(X=kind(x))["Y"].tolist() == [[2, 3], [4, 5]]
    assert x.tolist() == [[1, 2], [3, 4]]
    assert type(received[0]) is np.ndarray
    assert received[0].flags.c_contiguous


# --- answers --------------------------------------------------------------------------------------


def test_two_outputs_that_are_one_array_are_two_in_the_answer(server: Server) -> None:
    @server.model(name="both")
    def both(X: tnb.FP32[2]) -> {"A": tnb.FP32[2], "B": tnb.FP32[2]}:  # type: ignore[misc]  # noqa: F821, UP037
        return {"A": X, "B": X}

    answer = server["both"](X=np.ones(2, np.float32))
    answer["A"][:] = 5
    assert answer["B"].tolist() == [1, 1]


@pytest.mark.parametrize("way", [in_process, over_http, over_grpc])
def test_a_cached_answer_does_not_change_with_those_that_were_given_out(server: Server, way: Way) -> None:
    model = serve(server, "cached", "FP32", "no batches", lambda x: x, response_cache={"enable": True})
    x = np.array([1, 2], np.float32)
    for _ in range(3):
        answer = model(X=x)["Y"]
        assert answer.tolist() == [1, 2]
        answer[:] = 7
    assert way(server, "cached", x).tolist() == [1, 2]


@pytest.mark.parametrize("way", [in_process, over_http, over_grpc])
def test_an_answer_stays_as_it_was_while_the_model_writes_its_buffer_again(server: Server, way: Way) -> None:
    """The next execution begins before the answers of the one before are written."""
    buffer = np.zeros(2, np.float32)

    def compute(x: Any) -> Any:
        buffer[:] = x
        return buffer

    serve(server, "reusing", "FP32", "no batches", compute)
    answers = {}

    def ask(number: int) -> None:
        answers[number] = way(server, "reusing", np.full(2, number, np.float32)).tolist()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: [number, number] for number in range(16)}


def test_responses_of_a_decoupled_model_are_arrays_of_their_own(tmp_path: Path, isolate: bool) -> None:
    body = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        buffer = np.zeros(1, np.float32)
        for request in requests:
            sender = request.get_response_sender()
            for number in range(3):
                buffer[:] = number
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", buffer)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    write_python_model(tmp_path, "count", body, "model_transaction_policy { decoupled: true }")
    with Server(tmp_path, port=0, isolate=isolate) as server:
        answers = server["count"].infer_all(X=[0.0])
    assert [answer["Y"].tolist() for answer in answers] == [[0], [1], [2]]


# --- models that use models -----------------------------------------------------------------------

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
def test_a_model_that_another_model_calls_writes_to_its_own_arrays(composed: Server, way: Way) -> None:
    x = np.array([1, 2], np.float32)
    assert way(composed, "caller", x).tolist() == [1, 2, 0, 0, 2, 1]
    assert x.tolist() == [1, 2]


def test_steps_of_an_ensemble_write_to_arrays_of_their_own(composed: Server) -> None:
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


def test_a_request_that_runs_again_has_the_inputs_that_it_came_with(tmp_path: Path, isolate: bool) -> None:
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


def test_a_warm_up_sample_is_the_same_every_time(tmp_path: Path, isolate: bool) -> None:
    sample = 'inputs { key: "X" value { data_type: TYPE_FP32 dims: 1 zero_data: true } }'
    warm_up = f'model_warmup {{ name: "w" batch_size: 1 count: 3 {sample} }}'
    write_python_model(tmp_path, "warmed", WARMED, warm_up)
    with Server(tmp_path, port=0, isolate=isolate) as server:
        assert server["warmed"](X=[9.0])["Y"].tolist() == [0, 0, 0, 9]


# --- copy=False -----------------------------------------------------------------------------------


def test_an_array_passed_with_copy_false_is_not_copied_and_read_only_for_models(server: Server) -> None:
    received = []

    def compute(x: Any) -> Any:
        received.append(x)
        return x

    model = serve(server, "lent", "FP32", "no batches", compute)
    x = np.array([1, 2], np.float32)
    answer = model.infer(X=x, copy=False)["Y"]
    assert np.shares_memory(received[0], x)
    assert not received[0].flags.writeable
    assert not np.shares_memory(answer, x)
    assert x.flags.writeable


@pytest.mark.parametrize("name", ["reverse_py", "reverse_lent"])
def test_a_model_that_writes_to_an_array_passed_with_copy_false_fails(server: Server, name: str) -> None:
    """Not isolated: such a model writes to a copy in its own process."""
    serve(server, "reverse_lent", "FP32", "no batches", reverse)
    x = np.array([1, 2], np.float32)
    with pytest.raises(InternalError, match="read-only"):
        server[name].infer_all(X=x, copy=False)
    assert x.tolist() == [1, 2]


def test_copy_is_true_or_false(server: Server) -> None:
    with pytest.raises(tnb.TritonError, match="copy: expected True or False, got 'no'"):
        server["reverse_py"](X=[1.0], copy="no")  # type: ignore[arg-type]


# --- requests in an event loop --------------------------------------------------------------------


def test_what_is_wrong_with_a_request_is_raised_when_it_is_awaited(server: Server) -> None:
    requests = server["reverse_py"].infer_async(Z=[1.0]), server["reverse_py"].infer_async(X=[1.0])

    async def ask() -> list[Any]:
        return await asyncio.gather(*requests, return_exceptions=True)

    error, answer = asyncio.run(ask())
    assert "unexpected inference input 'Z'" in str(error)
    assert answer["Y"].tolist() == [1]
