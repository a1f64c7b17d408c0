"""Ensembles in virtual time: with the models of their steps, as on a server."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc.aio as grpcclient
from hypothesis import given
from hypothesis import strategies as st

import tritonnb as tnb
from tools.differential.pipelines import PipelineServer, compare
from tools.differential.random_pipelines import ENSEMBLE, RandomPipeline, random_pipeline, stable_pipeline
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import EnsembleExecuted, RequestArrived, RequestRefused, StepSent
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.telemetry.quantiles import quantile

TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'
PAIR = f"""platform: "ensemble" max_batch_size: 8 {TENSORS} ensemble_scheduling {{
    step {{ model_name: "a" input_map {{ key: "I" value: "X" }} output_map {{ key: "O" value: "t" }} }}
    step {{ model_name: "b" input_map {{ key: "I" value: "t" }} output_map {{ key: "O" value: "Y" }} }}
}}"""
BATCHING = "max_batch_size: 8 dynamic_batching { }"

pipelines = st.integers(0, 2**32).map(lambda seed: random_pipeline(random.Random(seed)))


def simulated(pipeline: RandomPipeline, **options: Any) -> Any:
    return tnb.simulate(pipeline.configs, pipeline.arrivals, pipeline.services, **options)


@given(pipelines)
def test_every_request_ends_once_and_runs_every_step_once(pipeline: RandomPipeline) -> None:
    rec = simulated(pipeline)
    clients = {e.serial for e in rec.events if isinstance(e, EnsembleExecuted)}
    assert Counter(e.serial for e in rec.events if isinstance(e, EnsembleExecuted)) == dict.fromkeys(clients, 1)
    assert len(clients) == len(pipeline.arrivals)
    steps = [step.model_name for step in pipeline.configs[ENSEMBLE].ensemble_scheduling.step]
    assert Counter((e.serial, e.step_model) for e in rec.events if isinstance(e, StepSent)) == {
        (serial, step): 1 for serial in clients for step in steps
    }
    assert [root.complete for root in rec.ensemble_requests] == [True] * len(pipeline.arrivals)
    assert [batch.number for batch in sorted(rec.batches, key=lambda batch: batch.number)] == [
        *range(1, len(rec.batches) + 1)
    ]
    assert Counter(request.model for request in rec.requests) == dict.fromkeys(steps, len(clients))


@given(pipelines)
def test_step_begins_when_the_last_tensor_that_it_reads_is_written(pipeline: RandomPipeline) -> None:
    steps = pipeline.configs[ENSEMBLE].ensemble_scheduling.step
    written_by = {tensor: step.model_name for step in steps for tensor in step.output_map.values()}
    for root in simulated(pipeline).pipelines[ENSEMBLE].requests:
        requests = {step.model: step for step in root.steps}
        for step in steps:
            ends = [requests[written_by[tensor]].ended_ns for tensor in step.input_map.values() if tensor in written_by]
            assert requests[step.model_name].received_ns == max([root.received_ns, *ends])
        assert root.ended_ns == max(request.ended_ns for request in root.steps)


@given(pipelines)
def test_what_is_kept_does_not_change_the_figures(pipeline: RandomPipeline) -> None:
    rec, summary = simulated(pipeline), simulated(pipeline, keep="summary")
    latencies = sorted(root.latency_ns for root in rec.pipelines[ENSEMBLE].requests)
    assert sorted(simulated(pipeline, keep="latencies").latency_ns.tolist()) == latencies
    rows = sum(arrival.rows for arrival in pipeline.arrivals)
    assert (summary["requests"], summary["rows"], summary["failed"]) == (len(pipeline.arrivals), rows, 0)
    assert summary["latency_p99_ms"] == pytest.approx(quantile([ns / 1e6 for ns in latencies], 0.99))


@given(pipelines)
def test_ensemble_of_one_step_is_its_model(pipeline: RandomPipeline) -> None:
    ensemble = pb.ModelConfig(name=ENSEMBLE)
    ensemble.CopyFrom(pipeline.configs[ENSEMBLE])
    del ensemble.ensemble_scheduling.step[1:]
    ensemble.ClearField("output")
    ensemble.output.add(name="t0", data_type="TYPE_FP32", dims=[1])
    models = {ENSEMBLE: ensemble, "m0": pipeline.configs["m0"]}
    alone = tnb.simulate(models["m0"], pipeline.arrivals, pipeline.services["m0"])
    inside = tnb.simulate(models, pipeline.arrivals, pipeline.services).for_model("m0")
    assert [(record.exec_start_ns, record.exec_end_ns, record.batch) for record in inside.requests] == [
        (record.exec_start_ns, record.exec_end_ns, record.batch) for record in alone.requests
    ]


def test_nested_ensemble_is_one_step() -> None:
    outer = f"""platform: "ensemble" max_batch_size: 8 {TENSORS} ensemble_scheduling {{
        step {{ model_name: "pair" input_map {{ key: "X" value: "X" }} output_map {{ key: "Y" value: "t" }} }}
        step {{ model_name: "b" input_map {{ key: "I" value: "t" }} output_map {{ key: "O" value: "Y" }} }}
    }}"""
    models = {"b": BATCHING, "outer": outer, "pair": PAIR, "a": BATCHING}
    rec = tnb.simulate(models, [(0, 1)], {"a": tnb.fixed(2), "b": tnb.fixed(5)})
    [root] = rec.pipelines["outer"].requests
    assert [(request.model, request.latency_ns // 10**6) for request in root.walk()] == [
        ("outer", 12), ("pair", 7), ("a", 2), ("b", 5), ("b", 5),
    ]  # fmt: skip


def test_full_queue_of_a_step_fails_the_request() -> None:
    limited = "max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    models = {"pair": PAIR.replace("max_batch_size: 8", "max_batch_size: 1"), "a": BATCHING, "b": limited}
    services = {"a": tnb.fixed(1), "b": tnb.fixed(50)}
    rec = tnb.simulate(models, [(0, 1)] * 4, services)
    refused = sum(isinstance(e, RequestRefused) for e in rec.events)
    assert Counter(e.failed for e in rec.events if isinstance(e, EnsembleExecuted)) == {
        "OTHER": refused,
        "": 4 - refused,
    }
    assert tnb.simulate(models, [(0, 1)] * 4, services, keep="summary")["failed"] == refused > 0


def test_cancelled_request_starts_no_further_step() -> None:
    models = {"pair": PAIR, "a": BATCHING, "b": BATCHING}
    arrival = tnb.Arrival(0, cancel_us=3000)
    rec = tnb.simulate(models, [arrival], {"a": tnb.fixed(10), "b": tnb.fixed(10)})
    assert {batch.model for batch in rec.batches} == {"a"}
    assert [e.failed for e in rec.events if isinstance(e, EnsembleExecuted)] == ["OTHER"]


def test_step_that_the_response_cache_answers_is_not_executed() -> None:
    models = {"pair": PAIR, "a": BATCHING, "b": BATCHING}
    services = {"a": tnb.fixed(10), "b": tnb.fixed(10)}
    arrivals = [
        tnb.Arrival(ms=ms, step_rows=cached) for ms, cached in ((0, None), (50, {"a": 0}), (90, {"a": 0, "b": 0}))
    ]
    rec = tnb.simulate(models, arrivals, services)
    again = rec.what_if({}, service=services)
    for run in (rec, again.before):
        assert [root.latency_ns // 10**6 for root in run.pipelines["pair"].requests] == [20, 10, 0]
        assert [batch.model for batch in run.batches] == ["a", "b", "b"]
        assert all(len(root.steps) == 2 and root.complete for root in run.pipelines["pair"].requests)
    assert again.differences == {}
    assert tnb.simulate(models, arrivals, services, keep="summary")["latency_p50_ms"] == 10


def test_clients_of_a_step_compete_with_the_ensemble() -> None:
    models = {"pair": PAIR, "a": BATCHING, "b": BATCHING}
    services = {"a": tnb.fixed(10), "b": tnb.fixed(10)}
    workload = {"pair": [(0, 1)], "b": [(8000, 1)]}
    rec = tnb.simulate(models, workload, services)
    assert [root.latency_ns // 10**6 for root in rec.pipelines["pair"].requests] == [28]
    loops = {"pair": tnb.ClosedLoop(clients=2, requests=10), "b": tnb.ClosedLoop(clients=1, requests=5)}
    closed = tnb.simulate(models, loops, services)
    assert Counter(e.model for e in closed.events if isinstance(e, RequestArrived)) == {"a": 10, "b": 15}
    assert len(closed.pipelines["pair"].requests) == 10


def test_repository_and_server_are_accepted(tmp_path: Path) -> None:
    for name, text in {"pair": PAIR, "a": BATCHING, "b": BATCHING}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(text)
    services = {"a": tnb.fixed(2), "b": tnb.fixed(5)}
    assert tnb.simulate(tmp_path, [(0, 1)], services, keep="summary")["latency_p50_ms"] == 7
    pipeline = random_pipeline(random.Random(1))
    with tnb.Server(port=0) as server:
        for name, sleep in (("first", 0.002), ("second", 0.004)):
            server.model(sleeping(sleep), name=name, max_batch_size=8)
        assert tnb.simulate(server, [(0, 1)], {"first": tnb.fixed(2)}, model="first", keep="summary")["requests"] == 1
    assert tnb.simulate(list(pipeline.configs.values()), pipeline.arrivals, pipeline.services).pipelines


def sleeping(seconds: float) -> Any:
    def model(X: tnb.FP32[1]) -> tnb.FP32[1]:
        time.sleep(seconds)
        return X

    return model


@pytest.mark.parametrize(
    ("models", "services", "options", "text"),
    [
        ({"pair": PAIR, "a": BATCHING}, {"a": tnb.fixed(1)}, {},
         "model 'pair': simulation expected the configuration of its step 'b', got none"),
        ({"pair": PAIR, "a": BATCHING, "b": BATCHING}, {"a": tnb.fixed(1)}, {},
         "model 'b': simulation expected its service time, got none"),
        ({"a": BATCHING, "b": BATCHING}, {"a": tnb.fixed(1), "b": tnb.fixed(1)}, {},
         "simulation expected the option model, one of a, b"),
        ({"a": BATCHING}, {"a": tnb.fixed(1)}, {"model": "c"}, "model expected one of a, got 'c'"),
        ({}, {"a": tnb.fixed(1)}, {},
         "simulation expected a model repository, a server, or a dict of configurations by name, got {}"),
        ({"a": 'name: "b"'}, {"a": tnb.fixed(1)}, {}, "model 'a': configuration expected the name 'a', got 'b'"),
        ({"pair": PAIR.replace('"a"', '"pair"'), "b": BATCHING}, {"b": tnb.fixed(1)}, {},
         "circular dependency between ensembles: pair -> ... -> pair -> pair"),
    ],
)  # fmt: skip
def test_impossible_pipeline_is_refused(models: Any, services: Any, options: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        tnb.simulate(models, {"pair": [(0, 1)]} if "pair" in models else [(0, 1)], services, **options)
    assert str(refusal.value) == text


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_live_server_forms_the_simulated_batches_in_every_step(number: int, tmp_path: Path) -> None:
    """Fresh pipelines; a run in which the machine was late is repeated."""
    options: dict[str, Any] = {"port": 0, "grpc_port": 0, "model_control_mode": "explicit"}

    async def outcome(address: str) -> str:
        async with grpcclient.InferenceServerClient(address) as client:
            return await compare(PipelineServer(client, tmp_path), stable_pipeline(random.Random()))

    with tnb.Server(tmp_path, **options) as server:
        assert asyncio.run(outcome(f"localhost:{server.grpc_port}")) in ("alike", "alike when repeated", "late")
