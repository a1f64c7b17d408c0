"""Processor time of a scheduler in microseconds per request: no threads, no models, virtual time.

Run ``python benchmarks/scheduler.py``. Single requests are enqueued in a dynamic batcher whose only instance is busy
until just before the next batch. A figure includes everything between ``enqueue`` and ``released``. The minimum of
several rounds is printed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.core.schedulable import SEQUENCE_END, SEQUENCE_START
from tritonnb.scheduling.decisions import Execute, Scheduler
from tritonnb.scheduling.default_scheduler import DefaultScheduler
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.policy import DynamicBatcherSettings, QueuePolicy, QueueSettings
from tritonnb.scheduling.sequence_batcher import SequenceBatcher
from tritonnb.scheduling.sequence_strategies import DirectSettings, OldestSettings, SequenceBatcherSettings
from tritonnb.scheduling.virtual_time import VirtualTime


def _ignore(request: InferRequest, response: InferResponse) -> None:
    pass


def _batcher(max_batch_size: int, delay_ns: int = 0, queue: QueueSettings | None = None) -> DynamicBatcher:
    return DynamicBatcher(
        DynamicBatcherSettings(max_batch_size, (max_batch_size,), delay_ns, queue=queue or QueueSettings()), 1
    )


def saturated(scheduler: Scheduler, depth: int, count: int) -> float:
    """µs per request with ``depth`` requests always waiting: arrivals replace what each batch takes."""
    requests = [InferRequest("m", {}, _ignore, priority=index % 3) for index in range(count)]
    start = time.perf_counter()
    running: list[Execute] = list(scheduler.instance_idle(0, 0))  # type: ignore[arg-type]
    now = arrived = 0
    while arrived < count:
        now += 1000
        while arrived < count and scheduler.queue_depth() < depth:
            running += scheduler.enqueue(requests[arrived], now)  # type: ignore[arg-type]
            arrived += 1
        for decision in running:
            for request in decision.requests:
                scheduler.released(request, now)
        running = list(scheduler.instance_idle(0, now))  # type: ignore[arg-type]
    return (time.perf_counter() - start) / count * 1e6


def unloaded(scheduler: Scheduler, count: int) -> float:
    """µs per request when the instance is idle at every arrival."""
    requests = [InferRequest("m", {}, _ignore) for _ in range(count)]
    start = time.perf_counter()
    scheduler.instance_idle(0, 0)
    for index, request in enumerate(requests):
        now = index * 10_000
        for decision in [*scheduler.enqueue(request, now), *scheduler.wake(now + 5_000)]:
            scheduler.released(decision.requests[0], now)  # type: ignore[union-attr]
            scheduler.instance_idle(0, now)
    return (time.perf_counter() - start) / count * 1e6


def virtual(scheduler: Scheduler, count: int) -> float:
    """µs per request through the virtual-time loop, arrivals every 10 µs, executions of 300 µs."""
    start = time.perf_counter()
    run = VirtualTime(scheduler, lambda decision: 300_000)
    for index in range(count):
        run.arrive(index * 10_000, InferRequest("m", {}, _ignore))
    run.run()
    assert len(run.responses) == count
    return (time.perf_counter() - start) / count * 1e6


def sequences(strategy: DirectSettings | OldestSettings, count: int) -> float:
    """µs per request through the virtual-time loop: 32 clients, sequences of 10, 10 µs between arrivals."""
    start = time.perf_counter()
    settings = SequenceBatcherSettings("m", strategy)
    run = VirtualTime(SequenceBatcher(settings, 2), lambda decision: 30_000, [0, 0])
    for index in range(count):
        step, client = divmod(index, 32)
        flags = SEQUENCE_START * (step % 10 == 0) | SEQUENCE_END * (step % 10 == 9)
        run.arrive(index * 10_000, InferRequest("m", {}, _ignore, correlation_id=client + 1, flags=flags))
    run.run()
    assert len(run.responses) == count
    return (time.perf_counter() - start) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50_000, help="requests per round")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    count = arguments.count
    levels = QueueSettings(3, 2, QueuePolicy(default_timeout_ns=10**12))
    cases: dict[str, Callable[[], float]] = {
        "default scheduler, idle instance": lambda: unloaded(DefaultScheduler(1), count),
        "idle instance, delay 0": lambda: unloaded(_batcher(8), count),
        "max 8, 32 waiting": lambda: saturated(_batcher(8), 32, count),
        "max 64, 128 waiting": lambda: saturated(_batcher(64), 128, count),
        "max 8, 1000 waiting": lambda: saturated(_batcher(8), 1000, count),
        "max 64, 1000 waiting": lambda: saturated(_batcher(64), 1000, count),
        "max 64, delay 100 µs, 1000 waiting": lambda: saturated(_batcher(64, 100_000), 1000, count),
        "max 8, 3 priorities, timeouts, 1000 waiting": lambda: saturated(_batcher(8, queue=levels), 1000, count),
        "max 64, delay 500 µs, in the virtual-time loop": lambda: virtual(_batcher(64, 500_000), count),
        "direct, 2 instances of 8 slots, in the virtual-time loop": lambda: sequences(DirectSettings(8), count),
        "oldest, 2 instances of 8 candidates, in the virtual-time loop": lambda: sequences(
            OldestSettings(8, DynamicBatcherSettings(8, (8,))), count
        ),
    }
    for name, case in cases.items():
        print(f"{min(case() for _ in range(arguments.rounds)):6.2f} µs per request   {name}")


if __name__ == "__main__":
    main()
