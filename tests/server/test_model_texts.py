"""Whatever a model says, everybody is answered: each text at each entrance, in each process, at each endpoint.

The model is told by its input what to say where. A second request of the same batch says nothing, and gets its answer;
afterwards the metrics, the index and the statistics are readable, and the model is unloaded and the server stopped at
once.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

import tritonnb as tnb
from tritonnb.core.errors import TritonError
from tritonnb.core.texts import LONGEST_ERROR, encodable, printable
from tritonnb.server.server import Server

INVALID = grpc.StatusCode.INVALID_ARGUMENT

#: What a model can say, as Python source; `text_of` is what people read of it, if it is an error.
VALUES = {
    "half": r"'caf\ud83d'",
    "fsdecode": r"os.fsdecode(b'caf\xe9')",
    "nul": r"'a\x00b'",
    "control": r"'\r\n\x1b[31m \x85\u2028'",
    "markup": "'<b onclick=x>&\"'",
    "empty": "''",
    "bytes": r"b'caf\xe9'",
    "none": "None",
    "number": "2**64",
    "list": "['a', None]",
    "numpy": "np.str_('a')",
    "nan": "float('nan')",
    "subclass": "Text('a')",
    "raises": "Unprintable(ValueError)",
    "exits": "Unprintable(SystemExit)",
    "not a str": "Unprintable(None)",
    "huge": "'x' * 10_000_000",
}

#: The entrances, as statements that may set `tensors`, `error` and `parameters` of a response.
ENTRANCES = {
    "exception": "raise ValueError(value)",
    "arguments": "raise ValueError('a', value, np.arange(3))",
    "str of an exception": "raise type('Odd', (Exception,), {'__str__': lambda self: value})()",
    "note": "error = ValueError('a'); error.__notes__ = [value]; raise error",
    "server's exception": "raise InternalError(value)",
    "error": "error = pb.TritonError(value)",
    "parameter": "parameters = {'p': value}",
    "name of a parameter": "parameters = {value: 1}",
    "string": "tensors = [pb.Tensor('text_output', np.array([[value]], object))]",
    "output": "tensors = [pb.Tensor(value, np.zeros((1, 1), np.int32))]",
    "log": "pb.Logger.log_error(value)",
    "logging": "logging.getLogger('tritonnb.model').error('%s', value)",
    "family": "self.keep(pb.MetricFamily(value, 'd', pb.MetricFamily.COUNTER))",
    "description": "self.keep(pb.MetricFamily(self.name(), value, pb.MetricFamily.GAUGE))",
    "kind": "self.keep(pb.MetricFamily(self.name(), 'd', value))",
    "label": "self.kept.append(self.family.Metric({'gpu': value}))",
    "name of a label": "self.kept.append(self.family.Metric({value: 'a'}))",
    "labels": "self.kept.append(self.family.Metric(value))",
    "increment": "self.metric.increment(value)",
    "set": "self.gauge.set(value)",
    "observation": "self.histogram.observe(value)",
    "bucket": "self.kept.append(self.histograms.Metric({'k': self.name()}, buckets=[1, value]))",
    "request": "self.call(request_id=value)",
    "called model": "self.call(model_name=value)",
    "called output": "self.call(requested_output_names=[value])",
    "correlation": "self.call(correlation_id=value)",
    "parameter of a call": "self.call(parameters={'p': value})",
    "loaded model": "pb.load_model(value)",
    "loaded config": "pb.load_model('other', config=value)",
    "unloaded model": "pb.unload_model(value)",
    "ready model": "pb.is_model_ready(value)",
}  # fmt: skip

#: These are errors of the whole batch, as on Triton; elsewhere the other request has its answer.
RAISED = {"exception", "arguments", "str of an exception", "note", "server's exception"}

COMMON = """
import itertools
import json
import logging
import os
import numpy as np
import triton_python_backend_utils as pb
from tritonnb.core.errors import InternalError

class Text(str):
    __str__ = __repr__ = lambda self: 5
    encode = isascii = None

class Unprintable:
    def __init__(self, error):
        self.error = error
    def __str__(self):
        if self.error is None:
            return 5
        raise self.error("no text")
    __repr__ = __str__

VALUES = {%s}
"""
SPEAKER = (
    COMMON
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.kept, self.numbers = [], itertools.count()
        self.family = pb.MetricFamily("spoken", "d", pb.MetricFamily.COUNTER)
        self.gauges = pb.MetricFamily("spoken_gauge", "d", pb.MetricFamily.GAUGE)
        self.histograms = pb.MetricFamily("spoken_histogram", "d", pb.MetricFamily.HISTOGRAM)
        self.metric, self.gauge = self.family.Metric(), self.gauges.Metric()
        self.histogram = self.histograms.Metric(buckets=[1.0])

    def name(self):
        return f"family_{next(self.numbers)}"

    def keep(self, family):
        self.kept += [family, family.Metric()]

    def call(self, **options):
        fields = dict(inputs=[], requested_output_names=[], model_name="nobody")
        response = pb.InferenceRequest(**{**fields, **options}).exec()
        raise pb.TritonModelException(response.error().message())

    def say(self, entrance, value):
        tensors, error, parameters = [pb.Tensor("text_output", np.array([[b"said"]], object))], None, None
        found = dict(globals(), self=self, value=value, tensors=tensors, error=error, parameters=parameters)
        try:
            exec(entrance, found)
            return pb.InferenceResponse(found["tensors"], error=found["error"], parameters=found["parameters"])
        except (Exception, SystemExit) as error:
            if entrance.endswith("#raised"):
                raise
            return pb.InferenceResponse(error=pb.TritonError(str(error)))

    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb.get_input_tensor_by_name(request, "text_input").as_numpy()[0, 0].decode()
            if text == "nothing":
                responses.append(pb.InferenceResponse([pb.Tensor("text_output", np.array([[b"nothing"]], object))]))
            else:
                value, entrance = text.split("|", 1)
                responses.append(self.say(entrance, VALUES[value]))
        return responses
"""
)
FIELDS = """
    backend: "python"
    max_batch_size: 7
    input { name: "text_input" data_type: TYPE_STRING dims: 1 }
    output { name: "text_output" data_type: TYPE_STRING dims: 1 }
    dynamic_batching { preferred_batch_size: 7 max_queue_delay_microseconds: 100000 }
"""


def write_model(repository: Path, name: str, text: str, config: str = FIELDS) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    values = ", ".join(f"{key!r}: {source}" for key, source in VALUES.items())
    (repository / name / "1" / "model.py").write_text(text.replace("{%s}", "{" + values + "}"))


def served(repository: Path, **options: Any) -> Server:
    return Server(
        repository,
        port=0,
        grpc_port=0,
        metrics_port=0,
        openai_port=0,
        model_control_mode="explicit",
        exit_on_error=False,
        exit_timeout=3600,  # a request without an answer exceeds the time limit of the test
        **options,
    )


@pytest.fixture(params=[False, True], ids=["in-process", "isolated"], scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "speaker", SPEAKER)
    with served(repository, isolate=request.param, load_models=["speaker"]) as server:
        yield server
        server["speaker"].unload()
        index(server)


def send(url: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
    """The status and body of the answer; `urllib` raises a timeout if there is none."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=20) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def index(server: Server) -> list[dict[str, str]]:
    """The index over HTTP and gRPC, which agree."""
    status, body = send(f"{server.url}/v2/repository/index", {})
    assert status == 200, body
    rows: list[dict[str, str]] = json.loads(body.decode())
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        message = client.get_model_repository_index(as_json=True)
    assert [row["name"] for row in rows] == [row["name"] for row in message.get("models", [])]
    return rows


def check_readable(server: Server) -> None:
    """Everything about all models can be read."""
    status, body = send(f"http://127.0.0.1:{server.metrics_port}/metrics")
    assert status == 200, body[:200]
    names = [family.name for family in text_string_to_metric_families(body.decode())]
    assert "nv_inference_exec_count" in names
    assert len(names) == len(set(names))
    index(server)
    for path in ("models/stats", "models/speaker/config", "models/speaker"):
        status, body = send(f"{server.url}/v2/{path}")
        assert status == 200, body
        json.loads(body.decode())


def infer(server: Server, text: str) -> tuple[int, bytes]:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [text]}
    return send(f"{server.url}/v2/models/speaker/infer", {"inputs": [tensor]})


def generate(server: Server, text: str) -> tuple[int, bytes]:
    return send(f"{server.url}/v2/models/speaker/generate", {"text_input": text})


def generate_stream(server: Server, text: str) -> tuple[int, bytes]:
    status, body = send(f"{server.url}/v2/models/speaker/generate_stream", {"text_input": text})
    return status, body.removeprefix(b"data: ")


def complete(server: Server, text: str) -> tuple[int, bytes]:
    return send(f"http://127.0.0.1:{server.openai_port}/v1/completions", {"model": "speaker", "prompt": text})


def request_message(text: str) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="speaker")
    message.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1]).contents.bytes_contents.append(text.encode())
    return message


def call(server: Server, text: str) -> tuple[int, bytes]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", [("grpc.max_receive_message_length", -1)]) as channel:
        try:
            message = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request_message(text), timeout=20)
        except grpc.RpcError as error:
            status = 500 if error.code() is grpc.StatusCode.INTERNAL else 400 if error.code() is INVALID else 0
            return status, json.dumps(error.details()).encode()
    return 200, json.dumps(
        message.raw_output_contents[0][4:].decode(errors="replace") if message.outputs else ""
    ).encode()


def stream(server: Server, text: str) -> tuple[int, bytes]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", [("grpc.max_receive_message_length", -1)]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        (message,) = stub.ModelStreamInfer(iter([request_message(text)]), timeout=20)
    return (500 if message.error_message else 200), json.dumps(message.error_message).encode()


DOORS = [infer, generate, generate_stream, call, stream, complete]


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_everybody_is_answered_whatever_a_model_says(server: Server, entrance: str) -> None:
    statement = ENTRANCES[entrance] + (" #raised" if entrance in RAISED else "")
    with ThreadPoolExecutor(len(DOORS) + 1) as pool:
        for value in VALUES.keys() - ({"huge"} if "log" in entrance else set()):  # which pytest would keep
            text = f"{value}|{statement}"
            other = pool.submit(infer, server, "nothing")  # in the same batch
            for door, (status, body) in zip(DOORS, pool.map(lambda door: door(server, text), DOORS), strict=True):  # noqa: B023
                where = f"{value} at {door.__name__}: {status} {body[:500]!r}"
                assert status in (200, 400, 500), where
                is_given = (entrance, value) == ("string", "bytes")  # JSON has the bytes of a tensor, as on Triton
                json.loads(body.decode(errors="replace" if is_given else "strict"))
            status, body = other.result()
            assert status == 200 or entrance in RAISED, f"{value}: {body!r}"
    check_readable(server)


#: What a model says while it is loaded, asked whether it is ready, and unloaded: the body of its class.
LOADS = {
    "import": "    raise ValueError(value)",
    "constructor": "    def __init__(self): raise ValueError(value)",
    "initialize": "    def initialize(self, args): raise ValueError(value)",
    "label": "    def initialize(self, args):\n"
    "        self.family = pb.MetricFamily('labels', 'd', pb.MetricFamily.COUNTER); self.family.Metric({'gpu': value})",
    "auto_complete": "    @staticmethod\n    def auto_complete_config(config): raise ValueError(value)",
    "returned": "    @staticmethod\n    def auto_complete_config(config): return value",
    "input": "    @staticmethod\n    def auto_complete_config(config):\n"
    "        config.add_input({'name': value, 'data_type': 'TYPE_FP32', 'dims': [1]}); return config",
    "dims": "    @staticmethod\n    def auto_complete_config(config):\n"
    "        config.add_output({'name': 'a', 'data_type': 'TYPE_FP32', 'dims': [value]}); return config",
    "data type": "    @staticmethod\n    def auto_complete_config(config):\n"
    "        config.add_output({'name': 'a', 'data_type': value, 'dims': [1]}); return config",
    "size": "    @staticmethod\n    def auto_complete_config(config): config.set_max_batch_size(value); return config",
    "policy": "    @staticmethod\n    def auto_complete_config(config):\n"
    "        config.set_model_transaction_policy({'decoupled': value}); return config",
    "finalize": "    def finalize(self): raise ValueError(value)",
    "is_ready": "    def is_ready(self): raise ValueError(value)",
}  # fmt: skip
#: Those that an own process treats differently; each load starts a process.
OF_ISOLATED = ("half", "exits", "huge")


@pytest.mark.parametrize("entrance", LOADS)
@pytest.mark.parametrize("isolated", [False, True], ids=["in-process", "isolated"])
def test_loads_are_answered_whatever_a_model_says(tmp_path: Path, isolated: bool, entrance: str) -> None:
    values = OF_ISOLATED if isolated else list(VALUES)
    text = f"{COMMON}\nclass TritonPythonModel:\n    def execute(self, requests): return None\n{LOADS[entrance]}\n"
    for number, value in enumerate(values):
        write_model(tmp_path, f"m{number}", f"{text}".replace("{%s}", "{%s}\nvalue = VALUES[" + repr(value) + "]"))
    write_model(tmp_path, "speaker", SPEAKER)
    with served(tmp_path, isolate=isolated, load_models=["speaker"]) as server:
        for number, value in enumerate(values):
            status, body = send(f"{server.url}/v2/repository/models/m{number}/load", {})
            assert status in (200, 400), f"{value}: {status} {body[:500]!r}"
            if status == 400:
                assert json.loads(body.decode())["error"], value
            send(f"{server.url}/v2/models/m{number}/ready")
        check_readable(server)
        for number in range(len(values)):
            assert send(f"{server.url}/v2/repository/models/m{number}/unload", {})[0] in (200, 400)
        check_readable(server)


def test_functions_say_anything() -> None:
    """A function raises, warns and logs what it likes, and its server answers over HTTP."""
    values: dict[str, Any] = {}
    exec(COMMON.replace("{%s}", "{" + ", ".join(f"{key!r}: {source}" for key, source in VALUES.items()) + "}")
         .replace("import triton_python_backend_utils as pb", ""), values)  # fmt: skip

    def m(X: Any) -> Any:
        kind, _, value = X[0].decode().partition("|")
        said = values["VALUES"][value]
        if kind == "return":
            return said
        raise {"exception": ValueError, "ours": TritonError}[kind](said)

    m.__annotations__ = {"X": tnb.BYTES[1], "return": tnb.BYTES[1]}
    with Server(port=0, metrics_port=0) as server:
        server.model(m)
        for value in VALUES:
            for kind in ("return", "exception", "ours"):
                tensor = {"name": "X", "datatype": "BYTES", "shape": [1], "data": [f"{kind}|{value}"]}
                status, body = send(f"{server.url}/v2/models/m/infer", {"inputs": [tensor]})
                assert status in (200, 500), f"{kind} {value}: {status} {body[:500]!r}"
                json.loads(body.decode())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("caf\udce9 \ud83d", r"caf\udce9 \ud83d"),
        (b"caf\xe9", r"caf\xe9"),
        (np.str_("a"), "a"),
        (None, "None"),
        ("x" * (LONGEST_ERROR + 1), "x" * LONGEST_ERROR + f"... ({LONGEST_ERROR + 1} characters)"),
    ],
)
def test_printable_text(value: object, text: str) -> None:
    assert printable(value) == text
    assert type(printable(value)) is str
    assert encodable(text) == text
