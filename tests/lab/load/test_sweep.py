"""Sweeps find the best configuration: in virtual time, where the answer is known, and live."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
import threading
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tritonnb as tnb
from tests.lab.conftest import FLAT, Gate
from tests.lab.prediction.recommended_rates import of_sweep
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.constraint import Constraint, measure
from tritonnb.lab.analysis.sustained import executed_rate, overload, requests_of_run
from tritonnb.lab.load import trial
from tritonnb.lab.load.running_sweep import Configs, Grid, Sweep, SweepPlan
from tritonnb.lab.load.trial import SimulatedTrials, Stopping, Trial, virtual_arrivals
from tritonnb.lab.load.workload import WorkloadOptions, workload
from tritonnb.lab.simulation.run import capacity as full_rate
from tritonnb.lab.simulation.service import Service
from tritonnb.model_config.read import read_config
from tritonnb.recording.arrivals import Arrival
from tritonnb.server.server import Server

EXAMPLES = Path(__file__).parents[3] / "model_repository"


@pytest.mark.usefixtures("short_searches")
def test_sweep_with_only_a_constraint_finds_the_highest_rate(server: Server) -> None:
    result = tnb.sweep(server["held"], max_batch_size=[1, 4, 8], constraint="p99 < 100 ms", **FLAT).wait()
    assert [trial.edits["max_batch_size"] for trial in result.trials] == [8, 4, 1]
    assert all(trial.meets and trial.percentile(99) <= 100 for trial in result.trials)
    rates = [trial.rate for trial in result.trials]
    assert all(0.6 * limit < rate < limit for rate, limit in zip(rates, (800, 400, 100), strict=True))
    assert result.running.rate == rates[0]  # which has max_batch_size 8, too


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_recommended_rates_are_sustained() -> None:
    """The law allows 5 % of the cases to exceed the bound by more than 5 %: of two fresh ones, one may."""
    excesses = {seed: of_sweep(seed) for seed in random.sample(range(10**6), 2)}
    assert sum(excess > 1.05 for excess in excesses.values()) <= 1, excesses


FIXED, LINEAR = tnb.fixed(10), tnb.linear(per_row_ms=1, base_ms=5)


@pytest.mark.parametrize(
    ("bound_ms", "service", "count"), [(25, FIXED, 1), (60, FIXED, 2), (25, LINEAR, 2), (40, LINEAR, 1)]
)
def test_rate_at_99_percent_of_the_capacity_is_not_recommended(
    server: Server, bound_ms: float, service: Service, count: int
) -> None:
    result = tnb.sweep(
        server["held"], constraint=f"p99 < {bound_ms} ms", count=[count], service=service, requests=500
    ).wait(timeout=300)
    for found in result.trials:
        arrivals = tnb.poisson(rate=found.rate, duration=30_000 / found.rate, seed=1)
        kept = tnb.simulate(found.config, arrivals, service, keep="latencies")
        assert measure(kept.latency_ns / 1e6, "p99") <= 1.05 * bound_ms
        assert 0.4 < found.capacity_share <= 0.9
    assert "% of the capacity)" in result.verdict()
    assert "of capacity" in repr(result)


@pytest.mark.parametrize(
    ("batcher", "count", "requests", "capacity"),
    [
        ("dynamic_batching { }", 1, [Arrival(0, 5)], 100),  # a second request of five rows does not fit
        ("dynamic_batching { }", 2, [Arrival(0, 3)], 400),
        ("dynamic_batching { }", 16, [Arrival(0)], 12_800),
        ("dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 50000 }", 1, [Arrival(0)], 800),
        ("dynamic_batching { default_queue_policy { max_queue_size: 9 } }", 1, [Arrival(0)], 800),
        ("", 1, [Arrival(0, 2)], 100),
        ("sequence_batching { }", 1, tnb.sequences([3000, 3000], every_ms=1), 200),  # two of eight slots are used
        ("sequence_batching { iterative_sequence: true oldest { } }", 1, [Arrival(0, steps=2)], 400),
    ],
)
def test_capacity_is_what_instances_execute_under_overload(
    batcher: str, count: int, requests: list[Arrival], capacity: float
) -> None:
    config = read_config(f"max_batch_size: 8 {batcher} instance_group {{ count: {count} }}")
    sent = requests if len(requests) > 1 else requests * requests_of_run(config, requests[0].rows, 30, (500, 40_000))
    most = full_rate(config, tnb.fixed(10), sent[0].rows) / sent[0].rows
    kept = tnb.simulate(config, overload(sent, most), tnb.fixed(10), keep="latencies")
    assert executed_rate(kept, sent) == pytest.approx(capacity, rel=0.02)


@pytest.mark.parametrize("quantity", ["p50", "p90", "p95", "p99", "p99.9", "mean", "max"])
def test_constrained_quantity_is_shown_and_satisfies_the_constraint(server: Server, quantity: str) -> None:
    result = tnb.sweep(server["held"], count=[1, 2], constraint=f"{quantity} < 60 ms", rate=100, **FLAT).wait()
    best = result.best
    assert best.quantity(quantity) <= 60
    if quantity != "p50":  # as always in the table
        assert f"{quantity} {best.quantity(quantity):.2f} ms" in result.verdict()
    assert f"{quantity} ms" in repr(result).splitlines()[1]
    assert "p99 ms" in repr(result).splitlines()[1]


@pytest.mark.usefixtures("short_searches")
def test_best_configuration_improves_on_the_running_one(server: Server) -> None:
    result = tnb.sweep(server["held"], max_batch_size=[16, 32], constraint="p99 < 100 ms", **FLAT).wait()
    assert result.best is result.trials[0]
    assert result.verdict().startswith("Best of 2 configurations: max_batch_size 32: ")
    assert "Running: " in result.verdict()


@pytest.mark.usefixtures("short_searches")
@pytest.mark.parametrize(
    ("fields", "traffic", "compared"),
    [
        ({"max_batch_size": [1, 4]}, {"clients": 8}, "2 others is within"),  # 4 loses as much as its last batch
        ({"max_batch_size": [1, 2]}, {"clients": 8}, "2 others is worse, by more than"),
        ({"max_batch_size": [1, 4]}, {"constraint": "p99 < 100 ms"}, "2 others is worse, by more than"),
        ({"max_batch_size": [8, 9]}, {"rate": 20}, "1 others is within"),  # 8 is the running one
        ({"max_queue_delay_microseconds": [10]}, {"rate": 20}, "1 others is worse, by more than"),
        ({"max_queue_delay_microseconds": [60_000]}, {"rate": 20}, "1 others is worse, by more than"),
    ],
)
def test_only_improvements_are_recommended(
    server: Server, fields: dict[str, Any], traffic: dict[str, Any], compared: str
) -> None:
    result = tnb.sweep(server["held"], **fields, **traffic, **FLAT).wait()
    assert result.best is result.running
    assert result.verdict().startswith("Keep the running configuration: ")
    assert f"The best of {compared} the measurement noise of 1%" in result.verdict()
    assert result.apply() == "unchanged"


def test_difference_within_the_measurement_noise_is_not_reported(server: Server) -> None:
    result = tnb.sweep(server["held"], max_batch_size=[9], clients=64, **FLAT).wait()
    assert result.best is result.trials[0]
    gain = result.best.rate / result.running.rate - 1
    unsure = dataclasses.replace(result, noise=1.1 * gain)
    assert unsure.best is unsure.running


def test_only_the_running_configuration_may_obey_the_constraint(server: Server) -> None:
    result = tnb.sweep(server["held"], max_batch_size=[1], constraint="p99 < 50 ms", rate=300, **FLAT).wait()
    assert result.best is result.running
    assert result.verdict().startswith("None of 1 configurations satisfies p99 < 50 ms; the best: max_batch_size 1")
    assert "Keep the running configuration: " in result.verdict()


def test_delay_that_violates_the_constraint_is_not_the_best(server: Server) -> None:
    delays = [0, 5_000, 200_000]
    result = tnb.sweep(
        server["held"], max_queue_delay_microseconds=delays, constraint="p99 < 50 ms", rate=20, **FLAT
    ).wait()
    assert [trial.edits["max_queue_delay_microseconds"] for trial in result.trials] == delays
    assert [trial.meets for trial in result.trials] == [True, True, False]


def test_equal_configurations_prefer_fewer_instances(server: Server) -> None:
    result = tnb.sweep(server["held"], count=[3, 2], arrivals=[(0, 1), (1_000, 1)], **FLAT).wait()
    assert [trial.edits["count"] for trial in result.trials] == [2, 3]


def test_every_combination_is_tried_under_the_same_traffic(server: Server) -> None:
    result = tnb.sweep(server["held"], max_batch_size=[1, 8], count=[1, 2], clients=64, **FLAT).wait()
    assert len(result.trials) == 4
    assert {len(trial.latencies_ms) for trial in result.trials} == {400}
    assert result.best.edits == {"max_batch_size": 8, "count": 2}
    assert result.best.rate == pytest.approx(1600, rel=0.1)


def test_equal_seeds_find_the_same_result(server: Server) -> None:
    first, again = (tnb.sweep(server["held"], count=[1, 2], rate=150, seed=5, **FLAT).wait() for _ in range(2))
    assert repr(first) == repr(again)
    np.testing.assert_array_equal(first.best.latencies_ms, again.best.latencies_ms)


def test_sweep_can_find_no_configuration(server: Server) -> None:
    result = tnb.sweep(server["held"], count=[1, 2], constraint="p99 < 5 ms", rate=10, **FLAT).wait()
    assert result.verdict().startswith("None of 2 configurations satisfies p99 < 5 ms; the best: count 2")
    with pytest.raises(tnb.TritonError, match="None of 2 configurations"):
        result.apply()


def test_model_that_only_fails_can_be_swept_and_drawn(server: Server) -> None:
    @server.model(max_batch_size=8, dynamic_batching={})
    def fails(X: tnb.FP32[1]) -> tnb.FP32[1]:
        raise ValueError("no luck")

    result = tnb.sweep(server["fails"], count=[2, 1], rate=1000, requests=20, live=True).wait()
    assert result.verdict().startswith("None of 2 configurations satisfies the completion of all requests")
    assert [trial.edits["count"] for trial in result.trials] == [1, 2]
    result.plot()


@pytest.mark.usefixtures("short_searches")
def test_stateful_models_are_swept_with_sequences(server: Server) -> None:
    result = tnb.sweep(
        server["accumulate"], max_batch_size=[1, 4], constraint="p99 < 100 ms", sequence_length=5, **FLAT
    ).wait()
    assert result.trials[0].edits == {"max_batch_size": 4}


def test_live_sweep_restores_the_model(server: Server) -> None:
    before = server["held"].config.text
    result = tnb.sweep(server["held"], max_batch_size=[1, 4], clients=4, requests=40, live=True).wait()
    assert server["held"].config.text == before
    sizes = {trial.edits["max_batch_size"]: max(trial.recording.batch_sizes()) for trial in result.trials}
    assert sizes[1] == 1
    assert sizes[4] <= 4


def test_live_scheduler_decides_as_in_virtual_time() -> None:
    """A crowd that comes at once: which requests share a batch, on how many instances, and by which rule."""
    crowd, arrived, everybody = [(0, 1)] * 24, [], threading.Event()

    def count(packed: tuple[Any, ...]) -> None:
        if packed[0] == "RequestArrived":
            everybody.clear()
            arrived.append(packed)
            if len(arrived) % len(crowd) == 0:
                everybody.set()

    with Server(port=0) as server:
        server.call(server.engine.stream.attach, count)

        @server.model(max_batch_size=8, dynamic_batching={})
        def m(X: tnb.FP32[2]) -> tnb.FP32[2]:
            assert everybody.wait(60)  # as in virtual time nothing ends before everybody has come
            return X

        grid: dict[str, Any] = {"max_batch_size": [3, 8], "preferred_batch_size": [[2], [3]], "count": [1, 2]}
        virtual = tnb.sweep(server["m"], arrivals=crowd, service=tnb.fixed(10), **grid).wait()
        live = tnb.sweep(server["m"], arrivals=crowd, live="all", **grid).wait()

    def decisions(result: tnb.SweepResult) -> dict[str, list[tuple[int, str]]]:
        return {
            trial.edits_text(): sorted((batch.size, batch.reason.rule) for batch in trial.recording.batches)
            for trial in [result.running, *result.trials]
        }

    assert len(virtual.trials) == 8
    assert decisions(live) == decisions(virtual)


def test_sweep_runs_in_the_background_and_reports_progress(server: Server, gate: Gate) -> None:
    gate.close()
    sweep = tnb.sweep(server["held"], max_batch_size=[1, 4], clients=4, requests=40, live=True)
    assert gate.begun.wait(60)
    assert repr(sweep) == "<Sweep: 0 of 3 configurations tried>"
    assert not sweep.done
    with pytest.raises(tnb.TritonError, match="at least one tried configuration"):
        _ = sweep.result
    with pytest.raises(TimeoutError, match="sweep: 0 of 3 configurations tried"):
        sweep.wait(0)
    gate.open()
    assert len(sweep.wait(60).trials) == 2
    assert sweep.done
    assert repr(sweep) == repr(sweep.result)


def test_time_that_is_left_is_estimated_before_the_first_configuration_is_tried() -> None:
    configs, shown, begun = {"m": pb.ModelConfig(name="m")}, list[str](), threading.Event()
    grid: Grid = [({}, configs), ({"count": 2}, configs)]
    make_result: Any = lambda *_: SimpleNamespace(_repr_html_=str)  # noqa: E731

    def begin(stopping: Stopping) -> SweepPlan:
        def run_trial(edits: dict[str, object], configs: Configs) -> Trial:
            stopping.share = lambda: 0.25
            assert begun.wait(60)
            shown.append(sweep._progress())
            return Trial(edits, configs, 1.0, np.array([1.0]), 0, True, 1.0)

        return SweepPlan([run_trial])

    sweep = Sweep(grid, begin, make_result, None)
    begun.set()
    sweep.wait(60)
    assert [text.partition(" s left")[0].rstrip("0123456789") for text in shown] == [
        "0 of 2 configurations tried, about ",
        "1 of 2 configurations tried, about ",
    ]


def test_trials_say_how_much_of_them_is_done(server: Server) -> None:
    stopping = Stopping()
    model, configs = server["held"], {"held": read_config(server["held"].config.text)}
    trial.run_live_trial(model, {"clients": 1, "requests": 5}, None, stopping, {}, configs)
    assert stopping.share() == 1
    trials = SimulatedTrials(Constraint("p99 < 100 ms"), 0, {"held": tnb.fixed(10)})

    def arrivals(rate: float, seed: int, count: int) -> list[Arrival]:
        return [Arrival(ms=1000 * number / rate) for number in range(count)]

    trials.find_highest_rate(arrivals, math.inf, stopping, {}, configs)
    assert 0.4 < stopping.share() < 1


def test_stopped_sweep_keeps_its_trials_and_restores_the_model(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    before = server["held"].config.text
    tried, begun = trial.run_live_trial, threading.Event()
    sweeps: list[tnb.Sweep] = []

    def until_the_third(*args: Any) -> Any:
        begun.wait(60)
        if args[-2].get("max_batch_size") == 2:
            sweeps[0].stop()
        return tried(*args)

    monkeypatch.setattr("tritonnb.lab.load.trial.run_live_trial", until_the_third)
    sweeps.append(tnb.sweep(server["held"], max_batch_size=[1, 2, 4], clients=4, requests=40, live="all"))
    begun.set()
    result = sweeps[0].wait(60)
    sizes = [trial.edits["max_batch_size"] for trial in result.trials]
    assert 1 in sizes
    assert 4 not in sizes
    assert server["held"].config.text == before


def test_only_the_promising_configurations_of_a_live_sweep_are_measured(server: Server) -> None:
    @server.model(max_batch_size=8, dynamic_batching={})
    def sleeps(X: tnb.FP32[1]) -> tnb.FP32[1]:
        time.sleep(0.004)
        return X

    result = tnb.sweep(
        server["sleeps"], max_batch_size=[1, 2, 4, 8], count=[1, 2], clients=32, requests=320, live=True
    ).wait()
    measured = [trial.edits for trial in result.trials if not trial.predicted]
    assert len(measured) == 2
    assert not result.best.predicted  # which one it is depends on what else the machine does
    assert [trial.predicted for trial in result.trials] == [False] * 2 + [True] * 6
    assert f"Measured: {'; '.join(trial.edits_text() for trial in result.trials[:2])}" in result.verdict()
    assert "The other 5 were predicted." in result.verdict()  # the running configuration was measured
    running = {"max_batch_size": 8, "count": 1}  # is known, and not measured again
    assert running not in [trial.edits for trial in result.trials[:2]]
    assert "predicted" in repr(result)
    assert "predicted" in result.plot().alt


@pytest.mark.parametrize(
    ("service", "traffic"),
    [
        (tnb.linear(per_row_ms=0.5, base_ms=4), {"rate": 300}),
        (tnb.linear(per_row_ms=0, base_ms=10), {"clients": 24}),
        (tnb.linear(per_row_ms=2, base_ms=1), {"rate": 200}),
        (tnb.linear(per_row_ms=1, base_ms=20), {"clients": 24}),
    ],
)
def test_sweep_that_measures_the_promising_configurations_finds_the_winner_of_all(
    server: Server, monkeypatch: pytest.MonkeyPatch, service: Any, traffic: dict[str, Any]
) -> None:
    """The trials are in virtual time, where the winner is known; each has other execution times."""
    seeds = count()

    def in_virtual_time(*args: Any) -> Trial:
        _, load_options, constraint, _, edits, configs = args
        options = {name: value for name, value in load_options.items() if name in WorkloadOptions.__annotations__}
        arrivals = virtual_arrivals(workload(**options))
        trials = SimulatedTrials(constraint, next(seeds), {"held": tnb.jittered(service, sigma=0.05)})
        return trials.run(arrivals, edits, configs)

    monkeypatch.setattr("tritonnb.lab.load.trial.run_live_trial", in_virtual_time)
    grid: dict[str, Any] = {"max_batch_size": [1, 2, 4, 8], "max_queue_delay_microseconds": [0, 5000], "count": [1, 2]}
    every, some = (
        tnb.sweep(server["held"], requests=300, live=live, **grid, **traffic).wait() for live in ("all", True)
    )
    assert [trial.predicted for trial in some.trials].count(False) == 2
    best = next(trial for trial in every.trials if trial.edits == some.best.edits)
    if every.by_rate:
        assert best.rate >= 0.95 * every.best.rate
    else:
        assert best.percentile(99) <= 1.1 * every.best.percentile(99)


def test_all_configurations_are_measured_if_none_satisfies_the_constraint(server: Server) -> None:
    options: dict[str, Any] = {"count": [1, 2, 3], "rate": 200, "requests": 40, "live": True}
    result = tnb.sweep(server["held"], constraint="p99 < 1 us", **options).wait()
    assert [trial.predicted for trial in result.trials] == [False] * 3
    result = tnb.sweep(server["held"], constraint="p99 < 10 s", **options).wait()
    assert [trial.predicted for trial in result.trials] == [False] * 2 + [True]


def test_interrupt_stops_the_sweep_and_keeps_its_trials(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupts: list[int] = []

    def interrupt(sweep: tnb.Sweep) -> str:
        # The thread of the sweep calls it, too, to update what a notebook shows.
        if threading.current_thread() is not threading.main_thread():
            assert sweep.tried < 2 or sweep._stopping.wait(60)
        elif sweep.tried >= 2 and not interrupts:
            interrupts.append(sweep.tried)
            raise KeyboardInterrupt
        return ""

    monkeypatch.setattr(tnb.Sweep, "_progress", interrupt)
    sweep = tnb.sweep(server["held"], count=[1, 2, 3, 4], rate=100, **FLAT)
    with pytest.raises(KeyboardInterrupt):
        sweep.wait()
    assert interrupts == [2]
    assert len(sweep.wait(60).trials) < 4
    assert sweep.result.trials


def test_sweep_can_be_awaited(server: Server) -> None:
    async def waiting() -> int:
        return len((await tnb.sweep(server["held"], count=[1, 2], rate=10, **FLAT)).trials)

    assert asyncio.run(waiting()) == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"count": [1]}, "sweep expected a workload .* or constraint"),
        ({"count": [1], "constraint": "p99 < 5 ms", "live": True}, r"or arrivals=\), got neither"),
        ({"rate": 5}, "sweep expected at least one field with a list of values"),
        ({"rate": 5, "count": 2}, "count expected a list of values to try, got 2"),
        ({"rate": 5, "count": []}, r"count expected a list of values to try, got \[\]"),
        ({"rate": 5, "colour": [1]}, "no field 'colour'"),
        ({"rate": 5, "count": [1, 0]}, "count expected a number of instances of at least 1, got 0"),
        ({"rate": 5, "max_batch_size": [2], "preferred_batch_size": [[4]]}, "must be <= max batch size for held"),
        ({"rate": 5, "clients": 5, "count": [1]}, "rate cannot be combined with a closed loop"),
        ({"rate": 5, "count": [1], "constraint": "fast"}, "constraint expected bounds such as .*, got 'fast'"),
    ],
)
def test_wrong_arguments_are_reported_before_measuring(
    server: Server, arguments: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(tnb.TritonError, match=complaint):
        tnb.sweep(server["held"], **arguments)
    assert server["held"].stats()["inference_count"] == 0


def test_ensemble_is_loaded_and_swept_with_its_steps(tmp_path: Path) -> None:
    (tmp_path / "twice" / "1").mkdir(parents=True)
    (tmp_path / "twice" / "config.pbtxt").write_text(
        """
        platform: "ensemble" max_batch_size: 8
        input { name: "A" data_type: TYPE_FP32 dims: 4 } output { name: "B" data_type: TYPE_FP32 dims: 4 }
        ensemble_scheduling { step {
            model_name: "add_sub" model_version: -1
            input_map { key: "INPUT0" value: "A" } input_map { key: "INPUT1" value: "A" }
            output_map { key: "OUTPUT0" value: "B" }
        } }
        """
    )
    options: dict[str, Any] = {"model_control_mode": "explicit", "load_models": ["twice"]}
    with Server([EXAMPLES, tmp_path], port=0, **options) as server:
        recording = tnb.load(server["twice"], clients=2, requests=10).wait().recording
        assert recording is not None
        assert {batch.model for batch in recording.batches} == {"add_sub"}
        values = {"add_sub": {"max_batch_size": [16]}}
        swept = tnb.sweep(server["twice"], models=values, clients=1, requests=20).wait()
        assert [trial.edits_text() for trial in swept.trials] == ["add_sub: max_batch_size 16"]


@pytest.mark.parametrize("live", [False, True])
def test_model_that_calls_others_is_refused_with_what_simulates_its_calls(server: Server, live: bool) -> None:
    """Three instances of the caller would pass three times as much as the only instance that they call."""

    @server.model(max_batch_size=8)
    def caller(X: tnb.FP32[2]) -> tnb.FP32[2]:
        return next(iter(server["held"](X=X).values()))

    sweep = tnb.sweep(server["caller"], count=[1, 2, 3], rate=100, requests=40, live=live)
    with pytest.raises(tnb.TritonError, match=r"'held' was executed while 'caller' was measured: .*twin\(\).plan"):
        sweep.wait(120)
    assert len(tnb.sweep(server["caller"], count=[1, 2, 3], rate=100, requests=40, live="all").wait(120).trials) == 3


def test_stateful_model_needs_sequences(server: Server) -> None:
    with pytest.raises(tnb.TritonError, match="'accumulate': a stateful model expected sequence_length="):
        tnb.sweep(server["accumulate"], count=[1], rate=5)
    with pytest.raises(tnb.TritonError, match="a simulation expected clients without sequences"):
        tnb.sweep(server["accumulate"], count=[1], clients=5, sequence_length=5)


def test_each_measured_configuration_helps_to_choose_the_next_one() -> None:
    configs = {"m": pb.ModelConfig(name="m")}
    grid: Grid = [({}, configs)]
    grid += [({"count": number}, configs) for number in range(1, 20)]
    tried_before: list[list[object]] = []

    def run_trial(edits: dict[str, object], configs: Configs) -> Trial:
        return Trial(edits, configs, 1.0, np.array([1.0]), 0, True, 1.0)

    def rank(tried: list[Trial]) -> list[Trial]:
        """The largest number of instances first, once a trial of it is known."""
        tried_before.append([trial.edits.get("count") for trial in tried])
        others = [entry for entry in grid if all(entry[0] != trial.edits for trial in tried)]
        order = others if len(tried) == 1 else others[::-1]
        return [dataclasses.replace(run_trial(*entry), predicted=True) for entry in order]

    def result(repeated: list[Trial], trials: list[Trial], plan: SweepPlan) -> Any:
        return SimpleNamespace(trials=trials, _repr_html_=str)

    found: Any = Sweep(grid, lambda stopping: SweepPlan([run_trial], rank=rank), result, None).wait()
    assert tried_before == [[None], [None, 1]]
    assert [trial.edits["count"] for trial in found.trials if not trial.predicted] == [1, 19]
    assert len(found.trials) == 19
