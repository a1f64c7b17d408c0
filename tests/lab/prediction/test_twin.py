"""The execution times that a twin learns from a recording, and its predictions with their ranges."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tritonnb as tnb
from tests.lab.prediction.scenarios import StallingMachine, Uneven
from tritonnb.lab.analysis.learned_times import LearnedTimes
from tritonnb.lab.analysis.recorded_executions import RecordedExecution
from tritonnb.lab.analysis.typical_times import TypicalTimes
from tritonnb.lab.load import notebook_wait
from tritonnb.lab.prediction.prediction import Range
from tritonnb.lab.prediction.twin import Twin
from tritonnb.lab.simulation.service import Draw, Service, VaryingService
from tritonnb.recording.arrivals import Arrival

CONFIG = 'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 1000 }'
TWO = f"{CONFIG} instance_group {{ count: 2 }}"
FOUR = CONFIG.replace("8", "4")
MS = 1_000_000
VARYING = tnb.jittered(tnb.linear(per_row_ms=1, base_ms=5), sigma=0.2)


class Machine(VaryingService):
    """5 ms and 1 ms per row; busy instances slow each other down, and the machine stalls at given times.

    With slow phases, it needs 2.5 times as long during 80 of every 500 ms; with caches, twice as long after its own
    instance was idle for long; with a slow clock, after all were.
    """

    def __init__(
        self,
        slow_down: float = 0.0,
        stalls_ms: tuple[int, ...] = (),
        slow_phases: bool = False,
        caches: bool = False,
        slow_clock: bool = False,
    ) -> None:
        self.function = tnb.linear(per_row_ms=1, base_ms=5)
        self.slow_down = slow_down
        self.slow_phases = slow_phases
        self.stalls_ms = stalls_ms
        self.caches = caches
        self.slow_clock = slow_clock

    def draws(self, seed: int) -> Draw:
        waiting = list(self.stalls_ms)

        def draw(rows: int, now_ns: int, busy: int, idle_ns: int, server_idle_ns: int, instance: int) -> float:
            time_ns = self.function(rows) * (1 + self.slow_down * (busy - 1))
            if self.slow_phases and now_ns % (500 * MS) < 80 * MS:
                time_ns *= 2.5
            if self.caches:
                time_ns *= 1 + idle_ns / (idle_ns + 20 * MS)
            if self.slow_clock:
                time_ns *= 1 + server_idle_ns / (server_idle_ns + 20 * MS)
            if waiting and now_ns >= waiting[0] * MS:
                waiting.pop(0)
                time_ns += 60 * MS
            return time_ns

        return draw


@pytest.fixture(scope="module")
def twin() -> Twin:
    return tnb.simulate(CONFIG, tnb.poisson(100, 10, seed=1), VARYING, seed=1).twin()


@given(st.integers(0, 99), st.sampled_from([CONFIG, TWO]), st.floats(0, 1))
def test_what_if_without_an_edit_repeats_every_time_exactly(seed: int, config: str, sigma: float) -> None:
    service = tnb.jittered(tnb.linear(per_row_ms=1, base_ms=5), sigma=sigma)
    rec = tnb.simulate(config, tnb.poisson(300, 0.2, seed=seed), service, seed=seed)
    if rec.batches:
        assert _executions(rec.what_if().before) == _executions(rec)


def _executions(rec: tnb.Recording) -> list[tuple[Any, ...]]:
    """Members, begin and end of each batch, from the first arrival on."""
    origin_ns = rec.events[0].time_ns
    batches = rec.batches
    return [(batch.requests, batch.exec_start_ns - origin_ns, batch.exec_end_ns - origin_ns) for batch in batches]


@pytest.mark.parametrize("edits", [{"max_batch_size": 2}, {"count": 2}, {"max_queue_delay_microseconds": 9000}])
def test_stall_delays_one_execution_regardless_of_size(edits: dict[str, Any]) -> None:
    arrivals = tnb.poisson(150, 10, seed=1)
    rec = tnb.simulate(CONFIG, arrivals, Machine(stalls_ms=(2000, 6000)))
    stalls = rec.twin().times.stalls
    assert [excess_ns for _, excess_ns in stalls] == [60 * MS, 60 * MS]
    assert [begin_ns // (1000 * MS) for begin_ns, _ in stalls] == [2, 6]
    after = rec.what_if(**edits).after
    stalled = [batch for batch in after.batches if batch.compute_ns > 30 * MS]
    assert [batch.compute_ns - 60 * MS for batch in stalled] == [(5 + batch.size) * MS for batch in stalled]
    assert len(stalled) == 2


def test_instances_that_run_together_slow_down_as_recorded() -> None:
    rec = tnb.simulate(TWO, tnb.poisson(200, 10, seed=2), Machine(slow_down=0.5))
    times = rec.twin().times
    assert times.slow_down.known == pytest.approx({1: 1.0, 2: 1.5})
    assert times.expected_ns(1, busy=2) == pytest.approx(9 * MS)
    one = rec.what_if(count=1).after
    for batch in one.batches:
        assert batch.compute_ns == pytest.approx((5 + batch.size) * MS)


def test_only_instance_is_not_slowed_down_by_another() -> None:
    """An execution may begin alone and then be slowed down by a second one; with one instance, it cannot."""
    executions = tnb.simulate(TWO, tnb.poisson(60, 20, seed=2), tnb.fixed(10)).twin().times.executions
    spans = [(one.begin_ns, one.begin_ns + one.time_ns) for one in executions]
    for one, (begin_ns, end_ns) in zip(executions, spans, strict=True):
        shared_ns = sum(max(0, min(end_ns, end) - max(begin_ns, begin)) for begin, end in spans) - one.time_ns
        assert one.shared == pytest.approx(shared_ns / one.time_ns)
    slowed = [replace(one, time_ns=round(10 * MS * (1 + 0.5 * one.shared))) for one in executions]
    times = LearnedTimes(tuple(slowed))
    assert times.for_instances(1).function(1) == pytest.approx(10 * MS, rel=0.03)
    assert max(times.for_instances(1).factors[1]) < 1.1 < max(times.factors[1])
    assert times.for_instances(2) is times


def test_only_instance_does_not_make_the_machine_look_faster() -> None:
    """Executions of a server with one instance are compared with what is predicted for one instance."""
    models = tnb.simulate(TWO, tnb.poisson(60, 20, seed=2), tnb.fixed(10)).twin().models
    slowed = [replace(one, time_ns=round(10 * MS * (1 + one.shared))) for one in models.times["m"].executions]
    recorded = replace(models, times={"m": LearnedTimes(tuple(slowed))})
    single = tnb.simulate(CONFIG, tnb.poisson(60, 20, seed=3), tnb.fixed(10)).twin().models
    assert recorded.edited({"m": {"count": 1}}, "test").relative_duration(single) == pytest.approx(1, rel=0.03)


def test_idle_times_do_not_make_the_machine_look_slower() -> None:
    """At a low rate, instances are idle for longer before executions, which then take longer as predicted."""
    often, rarely = (
        tnb.simulate(CONFIG, tnb.poisson(rate, 20, seed=2), Machine(slow_clock=True)).twin().models for rate in (60, 10)
    )
    assert often.relative_duration(rarely) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("shares_cores", [True, False])
def test_cost_of_another_instance_is_learned_for_each_size(*, shares_cores: bool) -> None:
    """Instances that share cores disturb longer executions as much in proportion; those that share the memory, less."""
    alone_ms = {rows: 5.0 + rows for rows in range(1, 9)}
    executions = tnb.simulate(TWO, tnb.poisson(300, 20, seed=2), tnb.linear(1, 5)).twin().times.executions
    cost_ms = {
        rows: 0.7 * ms if shares_cores else (math.sqrt(ms**2 + 4 * 27) - ms) / 2 for rows, ms in alone_ms.items()
    }
    slowed = [
        replace(one, time_ns=round((alone_ms[one.rows] + one.shared * cost_ms[one.rows]) * MS)) for one in executions
    ]
    single = LearnedTimes(tuple(slowed)).for_instances(1)
    for rows in (1, 2, 3):
        assert single.function(rows) == pytest.approx(alone_ms[rows] * MS, rel=0.03)
    for rows in (4, 5):  # these rarely begin alone: the cost is the share of the nearest size
        assert single.function(rows) == pytest.approx(alone_ms[rows] * MS, rel=0.03 if shares_cores else 0.1)


def test_executions_of_the_only_instance_vary_like_undisturbed_ones() -> None:
    """Executions at the same time slow each other down by different factors, which is not a variation of one alone."""
    executions = tnb.simulate(TWO, tnb.poisson(60, 20, seed=2), tnb.fixed(10)).twin().times.executions
    rng = random.Random(1)
    slowed = [replace(one, time_ns=round(one.time_ns * (1 + rng.random() * (one.shared > 0)))) for one in executions]
    times = LearnedTimes(tuple(slowed))
    assert max(times.factors[1]) > 1.8
    assert max(times.for_instances(1).factors[1]) < 1.01


def test_long_executions_of_one_instance_are_as_frequent_as_recorded() -> None:
    """The longer an execution takes, the more likely is another one during it: that says nothing about one instance."""
    service = tnb.jittered(tnb.fixed(10), sigma=0.4)
    times = tnb.simulate(TWO, tnb.poisson(60, 60, seed=2), service, seed=2).twin().times
    (_, both), (_, single) = times.factors, times.for_instances(1).factors
    assert statistics.fmean(single) == pytest.approx(statistics.fmean(both), rel=0.05)


@pytest.mark.usefixtures("few_samples")
def test_slow_phases_of_a_machine_stay_together() -> None:
    config, machine = 'name: "m" max_batch_size: 8', Machine(slow_phases=True)
    twin = tnb.simulate(config, tnb.poisson(90, 30, seed=1), machine).twin()
    other = tnb.simulate(config, tnb.poisson(90, 30, seed=2), machine)
    prediction = twin.predict(arrivals=other.arrivals())
    assert prediction.latency_p99_ms.value == pytest.approx(other.summary()["latency_p99_ms"], rel=0.1)


def minute(rate: float, count: int, cause: str, seed: int) -> tnb.Recording:
    """A minute of traffic on a number of instances that take longer after idle times."""
    machine = Machine(caches=cause == "caches", slow_clock=cause == "slow_clock")
    config = f'name: "m" max_batch_size: 8 instance_group {{ count: {count} }}'
    return tnb.simulate(config, tnb.poisson(rate, 60, seed=seed), machine)


@cache
def twin_of_minute(count: int, cause: str) -> Twin:
    return minute(60, count, cause, seed=1).twin()


@pytest.mark.usefixtures("few_samples")
@pytest.mark.parametrize(("rate", "count"), [(60, 1), (120, 1), (20, 1), (60, 2)])
def test_executions_take_longer_after_an_idle_time_as_recorded(rate: float, count: int) -> None:
    twin = twin_of_minute(1, "caches")
    short, long, longest = (twin.times.idle_cost_ns(ms * MS, ms * MS) for ms in (1, 10, 100))
    assert short == 0 < long < longest
    actual = minute(rate, count, "caches", seed=2).summary()
    prediction = twin.predict(rate=rate, count=count)
    assert prediction.latency_p50_ms.value == pytest.approx(actual["latency_p50_ms"], rel=0.05)


@pytest.mark.usefixtures("few_samples")
@pytest.mark.parametrize(("rate", "count"), [(30, 1), (60, 1), (20, 2), (60, 2)])
@pytest.mark.parametrize("cause", ["caches", "slow_clock"])
def test_idle_times_of_an_instance_and_of_the_server_are_told_apart(rate: float, count: int, cause: str) -> None:
    """With one instance they are equal; with two, the other one may have run in the meantime."""
    actual = minute(rate, count, cause, seed=2).summary()
    prediction = twin_of_minute(2, cause).predict(rate=rate, count=count)
    assert prediction.latency_p50_ms.value == pytest.approx(actual["latency_p50_ms"], rel=0.06)


def test_first_executions_are_left_out() -> None:
    slow_first = iter([90.0, *[5.0] * 1000])
    service = tnb.service_time(lambda rows: next(slow_first), unit="ms")
    rec = tnb.simulate(CONFIG, tnb.poisson(100, 2, seed=3), service)
    twin = rec.twin()
    assert twin.times.stalls == ()
    assert {twin.range_ms(rows).value for rows in twin.sizes()} == {5.0}
    assert (twin.range_ms(1).low, twin.range_ms(1).high) == (5.0, 5.0)


@given(st.dictionaries(st.integers(1, 64), st.tuples(st.floats(1e3, 1e9), st.integers(1, 99)), min_size=1))
def test_larger_batches_never_take_less_time(times: dict[int, tuple[float, int]]) -> None:
    service = TypicalTimes({rows: [time] * count for rows, (time, count) in times.items()})
    values = [service(rows) for rows in range(1, 80)]
    assert all(first <= second * (1 + 1e-9) for first, second in pairwise(values))
    assert min(time for time, _ in times.values()) <= service(max(times)) * 1.001
    assert all(service.deviation(rows) >= 0 for rows in range(1, 80))


@pytest.mark.parametrize(
    ("times", "rows", "low_ms", "high_ms"),
    [
        ({15: (30.0, 1), 16: (35.0, 124)}, 4, 20, 35),  # one execution says little about small batches
        ({15: (30.0, 1), 16: (35.0, 124)}, 32, 35, 70),  # a row costs at most as much as in the recorded batches
        ({8: (13.0, 60), 16: (21.0, 60)}, 4, 8.5, 9.5),
        ({1: (6.0, 100), 2: (7.0, 3), 3: (8.0, 1)}, 8, 12.5, 13.5),
    ],
)
def test_time_of_a_size_that_was_not_recorded(
    times: dict[int, tuple[float, int]], rows: int, low_ms: float, high_ms: float
) -> None:
    service = TypicalTimes({size: [ms * MS] * count for size, (ms, count) in times.items()})
    assert low_ms <= service(rows) / MS <= high_ms


@pytest.mark.parametrize(
    ("edits", "rate"),
    [({}, 100), ({"max_queue_delay_microseconds": 10_000}, 100), ({"instance_count": 2}, 100), ({}, 60)],
)
def test_predicted_ranges_contain_another_run(twin: Twin, edits: dict[str, Any], rate: int) -> None:
    prediction = twin.predict(rate=rate, **edits)
    config = {"instance_count": TWO, "max_queue_delay_microseconds": CONFIG.replace("1000", "10000")}
    other = tnb.simulate(config.get(next(iter(edits), ""), CONFIG), tnb.poisson(rate, 20, seed=5), VARYING, seed=5)
    actual = other.summary()
    assert prediction.latency_p50_ms.value == pytest.approx(actual["latency_p50_ms"], rel=0.1)
    assert prediction.latency_p99_ms.value == pytest.approx(actual["latency_p99_ms"], rel=0.2)
    assert prediction.mean_batch_size.value == pytest.approx(actual["mean_batch_size"], rel=0.1)
    for name in ("latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "throughput", "mean_batch_size", "utilization"):
        found = getattr(prediction, name)
        assert found.low <= found.value <= found.high
        assert found.value in found
    assert 0 < prediction.utilization.value < 1


def test_extrapolations_and_stalls_are_named() -> None:
    rec = tnb.simulate(FOUR, tnb.poisson(90, 3, seed=1), Machine(stalls_ms=(500, 1500)))
    twin = rec.twin()
    remarks = twin.predict(rate=300, count=3, max_batch_size=32, max_queue_delay_microseconds=90_000).remarks
    assert [remark for remark in remarks if "rows were not recorded: up to" in remark]
    assert f"300 requests/s were not recorded, but {twin.rate:.1f}" in remarks
    unknown = "3 instances at the same time were not recorded"
    assert f"{unknown}: executions are assumed to take 1.00 (1.00 to 3.00) times as long" in remarks
    prediction = twin.predict()
    assert prediction.remarks[-1] == "the p99 rests on 2 stalls in the recording"
    assert "p99 rests on" in repr(prediction)


def test_twin_reports_what_it_learned_and_its_prediction_error(twin: Twin) -> None:
    text = repr(twin)
    for part in (
        "Twin of 'm', from",
        "batch size    1:",
        "stalls: 0",
        "slow-down by number of busy instances: 1: 1.00",
        "longer after the server was idle for 10 ms: +0.",
    ):
        assert part in text
    assert len(twin.validation) == 8
    assert "8 parts, each predicted from the others: off by " in text
    assert twin.misfits["latency_p50_ms"] < 0.1
    figure = twin.plot()
    assert len(figure.axes) == 1
    assert tnb.simulate(CONFIG, [(0, 1)], tnb.fixed(5)).twin().validation == ()


def test_throughput_of_given_arrivals_has_no_range_beyond_chance() -> None:
    """Executions wait before they begin: that concerns latencies only. No share exceeds 1."""
    rec = tnb.simulate(CONFIG, tnb.poisson(150, 5, seed=1), VARYING, seed=1)
    twin = rec.twin()
    twin.times.__dict__["dispatch_share"] = 0.3
    given = twin.predict(arrivals=tnb.poisson(150, 5, seed=2))
    assert given.throughput.high / given.throughput.low < 1.02
    assert given.latency_p50_ms.high / given.latency_p50_ms.low > 2
    busy = twin.predict(rate=900, max_queue_delay_microseconds=0)
    assert busy.utilization.high <= 1
    assert twin.range_ms(30).high / twin.range_ms(30).low > twin.range_ms(1).high / twin.range_ms(1).low


@pytest.mark.parametrize("ratio", [1.5, 2, 4, 8])
@pytest.mark.parametrize("number", range(2))
def test_slow_instance_is_neither_a_stall_nor_a_slow_down(ratio: float, number: int) -> None:
    """The fast instance runs beside the slow one, which runs alone at most times; one execution of it is stalled."""
    seed = random.randrange(10**6)  # drawn here: every process of pytest collects the same tests
    rng = random.Random(seed)

    def execution(number: int, instance: str, stall: float = 1.0) -> RecordedExecution:
        rows, busy = rng.choice((1, 1, 2, 4)), 1 + (rng.random() < (0.8 if instance == "fast" else 0.1))
        time_ns = round((ratio if instance == "slow" else 1) * (5 + rows) * MS * rng.uniform(0.95, 1.05) * stall)
        return RecordedExecution(number * 50 * MS, rows, time_ns, 0, busy, 0.0, 0, 0, 0, False, number, instance)

    executions = [execution(number, rng.choice(("fast", "slow"))) for number in range(400)]
    times = LearnedTimes((*executions, execution(400, "fast", stall=4)))
    assert times.slow_down.known == pytest.approx({1: 1.0, 2: 1.0}, abs=0.06)
    assert [(one.batch, round(one.time_ns / ns)) for one, ns in times.outliers] == [(400, 4)]
    assert times.instance_speeds["slow"] / times.instance_speeds["fast"] == pytest.approx(ratio, rel=0.05)
    # A trace names no instances: any execution may be one of the slow instance.
    named = (replace(one, instance=rng.choice(("fast", one.instance))) for one in executions)
    unnamed = LearnedTimes((*named, execution(400, "slow", stall=4)), knows_instances=False)
    assert {one.batch for one, _ in unnamed.outliers} <= {400}


@pytest.mark.parametrize("speeds", [(1, 2), (3, 1), (1, 1, 4)])
def test_instances_of_different_speed_are_simulated_with_their_speeds(speeds: tuple[float, ...]) -> None:
    """At a low rate the first instance runs most batches: what all take on average is not what they take when busy."""
    groups = " ".join(f'instance_group {{ name: "{name}" kind: KIND_CPU }}' for name in "zxy"[: len(speeds)])
    config = f'name: "m" max_batch_size: 4 dynamic_batching {{ }} {groups}'
    machine = Uneven(StallingMachine(tnb.linear(per_row_ms=1, base_ms=5), 0.05, 0, 0, 1), speeds)
    twin = tnb.simulate(config, tnb.poisson(150, 8, seed=1), machine).twin()
    assert twin.models.capacity() == pytest.approx(sum(4000 / 9 / speed for speed in speeds), rel=0.1)
    arrivals = tnb.poisson(250, 8, seed=2)
    truth = tnb.simulate(config, arrivals, machine, keep="summary")
    p50_ms = (
        statistics.median(np.median(twin.models.simulated(arrivals, n).requests.latency_ns) for n in range(3)) / 1e6
    )
    assert p50_ms == pytest.approx(truth["latency_p50_ms"], rel=0.15)
    assert "instances have different speeds: an execution of " in repr(twin)


def test_interrupted_prediction_gives_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    rec = tnb.simulate(CONFIG, tnb.poisson(100, 2, seed=1), VARYING, seed=1)
    twin = rec.twin()
    assert twin.misfits
    steps: list[int] = []

    def interrupt(*progress: float) -> str:
        steps.append(len(steps))
        if len(steps) == limit:
            raise KeyboardInterrupt
        return ""

    monkeypatch.setattr(notebook_wait, "time_left", interrupt)
    limit = 12
    remarks = twin.predict().remarks
    assert remarks[-1] == "interrupted: the ranges are those of 12 of 40 simulations"
    steps.clear()
    limit = 3
    with pytest.raises(KeyboardInterrupt):
        twin.predict()


def test_prediction_of_no_arrivals_or_of_a_text_as_rate_is_refused() -> None:
    twin = tnb.simulate(CONFIG, tnb.poisson(100, 2, seed=1), tnb.fixed(5)).twin()
    with pytest.raises(tnb.TritonError, match="predict expected at least one arrival, got none"):
        twin.predict(arrivals=[])
    with pytest.raises(tnb.TritonError, match="rate expected a number or None, got 'fast'"):
        twin.predict(rate="fast")


def test_unpredictable_recording_is_refused() -> None:
    rec = tnb.simulate(CONFIG, tnb.poisson(100, 2, seed=1), tnb.fixed(5))
    for rate in (0, -1, float("inf")):
        with pytest.raises(tnb.TritonError, match="rate expected a positive number of requests per second"):
            rec.twin().predict(rate=rate)
    with pytest.raises(tnb.TritonError, match="predict expected a rate or arrivals, got both"):
        rec.twin().predict(rate=5, arrivals=[(0, 1)])
    with pytest.raises(tnb.TritonError, match="the configuration has no field 'max_delay'"):
        rec.twin().predict(max_delay=1)
    with pytest.raises(tnb.TritonError, match="expected a recording with at least one executed batch, got none"):
        tnb.Recording().twin()


def test_given_arrivals_are_predicted_and_a_deployment_has_its_replicas() -> None:
    service = tnb.jittered(tnb.linear(per_row_ms=1, base_ms=5), sigma=0.1)
    rec = tnb.simulate(CONFIG, tnb.poisson(300, 2, seed=1), service, replicas=2, seed=1)
    twin = rec.twin()
    again, other = twin.predict(arrivals=rec.arrivals()), twin.predict(arrivals=tnb.constant(150, 2))
    assert again.latency_p99_ms.value == pytest.approx(rec.summary()["latency_p99_ms"], rel=0.1)
    assert other.throughput.value == pytest.approx(150, rel=0.05)
    assert f"150 requests/s were not recorded, but {twin.rate:.1f}" in other.remarks


def test_prediction_from_a_recording_that_does_not_predict_itself_says_so() -> None:
    slower = iter([*[5.0] * 200, *[8.0] * 1000])
    service = tnb.service_time(lambda rows: next(slower), unit="ms")
    twin = tnb.simulate(CONFIG, tnb.constant(50, 8), service).twin()
    prediction = twin.predict()
    [remark] = [text for text in prediction.remarks if text.startswith("execution times changed")]
    assert remark.startswith("execution times changed from part to part of the recording: by 2")
    assert 5.0 in prediction.latency_p50_ms
    assert 8.0 in prediction.latency_p50_ms
    assert not tnb.simulate(CONFIG, tnb.constant(50, 2), tnb.fixed(5)).twin().predict().remarks


def test_parts_of_a_recording_begin_with_the_first_arrival_even_if_it_was_cancelled() -> None:
    cancelled = [Arrival(ms=number, cancel_us=0) for number in range(500)]
    arrivals = [*cancelled, *(replace(one, time_us=one.time_us + 500_000) for one in tnb.poisson(150, 4, seed=1))]
    twin = tnb.simulate(CONFIG, arrivals, tnb.linear(per_row_ms=1, base_ms=3)).twin()
    assert len(twin.validation) >= 4
    for part in twin.validation:
        assert part.recorded.latency_p50_ms == pytest.approx(part.simulated[0].latency_p50_ms, rel=0.02)


def test_range_contains_nine_in_ten_values_of_its_misfit() -> None:
    found = Range.from_values([10.0] * 9, misfit=0.1)
    assert found.value == 10.0
    assert (found.low, found.high) == pytest.approx((10 * math.exp(-0.1645), 10 * math.exp(0.1645)), rel=0.01)
    assert Range.from_values([10.0] * 9) == Range(10.0, 10.0, 10.0)
    assert Range.from_values([1.0, 2.0], misfit=0.5, least=1.0, most=2.0) == Range(1.5, 1.0, 2.0)


@pytest.mark.parametrize("service", [tnb.fixed(4), tnb.jittered(tnb.fixed(4), sigma=0.5)])
def test_ranges_allow_for_requests_that_arrive_somewhat_later(service: Service) -> None:
    arrivals = tnb.poisson(100, 3, seed=1)
    prediction = tnb.simulate(CONFIG, tnb.poisson(200, 3, seed=2), service).twin().predict(arrivals=arrivals)
    throughput, rows = prediction.throughput, prediction.mean_batch_size
    assert 1.0015 < throughput.high / throughput.value < 1.01
    assert 0.99 < throughput.low / throughput.value < 0.9985
    assert rows.high > 1.01 * rows.value
    assert 1.0 <= rows.low < max(1.0001, 0.99 * rows.value)


@pytest.mark.parametrize("service", [tnb.fixed(0), tnb.fixed(3)])
def test_parts_of_a_recording_without_variation_predict_each_other(service: Service) -> None:
    twin = tnb.simulate(CONFIG, tnb.constant(100, 4), service).twin()
    assert len(twin.validation) == 8
    assert max(twin.misfits.values()) == pytest.approx(0, abs=0.02)


def test_generation_counts_as_one_request_in_a_prediction() -> None:
    config = "max_batch_size: 2 sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 2 } }"
    rec = tnb.simulate(config, [Arrival(ms=20 * number, steps=4) for number in range(60)], tnb.fixed(2))
    prediction = rec.twin().predict()
    assert prediction.latency_p50_ms.value == pytest.approx(rec.summary()["latency_p50_ms"], rel=0.3)
    assert prediction.throughput.value == pytest.approx(rec.summary()["rate"], rel=0.3)


def test_only_instance_has_its_own_speed_without_what_others_cost() -> None:
    """The slow instance mostly runs beside the fast one: its speed is no part of what company costs."""
    config = 'name: "m" max_batch_size: 8 dynamic_batching { } instance_group { count: 2 kind: KIND_CPU }'
    machine = Uneven(StallingMachine(tnb.fixed(6), 0.1, 0.0, 50, seed=1), [1.0, 3.0], slow_down=0.4)
    times = tnb.simulate(config, tnb.poisson(100, 12, seed=1), machine, seed=1).service().for_instances(1)
    assert times.expected_ns(1, 1) * times.speeds[0] / 1e6 == pytest.approx(6, rel=0.2)


@pytest.mark.parametrize("speeds", [(1.0, 2.5), (4.0, 1.5), (1.0, 1.0, 2.5)])
def test_slow_instance_that_is_idle_for_long_does_not_make_idle_times_cost(speeds: tuple[float, ...]) -> None:
    """The scheduler prefers an instance that has been idle for longer: speed and idle time depend on each other."""
    service = tnb.linear(per_row_ms=1, base_ms=8)
    machine = Uneven(StallingMachine(service, 0.1, 0, 0, seed=3), speeds)
    rec = tnb.simulate(f"{CONFIG} instance_group {{ count: {len(speeds)} }}", tnb.poisson(100, 15, seed=5), machine)
    times = rec.twin().times
    assert times.idle_cost_ns(10 * MS, 10 * MS) < 0.1 * service(1)
    fastest = min(range(len(speeds)), key=speeds.__getitem__)
    assert times.expected_ns(1, 1) * times.speeds[fastest] == pytest.approx(service(1) * speeds[fastest], rel=0.1)


def test_few_varying_executions_do_not_make_idle_times_cost() -> None:
    """Few executions of a busy server are undisturbed: a slope within their scatter made up to 39 % after 10 ms."""
    for seed in range(8):
        machine = Uneven(StallingMachine(tnb.fixed(6), 0.3, 0, 0, seed=seed), [4.0, 1.0], slow_down=0.2)
        rec = tnb.simulate(
            f"{CONFIG} instance_group {{ count: 2 }}", tnb.poisson(150, 6, seed=seed), machine, seed=seed
        )
        assert rec.service().idle_cost_ns(10 * MS, 10 * MS) < 0.05 * 6 * MS, seed


@pytest.mark.parametrize("rate", [20, 80])
def test_fast_executions_are_not_repeated_more_often_at_a_higher_rate(rate: float) -> None:
    config = 'name: "m" max_batch_size: 1'
    varied = tnb.jittered(tnb.fixed(10), sigma=0.3)
    means_ms = []
    for seed in range(5):
        rec = tnb.simulate(config, tnb.poisson(rate, 1600 / rate, seed=seed), varied, seed=seed)
        recorded_ms = statistics.fmean(batch.compute_ns for batch in rec.batches) / 1e6
        models = rec.twin().models
        for again in range(4):
            run = models.simulated(tnb.poisson(400, 3, seed=again), again).requests
            means_ms.append(statistics.fmean((run.end_ns - run.start_ns) / 1e6) / recorded_ms)
    assert statistics.fmean(means_ms) == pytest.approx(1, abs=0.04)
