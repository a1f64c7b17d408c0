"""Passes of the dynamic batcher over its queue: a batch whose delay ran out while all instances are busy.

Unless a scenario says otherwise an execution takes 100 ms, and the batches are those that Triton 2.51 forms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from tests.scheduling.harness import MS, Arrival, Play, members
from tools.differential.thread_order import ThreadOrder
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.decisions import Scheduler
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.policy import DynamicBatcherSettings, QueuePolicy, QueueSettings
from tritonnb.scheduling.reasons import explain


def settings(largest: int, delay_ms: int, *preferred: int, **options: object) -> DynamicBatcherSettings:
    return DynamicBatcherSettings(largest, preferred or (largest,), delay_ms * MS, **options)  # type: ignore[arg-type]


def singles(*times_ms: float, run: float = 100) -> list[Arrival]:
    return [Arrival(f"{time:g}", time, run=run) for time in times_ms]


@dataclass
class Scenario:
    name: str
    settings: DynamicBatcherSettings
    arrivals: list[Arrival]
    batches: list[str]
    instances: int = 1


SCENARIOS = [
    Scenario(
        "arrivals do not join a batch whose delay ran out; they form the next one when an instance takes it",
        settings(4, 10),
        singles(0, 17, 30, 67),
        ["0", "17", "30 67"],
    ),
    Scenario(
        "the batch that an instance took may gather until the next one is taken",
        settings(8, 10),
        singles(0, 30, 60, 90, 105),
        ["0", "30", "60 90 105"],
    ),
    Scenario(
        "as often as an execution ends",
        settings(16, 10),
        singles(0, 30, 45, 60, 75, 90, 105, 130, 150, 170, 190),
        ["0", "30", "45 60 75 90 105 130", "150 170 190"],
    ),
    Scenario(
        "arrivals within the delay of the first join it",
        settings(16, 10),
        singles(0, 30, 34, 38, 42, 60, 64, 90, 112, 118, 140, 160, 180, 205, run=103),
        ["0", "30 34 38", "42 60 64 90 112 118", "140 160 180 205"],
    ),
    Scenario(
        "without a delay every arrival joins",
        settings(8, 0),
        singles(0, 30, 60, 90, 105),
        ["0", "30 60 90", "105"],
    ),
    Scenario(
        "enough rows for the next preferred size wake the batcher",
        settings(8, 10, 3, 8),
        [*singles(0, 30), Arrival("x", 60, 3), Arrival("y", 80)],
        ["0", "30 x", "y"],
    ),
    Scenario(
        "equal shapes are checked at every arrival, so it joins",
        settings(8, 10, enforce_equal_shape=True),
        singles(0, 30, 60, 90),
        ["0", "30 60 90"],
    ),
    Scenario(
        "behind a batch that other inputs ended, requests wait until an instance takes it",
        settings(8, 10),
        [*singles(0, 30), Arrival("odd", 35, key="odd", run=100), *singles(60, 80)],
        ["0", "30", "odd", "60 80"],
    ),
    Scenario(
        "what was pending for the payload that an instance took can be of a preferred size itself",
        settings(16, 300, 4, 10),
        [Arrival("B", 0, 10, run=100), Arrival("a", 20, 4), Arrival("b", 40, 2), Arrival("c", 60, 2)],
        ["B", "a", "b c"],
    ),
    Scenario(
        "the end of any execution makes a pass",
        settings(8, 10),
        [*singles(0, 50, 75, 90), Arrival("late", 180, run=100)],
        ["0", "50", "75", "90", "late"],
        instances=2,
    ),
    Scenario(
        "the batcher looks again after 500 ms",
        settings(8, 10),
        singles(0, 30, 60, 530, 560, run=620),
        ["0", "30 60 530", "560"],
    ),
    Scenario(
        "a payload that the next request overshoots and has other inputs than leaves the one behind it open",
        settings(8, 10, 2),
        [
            *(Arrival("a", 0, 3, run=181), Arrival("b", 43, run=181, key="o"), Arrival("c", 106, run=181)),
            *(Arrival("d", 169, run=181, key="o"), Arrival("e", 379, 2, run=181), Arrival("f", 496, 3, run=181)),
            Arrival("g", 613, run=181),
        ],
        ["a", "b", "c", "d", "e f g"],
    ),
    Scenario(
        "a batch of a preferred size grows up to a request with other inputs before an idle instance takes it",
        settings(16, 700, 2, 12, 15),
        [
            *(Arrival("a", 0, 2, run=180), Arrival("b", 23, 3, run=180, key="o"), Arrival("c", 60, run=180)),
            *(Arrival("d", 97, run=180), Arrival("e", 120, run=180), Arrival("f", 153, run=180, key="o")),
        ],
        ["a", "b", "c d e", "f"],
        instances=2,
    ),
    Scenario(
        "with a queue policy batches are formed when an instance is free",
        settings(8, 10, queue=QueueSettings(default_queue_policy=QueuePolicy(max_queue_size=9))),
        singles(0, 30, 60, 90),
        ["0", "30 60 90"],
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario_produces_the_expected_batches(scenario: Scenario) -> None:
    play = Play(DynamicBatcher(scenario.settings, scenario.instances), scenario.arrivals, scenario.instances)
    assert [batch for batch, _ in play.batches] == scenario.batches


@pytest.mark.parametrize(
    ("key", "instance_first", "batcher_first"),
    [
        (None, ["a", "b", "c d e f", "g"], ["a", "b c d e", "f g"]),
        ("optional", ["a", "b", "c", "d", "e", "f g"], ["a", "b c", "d", "e", "f g"]),
    ],
)
def test_replay_accepts_both_orders_of_tritons_threads_at_the_end_of_an_execution(
    key: str | None, instance_first: list[str], batcher_first: list[str]
) -> None:
    """Triton 2.51 forms both: with its batcher or its instances delayed by 0.5 ms, always the same of them."""
    arrivals = [
        *(Arrival("a", 0, 3, run=101), Arrival("b", 27, 3, run=101), Arrival("c", 54, run=101)),
        *(Arrival("d", 71, run=101, key=key), Arrival("e", 84, 3, run=101), Arrival("f", 127, 2, run=101, key=key)),
        Arrival("g", 190, run=101, key=key),
    ]
    for order, batches in (((), instance_first), ((True,) * len(arrivals), batcher_first)):
        scheduler = cast(Scheduler, ThreadOrder(DynamicBatcher(settings(8, 10), 1), order))
        assert [batch for batch, _ in Play(scheduler, arrivals).batches] == batches


def test_reasons_name_requests_not_added_and_the_time_of_the_next_batch() -> None:
    play = Play(DynamicBatcher(settings(8, 10), 1), singles(0, 30, 60, 90))
    _, early, late = (explain(batch.decision.reason) for batch in play.time.batches)
    assert early == (
        "1 request, 1 row: the oldest had waited 10.0 ms >= max_queue_delay 10.0 ms; max_batch_size 8 not reached; "
        "ready for 70.0 ms before instance 0 was free; 2 requests that came later were not added, because the "
        "batcher looked again only when instance 0 took this batch"
    )
    assert late == (
        "2 requests, 2 rows: the oldest had waited 50.0 ms >= max_queue_delay 10.0 ms; max_batch_size 8 not reached; "
        "formed when an instance took the batch before it; ready for 100.0 ms before instance 0 was free"
    )


def test_batcher_of_one_instance_forms_any_number_of_batches_ahead() -> None:
    bound = DynamicBatcher(settings(1, 0, instance_bound=True), 1)
    shared = DynamicBatcher(settings(1, 0), 1)
    for batcher in (bound, shared):
        batcher.instance_idle(0, 0)
        for number in range(5):
            batcher.enqueue(Schedulable(f"r{number}"), 0)
        batcher.form_deferred(0)
    assert [len(batcher.payloads) for batcher in (bound, shared)] == [4, 2]


def test_cancelling_an_unscanned_request_starts_no_pass() -> None:
    batcher = DynamicBatcher(settings(8, 10), 1)
    batcher.instance_idle(0, 0)
    for time_ms in (0, 30, 60, 70):
        request = Schedulable(str(time_ms))
        batcher.enqueue(request, time_ms * MS)
        batcher.wake((time_ms + 10) * MS)
    request.cancelled = True
    (refused,) = batcher.cancel(request, 85 * MS)
    assert members(batcher.instance_idle(0, 100 * MS)[0]) == "30"
    assert (refused.request.id, batcher.queue_depth()) == ("70", 1)
