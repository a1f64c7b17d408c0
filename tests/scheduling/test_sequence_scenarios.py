"""The sequence batcher, scenario by scenario, as seen on Triton 2.51.

An arrival ``s1.2`` is the second request of sequence s1; ``-`` in a batch is a null request. Batches of two
instances are written with the instance before them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.scheduling.harness import MS, Arrival, Play, members
from tests.scheduling.invariants import check_invariants
from tests.scheduling.sequences import TIMED_OUT, A, direct, idle_error, oldest, on_instances, slow, step, steps
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.decisions import Execute
from tritonnb.scheduling.reasons import DELAY_EXCEEDED, NO_SLOT_WAIT, SLOT_UTILIZATION
from tritonnb.scheduling.sequence_batcher import SequenceBatcher
from tritonnb.scheduling.sequence_strategies import DirectSettings, SequenceBatcherSettings
from tritonnb.scheduling.virtual_time import VirtualTime


@dataclass
class Scenario:
    name: str
    scheduler: SequenceBatcher
    arrivals: list[Arrival]
    batches: list[tuple[str, float]]
    rules: list[str] | None = None
    refused: list[tuple[str, float, str]] | None = None


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
            slow(step("s1.1^", 0, 1), 400),
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
def test_scenario_produces_the_expected_batches(scenario: Scenario) -> None:
    play = Play(scenario.scheduler, scenario.arrivals)
    play.check(scenario.batches, scenario.rules, scenario.refused or [])


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


def test_new_sequence_uses_another_instance_than_the_last_one() -> None:
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

    time = VirtualTime(oldest(4, 2, iterative=True), service, check=check_invariants, rescheduled=runs_again)
    for name, at in (("x", 0), ("y", 20), ("z", 100)):
        time.arrive(at * MS, Schedulable(name))
    time.run()
    assert [members(batch.decision) for batch in time.batches] == ["x", "y z", "x y", "x", "x"]
    assert seen[:5] == [("x", 1, 1), ("y", 2, 1), ("z", 3, 1), ("x", 1, 0), ("y", 2, 0)]
    assert [answer.request.id for answer in time.responses] == ["z", "y", "x"]


def test_iterative_request_runs_again_under_the_direct_strategy() -> None:
    left = {"x": 3, "y": 1}

    def runs_again(request: Schedulable) -> bool:
        left[request.id] -= 1
        return left[request.id] > 0

    settings = SequenceBatcherSettings("seq", DirectSettings(1), iterative=True)
    time = VirtualTime(
        SequenceBatcher(settings, 1), lambda decision: MS, check=check_invariants, rescheduled=runs_again
    )
    time.arrive(0, Schedulable("x"))
    time.arrive(1, Schedulable("y"))
    time.run()
    assert [members(batch.decision) for batch in time.batches] == ["x", "x", "x", "y"]
    assert [batch.start_ns for batch in time.batches] == [0, MS, 2 * MS, 3 * MS]
