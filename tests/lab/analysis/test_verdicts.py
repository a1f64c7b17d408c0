"""The verdicts of the debugger are the decisions that were recorded, for random recordings of every scheduler."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note
from hypothesis import strategies as st

import tritonnb as tnb
from tests.engine.test_inline_execution import CONFIG, write
from tests.laws import law
from tritonnb.core.events import BatchSent, RequestCancelled, RequestRefused
from tritonnb.lab.analysis.scheduler_replay import SchedulerReplay
from tritonnb.recording.recording import Recording
from tritonnb.server.server import Server

counts = st.integers(1, 3)
booleans = st.sampled_from(["true", "false"])
delays_us = st.sampled_from([0, 1500, 4000])


@st.composite
def queue_policies(draw: st.DrawFn) -> str:
    """The fields of a queue policy."""
    action = draw(st.sampled_from(["REJECT", "DELAY"]))
    timeout_us, size = draw(st.sampled_from([0, 2500, 6000])), draw(st.sampled_from([0, 4]))
    return (
        f"timeout_action: {action} default_timeout_microseconds: {timeout_us} "
        f"allow_timeout_override: {draw(booleans)} max_queue_size: {size}"
    )


@st.composite
def batchers(draw: st.DrawFn) -> str:
    """A dynamic batcher, or none; with priorities and queue policies, or without."""
    largest = draw(st.integers(1, 8))
    config = f"max_batch_size: {largest} "
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from([config, "max_batch_size: 0 "]))
    sizes = sorted(draw(st.sets(st.integers(1, largest), max_size=2)))
    options = f"preferred_batch_size: {sizes} " if sizes else ""
    options += f"max_queue_delay_microseconds: {draw(delays_us)} "
    levels = draw(st.sampled_from([0, 0, 2]))
    options += f"priority_levels: {levels} default_priority_level: 2 " if levels else ""
    if draw(st.booleans()):
        options += f"default_queue_policy {{ {draw(queue_policies())} }} "
    if levels and draw(st.booleans()):
        options += f"priority_queue_policy {{ key: 1 value {{ {draw(queue_policies())} }} }} "
    if not levels and "DELAY" not in options:
        options += f"preserve_ordering: {draw(booleans)} "
    dims, optional = draw(st.sampled_from(["1", "-1"])), draw(booleans)
    tensors = f'input {{ name: "X" data_type: TYPE_FP32 dims: {dims} optional: {optional} }} '
    return f"{config} {tensors} dynamic_batching {{ {options} }} "


@st.composite
def sequence_batchers(draw: st.DrawFn) -> str:
    """A sequence batcher of either strategy, iterative or not."""
    size = draw(st.sampled_from([1, 2, 4, 10]))
    if draw(st.booleans()):
        share = draw(st.sampled_from([0, 0.1, 0.3, 0.5, 0.7, 1]))
        strategy = f"direct {{ max_queue_delay_microseconds: {draw(delays_us)} minimum_slot_utilization: {share} }}"
    else:
        preferred = sorted(draw(st.sets(st.integers(1, size), max_size=2)))
        strategy = f"oldest {{ max_candidate_sequences: {draw(counts)} preferred_batch_size: {preferred} "
        strategy += f"max_queue_delay_microseconds: {draw(delays_us)} preserve_ordering: {draw(booleans)} }}"
    iterative = draw(booleans)
    idle_us = draw(st.sampled_from([7_013, 1_000_000]))  # never at the time of another event
    return (
        f"max_batch_size: {size} sequence_batching {{ iterative_sequence: {iterative} "
        f"max_sequence_idle_microseconds: {idle_us} {strategy} }} "
    )


@st.composite
def requests(draw: st.DrawFn) -> list[tnb.Arrival]:
    """Requests without sequences, some of which are cancelled."""
    return [
        tnb.Arrival(
            ms=at / 4,
            rows=1 if draw(st.booleans()) else draw(st.integers(1, 8)),
            priority=draw(st.integers(0, 2)),
            timeout_us=draw(st.sampled_from([0, 0, 1000])),
            batch_key=draw(st.sampled_from([None, None, "other"])),
            cancel_us=draw(st.sampled_from([None, None, None, at * 250.0 + 700])),
        )
        for at in draw(st.lists(st.integers(0, 120), min_size=1, max_size=16).map(sorted))
    ]


@st.composite
def sequences(draw: st.DrawFn, steps: st.SearchStrategy[int]) -> list[tnb.Arrival]:
    """Requests of a few sequences, in any order: some start again, have ended, or have never started."""
    return [
        tnb.Arrival(
            ms=at / 4,
            sequence_id=draw(st.integers(1, 5)),
            sequence_start=draw(st.sampled_from([True, True, False])),
            sequence_end=draw(st.sampled_from([True, False, False])),
            timeout_us=draw(st.sampled_from([0, 0, 3000])),
            steps=draw(steps),
            batch_key=draw(st.sampled_from([None, None, "other"])),
            cancel_us=draw(st.sampled_from([None, None, None, at * 250.0 + 700])),
        )
        for at in draw(st.lists(st.integers(0, 120), min_size=1, max_size=20).map(sorted))
    ]


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    """A simulation of any scheduler."""
    config = draw(st.one_of(batchers(), sequence_batchers()))
    if "sequence_batching" in config:
        arrivals = draw(sequences(st.integers(1, 3) if "iterative_sequence: true" in config else st.just(1)))
    else:
        largest = int(config.split()[1])
        arrivals = [arrival for arrival in draw(requests()) if arrival.rows <= max(1, largest)] or [tnb.Arrival(ms=0)]
    config += f"instance_group {{ count: {draw(counts)} }}"
    note(f"{config}\n{arrivals}")
    return tnb.simulate(config, arrivals, tnb.linear(draw(st.sampled_from([0.5, 3])), 0.3))


@law(250, suppress_health_check=list(HealthCheck))
@given(recordings())
def test_every_verdict_is_the_recorded_decision(recording: Recording) -> None:
    debugger = recording.debug()
    stateful = debugger.config.HasField("sequence_batching")
    while debugger.step():
        state, event = debugger.state, debugger.event
        assert event is not None
        applying = [row.rule for row in state.rules if row.applies]
        assert len(applying) == (1 if state.rules else 0)
        following = debugger.events[debugger.position] if debugger.position < len(debugger.events) else None
        at_once = following is not None and following.time_ns == event.time_ns
        if isinstance(following, BatchSent) and at_once:
            assert applying == [following.rule]
        elif not at_once and state.quantities["idle"] and not (stateful and state.running):
            # With sequences, the verdict can be that of a busy instance.
            assert applying == ["wait"] or not (applying or isinstance(following, BatchSent))


@law(250, suppress_health_check=list(HealthCheck))
@given(recordings())
def test_replay_repeats_the_schedulers_decisions(recording: Recording) -> None:
    [config] = recording.configs.values()
    replay = SchedulerReplay(config, recording.events)
    for event in recording.events:
        replay.follow(event)
        replay.verdict(event.time_ns)
    assert replay.differences == 0


@law(250, suppress_health_check=list(HealthCheck))
@given(recordings())
def test_copied_state_of_a_replay_decides_as_the_state_itself(recording: Recording) -> None:
    """Copies share their requests, and nothing else: the states that are left behind change, too."""
    [config] = recording.configs.values()
    assume("dynamic_batching" in str(config))  # no other scheduler is ever copied
    replay = SchedulerReplay(config, recording.events)
    for event in recording.events:
        scheduler = replay._scheduler
        left, scheduler._states = scheduler._states, [state.assume() for state in scheduler._states]
        for state in left:
            for request, _ in scheduler.waiting.values():
                state.scheduler.cancel(request, event.time_ns)
        replay.follow(event)
    assert replay.differences == 0


def test_each_replica_has_its_own_scheduler() -> None:
    config = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 5000 }"
    recording = tnb.simulate(config, tnb.poisson(rate=1500, duration=0.3, seed=5), tnb.fixed(6), replicas=3)
    debugger = recording.debug()
    matched = 0
    while debugger.step():
        following = debugger.events[debugger.position] if debugger.position < len(debugger.events) else None
        if isinstance(following, BatchSent) and debugger.event and following.time_ns == debugger.event.time_ns:
            assert debugger.verdict is not None
            assert debugger.verdict.rule == following.rule
            matched += 1
    assert matched > 60


@pytest.mark.parametrize(
    "scheduling",
    [
        {},
        {"dynamic_batching": {"max_queue_delay_microseconds": 1500, "preferred_batch_size": [3]}},
        {"dynamic_batching": {"default_queue_policy": {"max_queue_size": 9}, "max_queue_delay_microseconds": 1500}},
        {"dynamic_batching": {"priority_levels": 2, "default_priority_level": 2, "max_queue_delay_microseconds": 1500}},
        {"dynamic_batching": {"preserve_ordering": True}},
        {"sequence_batching": {"direct": {"max_queue_delay_microseconds": 1500, "minimum_slot_utilization": 0.3}}},
        {"sequence_batching": {"oldest": {"max_candidate_sequences": 4, "max_queue_delay_microseconds": 1500}}},
    ],
)
def test_recording_of_a_live_server_is_followed_to_the_end(scheduling: dict[str, Any]) -> None:
    stateful = "sequence_batching" in scheduling

    async def send(client: int) -> None:
        for number in range(20):
            flags: Any = {"sequence_id": client, "sequence_start": number == 0, "sequence_end": number == 19}
            tensors = {"X": np.ones((1, 1), np.float32)}
            if not stateful:
                flags = {"priority": client % 3 if "priority_levels" in str(scheduling) else 0}
                tensors |= {"MORE": np.ones((1, 1), np.float32)} if number % 4 == 0 else {}
            await server["echo"].infer_async(tensors, **flags)

    async def play() -> None:
        await asyncio.gather(*map(send, range(1, 7)))

    with Server(port=0) as server:

        @server.model(name="echo", max_batch_size=4, instance_group=[{"count": 2}], **scheduling)  # type: ignore[untyped-decorator]
        def echo(X: tnb.FP32[1], MORE: tnb.FP32[1] = None) -> tnb.FP32[1]:
            time.sleep(0.001)
            return X

        with server.record() as recording:
            asyncio.run(play())
    replay = SchedulerReplay(recording.configs["echo"], recording.events)
    for event in recording.events:
        replay.follow(event)
    assert len(recording.requests) == 120
    assert replay.differences == 0


#: Answers three times, and ends a request in its fourth step.
GENERATOR = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.steps = {}

    def execute(self, requests):
        for request in requests:
            number = request.correlation_id()
            step = self.steps[number] = self.steps.get(number, 0) + 1
            sender = request.get_response_sender()
            if step < 4:
                x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                del self.steps[number]
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ITERATIVE = """
backend: "python" max_batch_size: 4 model_transaction_policy { decoupled: true }
input { name: "X" data_type: TYPE_INT32 dims: 1 } output { name: "Y" data_type: TYPE_INT32 dims: 1 }
sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 4 } }
"""
ENSEMBLE = """
platform: "ensemble" max_batch_size: 8
input { name: "X" data_type: TYPE_INT32 dims: 1 } output { name: "Y" data_type: TYPE_INT32 dims: 1 }
ensemble_scheduling {
  step { model_name: "first" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Z" } }
  step { model_name: "second" model_version: -1 input_map { key: "X" value: "Z" } output_map { key: "Y" value: "Y" } }
}
"""


def test_generations_and_the_steps_of_an_ensemble_are_followed_to_the_end(tmp_path: Path) -> None:
    write(tmp_path, "first", f"{CONFIG} dynamic_batching {{ max_queue_delay_microseconds: 1500 }}")
    write(tmp_path, "second", CONFIG)
    for name, config in {"ensemble": ENSEMBLE, "generator": ITERATIVE}.items():
        write(tmp_path, name, config)
    (tmp_path / "generator" / "1" / "model.py").write_text(GENERATOR)

    with Server(tmp_path, port=None) as server, server.record() as recording, ThreadPoolExecutor(20) as pool:
        for _ in pool.map(
            lambda name: server[name].infer_all(X=np.ones((1, 1), np.int32)), ["ensemble", "generator"] * 40
        ):
            pass
    for name, count in {"first": 40, "second": 40, "generator": 160}.items():
        part = recording.for_model(name)
        replay = SchedulerReplay(part.configs[name], part.events)
        for event in part.events:
            replay.follow(event)
        assert sum(batch.size for batch in part.batches) == count
        assert replay.differences == 0
    with pytest.raises(tnb.TritonError, match="got the ensemble 'ensemble': use the recording of one of its steps"):
        recording.for_model("ensemble").debug()


@law(100, suppress_health_check=list(HealthCheck))
@given(recordings(), st.data())
def test_part_of_a_recording_has_a_verdict_while_requests_wait(recording: Recording, data: st.DataObject) -> None:
    """The requests and executions before the part are not known."""
    part = recording.events[data.draw(st.integers(0, len(recording.events) - 1)) :]
    leaving = {event.serial for event in recording.events if isinstance(event, RequestRefused | RequestCancelled)}
    debugger = Recording(part, recording.configs).debug()
    while debugger.step():
        waiting = {request.serial for request in debugger.state.waiting} - leaving
        applying = [row.rule for row in debugger.state.rules if row.applies]
        assert len(applying) == 1 or not waiting
