"""The examples of Triton's stateful-models document and their like, twice: simulated, and against the wall clock.

A request is written ``s1.2`` (sequence 1, its second request), ``^`` starts a sequence and ``$`` ends it; a
batch is written by its members, ``-`` for a null request. Their numbers are those of the scenarios in
`tests/scheduling/test_sequence_scenarios.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format

import tritonnb as tnb
from tritonnb.core.events import RequestArrived
from tritonnb.model_config.parse import parse_text
from tritonnb.recording.batches import Batch
from tritonnb.server.server import Server

ORDER = (3, 1, 2, 4, 5, 6)
#: A machine that is busy with something else may send a request too late; not five times in a row.
TRIES = 5


@dataclass(frozen=True)
class Example:
    """A configuration, arrivals, how long the first batch takes (ms), and the batches.

    An arrival is ``(request, ms)``, or ``(request, ms, options)``: its ``length``, if not 1, and when it times out
    or is cancelled.
    """

    name: str
    config: str
    arrivals: list[tuple[Any, ...]]
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
        "10.3 direct: slots whose shapes differ from the first ready one's wait",
        "max_batch_size: 4 sequence_batching { direct { } }",
        [("s1.1^", 0), ("s1.2", 50, {"length": 2}), ("s2.1^", 100, {"length": 3}), ("s3.1^", 150, {"length": 2})],
        ["s1.1", "s1.2 - s3.1", "- s2.1"],
        first_ms=400,
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
    Example(
        "10.7b a sequence that was silent in the backlog runs what it has, then it is closed",
        "max_batch_size: 1 sequence_batching { direct { } max_sequence_idle_microseconds: 250000 }",
        [("s1.1^", 0), ("s2.1^", 50), *((f"s1.{i}", 150 * (i - 1)) for i in range(2, 7)), ("s1.7$", 900),
         ("s2.2$", 1100)],
        [*(f"s1.{i}" for i in range(1, 8)), "s2.1"],
        refused=("s2.2",),
    ),
    Example(
        "10.7c the shortest timeout in the backlog refuses all of a sequence",
        "max_batch_size: 1 sequence_batching { direct { } }",
        [("s1.1^", 0), ("s2.1^", 50, {"timeout_ms": 300}), ("s2.2", 100, {"timeout_ms": 100})],
        ["s1.1"],
        first_ms=600,
        refused=("s2.1", "s2.2"),
    ),
    Example(
        "10.7d a second START joins the sequence that is going on",
        "max_batch_size: 1 sequence_batching { direct { } }",
        [("s1.1^", 0), ("s1.2^", 50), ("s1.3$", 100), ("s1.4", 150)],
        ["s1.1", "s1.2", "s1.3"],
        refused=("s1.4",),
    ),
    *(
        Example(
            f"10.7e {strategy.split()[0]}: a cancelled request takes its sequence with it when the running one ends",
            f"max_batch_size: 1 sequence_batching {{ {strategy} }}",
            [("s1.1^", 0), ("s1.2", 50, {"cancel_ms": 150}), ("s1.3", 100), ("s1.4", 500)],
            ["s1.1"],
            first_ms=300,
            refused=("s1.2", "s1.3", "s1.4"),
        )
        for strategy in ("direct { }", "oldest { max_candidate_sequences: 1 }")
    ),
]  # fmt: skip
by_name = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)


@by_name
def test_simulated_sweep_predicts_configurations(example: Example) -> None:
    arrivals = [
        tnb.Arrival(
            request.at_ms * 1000,
            timeout_us=request.timeout_ms * 1000,
            batch_key=request.length,
            cancel_us=None if request.cancel_ms is None else request.cancel_ms * 1000,
            **request.sequence,
        )
        for request in requests_of(example)
    ]
    times = iter([example.first_ms])
    rec = tnb.simulate(example.config, arrivals, lambda rows: next(times, 1) * 1_000_000)
    assert batches_and_refusals(rec, example) == (example.batches, example.refused)


@pytest.mark.slow
@by_name
def test_live_sweep_measures_configurations(example: Example) -> None:
    seen = None
    for _ in range(TRIES):
        with Server(port=0) as server, server.record() as rec:
            serve_timed(server, example.config)
            asyncio.run(play(server, example))
        seen = batches_and_refusals(rec, example)
        if seen == (example.batches, example.refused):
            break
    assert seen == (example.batches, example.refused)


@dataclass(frozen=True)
class Request:
    """One arrival, taken apart."""

    name: str
    sequence: dict[str, Any]
    at_ms: int
    length: int = 1
    timeout_ms: int = 0
    cancel_ms: int | None = None


def requests_of(example: Example) -> list[Request]:
    requests = []
    for text, at_ms, *options in example.arrivals:
        flags = {"sequence_start": "^" in text, "sequence_end": "$" in text}
        sequence = {"sequence_id": int(text[1]), **flags}
        requests.append(Request(text.strip("^$"), sequence, at_ms, **(options[0] if options else {})))
    return requests


def serve_timed(server: Server, config: str) -> None:
    fields = json_format.MessageToDict(parse_text(config).config, preserving_proto_field_name=True)

    @server.model(name="timed", **fields)  # type: ignore[untyped-decorator]
    def timed(MS: tnb.FP32[-1]) -> tnb.FP32[-1]:
        time.sleep(float(MS.max()) / 1000)  # type: ignore[attr-defined]
        return MS


async def play(server: Server, example: Example) -> None:
    began = time.monotonic()

    async def until(at_ms: int) -> None:
        await asyncio.sleep(began + at_ms / 1000 - time.monotonic())

    async def ask(request: Request, run_ms: int) -> None:
        await until(request.at_ms)
        answer = asyncio.ensure_future(
            server["timed"].infer_async(
                MS=np.full((1, request.length), run_ms, np.float32),
                timeout_us=request.timeout_ms * 1000,
                **request.sequence,
            )
        )
        if request.cancel_ms is not None:
            await until(request.cancel_ms)
            answer.cancel()
        await answer

    requests = requests_of(example)
    await asyncio.gather(
        *(ask(planned, 1 if index else example.first_ms) for index, planned in enumerate(requests)),
        return_exceptions=True,
    )


def batches_and_refusals(rec: tnb.Recording, example: Example) -> tuple[list[str], tuple[str, ...]]:
    """The batches of a recording in words, in the order in which they were sent, and what was refused."""
    serials = [event.serial for event in rec.events if isinstance(event, RequestArrived)]
    # Requests arrive in the order of their times, ties in the order of the list.
    names = [planned.name for planned in sorted(requests_of(example), key=lambda planned: planned.at_ms)]
    name_of = dict(zip(serials, names, strict=True))

    def words(batch: Batch) -> str:
        return " ".join("-" if serial is None else name_of[serial] for serial in batch.requests)

    batches = [words(run) for run in sorted(rec.batches, key=lambda run: run.number)]
    return batches, tuple(name_of[rejected.serial] for rejected in rec.refused)


ITERATIVE = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.left = {}

    def execute(self, requests):
        time.sleep(0.12)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        left = self.left.setdefault(request.correlation_id(), int(x[0, 0])) - 1
        self.left[request.correlation_id()] = left
        if left:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])
"""


def test_10_7f_live_an_iterative_request_joins_later_batches_until_it_is_done(write_model: Callable[..., Path]) -> None:
    batching = "sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 4 } }"
    repository = write_model("m", ITERATIVE, batching)
    config = repository / "m" / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 8", "max_batch_size: 2"))
    seen = None
    for _ in range(TRIES):
        with Server(repository, port=0) as server, server.record() as rec:
            asyncio.run(ask_in_turn(server, (4, 0.0), (2, 0.02), (1, 0.1)))
        serials = [event.serial for event in rec.events if isinstance(event, RequestArrived)]
        seen = [" ".join("xyz"[serials.index(request)] for request in batch.requests) for batch in rec.batches]  # type: ignore[arg-type]
        if seen == ["x", "y z", "x y", "x", "x"]:
            break
    assert seen == ["x", "y z", "x y", "x", "x"]


async def ask_in_turn(server: Server, *requests: tuple[int, float]) -> None:
    async def ask(steps: int, at: float) -> None:
        await asyncio.sleep(at)
        await server["m"].infer_async(X=np.full((1, 1), steps, np.float32))

    await asyncio.gather(*(ask(steps, at) for steps, at in requests))
