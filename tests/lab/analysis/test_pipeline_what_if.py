"""What-if of pipelines: the recorded requests of an ensemble, with edits of the models of its steps."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tritonnb as tnb
from tools.differential.random_pipelines import ENSEMBLE, RandomPipeline, batches_by_step, random_pipeline
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import BatchExecuted, EnsembleExecuted
from tritonnb.lab.analysis.pipeline_what_if import PipelineRerun
from tritonnb.lab.analysis.recorded_executions import RecordedExecution, with_company
from tritonnb.lab.simulation.service import Draw, VaryingService
from tritonnb.model_config.read import read_config
from tritonnb.recording.trace_source import TraceSource

pipelines = st.integers(0, 2**32).map(lambda seed: random_pipeline(random.Random(seed), requests=20))


def recorded(pipeline: RandomPipeline) -> tnb.Recording:
    return tnb.simulate(pipeline.configs, pipeline.arrivals, pipeline.services)


@given(pipelines)
def test_simulation_without_an_edit_is_the_recording(pipeline: RandomPipeline) -> None:
    rec = recorded(pipeline)
    comparison = rec.what_if({}, service=pipeline.services)
    assert batches_by_step(comparison.before) == batches_by_step(rec)
    assert comparison.differences == {}
    assert comparison.verdict() == "Without an edit: nothing changes."


def test_recorded_times_reproduce_the_recording() -> None:
    assert two_steps().what_if({}).differences == {}


def test_requests_are_simulated_unless_they_began_before_the_recording() -> None:
    """A server receives a request of an ensemble some microseconds before its first step, the first recorded event."""

    def received_earlier(event: Any) -> Any:
        return replace(event, received_ns=event.received_ns - 20_000) if isinstance(event, EnsembleExecuted) else event

    rec = two_steps()
    whole = tnb.Recording(map(received_earlier, rec.events), rec.configs)
    assert len(whole.what_if({}).recorded.pipelines["both"].requests) == len(rec.pipelines["both"].requests)
    second = rec.pipelines["both"].requests[1].steps[1]
    later = tnb.Recording((event for event in whole.events if event.time_ns >= second.received_ns), rec.configs)
    kept = later.what_if({}).recorded.pipelines["both"].requests
    assert all(len(request.steps) == 2 for request in kept)
    assert kept[0].received_ns > second.received_ns


@given(pipelines, st.integers(0, 10), st.integers(1, 3))
def test_edit_of_a_step_gives_what_a_simulation_of_the_edited_models_gives(
    pipeline: RandomPipeline, step: int, count: int
) -> None:
    name = f"m{step % len(pipeline.base_ms)}"
    after = recorded(pipeline).what_if({name: {"count": count}}, service=pipeline.services).after
    pipeline.configs[name].instance_group[0].count = count
    assert batches_by_step(after) == batches_by_step(recorded(pipeline))


def two_steps(**options: Any) -> tnb.Recording:
    steps = """platform: "ensemble" max_batch_size: 4
        input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }
        ensemble_scheduling {
            step { model_name: "pre" input_map { key: "I" value: "X" } output_map { key: "O" value: "t" } }
            step { model_name: "net" input_map { key: "I" value: "t" } output_map { key: "O" value: "Y" } }
        }"""
    models = {"both": steps, "pre": "max_batch_size: 4", "net": "max_batch_size: 4 dynamic_batching { }"}
    return tnb.simulate(models, tnb.constant(150, 1), {"pre": tnb.fixed(2), "net": tnb.fixed(20)}, **options)


def test_instance_helps_at_the_bottleneck_only() -> None:
    rec = two_steps()
    before = p99_ms(rec, {})
    assert p99_ms(rec, {"net": {"count": 2}}) < 0.9 * before
    assert p99_ms(rec, {"pre": {"count": 2}}) == pytest.approx(before, rel=0.02)


def p99_ms(rec: tnb.Recording, edits: dict[str, Any]) -> float:
    return next(after for name, _, after in rec.what_if(edits).table() if name == "latency p99 (ms)")


def test_verdict_and_table_name_the_steps() -> None:
    comparison = two_steps().what_if({"net": {"max_queue_delay_microseconds": 0, "count": 2}, "pre": {"count": 3}})
    assert comparison.verdict().startswith("With 'net' max_queue_delay_microseconds: 0, count: 2, 'pre' count: 3: ")
    assert "net: queue mean (ms)" in repr(comparison)
    assert "<table" in comparison._repr_html_()


def test_clients_of_a_step_stay_its_clients() -> None:
    pipeline = random_pipeline(random.Random(3))
    workload = {ENSEMBLE: pipeline.arrivals, "m0": [tnb.Arrival(ms=ms) for ms in range(0, 100, 10)]}
    rec = tnb.simulate(pipeline.configs, workload, pipeline.services)
    assert batches_by_step(rec.what_if({}, service=pipeline.services).before) == batches_by_step(rec)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda rec: rec.what_if({"other": {"count": 2}}),
         "what_if expected edits of pre, net, both, got edits of 'other'"),
        (lambda rec: rec.what_if({"net": 2}),
         "models expected a dict of dicts or None, got {'net': 2}"),
        (lambda rec: rec.what_if({"net": {"counts": 2}}), "model 'net': the configuration has no field 'counts'"),
        (lambda rec: rec.what_if({"net": {}}, count=2),
         "what_if expected edits by model or edits of one model, got ['net'] and ['count']"),
        (lambda rec: rec.what_if({"net": {}}, service=tnb.fixed(1)),
         "what_if expected service times by model with edits by model, got one time"),
        (lambda rec: rec.for_model("net").what_if({}), "what_if expected a recording of one pipeline, got none"),
    ],
)  # fmt: skip
def test_mistake_is_named(call: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        call(two_steps())
    assert str(refusal.value).startswith(text)


def test_simulation_that_does_not_reproduce_its_pipeline_says_why_and_what_it_rests_on() -> None:
    rec = two_steps()
    slower = rec.what_if({"net": {"count": 2}}, service={"net": tnb.fixed(50)})
    assert slower.verdict().startswith("The simulation does not reproduce the recording (within 10 % or 20 %): ")
    assert "Possible causes: 'pre': " not in slower.verdict()
    assert "'net': the execution times are the given ones, not the recorded ones" in slower.verdict()
    busy = two_steps(seed=1).what_if({}, service={"pre": tnb.fixed(1)})
    assert any("'net': its instances were" in cause for cause in busy.causes)
    assert "'net': batches of 1 row were not recorded." in repr(rec.what_if({"net": {"max_batch_size": 8}}))


def share_of(rerun: PipelineRerun) -> float:
    net = rerun.services["net"]
    assert isinstance(net, VaryingService)
    return net.gathering


class Gathering(VaryingService):
    """Times of a model whose idle batcher takes a share of the requests that come at the same time together."""

    def __init__(self, ms: float, share: float) -> None:
        self.function = tnb.fixed(ms)
        self.gathering = share

    def draws(self, seed: int) -> Draw:
        return lambda rows, *_: self.function(rows)


@pytest.mark.parametrize(("share", "sizes"), [(0.0, [1, 1, 1]), (1.0, [1, 2])])
def test_responses_of_a_batch_reach_the_next_step_together_as_recorded(share: float, sizes: list[int]) -> None:
    """The thread of a Triton's batcher wakes after the first response, or after all of them."""
    models = two_steps().configs | {"pre": read_config('name: "pre" max_batch_size: 4 dynamic_batching { }')}
    arrivals = [tnb.Arrival(ms=begin + ms) for begin in range(0, 300, 30) for ms in (0, 1, 2)]
    rec = tnb.simulate(models, arrivals, {"pre": tnb.fixed(9), "net": Gathering(2, share)})
    rerun = PipelineRerun(tnb.Recording(rec.events, rec.configs, source=TraceSource()))
    for run in (rec, rerun.run(rerun.configs)):
        assert [batch.size for batch in run.for_model("net").batches] == 10 * sizes
    assert share_of(rerun) == share
    assert share_of(PipelineRerun(rec)) == 0  # it takes the first request alone


def test_failures_and_slow_first_executions_are_possible_causes() -> None:
    rec = two_steps()
    [first, *_] = (event for event in rec.events if isinstance(event, BatchExecuted) and event.model == "net")

    def changed(event: Any) -> Any:
        if isinstance(event, BatchExecuted) and event.model == "pre":
            return replace(event, requests=tuple([(*request[:4], "BACKEND") for request in event.requests]))
        return replace(event, exec_start_ns=event.exec_start_ns - 400_000_000) if event is first else event

    causes = tnb.Recording(map(changed, rec.events), rec.configs).what_if({}).causes
    assert "'pre': 150 requests failed in its executions, and none does in a simulation" in causes
    assert "'net': the first execution of an instance took 420 ms: only the same batch repeats it" in causes


def test_execution_that_begins_while_another_one_ends_is_not_beside_it() -> None:
    """Triton reports the end of a step after the next step has begun: then all of them were together, none apart."""

    def execution(model: str, begin_ms: int, end_ms: int) -> RecordedExecution:
        ms = 1_000_000
        times = (begin_ms * ms, 1, (end_ms - begin_ms) * ms, 0, 1, 0.0, 0, 0, 0, False, 1)
        return RecordedExecution(*times, f"{model}_0_0")

    pre, net = (
        [execution("pre", 0, 101), execution("pre", 200, 301)],
        [execution("net", 100, 200), execution("net", 250, 350)],
    )
    assert [one.beside for one in with_company({"pre": pre, "net": net})["net"]] == [frozenset(), {"pre"}]
