"""Twins, predictions, plans and sweeps of pipelines: an ensemble and the models of its steps, as one system."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tritonnb as tnb
from tests.laws import law
from tritonnb.lab.analysis.interference import Company, Interference, companies
from tritonnb.lab.load.trial import SimulatedTrials
from tritonnb.lab.prediction.prediction import FIGURES
from tritonnb.lab.prediction.twin import Twin
from tritonnb.lab.simulation.calls import calling
from tritonnb.lab.simulation.service import Draw, Service, VaryingService
from tritonnb.model_config.read import read_config
from tritonnb.recording.arrivals import Arrival
from tritonnb.server.server import Server

CHAIN = """platform: "ensemble" max_batch_size: 4
    input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }
    ensemble_scheduling {
        step { model_name: "pre" model_version: -1 input_map { key: "X" value: "X" }
            output_map { key: "Y" value: "t" } }
        step { model_name: "net" model_version: -1 input_map { key: "X" value: "t" }
            output_map { key: "Y" value: "Y" } }
    }"""
MODELS = {
    "chain": CHAIN,
    "pre": "max_batch_size: 4 instance_group { count: 1 }",
    "net": "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 4000 } instance_group { count: 1 }",
}
TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'
TIMES: dict[str, Service] = {"pre": tnb.fixed(4), "net": tnb.fixed(11)}


def twin_of(rate: float, seconds: float) -> Twin:
    result: Twin = tnb.simulate(MODELS, tnb.poisson(rate, seconds, seed=1), TIMES).twin()
    return result


@pytest.fixture(scope="module")
def twin() -> Twin:
    return twin_of(120, 2)


@pytest.fixture(scope="module")
def exact() -> Twin:
    """The twin of a recording in which all batch sizes are frequent."""
    return twin_of(180, 6)


@law(20)
@given(
    edits=st.fixed_dictionaries(
        {},
        optional={
            "net": st.fixed_dictionaries({"count": st.integers(1, 3), "max_batch_size": st.integers(2, 4)}),
            "pre": st.fixed_dictionaries({"instance_count": st.integers(1, 2)}),
        },
    ),
    rate=st.integers(20, 220),
    seed=st.integers(0, 99),
)
def test_prediction_with_fixed_times_is_the_simulation(
    exact: Twin, edits: dict[str, dict[str, int]], rate: int, seed: int
) -> None:
    arrivals = tnb.poisson(rate, 0.3, seed=seed)
    if not arrivals:
        return
    models = exact.edited(models=edits)
    run, expected = models.simulated(arrivals, seed, typical=True), tnb.simulate(dict(models.configs), arrivals, TIMES)
    latencies_ns = [request.latency_ns for request in expected.pipelines["chain"].requests]
    assert sorted(run.requests.latency_ns.tolist()) == sorted(latencies_ns)
    for name, step in run.steps.items():
        assert step.batch_size.tolist() == [batch.size for batch in expected.batches if batch.model == name]


def test_prediction_has_figures_of_the_pipeline_and_of_each_step(twin: Twin) -> None:
    two = twin.predict({"net": {"count": 2}, "pre": {"count": 2}}, rate=150)
    one = twin.predict(rate=150)
    names = [f"{step}: {name}" for step in ("net", "pre") for name in ("mean_batch_size", "utilization")]
    assert list(two.ranges) == [*FIGURES, *names]
    assert two.latency_p99_ms.value < one.latency_p99_ms.value
    assert two.utilization == max((two.ranges[f"{step}: utilization"] for step in MODELS if step != "chain"),
                                  key=lambda found: found.value)  # fmt: skip
    assert one.ranges["net: mean_batch_size"].value > one.ranges["pre: mean_batch_size"].value == 1
    assert "net: 2 instances at the same time were not recorded" in repr(two)
    assert "150 requests/s were not recorded" in repr(two)
    assert "net: mean_batch_size" in repr(two)


def test_recording_without_an_edit_is_predicted(twin: Twin) -> None:
    prediction = twin.predict(arrivals=twin.arrivals())
    latencies_ms = [request.latency_ns / 1e6 for request in twin.recording.pipelines["chain"].requests]
    assert prediction.latency_p50_ms.value == pytest.approx(np.quantile(latencies_ms, 0.5), rel=0.02)
    assert len(twin.validation) == 8
    assert "parts, each predicted from the others" in repr(twin)


@pytest.mark.parametrize(
    ("models", "times", "rows", "per_s"),
    [
        (MODELS, TIMES, 1, 250),  # "pre" executes one request in 4 ms
        (MODELS, TIMES, 3, 1000 / 11),  # two requests of three rows do not share a batch of "net"
        (MODELS | {"pre": "max_batch_size: 4 instance_group { count: 3 }"}, TIMES, 1, 4000 / 11),
        (
            {"caller": "instance_group { count: 2 }", "net": "instance_group { count: 1 }"},
            {"caller": calling(["net", "net"], before_ms=1, between_ms=2), "net": tnb.fixed(10)},
            *(1, 50),
        ),
        (  # the only instance waits
            {"caller": "instance_group { count: 1 }", "net": "instance_group { count: 4 }"},
            {"caller": calling(["net", "net"], before_ms=1, between_ms=4), "net": tnb.fixed(10)},
            *(1, 40),
        ),
    ],
)
def test_capacity_of_a_pipeline_is_what_it_completes_under_overload(
    models: dict[str, str], times: dict[str, Service], rows: int, per_s: float
) -> None:
    rec = tnb.simulate(models, tnb.poisson(0.5 * per_s, 80 / per_s, seed=1, rows=rows), times)
    assert rec.twin().models.capacity() == pytest.approx(per_s, rel=0.05)
    if "chain" in models:
        configs = {name: read_config(models[name]) for name in ("pre", "net", "chain")}
        for name, config in configs.items():
            config.name = name
        found = SimulatedTrials(None, 0, times).capacity(configs, [Arrival(0, rows)] * 1000)
        assert found == pytest.approx(per_s, rel=0.02)


class Beside(VaryingService):
    """Times on a machine on which the models of a pipeline slow each other down."""

    def __init__(self, ms: float, company: Company) -> None:
        self.function = tnb.fixed(ms)
        self.company = company

    def draws(self, seed: int) -> Draw:
        times = tnb.jittered(self.function, sigma=0.1).draws(seed)
        return self.company.reporting(lambda rows, now, *rest: times(rows, now, *rest) * self.company.slow_down(now))


def shared_machine(factors: Mapping[str, float]) -> dict[str, Service]:
    """The times of the chain; each model is slower by a factor while the other one is executed."""
    others = {"pre": "net", "net": "pre"}
    truth = {name: {others[name]: Interference(factor, 0.0, 99, 99)} for name, factor in factors.items()}
    beside = companies(truth)
    return {"pre": Beside(4, beside["pre"]), "net": Beside(11, beside["net"])}


def test_interference_is_learned_from_what_ran_at_the_same_time() -> None:
    factors = {"pre": 1.5, "net": 1.0}
    rec = tnb.simulate(MODELS, tnb.poisson(60, 8, seed=1), shared_machine(factors))
    twin = rec.twin()
    for (model, _), one in twin.interference.pairs.items():
        assert one.factor == pytest.approx(factors[model], rel=0.05)
        assert one.is_known
        assert one.beside + one.without == sum(1 for known in twin.times_of(model).executions if not known.first)
    assert twin.range_ms(1, "pre").value == pytest.approx(4, rel=0.05)  # alone
    assert f"{twin.interference.pairs['pre', 'net'].factor:.2f}" in repr(twin.interference)
    assert "<table" in twin.interference._repr_html_()
    arrivals = tnb.poisson(110, 8, seed=2)
    later = tnb.simulate(MODELS, arrivals, shared_machine(factors), keep="summary")
    p50_ms = np.median([np.median(twin.models.simulated(arrivals, n).requests.latency_ns) for n in range(5)]) / 1e6
    assert p50_ms == pytest.approx(later["latency_p50_ms"], rel=0.05)


def test_pair_that_was_never_seen_together_widens_the_range() -> None:
    alone = tnb.simulate(MODELS, tnb.constant(20, 6), TIMES).twin()
    assert alone.interference.never_together == [("net", "pre"), ("pre", "net")]
    assert "not known: never at the same time" in repr(alone)
    arrivals = tnb.poisson(110, 2, seed=1)
    prediction = alone.predict(arrivals=arrivals)
    assert "net and pre were never executed at the same time" in prediction.remarks[-1]
    one_way = tnb.simulate(MODELS, tnb.constant(80, 2), {"pre": tnb.fixed(4), "net": tnb.fixed(11)}).twin().predict()
    assert one_way.remarks[-1].startswith("net never began beside pre: ")
    known = tnb.simulate(MODELS, arrivals, TIMES).twin().predict(arrivals=arrivals)
    assert not any("never executed" in remark for remark in known.remarks)
    found, other = prediction.latency_p50_ms, known.latency_p50_ms
    assert found.high - found.low > 1.5 * (other.high - other.low)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda twin: twin.predict(count=2),
         "predict expected fields by model, such as {'net': {...}}, got count without a model"),
        (lambda twin: twin.predict({"other": {"count": 2}}),
         "predict expected edits of pre, net, chain, got edits of 'other'"),
        (lambda twin: twin.predict({"net": 2}),
         "models expected a dict of dicts or None, got {'net': 2}"),
        (lambda twin: twin.predict({"net": {"counts": 2}}), "model 'net': the configuration has no field 'counts'"),
        (lambda twin: twin.range_ms(1), "twin expected the name of a step, one of net, pre, got None"),
        (lambda twin: twin.plan("p99 < 50 ms", {"other": {"count": [1]}}, rate=9),
         "plan expected values for net, pre, got some for 'other'"),
        (lambda twin: twin.plan("p99 < 9 ms", rate=90),
         "plan: expected a combination with p99 < 9 ms, got none of 2: an execution alone takes of net 11.00 "),
    ],
)  # fmt: skip
def test_mistake_is_named(twin: Twin, call: Any, text: str) -> None:
    with pytest.raises(tnb.TritonError) as refusal:
        call(twin)
    assert str(refusal.value).startswith(text)


def test_batch_size_that_the_ensemble_exceeds_is_refused() -> None:
    models = {name: config if name == "chain" else f"{TENSORS} {config}" for name, config in MODELS.items()}
    rec = tnb.simulate(models, tnb.poisson(100, 0.5, seed=1), TIMES)
    for call in (rec.what_if, rec.twin().predict):
        with pytest.raises(tnb.TritonError, match="allows maximum batch size 4, but it contains model net"):
            call({"net": {"max_batch_size": 2}})


def test_model_that_calls_others_is_predicted_with_the_calls_that_it_made() -> None:
    times: dict[str, Service] = {"caller": calling(["net", "net"], before_ms=1, between_ms=2), "net": tnb.fixed(10)}
    models = {"caller": "instance_group { count: 2 }", "net": "instance_group { count: 1 }"}
    twin = tnb.simulate(models, tnb.poisson(40, 1, seed=1), times).twin()
    arrivals = tnb.poisson(60, 1, seed=2)
    edited = twin.edited(models={"net": {"count": 2}, "caller": {"count": 3}})
    expected = tnb.simulate(dict(edited.configs), arrivals, times).pipelines["caller"].requests
    run = edited.simulated(arrivals, 0)
    assert sorted(run.requests.latency_ns.tolist()) == sorted(request.latency_ns for request in expected)
    assert {"net: utilization", "caller: utilization"} < twin.predict(rate=50).ranges.keys()


def test_single_model_takes_edits_by_model_too() -> None:
    twin = tnb.simulate('name: "m" max_batch_size: 4', tnb.poisson(100, 2, seed=1), tnb.fixed(5)).twin()
    assert repr(twin.predict({"m": {"count": 2}})) == repr(twin.predict(count=2))
    assert twin.interference.pairs == {}


def test_plan_gives_replicas_of_the_whole_pipeline(twin: Twin) -> None:
    plan = twin.plan("p99 < 300 ms", {"net": {"count": [2], "max_queue_delay_microseconds": [0]}}, rate=300)
    assert plan.best.replicas == 2  # an instance of pre executes 250 requests/s
    assert plan.best.instances == 6
    assert plan.verdict().endswith(
        "2 replicas with 3 instances each, net: count 2, net: max_queue_delay_microseconds 0."
    )
    assert plan.limit.startswith(("the instances of '", "requests wait although the instances of '"))


def test_all_steps_of_a_request_are_executed_on_one_replica() -> None:
    rec = tnb.simulate(MODELS, tnb.poisson(300, 1, seed=1), TIMES, replicas=3)
    server_of = {batch.number: batch.instance.partition(":")[0] for batch in rec.batches}
    servers = [
        {server_of[step.record.batch] for step in request.steps if step.record is not None}
        for request in rec.pipelines["chain"].requests
    ]
    assert all(len(names) == 1 for names in servers)
    assert len({name for names in servers for name in names}) == 3


SLEEPS = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep({seconds})
        arrays = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]) for array in arrays]
"""


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the ensemble, of two models that sleep."""
    repository = tmp_path_factory.mktemp("chain")
    for name, config in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        text = config if name == "chain" else f'backend: "python" {TENSORS} {config}'
        (repository / name / "config.pbtxt").write_text(text)
        (repository / name / "1" / "model.py").write_text(SLEEPS.format(seconds=0.004 if name == "pre" else 0.007))
    with tnb.Server(repository, port=0) as server:
        yield server


def test_prediction_is_verified_with_changes_of_two_steps(chain: Server) -> None:
    before = {name: chain[name].config.text for name in ("pre", "net")}
    recording = tnb.load(chain["chain"], rate=80, arrivals="poisson", requests=120, seed=1).wait().recording
    assert recording is not None
    edits = {"net": {"max_queue_delay_microseconds": 20_000}, "pre": {"count": 2}}
    result = recording.twin().verify(chain["chain"], edits)
    assert {name: chain[name].config.text for name in before} == before
    assert result.edits == edits
    assert [name for name in result.measured if ": " in name] == ["net: mean_batch_size", "pre: mean_batch_size"]
    assert result.measured["net: mean_batch_size"] > 1.4  # with the delay
    assert result.prediction.ranges["net: mean_batch_size"].value == pytest.approx(
        result.measured["net: mean_batch_size"], rel=0.25
    )
    assert result.by_server
    assert result.arrived is not None
    assert len(result.plot().axes) == 1


def test_sweep_gives_the_instance_to_the_step_that_needs_it(chain: Server) -> None:
    values = {name: {"count": [1, 2, 3]} for name in TIMES}
    result = tnb.sweep(chain, "chain", values, rate=150, requests=400, service=TIMES, instances=4).wait()
    assert len(result.trials) == 6  # 1+1, 1+2, 1+3, 2+1, 2+2, 3+1
    assert result.best.edits == {"net: count": 2, "pre: count": 2}
    assert result.apply() == "pre: in place, net: in place"
    assert chain["net"].config.instance_group[0].count == 2
    for name in TIMES:
        chain[name].config.instance_group[0].count = 1
        chain[name].config.apply()
    with pytest.raises(tnb.TritonError, match="got the ensemble 'chain'"):
        result.load_curves()
    delays = tnb.sweep(chain, "chain", rate=150, requests=100, service=TIMES, instances=3).wait().trials
    assert [trial.edits["net: max_queue_delay_microseconds"] for trial in delays].count(4000) == len(delays) // 2 == 3


def test_live_sweep_measures_the_promising_combinations_of_steps(chain: Server) -> None:
    before = {name: chain[name].config.text for name in ("pre", "net")}
    values = {"net": {"count": [1, 2]}, "pre": {"count": [1, 2]}}
    result = tnb.sweep(chain, "chain", values, rate=120, requests=80, live=True, seed=1).wait()
    assert {name: chain[name].config.text for name in before} == before
    measured = [trial for trial in result.trials if not trial.predicted]
    assert 2 <= len(measured) < 4
    assert result.running.recording is not None
    assert result.running.recording.pipelines["chain"].requests


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"count": [1]},
         "sweep expected values by model, such as {'pre': {'count': [1, 2]}}, got count without a model"),
        ({"models": {"other": {"count": [1]}}}, "sweep expected values for pre, net, got some for 'other'"),
        ({}, "sweep expected at least one field with a list of values, such as {'net': {'count': [1, 2]}}, or instan"),
        ({"instances": 10**12}, "sweep expected at most 2000 combinations of values, got more with at most"),
        ({"models": {name: {"count": range(1999, 0, -1)} for name in ("pre", "net")}, "instances": 4},
         "sweep expected at most 2000 combinations of values, got more with at most 4 instances"),
        ({"instances": 1}, "sweep expected at least one combination of values, got none with at most 1 instance"),
        ({"models": {"net": {"count": [3]}}, "instances": 3},
         "sweep expected at least one combination of values, got none with at most 3 instances"),
        ({"models": {"net": {"count": [2]}}, "service": tnb.fixed(5)},
         "sweep expected service times of pre, net, got some of chain"),
    ],
)  # fmt: skip
def test_mistake_in_a_sweep_is_named(chain: Server, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(tnb.TritonError) as refusal:
        tnb.sweep(chain, "chain", rate=50, **arguments)
    assert text in str(refusal.value)
