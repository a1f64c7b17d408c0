"""Whatever competes for a server, one thread runs its event loop, and each instance runs on its own thread."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.engine.test_inline_execution import CONFIG, INLINE, counts, write
from tritonnb.engine.execution import instance as instance_module
from tritonnb.server.server import Server

LONG_S = 60
MODELS = {"own": CONFIG, "two": CONFIG.replace("count: 1", "count: 2"), "inline": INLINE}


def test_every_request_is_answered_and_one_thread_runs_the_loop_while_callers_tasks_clients_and_edits_compete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_module, "QUICK_EXECUTION_NS", 10**18)
    for name, config in MODELS.items():
        write(tmp_path, name, f"{config} dynamic_batching {{ }}")
    loop_threads: set[int] = set()
    executing: dict[str, set[int]] = defaultdict(set)

    def ask(value: int) -> dict[str, np.ndarray]:
        return {"X": np.full((1, 1), value, np.int32)}

    with Server(tmp_path, port=0) as server:
        server.call(server.engine.stream.attach, lambda packed: loop_threads.add(threading.get_ident()))
        before = {name: counts(server[name].stats()) for name in MODELS}

        def call(name: str) -> bool:
            answers = [server[name](ask(value)) for value in range(100)]
            executing[name] |= {int(answer["THREAD"].item()) for answer in answers}
            return [answer["Y"].item() for answer in answers] == list(range(100))

        def post(name: str) -> bool:
            for value in range(50):
                body = {"inputs": [{"name": "X", "shape": [1, 1], "datatype": "INT32", "data": [value]}]}
                url = f"{server.url}/v2/models/{name}/infer"
                with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=LONG_S) as response:
                    outputs = {output["name"]: output["data"] for output in json.load(response)["outputs"]}
                if outputs["Y"] != [value]:
                    return False
            return True

        async def run_tasks(name: str) -> bool:
            answers = await asyncio.gather(*(server[name].infer_async(ask(value)) for value in range(100)))
            return [answer["Y"].item() for answer in answers] == list(range(100))

        def edit(name: str) -> bool:
            for delay_us in (100, 1, 500, 0):
                server[name].config.dynamic_batching.max_queue_delay_microseconds = delay_us
                server[name].config.apply()
            return True

        with ThreadPoolExecutor(5 * len(MODELS)) as pool:
            jobs = [
                pool.submit(job, name)
                for name in MODELS
                for job in (call, call, post, edit, lambda name: asyncio.run(run_tasks(name)))
            ]
            assert all(job.result(LONG_S) for job in jobs)
        gained = {name: counts(server[name].stats()) - before[name] for name in MODELS}
        assert {name: (count["success"], count["fail"]) for name, count in gained.items()} == dict.fromkeys(
            MODELS, (350, 0)
        )
        assert [server[name].served.in_flight for name in MODELS] == [0, 0, 0]
        loop = server.call(threading.get_ident)
    assert loop_threads == {loop}
    assert {name: (len(threads - {loop}), loop in threads) for name, threads in executing.items()} == {
        "own": (1, False),
        "two": (2, False),
        "inline": (len(executing["inline"] - {loop}), True),
    }
