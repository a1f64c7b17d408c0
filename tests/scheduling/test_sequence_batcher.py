"""The sequence batcher, scenario by scenario, as seen on Triton 2.51.

An arrival ``s1.2`` is the second request of sequence s1; ``-`` in a batch is a null request. Batches of two
instances are written with the instance before them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.scheduling.harness import END, MS, START, Arrival, Play, Request, members
from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.scheduling.decisions import Execute, Schedulable
from tritonnb.scheduling.direct import DirectSettings
from tritonnb.scheduling.oldest import OldestSettings
from tritonnb.scheduling.policy import DynamicBatcherSettings
from tritonnb.scheduling.reasons import DELAY_EXCEEDED, NO_SLOT_WAIT, SLOT_UTILIZATION, explain
from tritonnb.scheduling.sequence_batcher import SequenceBatcher
from tritonnb.scheduling.sequence_settings import SequenceBatcherSettings
from tritonnb.scheduling.virtual_time import VirtualTime


def direct(size: int, instances: int = 1, idle_ms: float = 10_000, **fields: float) -> SequenceBatcher:
    strategy = DirectSettings(size, **fields)  # type: ignore[arg-type]
    return SequenceBatcher(SequenceBatcherSettings("seq", strategy, int(idle_ms * MS)), instances)


def oldest(
    candidates: int,
    size: int,
    preferred: int = 0,
    delay_ms: float = 0,
    idle_ms: float = 10_000,
    iterative: bool = False,
    instances: int = 1,
) -> SequenceBatcher:
    batcher = DynamicBatcherSettings(size, (preferred or size,), int(delay_ms * MS))
    strategy = OldestSettings(candidates, batcher)
    return SequenceBatcher(SequenceBatcherSettings("seq", strategy, int(idle_ms * MS), iterative=iterative), instances)


def steps(*lines: tuple[str, float], run: float = 1) -> list[Arrival]:
    """Arrivals from names: ``A1^`` begins sequence A, ``A3$`` ends it."""
    return [_step(name, at, run) for name, at in lines]


def _step(name: str, at: float, run: float) -> Arrival:
    plain = name.rstrip("^$")
    sequence = plain.split(".")[0] if "." in plain else plain.rstrip("0123456789")
    return Arrival(plain, at, run=run, sequence=sequence, start="^" in name, end="$" in name)


def slow(arrival: Arrival, run: float) -> Arrival:
    arrival.run = run
    return arrival


def idle_error(sequence: str) -> str:
    return (
        f"inference request for sequence {sequence} to model 'seq' must specify the START flag on the first "
        "request of the sequence"
    )


TIMED_OUT = "timeout of the corresponding sequence has been expired"


@dataclass
class Scenario:
    name: str
    scheduler: SequenceBatcher
    arrivals: list[Arrival]
    batches: list[tuple[str, float]]
    rules: list[str] | None = None
    refused: list[tuple[str, float, str]] | None = None


A = Arrival

SCENARIOS = [
    Scenario(
        "10.2 padding below the highest ready slot, and a free slot of lowest index is used again",
        direct(4),
        steps(
            ("A1^", 0), ("B1^", 10), ("C1^", 20), ("C2", 30), ("A2$", 40), ("C3", 50), ("D1^$", 60),
            ("B2$", 70),
        ),
        [
            ("A1", 0), ("- B1", 10), ("- - C1", 20), ("- - C2", 30), ("A2", 40), ("- - C3", 50), ("D1", 60),
            ("- B2", 70),
        ],
    ),
    Scenario(
        "10.3 a slot whose shape differs from the first ready one's is a null request, the highest too",
        direct(4),
        [
            A("A1", 0, run=400, key=1, sequence="A", start=True),
            A("A2", 10, key=2, sequence="A"),
            A("B1", 20, key=3, sequence="B", start=True),
            A("C1", 30, key=2, sequence="C", start=True),
        ],
        [("A1", 0), ("A2 - C1", 400), ("- B1", 401)],
    ),
    Scenario(
        "10.3b the highest slot is null when it is the one that differs",
        direct(2),
        [
            A("A1", 0, run=400, sequence="A", start=True),
            A("A2", 10, key=2, sequence="A"),
            A("B1", 20, key=3, sequence="B", start=True),
        ],
        [("A1", 0), ("A2 -", 400), ("- B1", 401)],
    ),
    Scenario(
        "10.4 enough ready slots do not wait, fewer wait for the delay",
        direct(4, max_queue_delay_ns=400 * MS, minimum_slot_utilization=0.75),
        steps(("A1^", 0), ("B1^", 100), ("C1^", 200), ("A2", 300), ("B2", 350)),
        [("A1 B1 C1", 200), ("A2 B2", 700)],
        [SLOT_UTILIZATION, DELAY_EXCEEDED],
    ),
    Scenario(
        "10.4b a delay without minimum_slot_utilization does nothing",
        direct(4, max_queue_delay_ns=400 * MS),
        steps(("A1^", 0)),
        [("A1", 0)],
        [NO_SLOT_WAIT],
    ),
    Scenario(
        "10.5 oldest: batches of the oldest requests, never two of one sequence, no padding",
        oldest(4, 2),
        [
            slow(_step("s1.1^", 0, 1), 400),
            *steps(*((f"s{i}.1^", 20 + 10 * i - 10) for i in range(2, 7))),
            *steps(*((f"s{i}.2", 100 + 10 * i) for i in range(1, 7))),
            *steps(*((f"s{i}.3$", 200 + 10 * i) for i in range(1, 7))),
        ],
        [
            ("s1.1", 0), ("s2.1 s3.1", 400), ("s4.1 s1.2", 401), ("s2.2 s3.2", 402), ("s4.2 s1.3", 403),
            ("s2.3 s3.3", 404), ("s4.3 s5.1", 405), ("s6.1 s5.2", 406), ("s6.2 s5.3", 407), ("s6.3", 408),
        ],
    ),
    Scenario(
        "10.6 oldest: the delay runs from the moment at which the batcher got the request",
        oldest(4, 4, delay_ms=300),
        steps(("A1^", 0), ("B1^", 100), ("A2", 120), run=20),
        [("A1 B1", 300), ("A2", 620)],
        [DELAY_EXCEEDED, DELAY_EXCEEDED],
    ),
    *(
        Scenario(
            f"10.7a {name}: an idle sequence gives its slot to the backlog",
            scheduler,
            steps(("A1^", 0), ("B1^$", 100), ("A2", 1200)),
            [("A1", 0), ("B1", 500)],
            refused=[("A2", 1200, idle_error("A"))],
        )
        for name, scheduler in (("direct", direct(1, idle_ms=500)), ("oldest", oldest(1, 1, idle_ms=500)))
    ),
    Scenario(
        "10.7b a sequence that was silent in the backlog runs what it has, then it is closed",
        direct(1, idle_ms=500),
        steps(
            ("A1^", 0), ("B1^", 100), *((f"A{i}", 300 * (i - 1)) for i in range(2, 7)),
            ("A7$", 1800), ("B2$", 2000),
        ),
        [("A1", 0), *((f"A{i}", 300 * (i - 1)) for i in range(2, 8)), ("B1", 1801)],
        refused=[("B2", 2000, idle_error("B"))],
    ),
    Scenario(
        "10.7c the shortest timeout in the backlog refuses all of a sequence",
        direct(1),
        [
            A("A1", 0, run=800, sequence="A", start=True),
            A("B1", 50, timeout=300, sequence="B", start=True),
            A("B2", 100, timeout=100, sequence="B"),
        ],
        [("A1", 0)],
        refused=[("B1", 200, TIMED_OUT), ("B2", 200, TIMED_OUT)],
    ),
    Scenario(
        "10.7d a second START joins the sequence that is going on",
        direct(1),
        steps(("A1^", 0), ("A2^", 10), ("A3$", 20), ("A4", 30)),
        [("A1", 0), ("A2", 10), ("A3", 20)],
        refused=[("A4", 30, idle_error("A"))],
    ),
    *(
        Scenario(
            f"10.7e {name}: a cancelled request takes its sequence with it when the running one ends",
            scheduler,
            [
                A("A1", 0, run=300, sequence="A", start=True),
                A("A2", 50, sequence="A", cancel_at=100),
                A("A3", 60, sequence="A"),
                A("A4", 400, sequence="A"),
            ],
            [("A1", 0)],
            refused=[("A2", 300, ""), ("A3", 300, ""), ("A4", 400, idle_error("A"))],
        )
        for name, scheduler in (("direct", direct(1)), ("oldest", oldest(1, 1)))
    ),
    Scenario(
        "a cancelled member of the backlog cancels its sequence when its turn comes",
        direct(1),
        [
            A("A1", 0, run=300, sequence="A", start=True, end=True),
            A("A2", 40, run=10, sequence="A", start=True),
            A("B1", 50, sequence="B", start=True),
            A("B2", 60, sequence="B", cancel_at=100),
            A("A3", 400, sequence="A", end=True),
            A("C1", 500, sequence="C", start=True),
        ],
        [("A1", 0), ("A2", 300), ("A3", 400), ("C1", 500)],
        refused=[("B1", 400, ""), ("B2", 400, "")],
    ),
    Scenario(
        "oldest: a request cancelled while it waits for others to join it does not end its sequence",
        oldest(4, 2, delay_ms=300),
        [
            A("A1", 0, sequence="A", start=True, cancel_at=100),
            A("A2", 50, sequence="A"),
            A("A3", 500, sequence="A", end=True),
        ],
        [("A2", 400), ("A3", 800)],
        refused=[("A1", 100, "")],
    ),
    Scenario(
        "a number and a string with the same digits are two sequences",
        direct(2),
        [A("n", 0, sequence=5, start=True), A("t", 10, sequence="5", start=True)],
        [("n", 0), ("- t", 10)],
    ),
]  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario) -> None:
    play = Play(scenario.scheduler, scenario.arrivals)
    assert [who for who, _ in play.batches] == [who for who, _ in scenario.batches]
    starts = [when for _, when in scenario.batches]
    assert [when for _, when in play.batches] == pytest.approx(starts, abs=1e-3)
    if scenario.rules is not None:
        assert play.rules == scenario.rules
    assert [answer for answer in play.answers if answer[2] != "ok"] == (scenario.refused or [])
    for batch in play.time.batches:
        assert explain(batch.decision.reason)


def on_instances(play: Play) -> list[tuple[int, str]]:
    return [(batch.decision.instance, members(batch.decision)) for batch in play.time.batches]


def test_10_1_direct_two_instances_six_sequences() -> None:
    order = (3, 1, 2, 4, 5, 6)
    play = Play(
        direct(2, instances=2),
        steps(
            *((f"s{i}.1^", 30 * (i - 1)) for i in range(1, 7)),
            *((f"s{i}.2", 180 + 30 * (i - 1)) for i in range(1, 7)),
            *((f"s{s}.3$", 360 + 60 * i) for i, s in enumerate(order)),
        ),
        instances=2,
    )
    assert on_instances(play) == [
        (0, "s1.1"), (1, "s2.1"), (0, "- s3.1"), (1, "- s4.1"),
        (0, "s1.2"), (1, "s2.2"), (0, "- s3.2"), (1, "- s4.2"),
        (0, "- s3.3"), (0, "- s5.1"), (0, "- s5.2"),
        (0, "s1.3"), (0, "s6.1"), (0, "s6.2"),
        (1, "s2.3"), (1, "- s4.3"), (0, "- s5.3"), (0, "s6.3"),
    ]  # fmt: skip
    assert [batch.decision.slots for batch in play.time.batches[:3]] == [(0,), (0,), (0, 1)]


def test_10_1_direct_two_instances_loaded() -> None:
    arrivals = steps(
        ("A1^", 0), ("B1^", 10), ("C1^", 50), ("D1^", 60), ("E1^$", 70),
        ("A2$", 100), ("B2", 110), ("C2$", 120), ("B3$", 130), ("D2$", 140),
    )  # fmt: skip
    for arrival in arrivals[:2]:
        slow(arrival, 400)
    play = Play(direct(2, instances=2), arrivals, instances=2)
    assert [who for instance, who in on_instances(play) if instance == 0] == ["A1", "A2 C1", "E1 C2"]
    assert [who for instance, who in on_instances(play) if instance == 1] == ["B1", "B2 D1", "B3 D2"]


def test_a_sequence_that_was_idle_for_too_long_in_the_backlog_is_closed() -> None:
    arrivals = steps(("A1^", 0), ("B1^", 20), ("A2", 200), ("A3$", 400), ("B2", 410), run=100)
    play = Play(direct(1, idle_ms=310), arrivals)
    assert play.batches == [("A1", 0), ("A2", 200), ("A3", 400), ("B1", 500)]
    assert play.failures == {"B2": idle_error("B")}


def test_a_sequence_begins_on_another_instance_than_the_one_whose_slot_was_just_used() -> None:
    arrivals = steps(("A1^$", 0), ("B1^$", 40), ("C1^$", 60), ("D1^", 120), ("D2$", 130), ("E1^", 140), run=100)
    play = Play(direct(2, instances=3), arrivals, instances=3)
    assert play.batches == [("A1", 0), ("B1", 40), ("C1", 100), ("D1", 140), ("E1", 200), ("D2", 240)]


def test_10_7f_an_iterative_request_joins_later_batches_until_it_is_done() -> None:
    left = {"x": 4, "y": 2, "z": 1}
    seen: list[tuple[str, object, int]] = []

    def runs_again(request: Schedulable) -> bool:
        left[request.id] -= 1
        return left[request.id] > 0

    def service(decision: Execute) -> int:
        seen.extend((request.id, request.correlation_id, request.flags) for request in decision.requests)
        return 120 * MS

    time = VirtualTime(oldest(4, 2, iterative=True), service, validate=True, rescheduled=runs_again)
    for name, at in (("x", 0), ("y", 20), ("z", 100)):
        time.arrive(at * MS, Request(name))
    time.run()
    assert [members(batch.decision) for batch in time.batches] == ["x", "y z", "x y", "x", "x"]
    assert seen[:5] == [("x", 1, 1), ("y", 2, 1), ("z", 3, 1), ("x", 1, 0), ("y", 2, 0)]
    assert [answer.request.id for answer in time.responses] == ["z", "y", "x"]


def test_an_iterative_request_runs_again_under_the_direct_strategy() -> None:
    left = {"x": 3, "y": 1}

    def runs_again(request: Schedulable) -> bool:
        left[request.id] -= 1
        return left[request.id] > 0

    settings = SequenceBatcherSettings("seq", DirectSettings(1), iterative=True)
    time = VirtualTime(SequenceBatcher(settings, 1), lambda decision: MS, validate=True, rescheduled=runs_again)
    time.arrive(0, Request("x"))
    time.arrive(1, Request("y"))
    time.run()
    assert [members(batch.decision) for batch in time.batches] == ["x", "x", "x", "y"]
    assert [batch.start_ns for batch in time.batches] == [0, MS, 2 * MS, 3 * MS]


def waiting() -> tuple[SequenceBatcher, Request]:
    """An idle instance of four slots, one of which is ready and waits for the others."""
    scheduler = direct(4, max_queue_delay_ns=400 * MS, minimum_slot_utilization=1.0)
    scheduler.instance_idle(0, 0)
    request = Request("A1", correlation_id="A", flags=START)
    assert not scheduler.enqueue(request, 10 * MS)
    assert scheduler.next_wake_ns == 410 * MS
    return scheduler, request


def changed(**fields: float) -> SequenceBatcherSettings:
    return SequenceBatcherSettings("seq", DirectSettings(4, **fields), 10_000 * MS)  # type: ignore[arg-type]


def test_a_changed_delay_or_utilization_applies_to_waiting_requests() -> None:
    scheduler, _ = waiting()
    assert not scheduler.reconfigure(changed(max_queue_delay_ns=100 * MS, minimum_slot_utilization=1.0), 20 * MS)
    assert scheduler.next_wake_ns == 110 * MS
    (decision,) = scheduler.reconfigure(changed(max_queue_delay_ns=100 * MS, minimum_slot_utilization=0.25), 30 * MS)
    assert (members(decision), decision.reason.rule) == ("A1", SLOT_UTILIZATION)
    scheduler.validate()


def test_a_changed_delay_of_the_oldest_strategy_applies_to_waiting_requests() -> None:
    scheduler = oldest(2, 4, delay_ms=400)
    scheduler.instance_idle(0, 0)
    assert not scheduler.enqueue(Request("A1", correlation_id="A", flags=START), 10 * MS)
    strategy = OldestSettings(2, DynamicBatcherSettings(4, (4,), 50 * MS))
    assert not scheduler.reconfigure(SequenceBatcherSettings("seq", strategy, 10_000 * MS), 20 * MS)
    assert scheduler.next_wake_ns == 60 * MS


def test_a_request_that_waits_for_other_slots_can_be_cancelled() -> None:
    scheduler, request = waiting()
    request.cancelled = True
    (decision,) = scheduler.cancel(request, 30 * MS)
    assert (decision.request, decision.reason.facts["waited_ns"]) == (request, 20 * MS)
    assert scheduler.queue_depth() == 0
    scheduler.validate()


def test_the_reason_of_a_sequence_batch_has_its_numbers() -> None:
    scheduler, _ = waiting()
    scheduler.enqueue(Request("B1", correlation_id="B", flags=START | END), 20 * MS)
    scheduler.enqueue(Request("C1", correlation_id="C", flags=START), 30 * MS)
    (decision,) = scheduler.wake(410 * MS)
    facts = decision.reason.facts
    assert (facts["requests"], facts["rows"], facts["nulls"], facts["ready"]) == (3, 3, 0, 3)
    assert (facts["waited_ns"], facts["idle_ns"]) == (400 * MS, 410 * MS)
    scheduler.instance_idle(0, 500 * MS)
    assert not scheduler.reconfigure(changed(minimum_slot_utilization=1.0), 500 * MS)
    (decision,) = scheduler.enqueue(Request("C2", correlation_id="C"), 520 * MS)
    facts = decision.reason.facts
    assert (members(decision), decision.reason.rule) == ("- - C2", NO_SLOT_WAIT)
    assert (facts["requests"], facts["rows"], facts["nulls"], facts["idle_ns"]) == (1, 3, 2, 20 * MS)


def test_an_id_that_is_made_up_is_none_that_a_client_uses() -> None:
    scheduler = oldest(4, 1, iterative=True)
    for taken in (1, 2):
        scheduler.enqueue(Request(f"client's {taken}", correlation_id=taken, flags=START), 0)
    nameless = [Request("one"), Request("other")]
    for request in nameless:
        scheduler.enqueue(request, 0)
    assert [request.correlation_id for request in nameless] == [3, 4]
    scheduler.validate()


def test_only_requests_of_an_iterative_model_can_run_again() -> None:
    scheduler = direct(1)
    request = Request("A1", correlation_id="A", flags=START)
    scheduler.instance_idle(0, 0)
    scheduler.enqueue(request, 0)
    with pytest.raises(InvalidArgumentError, match="the model is not configured to handle such a flag"):
        scheduler.reschedule(request, 1)


@pytest.mark.parametrize("strategy", [DirectSettings(1), OldestSettings(1, DynamicBatcherSettings(1, (1,)))])
def test_what_ran_for_longer_than_the_idle_time_cannot_run_again_and_its_slot_is_free(
    strategy: DirectSettings | OldestSettings,
) -> None:
    settings = SequenceBatcherSettings("seq", strategy, 10 * MS, iterative=True)
    scheduler = SequenceBatcher(settings, 1)
    slow, waiting = Request("slow"), Request("waiting")
    scheduler.instance_idle(0, 0)
    assert [members(decision) for decision in scheduler.enqueue(slow, 0)] == ["slow"]
    scheduler.enqueue(waiting, 1)
    assert not scheduler.wake(10 * MS)
    with pytest.raises(InvalidArgumentError, match=r"sequence 1 to model 'seq' must specify the START flag"):
        scheduler.reschedule(slow, 11 * MS)
    decisions = [*scheduler.released(slow, 11 * MS), *scheduler.instance_idle(0, 11 * MS)]
    assert [members(decision) for decision in decisions] == ["waiting"]
    scheduler.validate()


def test_cancelling_what_is_over_or_was_never_admitted_changes_nothing() -> None:
    for scheduler in (direct(1), oldest(1, 1)):
        request = Request("A1", correlation_id="A", flags=START | END)
        scheduler.instance_idle(0, 0)
        assert scheduler.enqueue(request, 0)
        assert not scheduler.released(request, 1)
        assert not scheduler.cancel(request, 2)
        assert not scheduler.cancel(Request("stranger"), 2)
        scheduler.validate()


def test_an_automatic_id_is_none_that_is_in_use() -> None:
    scheduler = SequenceBatcher(SequenceBatcherSettings("seq", DirectSettings(4), iterative=True), 1)
    scheduler.enqueue(Request("a", correlation_id=1, flags=1), 0)
    unnamed = Request("b", correlation_id=0)
    scheduler.enqueue(unnamed, 0)
    assert unnamed.correlation_id == 2


def test_admission_refuses_in_tritons_words() -> None:
    scheduler = direct(1)
    with pytest.raises(InvalidArgumentError, match="must specify batch-size 1 due to requirements of sequence batcher"):
        scheduler.enqueue(Request("a", batch_size=2, correlation_id=1, flags=1), 0)
    for missing in (0, ""):
        with pytest.raises(InvalidArgumentError, match="must specify a non-zero or non-empty correlation ID"):
            scheduler.enqueue(Request("a", correlation_id=missing, flags=1), 0)
    with pytest.raises(InvalidArgumentError, match=r"for sequence 7 to model 'seq' must specify the START flag"):
        scheduler.enqueue(Request("a", correlation_id=7), 0)
    assert scheduler.queue_depth() == 0


def test_a_stopped_scheduler_continues_sequences_and_starts_none() -> None:
    scheduler = direct(2)
    scheduler.instance_idle(0, 0)
    assert scheduler.enqueue(Request("A1", correlation_id=1, flags=1), 0)
    scheduler.stop()
    with pytest.raises(UnavailableError, match=r"^Server is stopping"):
        scheduler.enqueue(Request("B1", correlation_id=2, flags=1), 1)
    scheduler.enqueue(Request("A2", correlation_id=1), 2)
    assert [members(decision) for decision in scheduler.instance_idle(0, 3)] == ["A2"]


def test_nothing_runs_before_slots_and_backlog_hold_enough_requests() -> None:
    settings = SequenceBatcherSettings("seq", DirectSettings(1), min_requests_to_start=2, min_backlog_to_start=1)
    play = Play(SequenceBatcher(settings, 1), steps(("A1^", 0), ("A2$", 10), ("B1^", 20), ("B2$", 30)))
    assert play.batches == [("A1", 20), ("A2", 21), ("B1", 22), ("B2", 30)]


def test_requests_of_the_backlog_do_not_count_for_those_in_slots() -> None:
    settings = SequenceBatcherSettings("seq", DirectSettings(1), min_requests_to_start=2, min_backlog_to_start=1)
    play = Play(SequenceBatcher(settings, 1), steps(("A1^", 0), ("B1^", 10), ("B2$", 20), ("A2$", 30)))
    assert play.batches == [("A1", 30), ("A2", 31), ("B1", 32), ("B2", 33)]


def test_the_reason_of_a_refusal_in_the_backlog_has_the_wait() -> None:
    scheduler = direct(1)
    scheduler.enqueue(Request("A1", correlation_id="A", flags=START), 0)
    scheduler.enqueue(Request("B1", correlation_id="B", flags=START, timeout_us=10_000), 5 * MS)
    scheduler.enqueue(Request("B2", correlation_id="B"), 7 * MS)
    assert scheduler.next_wake_ns == 15 * MS
    decisions = scheduler.wake(15 * MS)
    assert [decision.reason.facts for decision in decisions] == [
        {"sequence": "B", "waited_ns": 10 * MS},
        {"sequence": "B", "waited_ns": 8 * MS},
    ]


@pytest.mark.parametrize("slots", [3, 1])
def test_another_number_of_slots_holds_as_soon_as_none_is_owned(slots: int) -> None:
    scheduler = oldest(2, 4)
    scheduler.instance_idle(0, 0)
    last = Request("A", correlation_id="A", flags=START | END)
    scheduler.enqueue(last, 0)
    strategy = OldestSettings(slots, DynamicBatcherSettings(4, (4,)))
    scheduler.reconfigure(SequenceBatcherSettings("seq", strategy), 1)
    for name in "BCDE":
        scheduler.enqueue(Request(name, correlation_id=name, flags=START), 2)
    scheduler.released(last, 3)
    scheduler.instance_idle(0, 3)
    assert (scheduler.open_sequences, len(scheduler.table.backlog)) == (slots, 4 - slots)
    scheduler.validate()


def test_the_request_that_ends_the_hold_is_in_the_first_batch() -> None:
    settings = SequenceBatcherSettings("seq", DirectSettings(4), min_requests_to_start=2)
    play = Play(SequenceBatcher(settings, 1), steps(("A1^", 0), ("B1^", 10), ("B2$", 11)))
    assert play.batches == [("A1 B1", 10), ("- B2", 11)]


def test_sequences_outlive_their_instance_and_the_backlog_moves_into_a_new_one() -> None:
    scheduler = direct(1)
    scheduler.instance_idle(0, 0)
    scheduler.enqueue(Request("A1", correlation_id="A", flags=1), 0)
    scheduler.enqueue(Request("B1", correlation_id="B", flags=1), 1)
    assert not scheduler.set_instances([1], 2)
    assert scheduler.uses(0)
    assert [(decision.instance, members(decision)) for decision in scheduler.instance_idle(1, 3)] == [(1, "B1")]
    assert not scheduler.instance_idle(0, 4)
    (last,) = scheduler.enqueue(Request("A2", correlation_id="A", flags=2), 5)
    assert (last.instance, members(last)) == (0, "A2")
    scheduler.instance_idle(0, 6)
    assert not scheduler.uses(0)
    scheduler.validate()


def test_three_of_ten_slots_are_a_utilization_of_three_tenths() -> None:
    single_precision = 0.30000001192092896
    play = Play(
        direct(10, max_queue_delay_ns=400 * MS, minimum_slot_utilization=single_precision),
        steps(("A1^", 0), ("B1^", 1), ("C1^", 2)),
    )
    assert play.batches == [("A1 B1 C1", 2)]


def test_a_full_backlog_is_enough_if_no_number_of_requests_is_configured() -> None:
    settings = SequenceBatcherSettings("seq", DirectSettings(1), min_backlog_to_start=1)
    play = Play(SequenceBatcher(settings, 1), steps(("A1^", 0), ("A2$", 10), ("B1^", 20), ("B2$", 30)))
    assert play.batches == [("A1", 20), ("A2", 21), ("B1", 22), ("B2", 30)]
