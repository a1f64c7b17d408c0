"""Business logic scripting: models that ask other models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.server.conftest import python_model
from tritonnb.core.errors import TritonError
from tritonnb.server.server import Server

Write = Callable[..., Path]

HEAD = """
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils

def ask(model, x, **options):
    tensor = pb_utils.Tensor("X", np.asarray(x, np.float32).reshape(1, 1))
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["Y"], inputs=[tensor], **options)

def value(response):
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return float(pb_utils.get_output_tensor_by_name(response, "Y").as_numpy()[0, 0])

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [self.answer(request, x) for request, x in zip(requests, inputs)]

    def answer(self, request, x):
        y = np.asarray(self.run(request, float(x[0, 0])), np.float32).reshape(1, -1)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)])
"""

COUNTING = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            for number in range(int(x[0, 0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 1), number, np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


IN_PAIRS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    waiting = []

    def execute(self, requests):
        self.waiting += [request.get_response_sender() for request in requests]
        if len(self.waiting) == 2:
            for sender in self.waiting:
                response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones((1, 1), np.float32))])
                sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(params=[False, True], ids=["in_process", "isolated"])
def server(write_model: Write, request: pytest.FixtureRequest) -> Iterator[Server]:
    """The models that call others run in this process, or in processes of their own."""
    in_process = 'parameters { key: "EXECUTION_PROCESS" value { string_value: "in_process" } }'
    write_model("count", COUNTING, f"model_transaction_policy {{ decoupled: true }} {in_process}")
    repository = write_model("double", python_model("x * 2"), in_process)
    with Server(repository, port=0, model_control_mode="explicit", load_models=["*"], isolate=request.param) as server:
        yield server


@pytest.fixture
def scripted(server: Server, write_model: Write) -> Callable[..., Callable[[float], list[float]]]:
    """Serve a model whose ``run(self, request, x)`` has this body; gives a way to ask it."""

    def serve(body: str, name: str = "caller", count: int = 1) -> Callable[[float], list[float]]:
        lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
        write_model(name, f"{HEAD}\n    def run(self, request, x):\n{lines}\n", f"instance_group {{ count: {count} }}")
        config = Path(server.engine.options.model_repositories[0]) / name / "config.pbtxt"
        config.write_text(config.read_text().replace("dims: 1", "dims: [ -1 ]"))
        server.load(name)
        return lambda x: server[name](X=np.array([[x]], np.float32))["Y"].ravel().tolist()

    return serve


def test_a_model_calls_another_model_and_an_ensemble(
    server: Server, scripted: Callable[..., Callable[[float], list[float]]]
) -> None:
    ask = scripted('return value(ask("double", x).exec()) + 1')
    assert ask(3) == [7]


def test_names_may_come_from_string_tensors(scripted: Callable[..., Callable[[float], list[float]]]) -> None:
    assert scripted('return value(ask(b"double", x, request_id=b"r").exec())')(3) == [6]


def test_a_call_goes_through_the_scheduler_of_the_called_model(
    server: Server, scripted: Callable[..., Callable[[float], list[float]]]
) -> None:
    scripted('return value(ask("double", x).exec())')(3)
    stats = {entry["name"]: entry["inference_count"] for entry in server.stats()["model_stats"]}
    assert stats["double"] == stats["caller"] == 1


def test_several_requests_run_at_the_same_time_with_async_exec(
    scripted: Callable[..., Callable[[float], list[float]]],
) -> None:
    ask = scripted(
        """
async def all_of_them():
    return await asyncio.gather(*[ask("double", number).async_exec() for number in range(int(x))])
return [value(response) for response in asyncio.run(all_of_them())]
"""
    )
    assert ask(4) == [0, 2, 4, 6]


def test_the_responses_of_a_decoupled_model_come_one_by_one_and_the_last_is_empty(
    scripted: Callable[..., Callable[[float], list[float]]],
) -> None:
    ask = scripted('return [len(response.output_tensors()) for response in ask("count", x).exec(decoupled=True)]')
    assert ask(3) == [1, 1, 1, 0]
    assert ask(0) == [0]


MOODY = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        sender = requests[0].get_response_sender()
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("not now")))
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones((1, 1), np.float32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_an_error_among_the_responses_of_a_decoupled_model_is_returned(
    server: Server, write_model: Write, scripted: Callable[..., Callable[[float], list[float]]]
) -> None:
    write_model("moody", MOODY, "model_transaction_policy { decoupled: true }")
    server.load("moody")
    model = scripted('return [response.has_error() for response in ask("moody", x).exec(decoupled=True)]')
    assert model(0) == [True, False, False]


def test_responses_can_be_iterated_again(scripted: Callable[..., Callable[[float], list[float]]]) -> None:
    ask = scripted(
        """
responses = ask("count", x).exec(decoupled=True)
return [sum(1 for _ in responses), sum(1 for _ in responses)]
"""
    )
    assert ask(2) == [3, 3]


def test_a_decoupled_model_answers_async_exec(scripted: Callable[..., Callable[[float], list[float]]]) -> None:
    ask = scripted(
        """
async def count():
    return [response for response in await ask("count", x).async_exec(decoupled=True)]
return [len(response.output_tensors()) for response in asyncio.run(count())]
"""
    )
    assert ask(2) == [1, 1, 0]


def test_a_second_iteration_continues_where_the_first_one_stopped(
    scripted: Callable[..., Callable[[float], list[float]]],
) -> None:
    ask = scripted(
        """
responses = ask("count", x).exec(decoupled=True)
first = value(next(responses))
return [first] + [value(response) for response in responses if response.output_tensors()]
"""
    )
    assert ask(3) == [0, 1, 2]


def test_async_exec_of_a_decoupled_model_lets_others_run_before_its_first_response(
    server: Server, write_model: Callable[..., Path], scripted: Callable[..., Callable[[float], list[float]]]
) -> None:
    write_model("pairs", IN_PAIRS, "model_transaction_policy { decoupled: true }")
    server.load("pairs")
    ask = scripted(
        """
async def first(number):
    return [value(response) for response in await ask("pairs", number).async_exec(decoupled=True)]
async def both():
    return await asyncio.gather(first(0), first(1))
return asyncio.run(both())
"""
    )
    assert ask(0) == [1, 1]


def test_the_error_of_a_called_model_keeps_its_code(scripted: Callable[..., Callable[[float], list[float]]]) -> None:
    ask = scripted(
        """
response = pb_utils.InferenceRequest(model_name="double", requested_output_names=["Z"], inputs=[]).exec()
return response.error().code() == pb_utils.TritonError.INVALID_ARG
"""
    )
    assert ask(1) == [1]


def test_outputs_are_in_the_memory_of_the_cpu_wherever_they_are_preferred(
    scripted: Callable[..., Callable[[float], list[float]]],
) -> None:
    ask = scripted(
        """
preferred = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0)
response = ask("double", x, preferred_memory=preferred).exec()
return pb_utils.get_output_tensor_by_name(response, "Y").is_cpu()
"""
    )
    assert ask(1) == [1]


def test_a_process_that_a_model_forks_cannot_ask_the_server(
    scripted: Callable[..., Callable[[float], list[float]]],
) -> None:
    ask = scripted(
        """
import os
if (child := os.fork()) == 0:
    try:
        ask("double", x).exec()
    except pb_utils.TritonModelException:
        os._exit(7)
    os._exit(0)
return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    )
    assert ask(3) == [7]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            'ask("nosuch", x)',
            "Model nosuch - Error when running inference: Failed for execute the inference request. Model 'nosuch' is "
            "not ready.",
        ),
        ('ask("double", x, model_version=7)', "Model 'double' is not ready."),
        ('ask("count", x)', "Model count is using the decoupled. The current BLS request call doesn't support"),
        (
            'pb_utils.InferenceRequest(model_name="double", requested_output_names=["Z"], inputs=[])',
            "Model double - Error when running inference: unexpected inference output 'Z' for model 'double'",
        ),
        (
            'pb_utils.InferenceRequest(model_name="double", requested_output_names=["Y"], '
            'inputs=[pb_utils.Tensor("X", np.ones((1, 1), np.float32))] * 2)',
            "input 'X' already exists in request",
        ),
        (
            'ask("double", x, correlation_id="x" * 129)',
            "Model double - Error when running inference: string correlation ID cannot be longer than 128 characters",
        ),
        (
            'ask("double", x, parameters={"a": 2**63})',
            "Model double - Error when running inference: Unsupported value type on parameters",
        ),
    ],
)
def test_what_is_wrong_with_a_request_is_its_response(
    scripted: Callable[..., Callable[[float], list[float]]], request_: str, message: str
) -> None:
    ask = scripted(f"response = {request_}.exec()\nreturn value(response)")
    with pytest.raises(TritonError) as caught:
        ask(1)
    assert message in str(caught.value)


def test_parameters_id_and_sequence_travel_with_the_request(
    server: Server, scripted: Callable[..., Callable[[float], list[float]]], write_model: Write
) -> None:
    write_model(
        "look",
        python_model(
            "np.array([[len(request.request_id()) * 1000 + request.correlation_id() * 100 + request.flags() * 10 "
            '+ len(request.parameters())]], "f4")'
        ).replace("import triton", "import numpy as np\nimport triton"),
    )
    server.load("look")
    ask = scripted(
        'return value(ask("look", x, request_id="ab", correlation_id=3, flags=2, parameters={"p": True}).exec())'
    )
    assert ask(0) == [2000 + 300 + 20 + len('{"p":true}')]


def test_any_thread_of_a_model_may_ask(scripted: Callable[..., Callable[[float], list[float]]]) -> None:
    ask = scripted(
        """
import threading
answers = []
thread = threading.Thread(target=lambda: answers.append(value(ask("double", x).exec())))
thread.start()
thread.join()
return answers
"""
    )
    assert ask(4) == [8]


def test_a_model_with_an_instance_to_spare_may_call_itself(
    scripted: Callable[..., Callable[[float], list[float]]],
) -> None:
    ask = scripted('return 0 if x <= 0 else 1 + value(ask("caller", x - 1).exec())', count=3)
    assert ask(2) == [2]


def test_a_call_that_closes_a_circle_of_waiting_instances_fails_instead_of_waiting_for_ever(
    scripted: Callable[..., Callable[[float], list[float]]],
) -> None:
    ask = scripted('return 0 if x <= 0 else 1 + value(ask("caller", x - 1).exec())', count=2)
    assert ask(1) == [1]
    with pytest.raises(TritonError, match="all instances of model 'caller' wait for one another"):
        ask(2)
    assert ask(1) == [1]


def test_a_request_that_a_model_was_given_can_be_sent_like_its_own(
    scripted: Callable[..., Callable[[float], list[float]]],
) -> None:
    with pytest.raises(TritonError, match="all instances of model 'caller' wait for one another"):
        scripted("return value(request.exec())", count=2)(1)


def test_a_circle_over_several_models_is_noticed_too(scripted: Callable[..., Callable[[float], list[float]]]) -> None:
    scripted('return value(ask("first", x).exec())', name="second")
    ask = scripted('return value(ask("second", x).exec())', name="first")
    with pytest.raises(TritonError, match="wait for one another"):
        ask(1)


def test_all_instances_of_the_caller_may_wait_for_the_callee(
    scripted: Callable[..., Callable[[float], list[float]]],
) -> None:
    ask = scripted('return value(ask("double", x).exec())', count=2)
    with ThreadPoolExecutor(8) as pool:
        assert [value for (value,) in pool.map(ask, range(50))] == [2.0 * number for number in range(50)]


def test_a_model_loads_and_unloads_another(
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


def test_a_model_may_bring_the_files_of_the_model_it_loads(
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


def test_a_load_that_fails_raises_in_the_model(scripted: Callable[..., Callable[[float], list[float]]]) -> None:
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


def test_without_explicit_model_control_a_model_loads_nothing(
    server: Server, scripted: Callable[..., Callable[[float], list[float]]]
) -> None:
    scripted('pb_utils.load_model("double")')
    with Server(server.engine.options.model_repositories, port=0) as other, pytest.raises(TritonError) as caught:
        other["caller"](X=np.array([[1]], np.float32))
    assert "explicit model load / unload is not allowed" in str(caught.value)


def test_two_servers_in_one_process_have_models_that_ask_their_own_server(
    server: Server, scripted: Callable[..., Callable[[float], list[float]]]
) -> None:
    scripted('return pb_utils.is_model_ready("double")')
    with Server(server.engine.options.model_repositories, port=0) as other:
        server.unload("double")
        assert other["caller"](X=np.zeros((1, 1), np.float32))["Y"].item() == 1
        assert server["caller"](X=np.zeros((1, 1), np.float32))["Y"].item() == 0


def test_a_request_made_outside_a_model_says_what_it_needs(server: Server) -> None:
    from tritonnb.backends.python import pb_utils

    request = pb_utils.InferenceRequest(model_name="double", requested_output_names=[], inputs=[])
    with ThreadPoolExecutor() as anybody, pytest.raises(pb_utils.TritonModelException, match="expected the request"):
        anybody.submit(request.exec).result()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["auto_complete_config", "initialize"])
def test_a_model_can_call_others_only_while_it_is_served(server: Server, write_model: Write, place: str) -> None:
    ask = f"""
    {"@staticmethod" if place == "auto_complete_config" else ""}
    def {place}(*arguments):
        ask("double", 1).exec()
"""
    write_model("caller", HEAD + ask)
    with pytest.raises(TritonError, match="BLS is only supported during the 'execute' function"):
        server.load("caller")


def test_a_model_cannot_call_others_in_finalize(
    server: Server, write_model: Write, caplog: pytest.LogCaptureFixture
) -> None:
    write_model("caller", HEAD + '\n    def finalize(self):\n        ask("double", 1).exec()\n')
    server.load("caller")
    server.stop()
    assert "BLS is only supported during the 'execute' function." in caplog.text


def test_models_define_metrics_that_go_with_them(
    server: Server, scripted: Callable[..., Callable[[float], list[float]]]
) -> None:
    ask = scripted(
        """
family = pb_utils.MetricFamily(name="requests_seen", description="requests", kind=pb_utils.MetricFamily.COUNTER)
counter = family.Metric(labels={"model": "caller"})
counter.increment(2)
self.kept = getattr(self, "kept", []) + [(family, counter)]
return counter.value()
"""
    )
    assert [ask(0), ask(0)] == [[2], [4]]
    (family,) = server.engine.custom_metrics.snapshot()
    assert (family.name, family.kind.value) == ("requests_seen", "counter")
    assert [(sample.labels, sample.value) for sample in family.samples] == [((("model", "caller"),), 4.0)]
    server.unload("caller")
    while server.engine.custom_metrics.snapshot():  # until the model is gone
        pass


def test_a_metric_ends_with_its_family(scripted: Callable[..., Callable[[float], list[float]]]) -> None:
    ask = scripted(
        """
family = pb_utils.MetricFamily(name="forgotten", description="", kind=pb_utils.MetricFamily.GAUGE)
gauge = family.Metric(labels={})
gauge.set(1)
del family
gauge.set(2)
"""
    )
    with pytest.raises(TritonError, match="the corresponding 'MetricFamily' has been deleted"):
        ask(0)


ASYNC = """
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    async def execute(self, requests):
        async def one(request):
            x = request.inputs()[0]
            call = pb_utils.InferenceRequest(model_name="double", requested_output_names=["Y"], inputs=[x])
            answer = await call.async_exec()
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", answer.output_tensors()[0].as_numpy())])
        return await asyncio.gather(*map(one, requests))
"""

ASYNC_DECOUPLED = """
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.waiting = []

    async def execute(self, requests):
        for request in requests:
            x = float(request.inputs()[0].as_numpy()[0, 0])
            if x < 0:
                raise ValueError("negative")
            sender = request.get_response_sender()
            if x == 0:
                self.event = asyncio.Event()
                await self.event.wait()
            else:
                self.event.set()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 1), x, np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_execute_may_be_a_coroutine(server: Server, write_model: Write) -> None:
    write_model("coroutine", ASYNC)
    server.load("coroutine")
    assert server["coroutine"](X=np.array([[2]], np.float32))["Y"].item() == 4


def test_a_decoupled_coroutine_serves_others_while_it_waits(server: Server, write_model: Write) -> None:
    write_model("coroutine", ASYNC_DECOUPLED, "model_transaction_policy { decoupled: true }")
    server.load("coroutine")
    handle = server["coroutine"]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(handle.infer_all, X=np.array([[0]], np.float32))
        while not server.stats("coroutine")["model_stats"][0]["execution_count"]:
            pass
        assert [response["Y"].item() for response in handle.infer_all(X=np.array([[5]], np.float32))] == [5]
        assert [response["Y"].item() for response in first.result(timeout=30)] == [0]


def test_what_a_decoupled_coroutine_raises_is_the_answer(server: Server, write_model: Write) -> None:
    write_model("coroutine", ASYNC_DECOUPLED, "model_transaction_policy { decoupled: true }")
    server.load("coroutine")
    with pytest.raises(TritonError, match="ValueError: negative"):
        list(server["coroutine"].infer_all(X=np.array([[-1]], np.float32)))


def test_a_reshape_of_the_configuration_is_undone_for_every_response(server: Server, write_model: Write) -> None:
    repository = write_model("count2", COUNTING.replace("np.full((1, 1)", "np.full((1,)"))
    config = repository / "count2" / "config.pbtxt"
    text = config.read_text().replace(
        '"Y" data_type: TYPE_FP32 dims: 1', '"Y" data_type: TYPE_FP32 dims: 1 reshape { }'
    )
    config.write_text(text + " model_transaction_policy { decoupled: true }")
    server.load("count2")
    shapes = [response["Y"].shape for response in server["count2"].infer_all(X=np.array([[2]], np.float32)) if response]
    assert shapes == [(1, 1), (1, 1)]


def test_a_refused_load_by_a_model_names_its_instance(
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
