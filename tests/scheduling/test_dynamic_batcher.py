"""The dynamic batcher and the default scheduler, scenario by scenario.

The scenarios were seen on Triton 2.51 (times there are within 20 ms). ``B`` is a request that keeps the
instance busy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from tests.scheduling.harness import MS, Arrival, Play
from tritonnb.scheduling.decisions import Scheduler
from tritonnb.scheduling.default_scheduler import DefaultScheduler
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.policy import DynamicBatcherSettings, QueuePolicy, QueueSettings, TimeoutAction
from tritonnb.scheduling.reasons import (
    DELAY_EXCEEDED,
    DIFFERENT_INPUTS,
    DOES_NOT_FIT,
    FULL,
    NO_DELAY,
    ONE_REQUEST,
    OVERSHOOTS_PREFERRED,
    PREFERRED_SIZE,
)

EIGHT = DynamicBatcherSettings(max_batch_size=8, preferred_batch_sizes=(8,))
FOUR = replace(EIGHT, preferred_batch_sizes=(4,))
ONE = DynamicBatcherSettings(max_batch_size=1, preferred_batch_sizes=(1,))
DELAY = 300 * MS


def waits(settings: DynamicBatcherSettings = EIGHT, delay_ms: float = 300) -> DynamicBatcherSettings:
    return replace(settings, max_queue_delay_ns=int(delay_ms * MS))


def policy(settings: DynamicBatcherSettings = ONE, **fields: object) -> DynamicBatcherSettings:
    return replace(settings, queue=QueueSettings(default_queue_policy=QueuePolicy(**fields)))  # type: ignore[arg-type]


A = Arrival


@dataclass
class Scenario:
    name: str
    settings: DynamicBatcherSettings | None
    arrivals: list[Arrival]
    batches: list[tuple[str, float]]
    rules: list[str] | None = None
    refused: list[tuple[str, float, str]] | None = None
    instances: int = 1


SCENARIOS = [
    Scenario(
        "1 requests that arrive while the instance is busy are batched up to the maximum",
        EIGHT,
        [
            A("B", 0, run=400),
            *[A(f"r{i}", 50 + 10 * i) for i in range(10)],
            A("x3", 200, 3), A("x6", 210, 6), A("y", 220),
        ],
        [("B", 0), ("r0 r1 r2 r3 r4 r5 r6 r7", 400), ("r8 r9 x3", 401), ("x6 y", 402)],
        [NO_DELAY, PREFERRED_SIZE, DOES_NOT_FIT, NO_DELAY],
    ),
    Scenario(
        "2 without a batcher nothing is combined",
        None,
        [A("B", 0, run=400), A("r0", 50), A("r1", 60), A("r2", 70)],
        [("B", 0), ("r0", 400), ("r1", 401), ("r2", 402)],
        [ONE_REQUEST] * 4,
    ),
    Scenario(
        "3 a preferred size without delay",
        FOUR,
        [A("B", 0, run=400), *[A(f"r{i}", 50 + 10 * i) for i in range(7)]],
        [("B", 0), ("r0 r1 r2 r3", 400), ("r4 r5 r6", 401)],
        [NO_DELAY, PREFERRED_SIZE, NO_DELAY],
    ),
    Scenario(
        "4 a payload in line grows beyond the preferred size, up to the maximum",
        FOUR,
        [A("B", 0, run=400), A("a", 50, 3), A("b", 60, 2), A("c", 70)],
        [("B", 0), ("a b", 400), ("c", 401)],
        [NO_DELAY, FULL, NO_DELAY],
    ),
    Scenario(
        "5 the delay of the oldest sends what came meanwhile",
        waits(),
        [A("a", 0), A("b", 100), A("c", 150)],
        [("a b c", 300)],
        [DELAY_EXCEEDED],
    ),
    Scenario(
        "6 the maximum is reached before the delay",
        waits(),
        [A("a", 0, 4), A("b", 100, 3), A("c", 150)],
        [("a b c", 150)],
        [PREFERRED_SIZE],
    ),
    Scenario(
        "7 a request that does not fit sends what waits",
        waits(),
        [A("a", 0, 5), A("b", 100, 4)],
        [("a", 100), ("b", 400)],
        [DOES_NOT_FIT, DELAY_EXCEEDED],
    ),
    Scenario(
        "8 a request that overshoots the largest preferred size sends what waits",
        waits(FOUR),
        [A("a", 0, 3), A("b", 100, 2)],
        [("a", 100), ("b", 400)],
        [OVERSHOOTS_PREFERRED, DELAY_EXCEEDED],
    ),
    Scenario(
        "9 with arrivals one by one the smallest preferred size fires first",
        waits(replace(EIGHT, preferred_batch_sizes=(2, 6))),
        [A("a", 0), A("b", 50), A("c", 100), A("d", 150, 3)],
        [("a b", 50), ("c d", 400)],
        [PREFERRED_SIZE, DELAY_EXCEEDED],
    ),
    Scenario(
        "10 a request of another shape sends what waits, at once",
        replace(waits(), enforce_equal_shape=True),
        [A("a", 0, key=2), A("b", 50, key=2), A("c", 100, key=3), A("d", 150, key=2)],
        [("a b", 100), ("c", 150), ("d", 450)],
        [DIFFERENT_INPUTS, DIFFERENT_INPUTS, DELAY_EXCEEDED],
    ),
    Scenario(
        "11 ragged inputs share a batch",
        waits(),
        [A("a", 0), A("b", 50), A("c", 100), A("d", 150)],
        [("a b c d", 300)],
    ),
    Scenario(
        "12 another set of optional inputs splits only when the delay has passed",
        waits(),
        [A("a", 0), A("b", 50), A("c", 100, key="OPT"), A("d", 150, key="OPT"), A("e", 200)],
        [("a b", 300), ("c d", 301), ("e", 500)],
        [DELAY_EXCEEDED, DIFFERENT_INPUTS, DELAY_EXCEEDED],
    ),
    Scenario(
        "13 payloads whose delay has passed in line are merged when an instance takes the first",
        waits(FOUR),
        [A("B", 0, 4, run=1500), A("a", 50, 3), A("b", 100, 2), A("c", 150)],
        [("B", 0), ("a b c", 1500)],
        [PREFERRED_SIZE, OVERSHOOTS_PREFERRED],
    ),
    Scenario(
        "14 a smaller priority number goes first, the default stands for none and for too large ones",
        replace(ONE, queue=QueueSettings(priority_levels=3, default_priority_level=2)),
        [
            A("B", 0, run=400), A("p3", 50, priority=3), A("p0", 80), A("p2", 110, priority=2),
            A("p1", 140, priority=1), A("p9", 170, priority=9), A("q1", 200, priority=1),
        ],
        [("B", 0), ("p1", 400), ("q1", 401), ("p0", 402), ("p2", 403), ("p9", 404), ("p3", 405)],
    ),
    Scenario(
        "15 a full queue refuses at once",
        policy(max_queue_size=2),
        [A("B", 0, run=400), *[A(f"r{i}", 50 + 10 * i) for i in range(5)]],
        [("B", 0), ("r0", 400), ("r1", 401)],
        refused=[
            (f"r{i}", 50 + 10 * i, f"[request id: r{i}] Exceeds maximum queue size") for i in range(2, 5)
        ],
    ),
    Scenario(
        "16 REJECT answers at the very moment of expiry, while the instance is busy",
        policy(default_timeout_ns=200 * MS),
        [A("B", 0, run=1500), A("r0", 50), A("r1", 100)],
        [("B", 0)],
        refused=[("r0", 250, "Request timeout expired"), ("r1", 300, "Request timeout expired")],
    ),
    Scenario(
        "17 DELAY serves an expired request after all others",
        policy(default_timeout_ns=200 * MS, timeout_action=TimeoutAction.DELAY),
        [A("B", 0, run=600), A("r0", 50), A("r1", 100), A("r2", 550), A("r3", 560)],
        [("B", 0), ("r2", 600), ("r3", 601), ("r0", 602), ("r1", 603)],
    ),
    Scenario(
        "18 an override without a default timeout has no effect",
        policy(allow_timeout_override=True),
        [A("B", 0, run=1200), A("r0", 50, timeout=100)],
        [("B", 0), ("r0", 1200)],
    ),
    Scenario(
        "18b an override shortens the default timeout and never lengthens it",
        policy(default_timeout_ns=200 * MS, allow_timeout_override=True),
        [A("B", 0, run=1200), A("r0", 50, timeout=900), A("r1", 60, timeout=100)],
        [("B", 0)],
        refused=[("r1", 160, "Request timeout expired"), ("r0", 250, "Request timeout expired")],
    ),
    Scenario(
        "19 preserve_ordering runs in parallel",
        replace(ONE, preserve_ordering=True),
        [A("slow", 0, run=400), A("fast", 50), A("fast2", 100)],
        [("slow", 0), ("fast", 50), ("fast2", 100)],
        instances=2,
    ),
    Scenario(
        "20 a request beyond the prepared payloads can be cancelled",
        EIGHT,
        [
            A("B", 0, 8, run=400), A("f", 20, 8), A("g", 30, 8), A("h", 40, 8),
            A("r0", 50, cancel_at=100), A("r1", 60),
        ],
        [("B", 0), ("f", 400), ("g", 401), ("h", 402), ("r1", 403)],
        refused=[("r0", 100, "")],
    ),
    Scenario(
        "21 a request that is cancelled in a prepared payload keeps its place, and is refused when the payload starts",
        EIGHT,
        [A("B", 0, 8, run=400), A("r0", 50, 4, cancel_at=100), A("r1", 60), A("late", 110, 4)],
        [("B", 0), ("r1", 400), ("late", 401)],
        refused=[("r0", 400, "")],
    ),
    Scenario(
        "A-E of the Conceptual Guide",
        waits(EIGHT, 20),
        [
            A("A", 0, 4, run=50), A("B", 50 / 3, 2, run=50), A("C", 0, 2, run=50),
            A("D", 100 / 3, 6, run=50), A("E", 100 / 3, 2, run=50),
        ],
        [("A C B", 50 / 3), ("D E", 50 / 3 + 50)],
        [PREFERRED_SIZE, PREFERRED_SIZE],
    ),
    Scenario(
        "a lone request larger than every preferred size is sent at once",
        waits(FOUR),
        [A("a", 0, 5)],
        [("a", 0)],
        [FULL],
    ),
    Scenario(
        "levels are combined in one batch, the higher precedence first",
        replace(waits(), queue=QueueSettings(priority_levels=2, default_priority_level=2)),
        [A("a", 0), A("b", 50, priority=1), A("c", 100)],
        [("b a c", 300)],
        [DELAY_EXCEEDED],
    ),
    Scenario(
        "a live arrival goes before a delayed one of its level",
        waits(policy(EIGHT, default_timeout_ns=100 * MS, timeout_action=TimeoutAction.DELAY)),
        [A("a", 0), A("b", 250)],
        [("b a", 300)],
    ),
    Scenario(
        "a request that is delayed makes way for a preferred size at once",
        waits(policy(
            replace(EIGHT, preferred_batch_sizes=(4, 8)), default_timeout_ns=200 * MS, allow_timeout_override=True,
            timeout_action=TimeoutAction.DELAY,
        )),
        [A("a", 0, 2), A("b", 20, timeout=100), A("c", 40, 2)],
        [("a c", 120), ("b", 320)],
        [PREFERRED_SIZE, DELAY_EXCEEDED],
    ),
    Scenario(
        "once the delay has passed all that waits is sent, not the part of a preferred size",
        waits(policy(replace(EIGHT, preferred_batch_sizes=(4, 8)), max_queue_size=9)),
        [A("B", 0, 8, run=400), A("a", 50, 2), A("b", 60, 2), A("c", 70)],
        [("B", 0), ("a b c", 400)],
        [PREFERRED_SIZE, DELAY_EXCEEDED],
    ),
    Scenario(
        "before the delay has passed the part of a preferred size is sent, and the rest waits on",
        waits(policy(replace(EIGHT, preferred_batch_sizes=(4, 8)), max_queue_size=9)),
        [A("B", 0, 8, run=200), A("a", 50, 2), A("b", 60, 2), A("c", 70)],
        [("B", 0), ("a b", 200), ("c", 370)],
        [PREFERRED_SIZE, PREFERRED_SIZE, DELAY_EXCEEDED],
    ),
    Scenario(
        "a batch of the largest preferred size is full, even when the delay has passed",
        waits(policy(EIGHT, max_queue_size=9)),
        [A("B", 0, 8, run=400), A("a", 50, 4), A("b", 60, 4)],
        [("B", 0), ("a b", 400)],
        [PREFERRED_SIZE, FULL],
    ),
    Scenario(
        "a payload in line that the next request does not fit in keeps its reason",
        FOUR,
        [A("B", 0, run=400), A("a", 50, 3), A("x", 60, 6), A("c", 70)],
        [("B", 0), ("a", 400), ("x", 401), ("c", 402)],
        [NO_DELAY, NO_DELAY, FULL, NO_DELAY],
    ),
    Scenario(
        "a cancelled request does not count towards the pending batch",
        waits(),
        [A("a", 0, 4, cancel_at=50), A("b", 20, 3), A("c", 100, 4)],
        [("b c", 320)],
        [DELAY_EXCEEDED],
        refused=[("a", 50, "")],
    ),
]  # fmt: skip


def scheduler_for(settings: DynamicBatcherSettings | None, instances: int) -> Scheduler:
    return DynamicBatcher(settings, instances) if settings else DefaultScheduler(instances)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario_produces_the_expected_batches(scenario: Scenario) -> None:
    play = Play(scheduler_for(scenario.settings, scenario.instances), scenario.arrivals, scenario.instances)
    play.check(scenario.batches, scenario.rules, scenario.refused or [])


def test_preserve_ordering_holds_responses_until_earlier_ones_are_sent() -> None:
    scheduler = DynamicBatcher(replace(ONE, preserve_ordering=True), 2)
    play = Play(scheduler, [A("slow", 0, run=400), A("fast", 50), A("fast2", 100)], instances=2)
    assert play.answers == [("slow", 400, "ok"), ("fast", 400, "ok"), ("fast2", 400, "ok")]


def test_refusal_with_preserve_ordering_is_sent_at_once() -> None:
    settings = policy(replace(ONE, preserve_ordering=True), default_timeout_ns=15 * MS)
    play = Play(DynamicBatcher(settings, 1), [A("slow", 0, run=400), A("late", 50)])
    assert [name for name, _, _ in play.answers] == ["late", "slow"]


def test_batching_starts_when_the_configured_number_of_requests_waits() -> None:
    scheduler = DynamicBatcher(replace(EIGHT, min_requests_to_start=3), 1)
    play = Play(scheduler, [A("a", 0, size=2), A("b", 10), A("c", 20, run=50), A("d", 30)])
    assert play.batches == [("a b c", 20), ("d", 70)]


@pytest.mark.parametrize("leaving", [[A("a", 0), A("b", 10, cancel_at=12)], [A("a", 0), A("b", 0)]])
def test_requests_that_left_the_queue_while_it_was_held_count_for_the_held_number(leaving: list[A]) -> None:
    settings = policy(replace(EIGHT, min_requests_to_start=4), default_timeout_ns=15 * MS)
    play = Play(DynamicBatcher(settings, 1), [*leaving, A("c", 20), A("d", 30)])
    assert play.batches == [("c d", 30)]


def test_two_batches_per_instance_are_prepared_ahead_and_skipped_if_all_their_requests_are_cancelled() -> None:
    waiting = [A(id, 1 + at, cancel_at=8) for at, id in enumerate("cdefg")]
    play = Play(DynamicBatcher(ONE, 2), [A("a", 0, run=10), A("b", 0, run=10), *waiting, A("h", 9)], instances=2)
    assert play.batches == [("a", 0), ("b", 0), ("h", 10)]
    assert [(id, at) for id, at, text in play.answers if text != "ok"] == [("g", 8), *((id, 10) for id in "cdef")]


def test_longest_idle_instance_is_taken() -> None:
    play = Play(DynamicBatcher(ONE, 2), [A("a", 0, run=10), A("b", 1, run=2), A("c", 20, run=1)], instances=2)
    assert [batch.decision.instance for batch in play.time.batches] == [0, 1, 1]
