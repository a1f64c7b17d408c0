"""Compare random sequences on a live server with the simulator.

``python -m tools.differential.sequences URL --runs 100``, where the URL is that of the gRPC endpoint of a real
Triton (or of ours) that was started with ``--model-control-mode=explicit``; every run loads and unloads a model.

All that happens in a run is at a multiple of 10 ms, and nothing but a cause and its effect at the same one, so that a
server that is up to 10 ms late decides as one that is never late. A run that differs is repeated, and does not count if
the machine stood still meanwhile for half of 10 ms. Start server and client with ``nice -n -5`` on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from google.protobuf import json_format
from tritonclient import grpc
from tritonclient.grpc import aio

import tritonnb as tnb
from tritonnb.model_config.parse import parse_text

GRID_MS = 10
EXECUTION_MS = 100
LONG_MS = 10_000
REPEATS = 3
TRIES = 12

MODEL = f"""
import os
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        began = time.monotonic_ns()
        zero = next(pb_utils.get_input_tensor_by_name(request, "ZERO") for request in requests if self.is_real(request))
        zero = zero.as_numpy()[0, 0].item()
        start = (began - zero) // 1_000_000 // {GRID_MS} * {GRID_MS}
        time.sleep(max(0, zero + (start + {EXECUTION_MS}) * 1_000_000 - time.monotonic_ns()) / 1e9)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("RAN", np.array([[os.getpid(), start, row, len(requests)]]))])
            for row in range(len(requests))
        ]

    def is_real(self, request):
        ready = pb_utils.get_input_tensor_by_name(request, "READY")
        return ready is None or ready.as_numpy().item() == 1  # None to warm up
"""

CONFIG = """
    name: "{name}" backend: "python" max_batch_size: {size}
    input {{ name: "ZERO" data_type: TYPE_INT64 dims: -1 }}
    output {{ name: "RAN" data_type: TYPE_INT64 dims: 4 }}
    instance_group {{ kind: KIND_CPU count: {instances} }}
    sequence_batching {{
        max_sequence_idle_microseconds: {idle_ms}000
        control_input {{ name: "READY" control {{ kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] }} }}
        {strategy}
    }}
    model_warmup {{
        name: "first" batch_size: 1 count: 2
        inputs {{ key: "ZERO" value {{ data_type: TYPE_INT64 dims: 1 zero_data: true }} }}
    }}
"""

Batch = tuple[int, tuple[int | None, ...]]  # when it started, in ms, and its requests in order; None is a null request


@dataclass(frozen=True)
class Settings:
    """The configuration of one comparison."""

    size: int
    instances: int
    idle_ms: int
    delay_ms: int
    strategy: str

    def config(self, name: str) -> str:
        """Return the configuration of a model of a name."""
        return CONFIG.format(name=name, **vars(self))


Arrivals = tuple[tnb.Arrival, ...]  # at most one at a time


@dataclass(frozen=True)
class Result:
    """Batches in order of time, and the refused requests."""

    batches: tuple[Batch, ...]
    refused: tuple[int, ...]

    def __str__(self) -> str:
        batches = "; ".join(
            f"{start}: " + " ".join("-" if index is None else str(index) for index in requests)
            for start, requests in self.batches
        )
        return f"{batches}; refused: {list(self.refused)}"


class Stalls:
    """Stalls, in which a processor does not run what is due; one thread for each sleeps all the time."""

    def __init__(self) -> None:
        self._last_ns = 0  # when one was noticed
        for processor in os.sched_getaffinity(0):
            threading.Thread(target=self._watch, args=(processor,), daemon=True).start()

    def since(self, time_ns: int) -> bool:
        """Return whether a pause ended after a time of the monotonic clock."""
        return self._last_ns > time_ns

    def _watch(self, processor: int) -> None:
        os.sched_setaffinity(0, {processor})
        while True:
            due_ns = time.monotonic_ns() + 2_000_000
            time.sleep(0.002)
            if time.monotonic_ns() - due_ns > GRID_MS * 500_000:
                self._last_ns = time.monotonic_ns()


def random_settings(chance: random.Random, strategy: str) -> Settings:
    """Settings that use any of the options of a strategy."""
    size = chance.choice([1, 2, 2, 3, 4, 4])
    delay_ms = chance.choice([0, 50, 150, 250]) if strategy == "direct" else 0
    if strategy == "direct":
        used = chance.choice([0.25, 0.5, 0.75, 1.0]) if delay_ms else 0
        options = f"direct {{ max_queue_delay_microseconds: {delay_ms * 1000} minimum_slot_utilization: {used} }}"
    else:
        candidates = chance.choice([1, 2, 3, 4, 6])
        preferred = sorted(chance.sample(range(1, size + 1), chance.choice([0, 0, 1])))
        options = f"oldest {{ max_candidate_sequences: {candidates} preferred_batch_size: {preferred} }}"
    return Settings(size, chance.choice([1, 1, 2, 3]), chance.choice([LONG_MS, LONG_MS, 310, 530]), delay_ms, options)


def random_arrivals(chance: random.Random, settings: Settings) -> Arrivals:
    """Some sequences, a few at a time, whose requests come in turn; the inputs of some differ in shape."""
    together, pace, lengths = (
        chance.randint(1, 8),
        chance.choice([20, 20, 40, 80, 150]),
        chance.choice([[1], [1, 1, 2]]),
    )
    ends, timeout_us = chance.choice([1.0, 0.7]), chance.choice([0, 0, 170_000, 370_000])
    # Of the oldest strategy only short sequences make batches without a race.
    requests, most = ([1, 1, 1, 2], 40) if settings.strategy.startswith("oldest") else ([1, 2, 3, 4, 5], 14)
    coming = iter(range(1, chance.randint(4, most)))
    left: dict[int, int] = {}
    shape: dict[int, int] = {}
    begun: set[int] = set()
    arrivals: Arrivals = ()
    time_ms = 0
    while True:
        for number in itertools.islice(coming, together - len(left)):
            left[number], shape[number] = chance.choice(requests), chance.choice(lengths)
        if not left:
            return arrivals
        number = chance.choice(sorted(left))
        last = left[number] == 1
        starts, ends_now = number not in begun, last and chance.random() < ends
        while True:
            time_ms += GRID_MS * chance.randint(1, 2 * pace // GRID_MS)
            arrival = tnb.Arrival(
                1000.0 * time_ms,
                sequence_id=number,
                sequence_start=starts,
                sequence_end=ends_now,
                batch_key=shape[number],
                timeout_us=timeout_us,
            )
            if is_unambiguous(settings, (*arrivals, arrival)):
                break
        arrivals = (*arrivals, arrival)
        begun.add(number)
        left[number] -= 1
        if last:
            del left[number]


def simulated(settings: Settings, arrivals: Arrivals) -> Result:
    """Run the arrivals in the simulator."""
    recording = tnb.simulate(settings.config("simulated"), arrivals, tnb.fixed(EXECUTION_MS))
    batches = [
        (batch.exec_start_ns // 1_000_000, tuple(None if serial is None else serial - 1 for serial in batch.requests))
        for batch in recording.batches
    ]
    return Result(in_order(batches), tuple(sorted(refused.serial - 1 for refused in recording.refused)))


def in_order(batches: Iterable[Batch]) -> tuple[Batch, ...]:
    """By time; those that start at once on several instances have no order."""
    return tuple(sorted(batches, key=lambda batch: (batch[0], str(batch[1]))))


def is_unambiguous(settings: Settings, arrivals: Arrivals) -> bool:
    """Return whether a server that is never late has no choice.

    No two things happen at the same time of which one is not the other's effect; no sequence is silent for too long
    in the backlog, which Triton notices up to 50 ms too late; and with the oldest strategy nothing waits when a request
    ends that another one of its sequence waits for: whether that one still joins what waits is a race in Triton. (It is
    also one where the slot has another owner by then; that is not looked at.)
    """
    times = [round(arrival.time_us / 1000) for arrival in arrivals]
    waits = {settings.delay_ms, settings.idle_ms, arrivals[0].timeout_us // 1000} - {0, LONG_MS}
    deadlines = [time_ms + wait_ms for time_ms in times for wait_ms in waits]
    result = simulated(settings, arrivals)
    ends = [start + EXECUTION_MS for start, _ in result.batches]
    if max(Counter([*times, *deadlines, *ends]).values()) > 1:
        return False
    started = {index: start for start, requests in result.batches for index in requests if index is not None}
    ready: dict[int, int] = {}  # when a request and its turn had come
    previous: dict[int | str, int] = {}
    for index in sorted(started):
        id = arrivals[index].sequence_id
        if id not in previous and started[index] - _last(arrivals, id, started[index]) >= settings.idle_ms:
            return False
        ready[index] = max(times[index], previous.get(id, 0))
        previous[id] = started[index] + EXECUTION_MS
    freed = {ready[index] for index in ready if ready[index] > times[index]}
    waiting = [(ready[index], started[index]) for index in ready]
    return settings.strategy.startswith("direct") or not any(
        begin < time_ms <= start for time_ms in freed for begin, start in waiting
    )


def _last(arrivals: Arrivals, id: int | str, before_ms: int) -> int:
    """Return the time of the last request of a sequence before ``before_ms``."""
    return max(
        round(arrival.time_us / 1000)
        for arrival in arrivals
        if arrival.sequence_id == id and arrival.time_us <= 1000 * before_ms
    )


async def load(client: aio.InferenceServerClient, name: str, settings: Settings) -> None:
    """Load the model with some settings."""
    config = json_format.MessageToDict(parse_text(settings.config(name)).config, preserving_proto_field_name=True)
    await client.load_model(name, config=json.dumps(config), files={"file:1/model.py": MODEL.encode()})


async def ran(client: aio.InferenceServerClient, name: str, arrivals: Arrivals) -> Result:
    """Run the arrivals on the server."""
    zero = time.monotonic_ns() + 300_000_000

    async def send(index: int, arrival: tnb.Arrival) -> tuple[int, np.ndarray | None]:
        tensor = grpc.InferInput("ZERO", [1, int(str(arrival.batch_key))], "INT64")
        tensor.set_data_from_numpy(np.full(tensor.shape(), zero, np.int64))
        await asyncio.sleep((zero - time.monotonic_ns()) / 1e9 + arrival.time_us / 1e6)
        try:
            answer = await client.infer(
                name,
                [tensor],
                sequence_id=arrival.sequence_id,
                sequence_start=arrival.sequence_start,
                sequence_end=arrival.sequence_end,
                timeout=arrival.timeout_us or None,
            )
        except grpc.InferenceServerException:
            return index, None
        return index, answer.as_numpy("RAN")[0]

    answers = await asyncio.gather(*(send(index, arrival) for index, arrival in enumerate(arrivals)))
    batches: dict[tuple[int, int], list[int | None]] = {}
    for index, answer in answers:
        if answer is not None:
            instance, start, row, rows = answer.tolist()
            batches.setdefault((start, instance), [None] * rows)[row] = index
    refused = tuple(index for index, answer in answers if answer is None)
    return Result(in_order((start, tuple(requests)) for (start, _), requests in batches.items()), refused)


async def compare(
    client: aio.InferenceServerClient, stalls: Stalls, name: str, settings: Settings, arrivals: Arrivals
) -> str:
    """``same`` or ``different``, or ``unknown`` if the machine stood still all the time."""
    expected, results = simulated(settings, arrivals), []
    for number in range(TRIES):
        model = f"{name}_{number}"  # another one, since which instance is next depends on what ran before
        await load(client, model, settings)
        began_ns = time.monotonic_ns()
        result = await ran(client, model, arrivals)
        stalled = stalls.since(began_ns)
        await client.unload_model(model)
        if result == expected:
            return "same"
        if not stalled:
            results.append(result)
            if len(results) > REPEATS:
                break
    else:
        return "unknown"
    print(f"different: {settings}\n  {written(arrivals)}\n  simulator {expected}")
    for result in results:
        first = in_order(set(result.batches) ^ set(expected.batches))[:3]
        print(f"  server    {result}\n  first     {first}", flush=True)
    return "different"


def written(arrivals: Arrivals) -> str:
    """Arrivals as text: ``^s1@20/2`` begins sequence 1 after 20 ms, with two elements; ``$`` ends it."""
    return " ".join(
        f"{index}:{'^' * arrival.sequence_start}s{arrival.sequence_id}{'$' * arrival.sequence_end}"
        f"@{arrival.time_us / 1000:.0f}/{arrival.batch_key}{f' in {arrival.timeout_us}' if arrival.timeout_us else ''}"
        for index, arrival in enumerate(arrivals)
    )


async def main() -> int:
    """Run as many workloads as are asked for; 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--strategy", choices=["direct", "oldest"], default="direct")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    stalls, counts = Stalls(), Counter[str]()
    async with aio.InferenceServerClient(options.url) as client:
        for run in range(options.runs):
            chance = random.Random(f"{options.strategy} {options.seed} {run}")
            settings = random_settings(chance, options.strategy)
            name = f"sequences_{options.strategy}_{options.seed}_{run}"
            counts[await compare(client, stalls, name, settings, random_arrivals(chance, settings))] += 1
    print(f"{options.strategy}, seed {options.seed}: {dict(counts)}")
    return int(counts["different"] > 0)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
