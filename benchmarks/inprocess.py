"""In-process inference against our own HTTP, the same requests in flight; target 2x."""

from __future__ import annotations

import asyncio
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


async def _in_flight(model: Any, count: int, seconds: int) -> float:
    end = time.perf_counter() + seconds

    async def ask() -> int:
        done = 0
        while time.perf_counter() < end:
            await model.infer_async(INPUT0=X)
            done += 1
        return done

    return sum(await asyncio.gather(*(ask() for _ in range(count)))) / seconds
