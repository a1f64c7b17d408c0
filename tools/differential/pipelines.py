"""Send random traffic to random ensembles on a live server and compare the batches of every step with the simulator's.

Start a server, Triton or ``tritonnb serve``, with ``--model-control-mode=explicit`` and an empty directory as its
model repository; then, with the gRPC address of the server and the same directory::

    python -m tools.differential.pipelines localhost:8001 /tmp/repository --runs 60

Pipelines whose outcome a few milliseconds would change are not used. A run in which a request or an execution was late
is repeated, and so is a pipeline that differs. Two threads of Triton race when the responses of a batch reach an idle
batcher: either outcome counts as alike, and is counted separately (`ThreadRace`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import tritonclient.grpc.aio as grpcclient
from google.protobuf import json_format

from tools.differential.random_pipelines import CALLED, ENSEMBLE, RandomPipeline, stable_pipeline

#: How often a pipeline is sent that differs, and one that the machine does not send or execute in time.
TRIES, TRIES_IF_LATE = 3, 10


class PipelineServer:
    """A live server with the models of one pipeline at a time."""

    def __init__(self, client: grpcclient.InferenceServerClient, repository: Path) -> None:
        self._client = client
        self._repository = repository
        self._session = random.getrandbits(32)  # the logs of earlier sessions stay
        self._runs = 0
        self._latest_ms = 0.0

    async def load(self, pipeline: RandomPipeline) -> None:
        """Replace the models of the former pipeline."""
        for name, config in pipeline.configs.items():
            directory = self._repository / name / "1"
            directory.mkdir(parents=True, exist_ok=True)
            if name != ENSEMBLE:
                shutil.copy(Path(__file__).with_name("recorder.py"), directory / "model.py")
                config.parameters["EXECUTION_MS"].string_value = str(pipeline.base_ms[name])
                config.parameters["ROW_MS"].string_value = str(pipeline.row_ms[name])
                if name in pipeline.calls:
                    config.parameters["CALLED"].string_value = CALLED
                    config.parameters["CALLS"].string_value = str(pipeline.calls[name])
            await self._client.load_model(name, config=json_format.MessageToJson(config))
        for _ in range(4):  # the first execution of an instance takes longer
            await self._send(1, "warm-up")

    async def batches(self, pipeline: RandomPipeline) -> dict[str, list[list[int]]] | None:
        """Return the batches by step when the traffic is sent; None if it was not sent or executed in time."""
        self._runs += 1
        start, self._latest_ms = asyncio.get_running_loop().time() + 0.05, 0.0
        sending = [self._send_at(start, n, one.time_us / 1000, one.rows) for n, one in enumerate(pipeline.arrivals)]
        await asyncio.gather(*sending)
        batches = {name: self._logged(name) for name in pipeline.base_ms}
        latest_ms = max([self._latest_ms, *(late_ms for late_ms, _ in batches.values())])
        return {name: logged for name, (_, logged) in batches.items()} if latest_ms < pipeline.tolerance_ms else None

    async def _send_at(self, start: float, number: int, at_ms: float, rows: int) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(start + at_ms / 1000 - loop.time())
        self._latest_ms = max(self._latest_ms, (loop.time() - start) * 1000 - at_ms)
        await self._send(rows, f"{self._session}.{self._runs}/{number}")

    async def _send(self, rows: int, request_id: str) -> None:
        x = grpcclient.InferInput("X", [rows, 1], "FP32")
        x.set_data_from_numpy(np.zeros((rows, 1), np.float32))
        await self._client.infer(ENSEMBLE, [x], request_id=request_id)

    def _logged(self, name: str) -> tuple[float, list[list[int]]]:
        logs = (self._repository / name).glob("batches.*.jsonl")
        prefix = f"{self._session}.{self._runs}/"
        lines = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        batches = [batch for batch in lines if batch["requests"][0].startswith(prefix)]
        members = [sorted(int(one.removeprefix(prefix)) for one in batch["requests"]) for batch in batches]
        return max((batch["late_ms"] for batch in batches), default=0.0), sorted(members)


async def compare(server: PipelineServer, pipeline: RandomPipeline) -> str:
    """Return how the batches of a pipeline compare."""
    await server.load(pipeline)
    expected, observed, differing, late = pipeline.batches(), None, 0, 0
    while differing < TRIES and late < TRIES_IF_LATE:
        observed = await server.batches(pipeline)
        if observed == expected:
            return "alike when repeated" if differing else "alike"
        if observed is not None and pipeline.batches_like(observed) == observed:
            return "alike with another order of threads"
        late += observed is None
        differing += observed is not None
    if observed is None:
        return "late"
    for name, batches in expected.items():
        if observed[name] != batches:
            print(f"different: {name}\n  server    {observed[name]}\n  simulator {batches}")
    return "different"


async def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="host:port of the server's gRPC endpoint")
    parser.add_argument("repository", type=Path, help="the server's model repository")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument(
        "--unit-ms", type=float, default=10, help="executions take 0.5 to 4 units; more on a busy machine"
    )
    parser.add_argument("--seed", type=int, help="by default a fresh one")
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    async with grpcclient.InferenceServerClient(options.url) as client:
        server = PipelineServer(client, options.repository)
        for number in range(1, options.runs + 1):
            counts[await compare(server, stable_pipeline(rng, options.unit_ms))] += 1
            if number % 10 == 0:
                print(number, dict(counts), flush=True)
    print(f"{options.runs} pipelines of seed {seed}: {dict(counts)}")


if __name__ == "__main__":
    asyncio.run(main())
