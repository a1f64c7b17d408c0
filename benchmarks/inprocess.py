"""In-process inference against our own HTTP, the same requests in flight; target 2x.

HTTP is asked twice: by NVIDIA's Python client in a process of its own, as a notebook would, and by `wrk`, which costs
next to nothing. In process, the caller is Python and shares the interpreter with the server. What no call can be
faster than is measured, too: a request crosses threads four times (caller, loop, instance, loop, caller), and
`_handed_over` does that and nothing else.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from benchmarks.load import Request, wrk
from benchmarks.servers import ROOT
from tritonnb.runtime.execution.loop import BackgroundLoop
from tritonnb.server.server import Server

X = np.zeros((1, 16), np.float32)
#: How requests are made, and how many at once.
WAYS = (("threads", 1), ("threads", 8), ("tasks", 8), ("tasks", 32))


def inprocess(scratch: Path, seconds: int, rounds: int) -> dict[str, Any]:
    """One caller, eight threads, and 8 and 32 requests in flight in an event loop."""
    found: dict[str, Any] = {"handed over": {"rate": _handed_over(seconds)}}
    print(f"handing over alone, 1 caller: {found['handed over']['rate']:.0f}/s")
    repository = ROOT / "model_repository"
    with Server(repository, port=0, model_control_mode="explicit", load_models=["identity_fp32"]) as server:
        model = server["identity_fp32"]
        request = Request.of("identity_fp32", "INPUT0", X, "OUTPUT0")
        for way, count in WAYS:
            rate = _in_threads(model, count, seconds) if way == "threads" else _in_tasks(model, count, seconds)
            client = _client(server.url, seconds, way, count)
            http = wrk(server.url, request, count, seconds, scratch).rate
            print(
                f"{count} {way}: {rate:.0f}/s in process; {rate / client:.2f}x NVIDIA's client over HTTP "
                f"({client:.0f}/s), {rate / http:.2f}x wrk ({http:.0f}/s)"
            )
            found[f"{count} {way}"] = {"rate": rate, "client": client, "wrk": http}
    return found


def _in_threads(model: Any, count: int, seconds: int) -> float:
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


def _in_tasks(model: Any, count: int, seconds: int) -> float:
    end = time.perf_counter() + seconds

    async def ask() -> int:
        done = 0
        while time.perf_counter() < end:
            await model.infer_async(INPUT0=X)
            done += 1
        return done

    async def ask_all() -> list[int]:
        return await asyncio.gather(*(ask() for _ in range(count)))

    return sum(asyncio.run(ask_all())) / seconds


#: Prints how many requests NVIDIA's client made: in threads with a client each, or in tasks with one.
CLIENT = """
import asyncio, sys, threading, time
import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, aio
address, seconds, way, count = sys.argv[1], float(sys.argv[2]), sys.argv[3], int(sys.argv[4])
x = InferInput("INPUT0", [1, 16], "FP32")
x.set_data_from_numpy(np.zeros((1, 16), np.float32))
done, end = [0] * count, time.perf_counter() + seconds

def ask(index):
    client = InferenceServerClient(address)
    while time.perf_counter() < end:
        client.infer("identity_fp32", [x]).as_numpy("OUTPUT0")
        done[index] += 1

async def ask_task(client, index):
    while time.perf_counter() < end:
        (await client.infer("identity_fp32", [x])).as_numpy("OUTPUT0")
        done[index] += 1

async def ask_all():
    async with aio.InferenceServerClient(address) as client:
        await asyncio.gather(*(ask_task(client, index) for index in range(count)))

if way == "tasks":
    asyncio.run(ask_all())
else:
    threads = [threading.Thread(target=ask, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(sum(done) / seconds)
"""


def _client(url: str, seconds: int, way: str, count: int) -> float:
    asked = [sys.executable, "-c", CLIENT, url.removeprefix("http://"), str(seconds), way, str(count)]
    return float(subprocess.run(asked, capture_output=True, check=True, text=True).stdout)


def _handed_over(seconds: int) -> float:
    """Calls a second that do nothing but cross threads as an inference does."""
    background = BackgroundLoop("benchmark")
    work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def run() -> None:
        while (answer := work.get()) is not None:
            background.loop.call_soon_threadsafe(answer)

    instance = threading.Thread(target=run)
    instance.start()
    done, end = 0, time.perf_counter() + seconds
    answered = threading.Lock()
    answered.acquire()
    while time.perf_counter() < end:
        background.loop.call_soon_threadsafe(work.put, answered.release)
        answered.acquire()
        done += 1
    work.put(None)
    instance.join()
    background.stop()
    return done / seconds
