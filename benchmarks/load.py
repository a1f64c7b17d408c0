"""Load over HTTP: one binary request, sent repeatedly by ``wrk`` over several connections."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Request:
    """A binary inference request with one input and one output.

    Attributes
    ----------
    path : str
    head : str
        The JSON part.
    body : bytes
        JSON part and tensor.
    """

    path: str
    head: str
    body: bytes

    @classmethod
    def of(cls, model: str, name: str, array: npt.NDArray[np.generic], output: str, datatype: str = "FP32") -> Request:
        """Return a request with one array."""
        input_json = {
            "name": name,
            "datatype": datatype,
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        output_json = {"name": output, "parameters": {"binary_data": True}}
        head = json.dumps({"inputs": [input_json], "outputs": [output_json]}, separators=(",", ":"))
        return cls(f"/v2/models/{model}/infer", head, head.encode() + array.tobytes())

    def send(self, url: str) -> bytes:
        """Send the request once; returns the bytes of the output."""
        headers = {"Inference-Header-Content-Length": str(len(self.head))}
        request = urllib.request.Request(url + self.path, self.body, headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            body: bytes = response.read()
            return body[int(response.headers["Inference-Header-Content-Length"]) :]


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a run: requests per second, and latencies in ms."""

    rate: float
    p50: float
    p99: float


def wrk(url: str, request: Request, connections: int, seconds: int, scratch: Path) -> Measured:
    """Send a request repeatedly with wrk.

    Raises
    ------
    RuntimeError
        If wrk is not installed, or a request failed.
    """
    body, script = scratch / "body.bin", scratch / "request.lua"
    body.write_bytes(request.body)
    script.write_text(
        f'wrk.method = "POST"\nwrk.body = io.open("{body}", "rb"):read("*a")\n'
        f'wrk.headers["Inference-Header-Content-Length"] = "{len(request.head)}"\n'
        'wrk.headers["Content-Type"] = "application/octet-stream"\n'
    )
    return _run(["-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), url + request.path])


def wrk_json(url: str, body: bytes, connections: int, seconds: int, scratch: Path) -> Measured:
    """Send JSON repeatedly with wrk.

    Raises
    ------
    RuntimeError
        If wrk is not installed, or a request failed.
    """
    file, script = scratch / "body.json", scratch / "json.lua"
    file.write_bytes(body)
    script.write_text(
        f'wrk.method = "POST"\nwrk.body = io.open("{file}", "rb"):read("*a")\n'
        'wrk.headers["Content-Type"] = "application/json"\n'
    )
    return _run(["-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), url])


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
