"""The examples of Triton's stateful-models document and their like, twice: simulated, and against the wall clock.

A request is written ``s1.2`` (sequence 1, its second request), ``^`` starts a sequence and ``$`` ends it; a
batch is written by its members, ``-`` for a null request.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np
import pytest
from google.protobuf import json_format

import tritonnb as tnb
from tritonnb.core.events import RequestArrived
from tritonnb.model_config.parse import parse_text
from tritonnb.recording.batches import Batch
from tritonnb.server import Server

ORDER = (3, 1, 2, 4, 5, 6)
#: A machine that is busy with something else may send a request too late; not three times in a row.
TRIES = 3


@dataclass(frozen=True)
class Example:
    """A configuration, arrivals ``(request, ms)``, how long the first batch takes (ms), and the batches."""

    name: str
    config: str
    arrivals: list[tuple[str, int]]
    batches: list[str]
    first_ms: int = 1
    refused: tuple[str, ...] = ()


EXAMPLES = [
    Example(
        "10.1 direct: two instances, max_batch_size 2",
        "max_batch_size: 2 sequence_batching { direct { } } instance_group { count: 2 kind: KIND_CPU }",
        [
            *((f"s{i}.1^", 30 * (i - 1)) for i in range(1, 7)),
            *((f"s{i}.2", 180 + 30 * (i - 1)) for i in range(1, 7)),
            *((f"s{s}.3$", 360 + 60 * i) for i, s in enumerate(ORDER)),
        ],
        [
            "s1.1", "s2.1", "- s3.1", "- s4.1", "s1.2", "s2.2", "- s3.2", "- s4.2", "- s3.3", "- s5.1", "- s5.2",
            "s1.3", "s6.1", "s6.2", "s2.3", "- s4.3", "- s5.3", "s6.3",
        ],
    ),
    Example(
        "10.2 direct: null requests before the last ready slot",
        "max_batch_size: 4 sequence_batching { direct { } }",
        [("s1.1^", 0), ("s2.1^", 20), ("s3.1^", 40), ("s3.2", 80), ("s1.2$", 120), ("s3.3", 160), ("s4.1^$", 200),
         ("s2.2$", 240)],
        ["s1.1", "- s2.1", "- - s3.1", "- - s3.2", "s1.2", "- - s3.3", "s4.1", "- s2.2"],
    ),
    Example(
        "10.4 direct: minimum_slot_utilization or max_queue_delay",
        """max_batch_size: 4 sequence_batching {
            direct { minimum_slot_utilization: 0.75 max_queue_delay_microseconds: 200000 }
        }""",
        [("s1.1^", 0), ("s2.1^", 50), ("s3.1^", 100), ("s1.2", 150), ("s2.2", 175)],
        ["s1.1 s2.1 s3.1", "s1.2 s2.2"],
    ),
    Example(
        "10.5 oldest: four candidates, max_batch_size 2",
        "max_batch_size: 2 sequence_batching { oldest { max_candidate_sequences: 4 } }",
        [
            ("s1.1^", 0),
            *((f"s{i}.1^", 10 + 10 * i) for i in range(2, 7)),
            *((f"s{i}.2", 100 + 10 * i) for i in range(1, 7)),
            *((f"s{i}.3$", 200 + 10 * i) for i in range(1, 7)),
        ],
        ["s1.1", "s2.1 s3.1", "s4.1 s1.2", "s2.2 s3.2", "s4.2 s1.3", "s2.3 s3.3", "s4.3 s5.1", "s6.1 s5.2",
         "s6.2 s5.3", "s6.3"],
        first_ms=400,
    ),
    Example(
        "10.6 oldest: the delay runs from the moment at which the batcher got the request",
        """max_batch_size: 4 sequence_batching {
            oldest { max_candidate_sequences: 4 preferred_batch_size: 4 max_queue_delay_microseconds: 200000 }
        }""",
        [("s1.1^", 0), ("s2.1^", 50), ("s1.2", 80)],
        ["s1.1 s2.1", "s1.2"],
    ),
    Example(
        "10.7a an idle sequence gives its slot to the backlog",
        "max_batch_size: 1 sequence_batching { direct { } max_sequence_idle_microseconds: 250000 }",
        [("s1.1^", 0), ("s2.1^$", 50), ("s1.2", 600)],
        ["s1.1", "s2.1"],
        refused=("s1.2",),
    ),
]  # fmt: skip
by_name = pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.name)


@by_name
def test_simulated(example: Example):
    arrivals = [
        tnb.Arrival(at * 1000, sequence_id=request.sequence, sequence_start=request.start, sequence_end=request.end)
        for request, at in map(parsed, example.arrivals)
    ]
    times = iter([example.first_ms])
    rec = tnb.simulate(example.config, arrivals, lambda rows: next(times, 1) * 1_000_000)
    assert told(rec, example) == (example.batches, example.refused)


@by_name
def test_live(example: Example):
    seen = None
    for _ in range(TRIES):
        with Server(port=0) as server, server.record() as rec:
            serve_timed(server, example.config)
            asyncio.run(play(server, example))
        seen = told(rec, example)
        if seen == (example.batches, example.refused):
            break
    assert seen == (example.batches, example.refused)


@dataclass(frozen=True)
class Request:
    sequence: int
    start: bool
    end: bool


def parsed(arrival: tuple[str, int]) -> tuple[Request, int]:
    text, at_ms = arrival
    return Request(int(text[1]), "^" in text, "$" in text), at_ms


def serve_timed(server: Server, config: str) -> None:
    fields = json_format.MessageToDict(parse_text(config).config, preserving_proto_field_name=True)

    @server.model(name="timed", **fields)
    def timed(MS: tnb.FP32[1]) -> tnb.FP32[1]:
        time.sleep(float(MS.max()) / 1000)
        return MS


async def play(server: Server, example: Example) -> None:
    async def ask(request: Request, at_ms: int, run_ms: int) -> None:
        await asyncio.sleep(at_ms / 1000)
        await server["timed"].infer_async(
            MS=np.full((1, 1), run_ms, np.float32),
            sequence_id=request.sequence,
            sequence_start=request.start,
            sequence_end=request.end,
        )

    await asyncio.gather(
        *(ask(*parsed(each), 1 if index else example.first_ms) for index, each in enumerate(example.arrivals)),
        return_exceptions=True,
    )


def told(rec: tnb.Recording, example: Example) -> tuple[list[str], tuple[str, ...]]:
    """The batches of a recording in words, in the order in which they were sent, and what was refused."""
    serials = [each.serial for each in rec.events if isinstance(each, RequestArrived)]
    # Requests arrive in the order of their times, ties in the order of the list.
    names = [text.strip("^$") for text, _ in sorted(example.arrivals, key=lambda each: each[1])]
    name_of = dict(zip(serials, names, strict=True))

    def words(batch: Batch) -> str:
        return " ".join("-" if serial is None else name_of[serial] for serial in batch.requests)

    batches = [words(each) for each in sorted(rec.batches, key=lambda each: each.number)]
    return batches, tuple(name_of[each.serial] for each in rec.refused)
