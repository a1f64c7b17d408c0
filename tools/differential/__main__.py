"""Send random traffic to a live server and compare the batches that form with those of the simulator.

Start a server, Triton or ``tritonnb serve``, with ``--model-control-mode=explicit`` and an empty directory as its
model repository; then, with the gRPC address of the server and the same directory::

    python -m tools.differential localhost:8001 /tmp/repository --runs 300 --seed 1

Scenarios whose outcome a few milliseconds would change are not used, and runs in which a request was sent or a batch
was executed late do not count. A scenario that differs is tried again. At the end of an execution two threads of Triton
race; scenarios whose batches only the other order explains, each time, are counted separately.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import shutil
from pathlib import Path

import numpy as np
import tritonclient.grpc.aio as grpcclient
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2 as pb

from tools.differential.scenarios import Batches, Request, Scenario, stable_scenario

#: How often a scenario is sent that differs, and one that the machine does not send or execute in time.
TRIES, TRIES_IF_LATE = 3, 10
#: The orders of threads that are tried to explain a batch.
ORDERS = 2000
#: A run counts if no request and no execution was later than this, in ms.
LATEST_MS = 2.5


class Server:
    """A dedicated model on a live server, which runs one scenario after another."""

    def __init__(self, client: grpcclient.InferenceServerClient, repository: Path, name: str) -> None:
        self.client, self.name = client, name
        self.directory = repository / name
        (self.directory / "1").mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).with_name("recorder.py"), self.directory / "1" / "model.py")
        for log in self.directory.glob("batches.*.jsonl"):
            log.unlink()
        self.runs = 0
        self._loaded: Scenario | None = None
        self.latest_ms = 0.0  # how late a request was sent

    async def batches(self, scenario: Scenario) -> Batches | None:
        """Return the batches that form when a scenario is sent; None if it was not sent or executed in time."""
        if scenario is not self._loaded:
            await self._load(scenario)
        self.runs += 1
        start, self.latest_ms = asyncio.get_running_loop().time() + 0.05, 0.0
        await asyncio.gather(
            *(self._send_at(start, request, f"{self.runs}/{index}") for index, request in enumerate(scenario.requests))
        )
        return self._logged() if self.latest_ms < LATEST_MS else None

    async def _load(self, scenario: Scenario) -> None:
        config = text_format.Parse(scenario.config(self.name), pb.ModelConfig())
        await self.client.load_model(self.name, config=json_format.MessageToJson(config))
        for _ in range(2 * scenario.instances):  # the first execution of an instance takes longer
            await self._send(Request(0, 1, optional=scenario.has_optional), "warm-up")
        self._loaded = scenario

    async def _send_at(self, start: float, request: Request, request_id: str) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(start + request.at_ms / 1000 - loop.time())
        self.latest_ms = max(self.latest_ms, (loop.time() - start) * 1000 - request.at_ms)
        await self._send(request, request_id)

    async def _send(self, request: Request, request_id: str) -> None:
        x = grpcclient.InferInput("X", [request.rows, request.width], "FP32")
        x.set_data_from_numpy(np.zeros((request.rows, request.width), np.float32))
        inputs = [x]
        if request.optional:
            inputs.append(grpcclient.InferInput("O", [request.rows, 1], "FP32"))
            inputs[-1].set_data_from_numpy(np.zeros((request.rows, 1), np.float32))
        await self.client.infer(self.name, inputs, request_id=request_id)

    def _logged(self) -> Batches | None:
        lines = (line for log in self.directory.glob("batches.*.jsonl") for line in log.read_text().splitlines())
        prefix = f"{self.runs}/"
        batches = [batch for batch in map(json.loads, lines) if batch["requests"][0].startswith(prefix)]
        if max(batch["late_ms"] for batch in batches) > LATEST_MS:
            return None
        return sorted(tuple(int(member.removeprefix(prefix)) for member in batch["requests"]) for batch in batches)


async def compare(server: Server, scenarios: list[Scenario], counts: dict[str, int]) -> None:
    """Take scenarios until none is left, and count how each compares."""
    while scenarios:
        scenario = scenarios.pop()
        expected, observed, differing, late = scenario.simulate(), None, 0, 0
        while differing < TRIES and late < TRIES_IF_LATE:
            observed = await server.batches(scenario)
            if observed == expected:
                break
            late += observed is None
            differing += observed is not None
        if observed is None:
            counts["late"] += 1
        elif observed == expected:
            counts["alike when repeated" if differing else "alike"] += 1
        elif observed in itertools.islice(scenario.outcomes(), ORDERS):
            counts["other order of threads"] += 1
        else:
            counts["different"] += 1
            print(f"different: {scenario}\n  server    {observed}\n  simulator {expected}")
        done = sum(counts.values())
        if done % 20 == 0:
            print(done, counts, flush=True)


async def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="host:port of the server's gRPC endpoint")
    parser.add_argument("repository", type=Path, help="the server's model repository")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=4, help="scenarios at a time, each on its own model")
    parser.add_argument(
        "--checks-inputs", action="store_true", help="only scenarios in which optional inputs or shapes split batches"
    )
    options = parser.parse_args()
    rng = random.Random(options.seed)
    scenarios = [stable_scenario(rng, options.checks_inputs) for _ in range(options.runs)]
    counts = {"alike": 0, "alike when repeated": 0, "other order of threads": 0, "different": 0, "late": 0}
    async with grpcclient.InferenceServerClient(options.url) as client:
        servers = [Server(client, options.repository, f"recorder_{number}") for number in range(options.parallel)]
        await asyncio.gather(*(compare(server, scenarios, counts) for server in servers))
    print(f"{options.runs} scenarios of seed {options.seed}: {counts}")


asyncio.run(main())
