"""How long the event loop pauses while clients send long bodies: ``python -m benchmarks.loop_pauses [NAME …]``.

The server runs in this process with the default settings of Python, as in a notebook, except that its collections of
garbage do not visit what was there before: an empty kernel takes 30 ms for that, a large one longer. A task on its loop
sleeps for a millisecond again and again; the longest time between two of its runs is the pause. While it waits, other
programs may have the processor: the time is that of the clock or that of the processor, whichever is shorter.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb

import tritonnb as tnb

#: The sizes of bodies in MB.
SIZES = (1, 8, 64)
#: Seconds between two runs of the task on the loop.
_TICK = 0.001
_UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class PauseMeter:
    """The longest pause of a server's event loop, while the block runs.

    Attributes
    ----------
    longest : float
        In seconds.
    """

    def __init__(self, server: tnb.Server) -> None:
        self._server = server
        self._is_over = threading.Event()
        self.longest = 0.0

    def __enter__(self) -> PauseMeter:
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: self._server.run(self._measure(started)))
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    async def _measure(self, started: threading.Event) -> None:
        started.set()
        begin, used = time.perf_counter(), time.process_time()
        while not self._is_over.is_set():
            await asyncio.sleep(_TICK)
            now, now_used = time.perf_counter(), time.process_time()
            self.longest = max(self.longest, min(now - begin, now_used - used))
            begin, used = now, now_used


def repeated(before: bytes, unit: bytes, after: bytes, size: int) -> bytes:
    """Return a body of a size with a unit that is repeated, separated by commas."""
    count = max(1, (size - len(before) - len(after)) // (len(unit) + 1))
    return before + b",".join([unit] * count) + after


def numbered(before: bytes, unit: bytes, after: bytes, size: int) -> bytes:
    """Return a body of a size with a unit that contains its number, separated by commas."""
    count = max(1, (size - len(before) - len(after)) // (len(unit) + 5))
    return before + b",".join([unit % number for number in range(count)]) + after


@dataclass(frozen=True)
class Kind:
    """A kind of body.

    Attributes
    ----------
    path : str
        Of HTTP, or the name of an RPC.
    make : callable
        Makes the body, or the message, of a size in bytes.
    """

    path: str
    make: Callable[[int], Any]


def _tensor(datatype: bytes, unit: bytes, per_unit: int = 1) -> Callable[[int], bytes]:
    def make(size: int) -> bytes:
        count = (size - 80) // (len(unit) + 1)
        head = b'{"inputs":[{"name":"X","datatype":"%s","shape":[%d],"data":[' % (datatype, max(1, count * per_unit))
        return head + b",".join([unit] * count) + b"]}]}"

    return make


def _json(
    before: bytes, unit: bytes, after: bytes, join: Callable[[bytes, bytes, bytes, int], bytes] = repeated
) -> Callable[[int], bytes]:
    return lambda size: join(before, unit, after, size)


_NUMBERS, _STRINGS = "/v2/models/numbers/infer", "/v2/models/strings/infer"
_GENERATE, _LOAD = "/v2/models/numbers/generate", "/v2/repository/models/m/load"
_INPUT = b'{"name":"X","datatype":"FP32","shape":[1],"data":[1]}'
_ONE = b'{"inputs":[' + _INPUT + b"],"
_ITEM = b'{"name":"X%d","data_type":"TYPE_FP32","dims":[1]}'


def _load(parameter: bytes, value: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda size: b'{"parameters":{"%s":%s}}' % (parameter, value(size))


def _config(unit: bytes) -> Callable[[int], bytes]:
    def make(size: int) -> bytes:
        text = numbered(b'{"backend":"python","input":[', unit, b"]}", int(size / 1.3)).decode()
        return json.dumps({"parameters": {"config": text}}).encode()

    return make


HTTP = {
    "numbers": Kind(_NUMBERS, _tensor(b"FP32", b"1.5")),
    "numbers of one digit": Kind(_NUMBERS, _tensor(b"FP32", b"1")),
    "arrays of one number": Kind(_NUMBERS, _tensor(b"FP32", b"[1]")),
    "empty arrays": Kind(
        _NUMBERS, _json(b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[', b"[]", b"]}]}")
    ),
    "nulls": Kind(_NUMBERS, _tensor(b"FP32", b"null")),
    "strings": Kind(_STRINGS, _tensor(b"BYTES", b'"ab"')),
    "arrays of one string": Kind(_STRINGS, _tensor(b"BYTES", b'["ab"]')),
    "one string": Kind(_STRINGS, lambda size: _tensor(b"BYTES", b'"%s"' % (b"a" * (size - 100)))(size)),
    "a string of escapes": Kind(_STRINGS, lambda size: _tensor(b"BYTES", b'"%s"' % (b"\\n" * (size // 2 - 60)))(size)),
    "an invalid document": Kind(_NUMBERS, lambda size: _tensor(b"FP32", b"1.5")(size)[:-1]),
    "brackets": Kind(_NUMBERS, lambda size: b"[" * size),
    "parameters": Kind(_NUMBERS, _json(_ONE + b'"parameters":{', b'"p%d":1', b"}}", numbered)),
    "a repeated parameter": Kind(_NUMBERS, _json(_ONE + b'"parameters":{', b'"p":1', b"}}")),
    "inputs": Kind(_NUMBERS, _json(b'{"inputs":[', _INPUT.replace(b"X", b"X%d"), b"]}", numbered)),
    "outputs": Kind(_NUMBERS, _json(_ONE + b'"outputs":[', b'{"name":"X%d"}', b"]}", numbered)),
    "dims": Kind(_NUMBERS, _json(b'{"inputs":[{"name":"X","datatype":"FP32","data":[1],"shape":[', b"1", b"]}]}")),
    "unknown members": Kind(_NUMBERS, _json(_ONE, b'"u%d":{"a":[]}', b"}", numbered)),
    "numbers, with `generate`": Kind(_GENERATE, _json(b'{"X":[', b"1.5", b"]}")),
    "strings, with `generate`": Kind("/v2/models/strings/generate", _json(b'{"X":[', b'"ab"', b"]}")),
    "arrays, with `generate`": Kind(_GENERATE, _json(b'{"X":[', b"[1]", b"]}")),
    "parameters, with `generate`": Kind(_GENERATE, _json(b'{"X":1,', b'"p%d":1', b"}", numbered)),
    "chat messages": Kind(
        "/v1/chat/completions",
        _json(b'{"model":"chat","messages":[', b'{"role":"user","content":"hello"}', b"]}"),
    ),
    "parts of a chat message": Kind(
        "/v1/chat/completions",
        _json(b'{"model":"chat","messages":[{"role":"user","content":[', b'{"type":"text","text":"a"}', b"]}]}"),
    ),
    "prompts": Kind("/v1/completions", _json(b'{"model":"chat","prompt":[', b'"a"', b"]}")),
    "tokens": Kind("/v1/completions", _json(b'{"model":"chat","prompt":[', b"1", b"]}")),
    "unknown members of a completion": Kind("/v1/completions", _json(b'{"model":"chat",', b'"u%d":1', b"}", numbered)),
    "texts to embed": Kind("/v1/embeddings", _json(b'{"model":"vectors","input":[', b'"a"', b"]}")),
    "a `file:` parameter": Kind(_LOAD, _load(b"file:1/a", lambda size: b'"%s"' % (b"QUJD" * (size // 4)))),
    "`file:` parameters": Kind(_LOAD, _json(b'{"parameters":{', b'"file:1/%d":""', b"}}", numbered)),
    "inputs of a configuration": Kind(_LOAD, _config(_ITEM)),
    "dims of a configuration": Kind(
        _LOAD, _load(b"config", lambda size: json.dumps('{"input":[{"dims":[%s1]}]}' % ("1," * (size // 2))).encode())
    ),
    "trace settings": Kind("/v2/trace/setting", _json(b"{", b'"u%d":[]', b"}", numbered)),
    "trace levels": Kind("/v2/trace/setting", _json(b'{"trace_level":[', b'"TENSORS"', b"]}")),
    "log settings": Kind("/v2/logging", _json(b"{", b'"u%d":[]', b"}", numbered)),
    "an index": Kind("/v2/repository/index", _json(b"[", b"{}", b"]")),
    "an unload": Kind("/v2/repository/models/m/unload", _json(b"[", b"{}", b"]")),
}


def _message(name: str, size: int, field: str, values: Callable[[int], Any], datatype: str) -> pb.ModelInferRequest:
    tensor = pb.ModelInferRequest.InferInputTensor(name="X", datatype=datatype, shape=[size])
    if field == "raw":
        return pb.ModelInferRequest(model_name=name, inputs=[tensor], raw_input_contents=[values(size)])
    getattr(tensor.contents, field).extend(values(size))
    return pb.ModelInferRequest(model_name=name, inputs=[tensor])


def _infer(name: str, field: str, values: Callable[[int], Any], datatype: str, item: int) -> Kind:
    return Kind("ModelInfer", lambda size: _message(name, size // item, field, values, datatype))


def _many(**field: Callable[[int], Any]) -> Kind:
    """Return the kind of requests with many entries in a field; a function makes them of their number."""
    ((name, make),) = field.items()

    def message(size: int) -> pb.ModelInferRequest:
        request = _message("numbers", 1, "fp32_contents", lambda count: [1.0] * count, "FP32")
        if name == "parameters":
            for number in range(size // 16):
                request.parameters[f"p{number}"].int64_param = 1
        else:
            getattr(request, name).extend(make(size))
        return request

    return Kind("ModelInfer", message)


def _inputs(size: int) -> list[pb.ModelInferRequest.InferInputTensor]:
    make = pb.ModelInferRequest.InferInputTensor
    return [make(name=f"X{number}", datatype="FP32", shape=[1]) for number in range(size // 20)]


def _outputs(size: int) -> list[pb.ModelInferRequest.InferRequestedOutputTensor]:
    return [pb.ModelInferRequest.InferRequestedOutputTensor(name=f"X{number}") for number in range(size // 10)]


def _settings(size: int) -> pb.TraceSettingRequest:
    message = pb.TraceSettingRequest()
    for number in range(size // 16):
        message.settings[f"p{number}"].value.append("1")
    return message


def _load_message(size: int) -> pb.RepositoryModelLoadRequest:
    message = pb.RepositoryModelLoadRequest(model_name="m")
    message.parameters["config"].string_param = numbered(b'{"backend":"python","input":[', _ITEM, b"]}", size).decode()
    return message


GRPC = {
    "raw numbers": _infer("numbers", "raw", lambda count: bytes(4 * count), "FP32", 4),
    "raw strings": _infer("strings", "raw", lambda count: b"\x02\0\0\0ab" * count, "BYTES", 6),
    "typed numbers": _infer("numbers", "fp32_contents", lambda count: [1.0] * count, "FP32", 4),
    "typed booleans": _infer("numbers", "bool_contents", lambda count: [True] * count, "BOOL", 1),
    "typed strings": _infer("strings", "bytes_contents", lambda count: [b"ab"] * count, "BYTES", 4),
    "parameters of a message": _many(parameters=lambda size: None),
    "inputs of a message": _many(inputs=_inputs),
    "outputs of a message": _many(outputs=_outputs),
    "raw contents": _many(raw_input_contents=lambda size: [b""] * (size // 2)),
    "trace settings of a message": Kind("TraceSetting", _settings),
    "a configuration in a message": Kind("RepositoryModelLoad", _load_message),
}


@dataclass
class Measured:
    """What a body gave: the pause and the duration in seconds, and the status."""

    pause: float
    duration: float
    status: str


def measure(server: tnb.Server, name: str, size: int) -> Measured:
    """Send one body of a kind, and measure the pause of the loop meanwhile."""
    if name in HTTP:
        kind = HTTP[name]
        body = kind.make(size)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
        with PauseMeter(server) as meter:
            begin = time.perf_counter()
            try:
                connection.request("POST", kind.path, body)
                response = connection.getresponse()
                answer = response.read()
                status = f"{response.status} {answer[:90].decode(errors='replace') if response.status != 200 else ''}"
            except OSError as error:
                status = repr(error)
            duration = time.perf_counter() - begin
            del body
        connection.close()
        return Measured(meter.longest, duration, status)
    kind = GRPC[name]
    message = kind.make(size)
    data = message.SerializeToString()
    del message
    with (
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", _UNLIMITED) as channel,
        PauseMeter(server) as meter,
    ):
        call = channel.unary_unary(f"/inference.GRPCInferenceService/{kind.path}")
        begin = time.perf_counter()
        try:
            call(data, timeout=600)
            status = "OK"
        except grpc.RpcError as error:
            status = f"{error.code().name} {error.details()[:90]}"
        duration = time.perf_counter() - begin
    return Measured(meter.longest, duration, status)


def serve() -> tnb.Server:
    """Start a server with the models that the bodies are sent to."""
    server = tnb.Server(
        port=0, grpc_port=0, model_control_mode="explicit", openai=tnb.OpenAiOptions(allow=True),
        allow_file_override=True,
    )  # fmt: skip

    @server.model
    def numbers(X: tnb.FP32[-1]) -> tnb.FP32[-1]:  # type: ignore[valid-type]  # noqa: N803
        return X

    @server.model
    def strings(X: tnb.BYTES[-1]) -> tnb.BYTES[-1]:  # type: ignore[valid-type]  # noqa: N803
        return X

    @server.model
    def chat(text_input: tnb.BYTES[1]) -> {"text_output": tnb.BYTES[1]}:  # type: ignore[misc, valid-type]  # noqa: F821, UP037
        return text_input

    @server.model
    def vectors(text: tnb.BYTES[1]) -> tnb.FP32[4]:  # type: ignore[valid-type]
        return np.ones(4, np.float32)

    return server


def main() -> None:
    """Measure kinds at sizes, and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop_pauses", description=__doc__)
    parser.add_argument("names", nargs="*", help="kinds of bodies, by default all")
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES, help="in MB")
    parser.add_argument("--rounds", type=int, default=1, help="the smallest pause counts")
    options = parser.parse_args()
    with serve() as server:
        gc.collect()
        gc.freeze()
        for name in options.names or [*HTTP, *GRPC]:
            row = []
            for size in options.sizes:
                rounds = [measure(server, name, int(size * 1e6)) for _ in range(options.rounds)]
                best = min(rounds, key=lambda measured: measured.pause)
                row.append(f"{best.pause * 1e3:6.0f} ms of {best.duration:6.2f} s")
            print(f"{name:36s} {'  '.join(row)}  {best.status}", flush=True)


if __name__ == "__main__":
    main()
