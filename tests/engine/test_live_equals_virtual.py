"""The live engine makes the decisions of the simulator: its recorded events, replayed in virtual time,
give the same batches on the same instances and in the same slots, and the same refusals."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.engine.gated import Gate, GatedBackend, gated_config, occupy
from tests.laws import law
from tests.scheduling.invariants import check_invariants
from tritonnb.core.datatypes import INT32
from tritonnb.core.errors import TritonError
from tritonnb.core.events import BatchExecuted, BatchSent, Event, RequestArrived, RequestCancelled, RequestRefused
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.core.packed_events import Packed, unpack
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.schedulable import SEQUENCE_END, SEQUENCE_START
from tritonnb.engine.engine import Engine
from tritonnb.engine.execution.loop import BackgroundLoop
from tritonnb.engine.options import EngineOptions
from tritonnb.engine.repository.directories import ModelSource
from tritonnb.lab.simulation.engine import SimulatedRequest
from tritonnb.recording.arrivals import Arrival
from tritonnb.scheduling.decisions import Execute
from tritonnb.scheduling.from_config import make_scheduler
from tritonnb.scheduling.virtual_time import VirtualTime

pytestmark = pytest.mark.slow

CORRID = "control_input { name: 'ID' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }"
CONFIGS = {
    "default": "instance_group { count: 2 }",
    "dynamic": "dynamic_batching { preserve_ordering: true }",
    "delay": "dynamic_batching { max_queue_delay_microseconds: 800 } instance_group { count: 2 }",
    "preferred": "dynamic_batching { preferred_batch_size: [2, 3] max_queue_delay_microseconds: 500 }",
    "policies": """dynamic_batching {
        priority_levels: 2 default_priority_level: 2
        default_queue_policy { default_timeout_microseconds: 1500 max_queue_size: 6 }
        priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 700 } }
    } instance_group { count: 2 }""",
    "direct": f"sequence_batching {{ direct {{ }} max_sequence_idle_microseconds: 3000 {CORRID} }}",
    "direct, delay": """sequence_batching {
        direct { max_queue_delay_microseconds: 700 minimum_slot_utilization: 0.6 }
    } instance_group { count: 2 }""",
    "oldest": """sequence_batching {
        oldest { max_candidate_sequences: 3 preferred_batch_size: [2] max_queue_delay_microseconds: 500 }
    } instance_group { count: 2 }""",
}


@dataclass(frozen=True)
class Sent:
    """A request, how long after the one before it it is sent, and what becomes of it.

    The loop is blocked before a request is cancelled.
    """

    gap_us: int
    rows: int
    priority: int
    sequence: int
    start: bool
    end: bool
    cancelled: bool
    blocked_us: int = 0


sent = st.builds(
    Sent,
    gap_us=st.sampled_from([0, 0, 0, 50, 300, 1200]),
    rows=st.integers(1, 3),
    priority=st.integers(0, 2),
    sequence=st.integers(1, 5),
    start=st.booleans(),
    end=st.booleans(),
    cancelled=st.sampled_from([False] * 9 + [True]),
    blocked_us=st.sampled_from([0, 1000]),
)


@pytest.fixture(scope="module")
def background() -> Iterator[BackgroundLoop]:
    background = BackgroundLoop()
    yield background
    background.stop()


@pytest.mark.parametrize("name", CONFIGS)
@law(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(sent, min_size=1, max_size=25))
def test_live_engine_makes_the_decisions_of_virtual_time(
    name: str, background: BackgroundLoop, workload: list[Sent]
) -> None:
    config = gated_config("m", CONFIGS[name], max_batch_size=1 if "default" in name else 4)
    sequenced = config.HasField("sequence_batching")
    events = background.run(play(config, workload, sequenced))
    assert replayed(config, events) == decided(events)


@pytest.mark.parametrize("name", ["delay", "direct, delay", "oldest"])
def test_cancellation_comes_after_what_was_due_before_it(name: str, background: BackgroundLoop) -> None:
    """The loop is busy while the delay of a request expires, and then the request is cancelled."""
    config = gated_config("m", CONFIGS[name], max_batch_size=4)
    sequenced = config.HasField("sequence_batching")
    workload = [Sent(0, 1, 0, sequence=1, start=True, end=False, cancelled=True, blocked_us=2000)]
    events = background.run(play(config, workload, sequenced))
    assert replayed(config, events) == decided(events)
    assert [type(event) for event in events].count(BatchSent) == 1


#: Instance, members and slots of each batch; serial and error of each refused request.
Decisions = tuple[list[tuple[int, tuple[int | None, ...], tuple[int, ...]]], list[tuple[int, str]]]


def _settle(answer: Future[InferResponse], request: InferRequest, response: InferResponse) -> None:
    answer.set_result(response)


async def play(config: pb.ModelConfig, workload: list[Sent], sequenced: bool) -> list[Event]:
    """Run a workload on a live engine."""
    engine = Engine(EngineOptions())
    await engine.start()
    await engine.load_source(ModelSource("m", Path(), config, (1,), GatedBackend(Gate(opened=True))))
    packed: list[Packed] = []
    engine.stream.attach(packed.append)
    answers = []
    for arrival in workload:
        await asyncio.sleep(arrival.gap_us / 1e6)
        answer: Future[InferResponse] = Future()
        request = InferRequest(
            "m",
            {"X": Tensor("X", INT32, np.zeros((1 if sequenced else min(arrival.rows, 4), 1), np.int32))},
            functools.partial(_settle, answer),
            priority=0 if sequenced else arrival.priority,
            correlation_id=arrival.sequence if sequenced else 0,
            flags=(SEQUENCE_START * arrival.start | SEQUENCE_END * arrival.end) if sequenced else 0,
        )
        try:
            engine.model(request.model_name).submit(request)
        except TritonError:
            continue
        answers.append(answer)
        if arrival.cancelled:
            occupy(arrival.blocked_us / 1000)
            request.cancel()
    for answer in answers:
        await asyncio.wrap_future(answer)
    engine.stream.detach(packed.append)
    await engine.stop()
    return [unpack(packed_event) for packed_event in packed]


def replayed(config: pb.ModelConfig, events: list[Event]) -> Decisions:
    """Replay arrivals and execution times as recorded; return the decisions in virtual time."""
    ends = {event.batch: event.time_ns for event in events if isinstance(event, BatchExecuted)}
    end_of = {event.members: ends[event.batch] for event in events if isinstance(event, BatchSent)}
    instances = sum(group.count for group in config.instance_group) or 1

    def service(decision: Execute) -> int:
        return end_of[tuple(request.serial if request else None for request in decision.requests)] - virtual.now

    virtual = VirtualTime(make_scheduler(config, instances, {}), service, [0] * instances, check=check_invariants)
    requests = {}
    for event in events:
        if isinstance(event, RequestArrived):
            arrival = Arrival(
                0,
                event.size,
                event.priority,
                event.timeout_us,
                event.correlation_id,
                bool(event.flags & SEQUENCE_START),
                bool(event.flags & SEQUENCE_END),
                event.shape_key,
            )
            requests[event.serial] = SimulatedRequest(arrival, event.serial)
            virtual.arrive(event.time_ns, requests[event.serial])
        elif isinstance(event, RequestCancelled):
            virtual.cancel(event.time_ns, requests[event.serial])
    virtual.run()
    batches = [
        (batch.decision.instance, members(batch.decision), batch.decision.slots or ()) for batch in virtual.batches
    ]
    refusals = [
        (response.request.serial, _text(str(response.error)))
        for response in virtual.responses
        if response.error is not None
    ]
    return batches, refusals


def decided(events: list[Event]) -> Decisions:
    """The decisions of the live engine, in the same form."""
    sent = [event for event in events if isinstance(event, BatchSent)]
    batches = [(int(batch.instance.split("_")[-1]), batch.members, batch.slots or ()) for batch in sent]
    offered = {event.serial for event in events if isinstance(event, RequestArrived)}  # invalid ones are not
    refused = [event for event in events if isinstance(event, RequestRefused) and event.serial in offered]
    return batches, [(event.serial, _text(event.message)) for event in refused]


def members(decision: Execute) -> tuple[int | None, ...]:
    return tuple(request.serial if request else None for request in decision.requests)


def _text(message: str) -> str:
    return message.partition("] ")[2] or message  # without the request's id
