"""Traces of made-up requests, as a server writes them."""

from __future__ import annotations

from typing import Any

CONFIG = 'name: "m" max_batch_size: 8 dynamic_batching { } instance_group { count: 1 }'


def entries(requests: int, *, every: int = 1, late_ns: int = 50_000, sent: bool = False) -> list[dict[str, Any]]:
    """The trace of a server whose only instance takes 5 ms for each batch, with requests every 1 ms.

    The instance begins ``late_ns`` after the scheduler sent the batch, whose time is recorded if ``sent``.
    """
    written: list[dict[str, Any]] = []
    free = number = 0
    queue = [(serial, serial * 1_000_000) for serial in range(1, requests + 1)]
    while queue:
        sent_ns = max(free, queue[0][1])
        start = sent_ns + late_ns
        batch = [request for request in queue if request[1] <= sent_ns][:8]
        queue = queue[len(batch) :]
        free = start + 5_000_000
        for position, (serial, queued) in enumerate(batch):
            number += 1
            if number % every:
                continue
            stamps = {
                "REQUEST_START": queued - 1000,
                "QUEUE_START": queued,
                **({"BATCH_SENT": sent_ns} if sent else {}),
                "COMPUTE_START": start,
                "COMPUTE_INPUT_END": start + 1000,
                "COMPUTE_OUTPUT_START": free - 1000,
                "COMPUTE_END": free,
                "REQUEST_END": free + 10_000 + position,
            }
            written.append({"id": serial, "model_name": "m", "model_version": 1, "request_id": f"r{serial}"})
            written += [{"id": serial, "timestamps": [{"name": name, "ns": ns}]} for name, ns in stamps.items()]
    return written


def traced(batches: list[tuple[list[float], float, float]]) -> list[dict[str, Any]]:
    """The trace of batches: when their requests were queued, and the begin and end of the execution, all in ms."""
    written: list[dict[str, Any]] = []
    for queued, begin, end in batches:
        for queued_ms in queued:
            key = len(written) + 1
            ms = {"REQUEST_START": queued_ms, "QUEUE_START": queued_ms, "COMPUTE_START": begin, "COMPUTE_END": end}
            written += request(key, 0, "m", {name: round(value * 1e6) for name, value in ms.items()})
    return written


def request(key: int, parent: int, model: str, times: dict[str, int]) -> list[dict[str, Any]]:
    head = {"id": key, "model_name": model, "model_version": 1, **({"parent_id": parent} if parent else {})}
    return [head, *({"id": key, "timestamps": [{"name": name, "ns": ns}]} for name, ns in times.items())]


def executed(begin: int) -> dict[str, int]:
    names = ("REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START")
    return {name: begin + number for number, name in enumerate((*names, "COMPUTE_END", "REQUEST_END"))}
