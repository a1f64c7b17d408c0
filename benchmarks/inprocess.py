"""In-process inference against our own HTTP, the same requests in flight; target 2x.

`wrk`, which asks over HTTP, costs this process nothing; a caller in the process does, since both are Python. What a
notebook would do instead is measured, too: NVIDIA's client, in a process of its own.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.load import Request, wrk
from benchmarks.servers import ROOT
from tritonnb.server import Server

X = np.zeros((1, 16), np.float32)


def inprocess(scratch: Path, seconds: int, rounds: int) -> dict[str, Any]:
    """One caller, eight threads, and 8 and 32 requests in flight in an event loop."""
    repository = ROOT / "model_repository"
    found: dict[str, Any] = {}
    with Server(repository, port=0, model_control_mode="explicit", load_models=["identity_fp32"]) as server:
        model = server["identity_fp32"]
        request = Request.of("identity_fp32", "INPUT0", X, "OUTPUT0")
        http = {count: wrk(server.url, request, count, seconds, scratch).rate for count in (1, 8, 32)}
        rates = {
            "1 caller": (_threads(model, 1, seconds), 1),
            "8 threads": (_threads(model, 8, seconds), 8),
            "8 in flight": (asyncio.run(_in_flight(model, 8, seconds)), 8),
            "32 in flight": (asyncio.run(_in_flight(model, 32, seconds)), 32),
        }
        client = _tritonclient(server.url, seconds)
    print(f"tritonclient.http, 1 caller: {client:.0f}/s; in process {rates['1 caller'][0] / client:.1f}x")
    found["tritonclient"] = {"rate": client}
    for name, (rate, count) in rates.items():
        print(f"in process, {name}: {rate:.0f}/s; HTTP at {count}: {http[count]:.0f}/s; {rate / http[count]:.2f}x")
        found[name] = {"rate": rate, "http": http[count], "ratio": rate / http[count]}
    return found


def _threads(model: Any, count: int, seconds: int) -> float:
    done = [0] * count
    end = time.perf_counter() + seconds

    def ask(index: int) -> None:
        while time.perf_counter() < end:
            model(INPUT0=X)
            done[index] += 1

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / seconds


CLIENT = """
import sys, time
import numpy as np
from tritonclient.http import InferenceServerClient, InferInput
client = InferenceServerClient(sys.argv[1])
x = InferInput("INPUT0", [1, 16], "FP32")
x.set_data_from_numpy(np.zeros((1, 16), np.float32))
count, end = 0, time.perf_counter() + float(sys.argv[2])
while time.perf_counter() < end:
    client.infer("identity_fp32", [x]).as_numpy("OUTPUT0")
    count += 1
print(count / float(sys.argv[2]))
"""


def _tritonclient(url: str, seconds: int) -> float:
    address = url.removeprefix("http://")
    asked = [sys.executable, "-c", CLIENT, address, str(seconds)]
    return float(subprocess.run(asked, capture_output=True, check=True, text=True).stdout)


async def _in_flight(model: Any, count: int, seconds: int) -> float:
    end = time.perf_counter() + seconds

    async def ask() -> int:
        done = 0
        while time.perf_counter() < end:
            await model.infer_async(INPUT0=X)
            done += 1
        return done

    return sum(await asyncio.gather(*(ask() for _ in range(count)))) / seconds
