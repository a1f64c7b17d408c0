"""Diagnoses of pipelines: the step that limits the rate, and what the steps cost each other."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

import tritonnb as tnb
from tests.recording.test_pipelines import Events
from tritonnb.core.events import BatchExecuted, BatchSent
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.diagnoses import Diagnosis
from tritonnb.lab.simulation.service import Service
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import BLS_REQUEST, INPUTS_READY

MS = 1_000_000


def found(events: Events, name: str, **configs: str) -> list[Diagnosis]:
    """The diagnoses of a rule; the configurations are given by model."""
    parsed = {
        model: text_format.Parse(f'name: "{model}" max_batch_size: 4 {text}', pb.ModelConfig())
        for model, text in configs.items()
    }
    return [diagnosis for diagnosis in Recording(events.events, parsed).diagnoses() if diagnosis.name == name]


def chain(*lengths_ms: float, every_ms: float, count: int = 20, **spans: float) -> Events:
    """Requests of an ensemble of steps a, b, … that follow each other without a wait."""
    events = Events()
    for number in range(count):
        now = round(number * every_ms * MS)
        root = events.ensemble(now, now + round((sum(lengths_ms) + spans.get("rest_ms", 0)) * MS))
        for step, length in enumerate(lengths_ms):
            model = "abc"[step]
            end = now + round(length * MS)
            events.step(root, events.execution(now, end, model), step, step_model=model)
            now = end
    return events


def test_busiest_step_limits_the_rate_although_another_one_is_slower() -> None:
    two = "instance_group { count: 3 kind: KIND_CPU }"
    [diagnosis] = found(chain(9, 12, 1, every_ms=10), "bottleneck", a="", b=two, c="", e="")
    assert diagnosis.model == "e"
    assert diagnosis.evidence["step"] == "a"
    busy = diagnosis.evidence["busy"]
    assert {step: round(share, 2) for step, share in busy.items()} == {"a": 0.85, "b": 0.38, "c": 0.09}
    assert "'a' limits the rate of 'e': with 1 instance (85% busy) it passes at most 111 requests/s" in diagnosis.text
    assert "The slowest step, 'b' with 12.0 ms an execution, is not the bottleneck." in diagnosis.text
    limits = diagnosis.evidence["limits"]
    assert {step: round(limit) for step, limit in limits.items()} == {"a": 111, "b": 250, "c": 1000}
    assert diagnosis.evidence["limit_with_one_more"] == 2 * limits["a"]


def test_step_that_batches_is_busy_and_no_bottleneck() -> None:
    events = Events()
    for number in range(20):
        begin = number * 10 * MS
        roots = [events.ensemble(begin, begin + 18 * MS) for _ in range(2)]
        batch = events.execution(begin + 8 * MS, begin + 18 * MS, "b", mates=2)
        for place, root in enumerate(roots):
            events.step(
                root, events.execution(begin + place * 4 * MS, begin + (place + 1) * 4 * MS, "a"), step_model="a"
            )
            events.step(root, batch + place, 1, step_model="b")
    [diagnosis] = found(events, "bottleneck", a="", b="instance_group { count: 2 kind: KIND_CPU }", e="")
    assert {step: round(limit) for step, limit in diagnosis.evidence["limits"].items()} == {"a": 250, "b": 400}
    assert "The slowest step, 'b' with 10.0 ms an execution, is not the bottleneck." in diagnosis.text


def test_low_rates_have_a_digit_after_the_point() -> None:
    [diagnosis] = found(chain(300, 400, every_ms=800), "bottleneck", a="", b="", e="")
    assert "at most 2.5 requests/s in batches of 1 row, its best recorded; 1.3 came" in diagnosis.text
    assert "'a' 3.3 requests/s" in diagnosis.text


def test_limit_after_one_more_instance_is_that_of_the_next_step() -> None:
    [diagnosis] = found(chain(5, 4, every_ms=20), "bottleneck", a="", b="", e="")
    assert "would limit the rate first" in diagnosis.text
    assert "where 'b' is the limit" in diagnosis.text
    assert round(float(str(diagnosis.evidence["limit_with_one_more"]))) == 250


def test_caller_that_waits_for_a_full_queue_is_no_bottleneck() -> None:
    models = {
        "caller": "max_batch_size: 8 instance_group { count: 64 }",
        "tokens": "max_batch_size: 8 instance_group { count: 1 }",
        "network": "max_batch_size: 8 dynamic_batching { } instance_group { count: 1 }",
    }
    times: dict[str, Service] = {"tokens": tnb.fixed(8), "network": tnb.fixed(12)}
    times["caller"] = tnb.calling(["tokens", "network"])
    rec = tnb.simulate(models, tnb.poisson(140, 3, seed=1), times)
    [diagnosis] = [diagnosis for diagnosis in rec.diagnoses() if diagnosis.name == "bottleneck"]
    assert diagnosis.evidence["step"] == "tokens"
    assert diagnosis.evidence["limits"]["tokens"] == pytest.approx(125)
    assert diagnosis.evidence["limits"]["caller"] == pytest.approx(64 / 0.020)


def test_steps_that_slow_each_other_down_share_cores() -> None:
    events = chain(4, 4, every_ms=10, count=30)
    for number in range(15):  # executions of b at the same time as longer ones of a
        begin = (1000 + number * 20) * MS
        for model, length in (("a", 8), ("b", 8)):
            root = events.ensemble(begin, begin + length * MS)
            events.step(root, events.execution(begin, begin + length * MS, model), "ab".index(model), step_model=model)
    found_here = found(events, "shared_cores", a="", b="", e="")
    assert [(one.evidence["step"], one.evidence["other"], one.evidence["factor"]) for one in found_here] == [
        ("a", "b", 2.0),
        ("b", "a", 2.0),
    ]
    assert found(chain(4, 4, every_ms=10, count=30), "shared_cores", a="", b="", e="") == []


def test_work_of_the_server_beyond_that_of_the_steps() -> None:
    [diagnosis] = found(chain(1, 1, every_ms=10, rest_ms=1), "own_work", a="", b="", e="")
    assert round(float(str(diagnosis.evidence["share"])), 3) == 0.333
    assert "1.00 ms the ensemble between its steps" in diagnosis.text
    assert found(chain(5, 5, every_ms=20, rest_ms=1), "own_work", a="", b="", e="") == []


def paired(*, together: bool) -> Events:
    """Pairs of requests that share a batch of a; and of b if they stay together."""
    events = Events()
    for number in range(12):
        begin = number * 20 * MS
        roots = [events.ensemble(begin, begin + 15 * MS) for _ in range(2)]
        for step, (model, size) in enumerate((("a", 2), ("b", 2 if together else 1))):
            at = begin + step * 5 * MS
            if size == 2:
                first = events.execution(at, at + 5 * MS, model, mates=2)
                members = (first, first + 1)
            else:
                members = (events.execution(at, at + 5 * MS, model), events.execution(at + 5 * MS, at + 10 * MS, model))
            for root, member in zip(roots, members, strict=True):
                events.step(root, member, step, step_model=model)
    return events


def test_batches_that_fall_apart_between_steps() -> None:
    configs = {"a": "", "b": "dynamic_batching { }", "e": ""}
    [diagnosis] = found(paired(together=False), "separated_batches", **configs)
    assert (diagnosis.evidence["pairs"], diagnosis.evidence["share"]) == (12, 0)
    assert "max_queue_delay is 0 ms" in diagnosis.text
    assert found(paired(together=True), "separated_batches", **configs) == []


def calls(*, together: bool) -> Events:
    events = Events()
    for number in range(12):
        begin = number * 20 * MS
        caller = events.execution(begin, begin + 12 * MS, "caller")
        for call in range(2):
            at = begin + (1 if together else 1 + call * 5) * MS
            events.step(caller, events.execution(at, at + 5 * MS, "m"), call, BLS_REQUEST, model="caller")
    return events


def test_calls_that_could_be_made_at_the_same_time() -> None:
    [diagnosis] = found(calls(together=False), "sequential_calls", caller="", m="")
    assert (diagnosis.evidence["saved_ms"], diagnosis.evidence["latency_ms"]) == (5, 12)
    assert found(calls(together=True), "sequential_calls", caller="", m="") == []


def test_calls_whose_end_is_reported_late_follow_each_other() -> None:
    """Triton reports the end of a call after the response, when the next call was made already."""
    events = calls(together=False)
    for event in events.events:
        if isinstance(event, BatchExecuted) and event.model == "m":
            event.time_ns += MS
    assert len(found(events, "sequential_calls", caller="", m="")) == 1


def test_diagnosis_of_one_of_several_models_names_it() -> None:
    [single] = found(chain(1, 2, every_ms=4), "one_at_a_time", b="dynamic_batching { }")
    assert single.text.startswith("'b': Concurrency is 1")


def test_recording_of_one_model_has_no_diagnoses_of_its_pipelines() -> None:
    parsed = {name: pb.ModelConfig(name=name, max_batch_size=4) for name in ("caller", "m")}
    rec = Recording(calls(together=False).events, parsed)
    names = {diagnosis.name for diagnosis in rec.for_model("caller").diagnoses()}
    assert not names & {"bottleneck", "sequential_calls"}
    assert {event.rule for event in rec.events if isinstance(event, BatchSent)} == {INPUTS_READY}
    assert any(isinstance(event, BatchExecuted) for event in rec.events)
