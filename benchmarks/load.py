"""Load over HTTP: inference requests with their own IDs and data, sent by ``wrk`` over several connections."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

#: The headers of four clients beside ``Host``, ``Content-Length`` and ``Inference-Header-Content-Length``, as captured;
#: those of perf_analyzer are assumed.
CLIENTS: dict[str, dict[str, str]] = {
    "tritonclient": {"User-Agent": "python/gevent-http-client-2.6.1"},
    "requests": {
        "User-Agent": "python-requests/2.34.2",
        "Accept-Encoding": "gzip, deflate, br",
        "Accept": "*/*",
        "Connection": "keep-alive",
    },
    "curl": {"User-Agent": "curl/7.88.1", "Accept": "*/*", "Content-Type": "application/x-www-form-urlencoded"},
    "perf_analyzer": {
        "User-Agent": "libcurl-agent/1.0",
        "Accept": "*/*",
        "Content-Type": "application/octet-stream",
    },
}
#: As many different contents as fit in so many bytes are sent in turn, but no more than the second number.
_CONTENT_BYTES, _CONTENTS = 32 << 20, 256


@dataclass(frozen=True, slots=True)
class Requests:
    """Inference requests of one form. Each has its own ID, and tensors that differ from those of the one before.

    Attributes
    ----------
    paths : tuple of str
        One for each model; the models take turns.
    before_id, after_id : str
        The JSON before and after the ID; if nothing is before it, requests have no ID.
    contents : tuple of bytes
        What follows the ID: tensors, or the rest of the JSON. They take turns.
    is_binary : bool
        Whether `contents` are tensors.
    headers : mapping of str to str
    """

    paths: tuple[str, ...]
    before_id: str
    after_id: str
    contents: tuple[bytes, ...]
    is_binary: bool
    headers: Mapping[str, str] = field(default_factory=lambda: CLIENTS["tritonclient"])

    @classmethod
    def binary(
        cls,
        models: str | tuple[str, ...],
        name: str,
        array: npt.NDArray[np.generic],
        output: str,
        datatype: str = "FP32",
        client: str = "tritonclient",
        *,
        has_id: bool = True,
    ) -> Requests:
        """Requests with one input and one output in binary form; the inputs are permutations of an array.

        Without ID, their JSON repeats, as that of tritonclient does by default.
        """
        sizes = {"binary_data_size": array.nbytes}
        input_json = {"name": name, "shape": list(array.shape), "datatype": datatype, "parameters": sizes}
        output_json = {"name": output, "parameters": {"binary_data": True}}
        rest = json.dumps({"inputs": [input_json], "outputs": [output_json]}, separators=(",", ":"))
        paths = tuple(f"/v2/models/{model}/infer" for model in ((models,) if isinstance(models, str) else models))
        contents = tuple(values.tobytes() for values in permutations(array))
        before, after = ('{"id":"', f'",{rest[1:]}') if has_id else ("", rest)
        return cls(paths, before, after, contents, True, CLIENTS[client])

    @classmethod
    def json(
        cls, path: str, form: Callable[[list[float]], object], array: npt.NDArray[np.generic], *, has_id: bool = True
    ) -> Requests:
        """Requests in JSON, which a function forms of a permutation of an array; without ID, they differ in it only."""
        bodies = [json.dumps(form(values.ravel().tolist())) for values in permutations(array)]
        before, after, omitted = ('{"id":"', '",', 1) if has_id else ("", "", 0)
        headers = CLIENTS["requests"] | {"Content-Type": "application/json"}
        return cls((path,), before, after, tuple(body[omitted:].encode() for body in bodies), False, headers)

    def send(self, url: str) -> bytes:
        """Send one request; returns the bytes of the output, or the JSON of the response."""
        head = f"{self.before_id}{self.after_id}"
        headers = {**self.headers, "Inference-Header-Content-Length": str(len(head))} if self.is_binary else {}
        # Not urllib, whose header "Connection: close" makes Triton 2.51 crash if the body is large.
        with closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)) as connection:
            connection.request("POST", self.paths[0], head.encode() + self.contents[0], headers)
            response = connection.getresponse()
            body = response.read()
        if response.status != 200:
            raise RuntimeError(f"POST {self.paths[0]}: expected status 200, got {response.status}: {body!r}")
        return body[int(response.headers.get("Inference-Header-Content-Length", 0)) :]


def v2_json(values: list[float]) -> object:
    """Return the JSON of a request of the v2 protocol with the FP32 input ``INPUT0``."""
    return {"inputs": [{"name": "INPUT0", "shape": [1, len(values)], "datatype": "FP32", "data": values}]}


def floats(count: int) -> npt.NDArray[np.float32]:
    """Return random values of shape [1, count]."""
    return np.random.default_rng(0).random((1, count), dtype=np.float32)


def permutations(array: npt.NDArray[np.generic]) -> list[npt.NDArray[np.generic]]:
    """Return permutations of an array, for requests that differ: 256 of a small array, fewer of a large one."""
    random = np.random.default_rng(0)
    count = max(4, min(_CONTENTS, _CONTENT_BYTES // array.nbytes))
    return [random.permuted(array, axis=None) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a run: requests per second, and latencies in ms."""

    rate: float
    p50: float
    p99: float


def wrk(url: str, requests: Requests, connections: int, seconds: int, scratch: Path) -> Measured:
    """Send requests with wrk, one after the other over each connection.

    Raises
    ------
    RuntimeError
        If wrk is not installed, or a request failed.
    """
    contents, script = scratch / "contents.bin", scratch / "requests.lua"
    contents.write_bytes(b"".join(requests.contents))
    headers = (f"[{json.dumps(name)}]={json.dumps(value)}," for name, value in requests.headers.items())
    script.write_text(
        _REQUESTS
        % {
            "headers": "".join(headers),
            "paths": ",".join(map(json.dumps, requests.paths)),
            "contents": contents,
            "sizes": ",".join(str(len(content)) for content in requests.contents),
            "before_id": json.dumps(requests.before_id),
            "after_id": json.dumps(requests.after_id),
            "is_binary": str(requests.is_binary).lower(),
        }
    )
    return _run(["-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), url])


_REQUESTS = """
local headers, paths, contents, number = {%(headers)s}, {%(paths)s}, {}, 0
local before, after = %(before_id)s, %(after_id)s
local file = io.open("%(contents)s", "rb")
for index, size in ipairs({%(sizes)s}) do contents[index] = file:read(size) end

function request()
  number = number + 1
  local head = before == "" and after or before .. number .. after
  if %(is_binary)s then headers["Inference-Header-Content-Length"] = #head end
  local content = contents[number %% #contents + 1]
  return wrk.format("POST", paths[number %% #paths + 1], headers, head .. content)
end
"""


def wrk_sequences(url: str, model: str, sequences: int, length: int, seconds: int, scratch: Path) -> Measured:
    """Send sequences to an accumulator model with wrk, over one connection for each concurrent sequence.

    A sequence has ``length`` requests, each sent after the response to the previous one. The next sequence of the same
    connection has another ID. Each connection has its own thread, since scripts of wrk cannot distinguish connections.

    Raises
    ------
    RuntimeError
        If wrk is not installed, or a request failed.
    """
    script = scratch / "sequences.lua"
    script.write_text(_SEQUENCES % {"model": model, "sequences": sequences, "length": length})
    return _run([f"-t{sequences}", f"-c{sequences}", f"-d{seconds}s", "-s", str(script), url])


_SEQUENCES = """
local threads = 0
function setup(thread)
  threads = threads + 1
  thread:set("sequence", threads)
end

local step, formatted = 0, {}
local function infer(flags)
  local head = '{"inputs":[{"name":"INPUT","datatype":"INT32","shape":[1,1],"parameters":{"binary_data_size":4}}],' ..
    '"outputs":[{"name":"OUTPUT","parameters":{"binary_data":true}}],' ..
    '"parameters":{"sequence_id":' .. sequence .. flags .. '}}'
  local headers = {["Inference-Header-Content-Length"] = #head, ["Content-Type"] = "application/octet-stream"}
  return wrk.format("POST", "/v2/models/%(model)s/infer", headers, head .. "\\1\\0\\0\\0")
end

function request()
  if step == 0 then
    sequence = sequence + %(sequences)d
    formatted = {
      first = infer(',"sequence_start":true,"sequence_end":false'),
      between = infer(',"sequence_start":false,"sequence_end":false'),
      last = infer(',"sequence_start":false,"sequence_end":true'),
    }
    step = 1
  end
  if step == 1 then return formatted.first end
  if step < %(length)d then return formatted.between end
  return formatted.last
end

-- Not in request(), which is called again if a write to the socket was incomplete.
function response()
  step = (step + 1) %% (%(length)d + 1)
end
"""


def _run(arguments: list[str]) -> Measured:
    if shutil.which("wrk") is None:
        raise RuntimeError("the load generator `wrk` is not installed: apt install wrk")
    command = ["wrk", "--latency", *arguments]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in printed or "Socket errors" in printed:
        raise RuntimeError(f"requests failed:\n{printed}")
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", printed).group(1))  # type: ignore[union-attr]
    return Measured(rate, _latency(printed, 50), _latency(printed, 99))


def _latency(printed: str, percentile: int) -> float:
    match = re.search(rf"{percentile}%\s+([\d.]+)(us|ms|s)\b", printed)
    assert match is not None
    return float(match.group(1)) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[match.group(2)]
