"""Blame of pipelines: every nanosecond of a latency has one step and one cause."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

import tritonnb as tnb
from tests.engine.ensembles import TENSORS, ensemble_source
from tests.laws import law
from tests.recording.test_pipelines import Events, trees
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.pipeline_blame import CAUSES, PipelineBlame
from tritonnb.recording.pipelines import PipelineRequest
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import BLS_REQUEST

CONFIGS = {
    name: text_format.Parse(f'name: "{name}" max_batch_size: 8', pb.ModelConfig()) for name in ("m", "e", "caller")
}


def assert_sums(rec: Recording, request: PipelineRequest) -> None:
    blame = rec.blame(request)
    assert isinstance(blame, PipelineBlame)
    [intervals] = blame.intervals
    assert sum(blame.steps.values()) == sum(sum(parts.values()) for parts in blame.parts.values()) == request.latency_ns
    assert all(before.end_ns == after.begin_ns for before, after in itertools.pairwise(intervals))
    assert {part.cause for part in intervals} <= CAUSES.keys()


@given(trees())
def test_causes_of_pipelines_of_any_shape_sum_to_the_latency(events: Events) -> None:
    rec = Recording(events.events, CONFIGS)
    for root in rec.ensemble_requests:
        for request in root.walk():
            assert_sums(rec, request)


def test_model_waits_for_its_calls_and_the_calls_have_causes() -> None:
    events = Events()
    caller = events.execution(0, 100, "caller")
    for span in ((10, 40), (30, 80)):
        events.step(caller, events.execution(*span), rule=BLS_REQUEST, model="caller")
    rec = Recording(events.events, CONFIGS)
    blame = rec.blame(caller)
    assert isinstance(blame, PipelineBlame)
    assert blame.parts == {(): {"compute_infer": 50}, ("m",): {"compute_infer": 50}}
    assert blame.meaning_of(("m",)) == "'caller' waited for 'm'"
    assert isinstance(rec.blame(), PipelineBlame)


def test_steps_of_one_model_have_their_numbers() -> None:
    events = Events()
    root = events.ensemble(0, 100)
    for number, span in enumerate(((10, 40), (50, 80))):
        events.step(root, events.execution(*span), number)
    blame = Recording(events.events, CONFIGS).blame(root)
    assert isinstance(blame, PipelineBlame)
    assert blame.steps == {(): 40, ("m (step 0)",): 30, ("m (step 1)",): 30}


def test_question_about_one_of_several_pipelines_names_it() -> None:
    events = Events()
    for model in ("e", "caller"):
        root = events.ensemble(0, 100, model=model)
        events.step(root, events.execution(10, 20), model=model)
    rec = Recording(events.events, CONFIGS)
    with pytest.raises(InvalidArgumentError, match=r"pass rec.pipelines\['caller'\] or rec.pipelines\['e'\]"):
        rec.blame(percentile=50)
    tail = rec.blame(rec.pipelines["e"], percentile=50)
    assert isinstance(tail, PipelineBlame)
    assert [request.model for request in tail.requests] == ["e"]


def served_pipeline(rng: random.Random) -> Recording:
    """Record an ensemble of random functions with random batching, in which one may call another."""
    with tnb.Server(port=0) as server:

        def serve(name: str, other: str | None) -> None:
            pause_s, batching = rng.uniform(0, 0.004), rng.choice([{}, {"max_queue_delay_microseconds": 2000}, None])

            @server.model(name=name, max_batch_size=4, dynamic_batching=batching, count=rng.choice([1, 2]))
            def step(X: tnb.FP32[1]) -> tnb.FP32[1]:
                time.sleep(pause_s)
                return server[other](X=X)["OUTPUT"] if other else X

        names = [f"m{number}" for number in range(rng.randint(2, 4))]
        for place, name in enumerate(names):
            serve(name, rng.choice([None, *names[:place]]))
        last = len(names) - 1
        steps = [
            f"{name}: {'X' if not n else f't{n}'} -> {'Y' if n == last else f't{n + 1}'}"
            for n, name in enumerate(names)
        ]
        source = ensemble_source(*steps, tensors=TENSORS.replace("INT32", "FP32"), batch=4)
        for ensemble_step in source.config.ensemble_scheduling.step:
            ensemble_step.output_map["OUTPUT"] = ensemble_step.output_map.pop("Y")
        server.run(server.engine.load_source(source))

        async def drive() -> None:
            requests = (server["e"].infer_async(X=np.ones((rng.randint(1, 3), 1), np.float32)) for _ in range(12))
            await asyncio.gather(*requests)

        with server.record() as rec:
            asyncio.run(drive())
    return rec


@pytest.mark.parametrize("number", range(4))
def test_causes_of_served_pipelines_sum_to_the_latency(number: int, tmp_path: Path) -> None:
    rec = served_pipeline(random.Random())
    requests = rec.pipelines["e"].requests
    assert len(requests) == 12
    for request in requests:
        assert_sums(rec, request)
    tail = rec.blame(percentile=50)
    assert "sums of all" in repr(tail)
    assert isinstance(tail, PipelineBlame)
    assert len(tail.remedies) == len({batch.model for batch in rec.batches})
    rec.to_html(tmp_path / "page.html")
    assert 'aria-label="pipeline e"' in (tmp_path / "page.html").read_text("utf-8")


STEPS = """platform: "ensemble" max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling { %s }"""
MODELS = ("pre", "net", "post")


@st.composite
def simulated_pipelines(draw: st.DrawFn) -> Recording:
    """Return a simulated recording of a chain with random batching, times and arrivals, and of other clients."""
    names = MODELS[: draw(st.integers(1, 3))]
    tensors = ["X", *[f"t{number}" for number in range(1, len(names))], "Y"]
    step = 'step { model_name: "%s" input_map { key: "I" value: "%s" } output_map { key: "O" value: "%s" } }'
    steps = [step % (name, *tensors[number : number + 2]) for number, name in enumerate(names)]
    batching = st.sampled_from(["", "dynamic_batching { }", "dynamic_batching { max_queue_delay_microseconds: 900 }"])
    count = st.sampled_from(["", "instance_group { count: 2 kind: KIND_CPU }"])
    models = {name: f"max_batch_size: 8 {draw(batching)} {draw(count)}" for name in names}
    services = {name: tnb.linear(draw(st.integers(0, 3)), draw(st.integers(1, 4))) for name in names}
    gaps = draw(st.lists(st.integers(0, 3000), min_size=1, max_size=20))
    arrivals = [tnb.Arrival(us=us, rows=draw(st.integers(1, 4))) for us in itertools.accumulate(gaps)]
    clients = {"all": arrivals, names[-1]: [tnb.Arrival(us=us + 1) for us in gaps[:3]]}
    return tnb.simulate({"all": STEPS % " ".join(steps)} | models, clients, services, model="all")


@given(simulated_pipelines())
@law(40)
def test_causes_of_simulated_pipelines_sum_to_the_latency(rec: Recording) -> None:
    assert len({batch.number for batch in rec.batches}) == len(rec.batches)
    for request in rec.pipelines["all"].requests:
        assert_sums(rec, request)


def two_steps() -> Recording:
    step = 'step { model_name: "%s" input_map { key: "I" value: "%s" } output_map { key: "O" value: "%s" } }'
    steps = STEPS % (step % ("pre", "X", "t") + step % ("net", "t", "Y"))
    models = {"all": steps, "pre": "max_batch_size: 8", "net": "max_batch_size: 8 dynamic_batching { }"}
    arrivals = [tnb.Arrival(ms=4 * number) for number in range(60)]
    return tnb.simulate(models, arrivals, {"pre": tnb.fixed(6), "net": tnb.fixed(10)})


def test_remedies_name_the_step_that_needs_an_instance() -> None:
    rec = two_steps()
    blame = rec.blame(percentile=90)
    assert isinstance(blame, PipelineBlame)
    basis = "(simulated; 2 instances at the same time were not recorded)"
    assert blame.remedies == (
        f"2 instead of 1 instance of 'pre': p90 128.2 → 26.0 ms {basis}",
        f"2 instead of 1 instance of 'net': no effect {basis}",
    )
    assert "of 'net': no effect" in repr(blame)
