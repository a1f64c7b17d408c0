"""Load over HTTP: one binary request, sent again and again by ``wrk`` over some connections."""

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
    """A binary inference request of one input and one output.

    Attributes
    ----------
    path : str
    head : str
        The JSON part.
    body : bytes
        Head and tensor.
    """

    path: str
    head: str
    body: bytes

    @classmethod
    def of(cls, model: str, name: str, array: npt.NDArray[np.generic], output: str, datatype: str = "FP32") -> Request:
        """A request of one array."""
        given = {
            "name": name,
            "datatype": datatype,
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        wanted = {"name": output, "parameters": {"binary_data": True}}
        head = json.dumps({"inputs": [given], "outputs": [wanted]}, separators=(",", ":"))
        return cls(f"/v2/models/{model}/infer", head, head.encode() + array.tobytes())

    def answer(self, url: str) -> bytes:
        """The output's bytes of one answer."""
        headers = {"Inference-Header-Content-Length": str(len(self.head))}
        request = urllib.request.Request(url + self.path, self.body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            body: bytes = answer.read()
            return body[int(answer.headers["Inference-Header-Content-Length"]) :]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run of wrk gave: requests a second, and latencies in ms."""

    rate: float
    p50: float
    p99: float


def wrk(url: str, request: Request, connections: int, seconds: int, scratch: Path) -> Measured:
    """Send a request over some connections for some seconds.

    Raises
    ------
    RuntimeError
        If wrk is missing, or an answer was no success.
    """
    body, script = scratch / "body.bin", scratch / "request.lua"
    body.write_bytes(request.body)
    script.write_text(
        f'wrk.method = "POST"\nwrk.body = io.open("{body}", "rb"):read("*a")\n'
        f'wrk.headers["Inference-Header-Content-Length"] = "{len(request.head)}"\n'
        'wrk.headers["Content-Type"] = "application/octet-stream"\n'
    )
    return _run(["-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), url + request.path])


def wrk_sequences(url: str, model: str, sequences: int, length: int, seconds: int, scratch: Path) -> Measured:
    """Send ones to a model that adds up, over a connection for each sequence that is open at a time.

    A sequence has ``length`` requests, one after the other's answer; the next one of its connection has
    another id. Each connection has a thread of its own, since scripts of wrk cannot tell connections apart.

    Raises
    ------
    RuntimeError
        If wrk is missing, or an answer was no success.
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

-- Not in request(), which is asked again where a socket did not take what it gave.
function response()
  step = (step + 1) %% (%(length)d + 1)
end
"""


def _run(arguments: list[str]) -> Measured:
    if shutil.which("wrk") is None:
        raise RuntimeError("the load generator `wrk` is missing: it is Debian's package of that name")
    command = ["wrk", "--latency", *arguments]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in printed or "Socket errors" in printed:
        raise RuntimeError(f"requests failed:\n{printed}")
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", printed).group(1))  # type: ignore[union-attr]
    return Measured(rate, _latency(printed, 50), _latency(printed, 99))


def _latency(printed: str, percentile: int) -> float:
    found = re.search(rf"{percentile}%\s+([\d.]+)(us|ms|s)\b", printed)
    assert found is not None
    return float(found.group(1)) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[found.group(2)]
