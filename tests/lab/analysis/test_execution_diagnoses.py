"""Diagnoses of executions where they are true, and where they are almost true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import tritonnb as tnb
from tritonnb.core.events import BatchExecuted, BatchSent, Event
from tritonnb.lab.simulation.service import Draw, VaryingService
from tritonnb.recording.recording import Recording

MS = 1_000_000
CONFIG = 'name: "m" max_batch_size: 4 dynamic_batching { %s } instance_group { count: %d kind: KIND_CPU } %s'
OF_ONNX = 'backend: "onnxruntime" '
DRIFT = "max_queue_delay_microseconds: 500 default_queue_policy { default_timeout_microseconds: 9000000 }"


class Machine(VaryingService):
    """8 ms, times a factor of the instances that are busy and of the idle times of instance and server in ns."""

    function = staticmethod(tnb.fixed(8))

    def __init__(self, factor: Callable[[int, int, int], float]) -> None:
        self._factor = factor
        self._executions = 0

    def draws(self, seed: int) -> Draw:
        count = 0

        def draw(rows: int, now_ns: int, busy: int, idle_ns: int, server_idle_ns: int, instance: int) -> float:
            nonlocal count
            count += 1
            return 8 * MS * self._factor(busy, idle_ns, count)

        return draw


def simulated(
    factor: Callable[[int, int, int], float], arrivals: Any, instances: int = 2, extra: str = "", batching: str = ""
) -> Recording:
    return tnb.simulate(CONFIG % (batching, instances, extra), arrivals, Machine(factor), seed=1)


def found(rec: Recording, name: str) -> Any:
    return next((diagnosis for diagnosis in rec.diagnoses() if diagnosis.name == name), None)


def beside(slower: float) -> Callable[[int, int, int], float]:
    return lambda busy, idle_ns, count: slower if busy > 1 else 1.0


BUSY = tnb.poisson(120, 8, seed=3)


def test_second_instance_that_slows_the_first_is_reported_with_its_gain() -> None:
    diagnosis = found(simulated(beside(1.6), BUSY), "instances_slow_each_other")
    assert "a second instance makes each execution 1.6 times as long, so the gain is 1.2 and not 2" in diagnosis.text
    assert diagnosis.evidence["factor"] == pytest.approx(1.6, rel=0.1)


@pytest.mark.parametrize(
    ("slower", "arrivals", "instances"),
    [
        (1.0, BUSY, 2),  # they do not share anything
        (1.15, BUSY, 2),  # a little
        (1.6, BUSY, 1),  # there is no other
        (1.6, tnb.constant(5, 8), 2),  # none runs beside another
        (1.6, tnb.ClosedLoop(16, 800), 2),  # none runs alone, so that nothing can be compared
    ],
)
def test_instances_that_are_alone_or_independent_are_not_reported(slower: float, arrivals: Any, instances: int) -> None:
    assert found(simulated(beside(slower), arrivals, instances), "instances_slow_each_other") is None


def test_slow_instance_that_runs_only_beside_another_does_not_slow_it() -> None:
    rec = simulated(lambda busy, idle_ns, count: 1.0, BUSY)
    slow = [
        replace(event, exec_end_ns=event.exec_end_ns + 8 * MS)
        if isinstance(event, BatchExecuted) and event.instance.endswith("_1") else event
        for event in rec.events
    ]  # fmt: skip
    assert found(Recording(slow, rec.configs), "instances_slow_each_other") is None


@pytest.mark.parametrize(
    ("slower", "extra", "words"),
    [
        (1.6, OF_ONNX, "as many threads as the machine has cores, together 2 times as many"),
        (1.6, 'backend: "openvino"', '"INFERENCE_NUM_THREADS"'),
        (1.6, 'platform: "pytorch_libtorch"', '"INTRA_OP_THREAD_COUNT"'),
        (1.6, OF_ONNX + 'parameters { key: "intra_op_thread_count" value { string_value: "8" } }', "are 16 threads"),
        (1.6, OF_ONNX + 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }', ""),
        (1.6, 'backend: "python"', ""),
        (1.0, OF_ONNX, ""),  # as many threads, and yet no harm
    ],
)
def test_threads_are_reported_with_the_parameter_of_the_backend(slower: float, extra: str, words: str) -> None:
    diagnosis = found(simulated(beside(slower), BUSY, extra=extra), "threads_exceed_cores")
    assert words in str(diagnosis) if words else diagnosis is None


SPARSE = tnb.poisson(40, 5, seed=2)


def test_tail_of_the_first_executions_names_warm_up() -> None:
    rec = simulated(lambda busy, idle_ns, count: 40.0 if count <= 2 else 1.0, SPARSE)
    diagnosis = found(rec, "first_executions")
    assert "40.0 times as long as others" in diagnosis.text
    assert "model_warmup" in diagnosis.text
    assert diagnosis.evidence["p99_without_ms"] < diagnosis.evidence["p99_ms"] / 2


@pytest.mark.parametrize(
    ("first", "arrivals"),
    [
        (1.3, SPARSE),  # hardly slower
        (10.0, tnb.poisson(40, 40, seed=2)),  # too few of all requests to determine the p99
        (40.0, tnb.constant(4, 5)),  # too few requests to speak of a p99
    ],
)
def test_first_executions_that_do_not_determine_the_tail_are_not_reported(first: float, arrivals: Any) -> None:
    rec = simulated(lambda busy, idle_ns, count: first if count <= 2 else 1.0, arrivals)
    assert found(rec, "first_executions") is None


PAUSES = [(second * 1e6 + number * 10_000, 1) for second in range(12) for number in range(40)]


def test_tail_of_executions_after_a_pause_names_keep_alive_requests() -> None:
    rec = simulated(lambda busy, idle_ns, count: 6.0 if idle_ns > 300 * MS else 1.0, PAUSES, instances=1)
    diagnosis = found(rec, "idle_executions")
    assert "was idle for 40 ms or more takes 6.0 times as long" in diagnosis.text
    assert "keep-alive" in diagnosis.text
    assert found(rec, "first_executions") is None


@pytest.mark.parametrize(
    "factor",
    [
        lambda busy, idle_ns, count: 1.5 if idle_ns > 300 * MS else 1.0,  # a little slower
        lambda busy, idle_ns, count: 6.0 if count % 40 == 20 else 1.0,  # as slow, but not after a pause
        lambda busy, idle_ns, count: 6.0,  # every execution is as slow
    ],
)
def test_pauses_that_do_not_determine_the_tail_are_not_reported(factor: Any) -> None:
    assert found(simulated(factor, PAUSES, instances=1), "idle_executions") is None


def shifted(events: list[Event], by_ns: int, serials: int) -> list[Event]:
    """The events later, with other numbers of requests and batches."""

    def later(event: Any) -> Event:
        moved = {name: getattr(event, name) + by_ns for name in type(event).__slots__ if name.endswith("_ns")}
        moved["time_ns"] = event.time_ns + by_ns
        if isinstance(event, BatchSent):
            moved |= {"batch": event.batch + serials, "members": tuple((one or 0) + serials for one in event.members)}
        elif isinstance(event, BatchExecuted):
            requests = ((s + serials, rows, a + by_ns, q + by_ns, f) for s, rows, a, q, f in event.requests)
            moved |= {"batch": event.batch + serials, "requests": tuple(requests)}
        else:
            moved["serial"] = event.serial + serials
        return replace(event, **moved)

    return [later(event) for event in events]


def two_phases(
    instances: int, batching: str = DRIFT, clients: tuple[int, int] = (32, 32), slower: float = 1
) -> Recording:
    """A server of four instances, of which some stop to be used after a while."""
    first = simulated(beside(1.0), tnb.ClosedLoop(clients[0], 1200), 4, batching=batching)
    second = simulated(lambda *_: slower, tnb.ClosedLoop(clients[1], 1200), instances, batching=batching)
    return Recording([*first.events, *shifted(second.events, first.span_ns[1] + MS, 100_000)], first.configs)


def test_throughput_that_decays_while_instances_idle_is_reported_with_the_known_defect() -> None:
    diagnosis = found(two_phases(instances=1), "throughput_decays")
    assert diagnosis.text.startswith("Degrades since ")
    assert "server #8870" in diagnosis.text
    assert diagnosis.text.endswith("a reload of the model would tell.")
    assert diagnosis.evidence["rates"][1] < diagnosis.evidence["rates"][0] / 3


def test_drift_of_a_real_triton_is_recognised(recorded: Callable[[str], tnb.Recording]) -> None:
    """Recorded on Triton 2.51 with `tools.waiting_consumers`: one of four instances after the other stops executing."""
    rec = recorded("drift")
    diagnosis = found(rec, "throughput_decays")
    assert diagnosis.text.startswith("Degrades since 2.1 s: ")
    assert "server #8870" in diagnosis.text
    late = rec.between(5000, 8000)
    text = found(Recording(late.events, late.configs, source=late.source), "throughput_decays").text
    assert text.startswith("Requests wait while instances idle, for ")


def test_decay_without_the_conditions_of_the_defect_does_not_name_it() -> None:
    diagnosis = found(two_phases(instances=1, batching=""), "throughput_decays")
    assert "8870" not in diagnosis.text
    assert "a reload of the model would tell" in diagnosis.text


@pytest.mark.parametrize(
    "rec",
    [
        two_phases(instances=4),  # no change
        two_phases(instances=4, slower=3),  # slower, with all instances busy
        two_phases(instances=1, clients=(32, 1)),  # less load, and nobody waits
    ],
    ids=["same", "slower", "less load"],
)
def test_throughput_that_falls_for_other_reasons_is_not_reported(rec: Recording) -> None:
    assert found(rec, "throughput_decays") is None
