"""The sequence batcher: what it accepts and refuses, and changes while sequences run."""

from __future__ import annotations

import pytest

from tests.scheduling.harness import END, MS, START, Play, members
from tests.scheduling.invariants import check_invariants
from tests.scheduling.sequences import direct, idle_error, oldest, steps
from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.decisions import Execute, Refuse
from tritonnb.scheduling.policy import DynamicBatcherSettings
from tritonnb.scheduling.reasons import NO_SLOT_WAIT, SLOT_UTILIZATION
from tritonnb.scheduling.sequence_batcher import SequenceBatcher
from tritonnb.scheduling.sequence_strategies import DirectSettings, OldestSettings, SequenceBatcherSettings


def test_sequence_that_was_idle_for_too_long_in_the_backlog_is_closed() -> None:
    arrivals = steps(("A1^", 0), ("B1^", 20), ("A2", 200), ("A3$", 400), ("B2", 410), run=100)
    play = Play(direct(1, idle_ms=310), arrivals)
    assert play.batches == [("A1", 0), ("A2", 200), ("A3", 400), ("B1", 500)]
    assert play.failures == {"B2": idle_error("B")}


def waiting() -> tuple[SequenceBatcher, Schedulable]:
    """An idle instance of four slots, one of which is ready and waits for the others."""
    scheduler = direct(4, max_queue_delay_ns=400 * MS, minimum_slot_utilization=1.0)
    scheduler.instance_idle(0, 0)
    request = Schedulable("A1", correlation_id="A", flags=START)
    assert not scheduler.enqueue(request, 10 * MS)
    assert scheduler.next_wake_ns == 410 * MS
    return scheduler, request


def changed(**fields: float) -> SequenceBatcherSettings:
    return SequenceBatcherSettings("seq", DirectSettings(4, **fields), 10_000 * MS)  # type: ignore[arg-type]


def test_changed_delay_or_utilization_applies_to_waiting_requests() -> None:
    scheduler, _ = waiting()
    assert not scheduler.reconfigure(changed(max_queue_delay_ns=100 * MS, minimum_slot_utilization=1.0), 20 * MS)
    assert scheduler.next_wake_ns == 110 * MS
    (decision,) = scheduler.reconfigure(changed(max_queue_delay_ns=100 * MS, minimum_slot_utilization=0.25), 30 * MS)
    assert (members(decision), decision.reason.rule) == ("A1", SLOT_UTILIZATION)
    check_invariants(scheduler)


def test_changed_delay_of_the_oldest_strategy_applies_to_waiting_requests() -> None:
    scheduler = oldest(2, 4, delay_ms=400)
    scheduler.instance_idle(0, 0)
    assert not scheduler.enqueue(Schedulable("A1", correlation_id="A", flags=START), 10 * MS)
    strategy = OldestSettings(2, DynamicBatcherSettings(4, (4,), 50 * MS))
    assert not scheduler.reconfigure(SequenceBatcherSettings("seq", strategy, 10_000 * MS), 20 * MS)
    assert scheduler.next_wake_ns == 60 * MS


def test_request_that_waits_for_other_slots_can_be_cancelled() -> None:
    scheduler, request = waiting()
    request.cancelled = True
    (decision,) = scheduler.cancel(request, 30 * MS)
    assert (decision.request, decision.reason.facts["waited_ns"]) == (request, 20 * MS)
    assert scheduler.queue_depth() == 0
    check_invariants(scheduler)


def test_reason_of_a_sequence_batch_has_its_numbers() -> None:
    scheduler, _ = waiting()
    scheduler.enqueue(Schedulable("B1", correlation_id="B", flags=START | END), 20 * MS)
    scheduler.enqueue(Schedulable("C1", correlation_id="C", flags=START), 30 * MS)
    (decision,) = scheduler.wake(410 * MS)
    facts = decision.reason.facts
    assert (facts["requests"], facts["rows"], facts["nulls"], facts["ready"]) == (3, 3, 0, 3)
    assert (facts["waited_ns"], facts["idle_ns"]) == (400 * MS, 410 * MS)
    scheduler.instance_idle(0, 500 * MS)
    assert not scheduler.reconfigure(changed(minimum_slot_utilization=1.0), 500 * MS)
    (decision,) = scheduler.enqueue(Schedulable("C2", correlation_id="C"), 520 * MS)
    facts = decision.reason.facts
    assert (members(decision), decision.reason.rule) == ("- - C2", NO_SLOT_WAIT)
    assert (facts["requests"], facts["rows"], facts["nulls"], facts["idle_ns"]) == (1, 3, 2, 20 * MS)


def test_generated_id_differs_from_ids_of_clients() -> None:
    scheduler = oldest(4, 1, iterative=True)
    for taken in (1, 2):
        scheduler.enqueue(Schedulable(f"client's {taken}", correlation_id=taken, flags=START), 0)
    nameless = [Schedulable("one"), Schedulable("other")]
    for request in nameless:
        scheduler.enqueue(request, 0)
    assert [request.correlation_id for request in nameless] == [3, 4]
    check_invariants(scheduler)


def test_only_requests_of_an_iterative_model_can_run_again() -> None:
    scheduler = direct(1)
    request = Schedulable("A1", correlation_id="A", flags=START)
    scheduler.instance_idle(0, 0)
    scheduler.enqueue(request, 0)
    with pytest.raises(InvalidArgumentError, match="the model is not configured to handle such a flag"):
        scheduler.reschedule(request, 1)


@pytest.mark.parametrize("strategy", [DirectSettings(1), OldestSettings(1, DynamicBatcherSettings(1, (1,)))])
def test_request_that_runs_longer_than_the_idle_time_cannot_be_rescheduled(
    strategy: DirectSettings | OldestSettings,
) -> None:
    settings = SequenceBatcherSettings("seq", strategy, 10 * MS, iterative=True)
    scheduler = SequenceBatcher(settings, 1)
    slow, waiting = Schedulable("slow"), Schedulable("waiting")
    scheduler.instance_idle(0, 0)
    assert [members(decision) for decision in scheduler.enqueue(slow, 0)] == ["slow"]
    scheduler.enqueue(waiting, 1)
    assert not scheduler.wake(10 * MS)
    with pytest.raises(InvalidArgumentError, match=r"sequence 1 to model 'seq' must specify the START flag"):
        scheduler.reschedule(slow, 11 * MS)
    decisions = [*scheduler.released(slow, 11 * MS), *scheduler.instance_idle(0, 11 * MS)]
    assert [members(decision) for decision in decisions] == ["waiting"]
    check_invariants(scheduler)


@pytest.mark.parametrize("scheduler", [direct(1), oldest(1, 1)], ids=["direct", "oldest"])
def test_sequence_leaves_the_backlog_when_all_its_requests_are_cancelled(scheduler: SequenceBatcher) -> None:
    scheduler.enqueue(Schedulable("running", correlation_id="running", flags=START), 0)
    first, second = Schedulable("A1", correlation_id="A", flags=START), Schedulable("A2", correlation_id="A")
    other = Schedulable("B1", correlation_id="B", flags=START)
    for request in (first, second, other):
        scheduler.enqueue(request, 1)
    depth = scheduler.queue_depth()
    for request in (first, first):  # the client and the end of its connection
        request.cancelled = True
        assert not scheduler.cancel(request, 2)
    second.cancelled = True
    refused = scheduler.cancel(second, 3)
    assert [(decision.request, decision.counted_as) for decision in refused if isinstance(decision, Refuse)] == [
        (first, "CANCELED"),
        (second, "CANCELED"),
    ]
    assert scheduler.queue_depth() == depth - 2
    assert list(scheduler.table.backlog) == [scheduler.table.known["B"]]
    with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
        scheduler.enqueue(Schedulable("A3", correlation_id="A"), 4)
    check_invariants(scheduler)


def test_cancelling_a_finished_or_refused_request_changes_nothing() -> None:
    for scheduler in (direct(1), oldest(1, 1)):
        request = Schedulable("A1", correlation_id="A", flags=START | END)
        scheduler.instance_idle(0, 0)
        assert scheduler.enqueue(request, 0)
        assert not scheduler.released(request, 1)
        assert not scheduler.cancel(request, 2)
        assert not scheduler.cancel(Schedulable("stranger"), 2)
        check_invariants(scheduler)


def test_automatic_id_is_not_in_use() -> None:
    scheduler = SequenceBatcher(SequenceBatcherSettings("seq", DirectSettings(4), iterative=True), 1)
    scheduler.enqueue(Schedulable("a", correlation_id=1, flags=1), 0)
    unnamed = Schedulable("b", correlation_id=0)
    scheduler.enqueue(unnamed, 0)
    assert unnamed.correlation_id == 2


def test_admission_refuses_with_tritons_messages() -> None:
    scheduler = direct(1)
    with pytest.raises(InvalidArgumentError, match="must specify batch-size 1 due to requirements of sequence batcher"):
        scheduler.enqueue(Schedulable("a", batch_size=2, correlation_id=1, flags=1), 0)
    for missing in (0, ""):
        with pytest.raises(InvalidArgumentError, match="must specify a non-zero or non-empty correlation ID"):
            scheduler.enqueue(Schedulable("a", correlation_id=missing, flags=1), 0)
    with pytest.raises(InvalidArgumentError, match=r"for sequence 7 to model 'seq' must specify the START flag"):
        scheduler.enqueue(Schedulable("a", correlation_id=7), 0)
    assert scheduler.queue_depth() == 0


def test_stopped_scheduler_continues_sequences_and_starts_none() -> None:
    scheduler = direct(2)
    scheduler.instance_idle(0, 0)
    assert scheduler.enqueue(Schedulable("A1", correlation_id=1, flags=1), 0)
    scheduler.stop()
    with pytest.raises(UnavailableError, match=r"^Server is stopping"):
        scheduler.enqueue(Schedulable("B1", correlation_id=2, flags=1), 1)
    scheduler.enqueue(Schedulable("A2", correlation_id=1), 2)
    assert [members(decision) for decision in scheduler.instance_idle(0, 3)] == ["A2"]


def test_execution_starts_when_slots_and_backlog_hold_enough_requests() -> None:
    settings = SequenceBatcherSettings("seq", DirectSettings(1), min_requests_to_start=2, min_backlog_to_start=1)
    play = Play(SequenceBatcher(settings, 1), steps(("A1^", 0), ("A2$", 10), ("B1^", 20), ("B2$", 30)))
    assert play.batches == [("A1", 20), ("A2", 21), ("B1", 22), ("B2", 30)]


def test_backlog_requests_are_not_counted_for_slots() -> None:
    settings = SequenceBatcherSettings("seq", DirectSettings(1), min_requests_to_start=2, min_backlog_to_start=1)
    play = Play(SequenceBatcher(settings, 1), steps(("A1^", 0), ("B1^", 10), ("B2$", 20), ("A2$", 30)))
    assert play.batches == [("A1", 30), ("A2", 31), ("B1", 32), ("B2", 33)]


def test_reason_of_a_refusal_in_the_backlog_has_the_wait() -> None:
    scheduler = direct(1)
    scheduler.enqueue(Schedulable("A1", correlation_id="A", flags=START), 0)
    scheduler.enqueue(Schedulable("B1", correlation_id="B", flags=START, timeout_us=10_000), 5 * MS)
    scheduler.enqueue(Schedulable("B2", correlation_id="B"), 7 * MS)
    assert scheduler.next_wake_ns == 15 * MS
    decisions = scheduler.wake(15 * MS)
    assert [decision.reason.facts for decision in decisions] == [
        {"sequence": "B", "waited_ns": 10 * MS},
        {"sequence": "B", "waited_ns": 8 * MS},
    ]


@pytest.mark.parametrize("slots", [3, 1])
def test_changed_number_of_slots_applies_when_no_slot_is_owned(slots: int) -> None:
    scheduler = oldest(2, 4)
    scheduler.instance_idle(0, 0)
    last = Schedulable("A", correlation_id="A", flags=START | END)
    scheduler.enqueue(last, 0)
    strategy = OldestSettings(slots, DynamicBatcherSettings(4, (4,)))
    scheduler.reconfigure(SequenceBatcherSettings("seq", strategy), 1)
    for name in "BCDE":
        scheduler.enqueue(Schedulable(name, correlation_id=name, flags=START), 2)
    scheduler.released(last, 3)
    scheduler.instance_idle(0, 3)
    assert (len(scheduler.table.idle), len(scheduler.table.backlog)) == (slots, 4 - slots)
    check_invariants(scheduler)


def test_request_that_ends_the_hold_is_in_the_first_batch() -> None:
    settings = SequenceBatcherSettings("seq", DirectSettings(4), min_requests_to_start=2)
    play = Play(SequenceBatcher(settings, 1), steps(("A1^", 0), ("B1^", 10), ("B2$", 11)))
    assert play.batches == [("A1 B1", 10), ("- B2", 11)]


def test_sequences_outlive_their_instance_and_the_backlog_moves_into_a_new_one() -> None:
    scheduler = direct(1)
    scheduler.instance_idle(0, 0)
    scheduler.enqueue(Schedulable("A1", correlation_id="A", flags=1), 0)
    scheduler.enqueue(Schedulable("B1", correlation_id="B", flags=1), 1)
    assert not scheduler.set_instances([1], 2)
    assert scheduler.uses(0)
    assert [(decision.instance, members(decision)) for decision in scheduler.instance_idle(1, 3)] == [(1, "B1")]
    assert not scheduler.instance_idle(0, 4)
    (last,) = scheduler.enqueue(Schedulable("A2", correlation_id="A", flags=2), 5)
    assert (last.instance, members(last)) == (0, "A2")
    scheduler.instance_idle(0, 6)
    assert not scheduler.uses(0)
    check_invariants(scheduler)


def test_utilization_is_the_share_of_used_slots() -> None:
    single_precision = 0.30000001192092896
    play = Play(
        direct(10, max_queue_delay_ns=400 * MS, minimum_slot_utilization=single_precision),
        steps(("A1^", 0), ("B1^", 1), ("C1^", 2)),
    )
    assert play.batches == [("A1 B1 C1", 2)]


def test_full_backlog_starts_execution_without_a_configured_number() -> None:
    settings = SequenceBatcherSettings("seq", DirectSettings(1), min_backlog_to_start=1)
    play = Play(SequenceBatcher(settings, 1), steps(("A1^", 0), ("A2$", 10), ("B1^", 20), ("B2$", 30)))
    assert play.batches == [("A1", 20), ("A2", 21), ("B1", 22), ("B2", 30)]


def test_sequence_goes_on_after_a_request_that_was_cancelled_in_a_formed_batch() -> None:
    """The batcher drops such a request later, when its batch would begin."""
    batcher = SequenceBatcher(
        SequenceBatcherSettings("seq", OldestSettings(2, DynamicBatcherSettings(3, (3,))), 10**9), 1
    )
    batcher.instance_idle(0, 0)
    first, cancelled, following = (
        Schedulable(name, correlation_id=number, flags=flags)
        for name, number, flags in (("first", 1, START), ("cancelled", 2, START), ("following", 2, 0))
    )
    for request in (first, cancelled, following):
        batcher.enqueue(request, 0)
    cancelled.cancelled = True
    decisions = [*batcher.cancel(cancelled, 1), *batcher.released(first, 2), *batcher.instance_idle(0, 2)]
    assert [one.request for one in decisions if isinstance(one, Refuse)] == [cancelled]
    assert [one.requests for one in decisions if isinstance(one, Execute)] == [[following]]
