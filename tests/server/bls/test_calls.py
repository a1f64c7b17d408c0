"""Business logic scripting: models that ask other models."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.server.bls.conftest import COUNTING, HEAD, Write
from tests.server.conftest import python_model
from tritonnb.core.errors import TritonError
from tritonnb.server.server import Server


def test_model_calls_another_model_and_an_ensemble(
    server: Server, scripted: Callable[..., Callable[[float], list[float]]]
) -> None:
    ask = scripted('return value(ask("double", x).exec()) + 1')
    assert ask(3) == [7]


def test_string_tensors_can_be_used_as_names(scripted: Callable[..., Callable[[float], list[float]]]) -> None:
    assert scripted('return value(ask(b"double", x, request_id=b"r").exec())')(3) == [6]


def test_bls_call_passes_through_the_scheduler_of_the_called_model(
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


def test_error_of_a_called_model_keeps_its_code(scripted: Callable[..., Callable[[float], list[float]]]) -> None:
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


def test_forked_process_of_a_model_cannot_call_the_server(
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
def test_error_of_a_request_is_its_response(
    scripted: Callable[..., Callable[[float], list[float]]], request_: str, message: str
) -> None:
    ask = scripted(f"response = {request_}.exec()\nreturn value(response)")
    with pytest.raises(TritonError) as caught:
        ask(1)
    assert message in str(caught.value)


def test_request_carries_parameters_id_and_sequence(
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


def test_models_can_call_the_server_from_any_thread(scripted: Callable[..., Callable[[float], list[float]]]) -> None:
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


def test_model_can_forward_its_own_request_in_a_call(
    scripted: Callable[..., Callable[[float], list[float]]],
) -> None:
    with pytest.raises(TritonError, match="all instances of model 'caller' wait for one another"):
        scripted("return value(request.exec())", count=2)(1)


def test_models_of_two_servers_in_one_process_call_their_own_server(
    server: Server, scripted: Callable[..., Callable[[float], list[float]]]
) -> None:
    scripted('return pb_utils.is_model_ready("double")')
    with Server(server.engine.options.model_repositories, port=0) as other:
        server.unload("double")
        assert other["caller"](X=np.zeros((1, 1), np.float32))["Y"].item() == 1
        assert server["caller"](X=np.zeros((1, 1), np.float32))["Y"].item() == 0


def test_request_created_outside_a_model_has_a_clear_error(server: Server) -> None:
    from tritonnb.backends.python import pb_utils

    request = pb_utils.InferenceRequest(model_name="double", requested_output_names=[], inputs=[])
    with ThreadPoolExecutor() as anybody, pytest.raises(pb_utils.TritonModelException, match="expected the request"):
        anybody.submit(request.exec).result()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["auto_complete_config", "initialize"])
def test_model_can_call_others_only_while_it_is_served(server: Server, write_model: Write, place: str) -> None:
    ask = f"""
    {"@staticmethod" if place == "auto_complete_config" else ""}
    def {place}(*arguments):
        ask("double", 1).exec()
"""
    write_model("caller", HEAD + ask)
    with pytest.raises(TritonError, match="BLS is only supported during the 'execute' function"):
        server.load("caller")


def test_model_cannot_call_others_in_finalize(
    server: Server, write_model: Write, caplog: pytest.LogCaptureFixture
) -> None:
    write_model("caller", HEAD + '\n    def finalize(self):\n        ask("double", 1).exec()\n')
    server.load("caller")
    server.stop()
    assert "BLS is only supported during the 'execute' function." in caplog.text


def test_reshape_of_the_configuration_is_undone_for_every_response(server: Server, write_model: Write) -> None:
    repository = write_model("count2", COUNTING.replace("np.full((1, 1)", "np.full((1,)"))
    config = repository / "count2" / "config.pbtxt"
    text = config.read_text().replace(
        '"Y" data_type: TYPE_FP32 dims: 1', '"Y" data_type: TYPE_FP32 dims: 1 reshape { }'
    )
    config.write_text(text + " model_transaction_policy { decoupled: true }")
    server.load("count2")
    shapes = [response["Y"].shape for response in server["count2"].infer_all(X=np.array([[2]], np.float32)) if response]
    assert shapes == [(1, 1), (1, 1)]


def test_inputs_of_a_request_are_those_of_its_creation(scripted: Callable[..., Callable[[float], list[float]]]) -> None:
    ask = scripted(
        """
inputs = [pb_utils.Tensor("X", np.full((1, 1), 3, np.float32))]
request = pb_utils.InferenceRequest(model_name="double", requested_output_names=["Y"], inputs=inputs)
inputs *= 2
return [len(request.inputs()), value(request.exec())]
"""
    )
    assert ask(0) == [1, 6]
