"""In-process inference against HTTP on this server, with the same number of requests in flight; target 2x.

HTTP is measured twice: with NVIDIA's Python client in its own process, as in a notebook, and with `wrk`, which takes
little processor time. In process, the caller is Python code that shares the interpreter with the server. The upper
bound is measured, too: a request passes between threads four times (caller, event loop, instance, event loop, caller),
and `_thread_switch_rate` does only that.
"""

from __future__ import annotations

import asyncio
import functools
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from benchmarks.load import Requests, wrk
from benchmarks.servers import ROOT
from tritonnb.engine.execution.loop import BackgroundLoop
from tritonnb.server.model_handle import ModelHandle
from tritonnb.server.server import Server

X = np.zeros((1, 16), np.float32)
#: How requests are sent, and how many are in flight.
CALLERS = (("threads", 1), ("threads", 8), ("tasks", 8), ("tasks", 32))


def inprocess(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Measure one thread, eight threads, and 8 and 32 tasks of an event loop."""
    switches = _thread_switch_rate(seconds)
    print(f"thread switches only, 1 caller: {switches:.0f}/s")
    figures: dict[str, object] = {"thread switches": {"rate": switches}}
    repository = ROOT / "model_repository"
    with Server(repository, port=0, model_control_mode="explicit", load_models=["identity_fp32"]) as server:
        model = server["identity_fp32"]
        requests = Requests.binary("identity_fp32", "INPUT0", X, "OUTPUT0")
        for kind, count in CALLERS:
            ways: dict[str, Callable[[], float]] = {
                "in process": functools.partial(_in_process, model, kind, count, seconds),
                "NVIDIA's client over HTTP": functools.partial(_client, server.url, seconds, kind, count),
                "wrk": functools.partial(_wrk, server.url, requests, count, seconds, scratch),
            }
            rates: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(rounds):
                for name, measure in ways.items():
                    rates[name].append(measure())
            figures[f"{count} {kind}"] = rates
            print(f"{count} {kind}: {statistics.median(rates['in process']):.0f}/s in process")
            for name in list(ways)[1:]:
                ratios = [own / other for own, other in zip(rates["in process"], rates[name], strict=True)]
                print(f"  {statistics.median(ratios):.2f}x {name}: {statistics.median(rates[name]):.0f}/s")
    return figures


def _in_process(model: ModelHandle, kind: str, count: int, seconds: int) -> float:
    return _in_threads(model, count, seconds) if kind == "threads" else _in_tasks(model, count, seconds)


def _wrk(url: str, requests: Requests, count: int, seconds: int, scratch: Path) -> float:
    return wrk(url, requests, count, seconds, scratch).rate


def _in_threads(model: ModelHandle, count: int, seconds: int) -> float:
    done = [0] * count
    end = time.perf_counter() + seconds

    def send(index: int) -> None:
        while time.perf_counter() < end:
            model(INPUT0=X)
            done[index] += 1

    threads = [threading.Thread(target=send, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / seconds


def _in_tasks(model: ModelHandle, count: int, seconds: int) -> float:
    end = time.perf_counter() + seconds

    async def send() -> int:
        done = 0
        while time.perf_counter() < end:
            await model.infer_async(INPUT0=X)
            done += 1
        return done

    async def send_all() -> list[int]:
        return await asyncio.gather(*(send() for _ in range(count)))

    return sum(asyncio.run(send_all())) / seconds


#: Prints the request rate of NVIDIA's client: in threads with a client each, or in tasks with one client.
CLIENT = """
import asyncio, sys, threading, time
import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, aio
address, seconds, kind, count = sys.argv[1], float(sys.argv[2]), sys.argv[3], int(sys.argv[4])
x = InferInput("INPUT0", [1, 16], "FP32")
x.set_data_from_numpy(np.zeros((1, 16), np.float32))
done, end = [0] * count, time.perf_counter() + seconds

def send(index):
    client = InferenceServerClient(address)
    while time.perf_counter() < end:
        client.infer("identity_fp32", [x]).as_numpy("OUTPUT0")
        done[index] += 1

async def send_task(client, index):
    while time.perf_counter() < end:
        (await client.infer("identity_fp32", [x])).as_numpy("OUTPUT0")
        done[index] += 1

async def send_all():
    async with aio.InferenceServerClient(address) as client:
        await asyncio.gather(*(send_task(client, index) for index in range(count)))

if kind == "tasks":
    asyncio.run(send_all())
else:
    threads = [threading.Thread(target=send, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(sum(done) / seconds)
"""


def _client(url: str, seconds: int, kind: str, count: int) -> float:
    command = [sys.executable, "-c", CLIENT, url.removeprefix("http://"), str(seconds), kind, str(count)]
    return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def _thread_switch_rate(seconds: int) -> float:
    """Calls per second that only pass between threads as an inference does."""
    background = BackgroundLoop("benchmark")
    work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def run() -> None:
        while (respond := work.get()) is not None:
            background.loop.call_soon_threadsafe(respond)

    instance = threading.Thread(target=run)
    instance.start()
    done, end = 0, time.perf_counter() + seconds
    response = threading.Lock()
    response.acquire()
    while time.perf_counter() < end:
        background.loop.call_soon_threadsafe(work.put, response.release)
        response.acquire()
        done += 1
    work.put(None)
    instance.join()
    background.stop()
    return done / seconds
