"""Each diagnosis where it applies, and where it must not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tritonnb as tnb
from tritonnb.core.events import BatchExecuted, BatchSent

BATCHING = 'name: "m" max_batch_size: 8 dynamic_batching { %s }'
DELAY = BATCHING % "max_queue_delay_microseconds: 5000"
CHEAP = tnb.linear(per_row_ms=0.1, base_ms=5)


def by_name(rec: tnb.Recording) -> dict[str, Any]:
    return {diagnosis.name: diagnosis for diagnosis in rec.diagnoses()}


def test_diagnosis_finds_one_client_that_waits_for_each_response() -> None:
    rec = tnb.simulate(BATCHING % "", tnb.ClosedLoop(clients=1, requests=40, think_ms=0.2), CHEAP)
    diagnosis = by_name(rec)["one_at_a_time"]
    assert diagnosis.evidence == {"requests": 40, "gap_ms": pytest.approx(0.2), "latency_ms": pytest.approx(5.1)}
    assert "each was sent 0.20 ms (median) after the previous response" in str(diagnosis)


@pytest.mark.parametrize(
    ("config", "arrivals"),
    [
        (BATCHING % "", tnb.ClosedLoop(clients=2, requests=40)),
        (BATCHING % "", tnb.constant(rate=10, duration=4)),  # rare, but without a wait
        ('name: "m" max_batch_size: 8', tnb.ClosedLoop(clients=1, requests=40)),  # not meant to batch
        (BATCHING % "", tnb.ClosedLoop(clients=1, requests=5)),  # too few to tell
    ],
)
def test_diagnosis_of_one_client_ignores_other_workloads(config: str, arrivals: Any) -> None:
    assert "one_at_a_time" not in by_name(tnb.simulate(config, arrivals, CHEAP))


def test_diagnosis_finds_a_delay_that_full_batches_never_reach() -> None:
    rec = tnb.simulate(DELAY, tnb.bursts(8, every_ms=20, duration=0.4), CHEAP)
    diagnosis = by_name(rec)["delay_never_reached"]
    assert diagnosis.evidence == {"batches": 20, "delay_ms": 5.0, "longest_wait_ms": 0.0}
    assert "max_queue_delay 5 ms was never reached: all 20 batches were complete earlier" in str(diagnosis)


@pytest.mark.parametrize(
    ("config", "arrivals"),
    [
        (DELAY, tnb.bursts(7, every_ms=20, duration=0.4)),  # the delay sends every batch
        (BATCHING % "", tnb.bursts(8, every_ms=20, duration=0.4)),  # there is none
        (DELAY, tnb.bursts(8, every_ms=20, duration=0.1)),  # too few to tell
    ],
)
def test_diagnosis_ignores_delays_that_are_reached_or_absent(config: str, arrivals: Any) -> None:
    assert "delay_never_reached" not in by_name(tnb.simulate(config, arrivals, CHEAP))


SLOTS = 'name: "m" max_batch_size: 4 sequence_batching { %s max_sequence_idle_microseconds: %d }'


def test_null_rows_of_the_direct_strategy() -> None:
    rec = tnb.simulate(SLOTS % ("direct { }", 10**6), tnb.sequences([6] * 4, every_ms=20, stagger_ms=5), tnb.fixed(1))
    diagnosis = by_name(rec)["null_rows"]
    rows = sum(batch.size for batch in rec.batches)
    assert diagnosis.evidence == {"nulls": rows - 24, "rows": rows, "batches": 24, "without_nulls": 6}
    assert f"60% of the rows were null requests: {rows - 24} of {rows} rows in 24 batches" in str(diagnosis)


@pytest.mark.parametrize(
    "strategy",
    [
        "oldest { max_candidate_sequences: 4 }",
        "direct { max_queue_delay_microseconds: 9000 minimum_slot_utilization: 1.0 }",
    ],
)
def test_batches_without_padding_have_no_null_rows(strategy: str) -> None:
    arrivals = tnb.sequences([12] * 4, every_ms=20, stagger_ms=1)
    assert "null_rows" not in by_name(tnb.simulate(SLOTS % (strategy, 10**6), arrivals, tnb.fixed(1)))


def silent_for(ms: float) -> tnb.Recording:
    arrivals = [
        tnb.Arrival(0, sequence_id="A", sequence_start=True),
        tnb.Arrival(1000 * ms, sequence_id="A"),
        tnb.Arrival(1000 * ms + 1, sequence_id="A", sequence_end=True),
    ]
    return tnb.simulate(SLOTS % ("direct { }", 50_000), arrivals, tnb.fixed(1))


def test_diagnosis_finds_a_sequence_ended_by_the_idle_timeout() -> None:
    diagnosis = by_name(silent_for(90))["idle_timeout"]
    assert diagnosis.evidence == {"sequence": "A", "idle_ms": 50.0, "gap_ms": 90.0, "refused": 2}
    assert "Sequence A lost slot 0 of m_0_0 to the idle timeout: its next request arrived after 90.0 ms" in str(
        diagnosis
    )
    assert "is 50 ms, so 2 requests were refused" in str(diagnosis)


def test_sequence_within_the_idle_timeout_is_kept() -> None:
    assert "idle_timeout" not in by_name(silent_for(40))


def test_model_with_proportional_cost_gains_nothing_from_batching() -> None:
    arrivals = tnb.poisson(rate=80, duration=1, seed=4)
    rec = tnb.simulate(BATCHING % "", arrivals, tnb.linear(per_row_ms=10, base_ms=0.5))
    diagnosis = by_name(rec)["cost_in_proportion"]
    assert diagnosis.evidence["row_ms"][1] == pytest.approx(10.5)
    assert "Batching does not pay: a row takes 10.50 ms in batches of 1 row" in str(diagnosis)


def test_model_with_fixed_cost_gains_from_batching() -> None:
    arrivals = tnb.poisson(rate=150, duration=1, seed=4)
    rec = tnb.simulate(BATCHING % "", arrivals, tnb.linear(per_row_ms=5, base_ms=5))
    assert len(rec.batch_sizes()) > 2
    assert "cost_in_proportion" not in by_name(rec)


def test_concurrency_beyond_capacity_obeys_littles_law() -> None:
    rec = tnb.simulate(BATCHING % "", tnb.ClosedLoop(clients=64, requests=3200), tnb.fixed(10))
    diagnosis = by_name(rec)["beyond_capacity"]
    assert diagnosis.evidence["rows_in_server"] == pytest.approx(64, rel=0.05)
    assert diagnosis.evidence["row_capacity"] == 8
    assert diagnosis.evidence["rows_per_second"] == pytest.approx(800, rel=0.01)
    assert diagnosis.evidence["rows_in_server"] == pytest.approx(
        diagnosis.evidence["rows_per_second"] * diagnosis.evidence["latency_ms"] / 1000
    )
    assert "Little's law" in str(diagnosis)
    assert "with 8 rows in the server the latency would be 10.0 ms" in str(diagnosis)


def test_open_loop_beyond_capacity_is_reported_as_overload() -> None:
    rec = tnb.simulate(BATCHING % "", tnb.poisson(rate=2400, duration=2, seed=1), tnb.fixed(10))
    diagnosis = by_name(rec)["beyond_capacity"]
    assert diagnosis.evidence["arriving_rows_per_second"] == pytest.approx(2400, rel=0.05)
    assert str(diagnosis).startswith("Overloaded: 2")
    assert "and 798 rows/s are served" in str(diagnosis)
    assert "concurrency" not in str(diagnosis).lower()


@pytest.mark.parametrize(
    "arrivals", [tnb.ClosedLoop(clients=8, requests=400), tnb.poisson(rate=300, duration=2, seed=1)]
)
def test_arrivals_within_capacity_are_not_reported_as_overload(arrivals: Any) -> None:
    assert "beyond_capacity" not in by_name(tnb.simulate(BATCHING % "", arrivals, tnb.fixed(10)))


@pytest.mark.parametrize("rows", [0, 1])
def test_dynamic_batcher_without_a_batch_dimension_has_no_effect(rows: int) -> None:
    config = f'name: "m" max_batch_size: {rows} dynamic_batching {{ max_queue_delay_microseconds: 5000 }}'
    findings = by_name(tnb.simulate(config, [(0, 1)] * 20, CHEAP))
    assert list(findings) == ["batching_without_effect"]
    assert f"max_batch_size is {rows}, so each of the 20 requests ran alone" in str(findings["batching_without_effect"])


def test_no_finding_for_executions_without_duration() -> None:
    assert "beyond_capacity" not in by_name(tnb.simulate(BATCHING % "", [(0, 1)] * 60, tnb.fixed(0)))


def test_findings_are_listed_below_the_verdict() -> None:
    rec = tnb.simulate(BATCHING % "", tnb.ClosedLoop(clients=1, requests=40), CHEAP)
    (diagnosis,) = rec.diagnoses()
    assert repr(rec).splitlines()[-1] == f"  ! {diagnosis}"
    assert "<li>Concurrency is 1" in rec._repr_html_()
    assert "<li>" not in tnb.Recording()._repr_html_()


def test_verdict_compares_the_longest_wait_with_the_queue_delay() -> None:
    waited = tnb.simulate(DELAY, [(0, 1), (1000, 2)], tnb.fixed(1)).verdict()
    assert waited == (
        "2 requests ran in 1 batch: mean batch size 3.0 rows; 100% of the rows shared a batch; "
        "longest time in the queue 5.0 ms (max_queue_delay 5 ms)."
    )
    late = tnb.simulate(DELAY, [(0, 8), (1, 8)], tnb.fixed(20)).verdict()
    assert "in the queue 20.0 ms (max_queue_delay 5 ms; for 20.0 ms every instance that could run it was busy)." in late
    plain = tnb.simulate(BATCHING % "", [(0, 8)], tnb.fixed(20)).verdict()
    assert "longest time in the queue 0.0 ms." in plain


@pytest.mark.parametrize("dispatched_late", [False, True], ids=["started late", "sent late"])
def test_verdict_names_the_cause_of_a_wait_that_exceeds_the_delay(dispatched_late: bool) -> None:
    punctual, late_ns = tnb.simulate(DELAY, [(0, 1)], tnb.fixed(1)), 400_000

    def delayed(event: Any) -> Any:
        if isinstance(event, BatchExecuted):
            names = ("exec_start_ns", "compute_start_ns", "compute_end_ns", "exec_end_ns", "time_ns")
            return replace(event, **{name: getattr(event, name) + late_ns for name in names})
        if isinstance(event, BatchSent) and dispatched_late:  # as when the timer of the delay fires late
            return replace(event, time_ns=event.time_ns + late_ns, facts={**event.facts, "ready_ns": late_ns})
        return event

    assert (
        tnb.Recording(map(delayed, punctual.events), punctual.configs)
        .verdict()
        .endswith(
            "longest time in the queue 5.4 ms "
            "(max_queue_delay 5 ms; for 0.4 ms an instance was idle and nothing held it back: the server's own work)."
        )
    )


def test_verdict_compares_with_the_delay_of_the_only_model_that_ran() -> None:
    rec = tnb.simulate(DELAY, [(0, 1)], tnb.fixed(1))
    other = tnb.Recording(rec.events, {**rec.configs, "idle": next(iter(rec.configs.values()))})
    assert "(max_queue_delay 5 ms)" in other.verdict()


def test_verdict_names_earlier_requests_that_filled_the_batches() -> None:
    verdict = tnb.simulate(DELAY, [(n, 8) for n in range(4)], tnb.fixed(20)).verdict()
    assert "60.0 ms (max_queue_delay 5 ms; for 40.0 ms earlier requests filled the batches before its own)" in verdict


def test_diagnosis_finds_a_delay_that_splits_batches_while_the_instance_is_busy() -> None:
    traffic = tnb.poisson(rate=400, duration=1, seed=1)
    config = "max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: %d }"
    rec = tnb.simulate(config % 100, traffic, tnb.linear(0.5, 8))
    (finding,) = (finding for finding in rec.diagnoses() if finding.name == "delay_splits_batches")
    assert finding.evidence["closed"] > len(rec.batches) / 2
    assert "set max_queue_delay_microseconds to 0" in str(finding)
    without = tnb.simulate(config % 0, traffic, tnb.linear(0.5, 8))
    assert "delay_splits_batches" not in [finding.name for finding in without.diagnoses()]
    assert without.summary()["latency_p50_ms"] < 0.8 * rec.summary()["latency_p50_ms"]
