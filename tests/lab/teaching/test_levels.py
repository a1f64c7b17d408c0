"""Whoever knows the rules of a level solves its exercises."""

from __future__ import annotations

import pytest

import tritonnb as tnb
from tritonnb.model_config.read import read_config


def solve_with_three_rules(sheet: tnb.Worksheet) -> list[list[str]]:
    """Form batches with the rules of the section "When a batch is sent" in docs/explanation/batching.md."""
    config = read_config(sheet.config)
    limit = config.max_batch_size
    preferred = set(config.dynamic_batching.preferred_batch_size) or {limit}
    delay_ns = config.dynamic_batching.max_queue_delay_microseconds * 1000
    execution_ns = round(sheet.execution_ms * 1e6)  # type: ignore[operator]
    ahead = list(zip(sheet.arrived_ns, sheet.names, [arrival.rows for arrival in sheet.arrivals], strict=True))
    moments = {arrived + delay_ns for arrived, _, _ in ahead} | {arrived for arrived, _, _ in ahead}
    queue: list[tuple[int, str, int]] = []
    batches: list[list[str]] = []
    free_ns = 0
    while moments:
        now = min(moments)
        moments.discard(now)
        while ahead and ahead[0][0] <= now:
            queue.append(ahead.pop(0))
        if not queue or now < free_ns:
            continue
        sums = [sum(rows for _, _, rows in queue[: count + 1]) for count in range(len(queue))]
        fitting = sum(total <= limit for total in sums)
        reached = [count + 1 for count, total in enumerate(sums[:fitting]) if total in preferred]
        count = reached[-1] if reached else fitting
        if not reached and fitting == len(queue) and now < queue[0][0] + delay_ns:
            continue
        batches.append([name for _, name, _ in queue[:count]])
        del queue[:count]
        free_ns = now + execution_ns
        moments.add(free_ns)
    return batches


@pytest.mark.parametrize("requests", [4, 6, 8])
def test_three_rules_solve_every_exercise_of_the_first_level(requests: int) -> None:
    for seed in range(1000 if requests == 6 else 100):
        sheet = tnb.worksheet(seed=seed, requests=requests)
        assert [sorted(batch) for batch in solve_with_three_rules(sheet)] == [sorted(b) for b in sheet.solution], seed


def test_second_level_needs_more_than_three_rules_in_some_exercises() -> None:
    sheets = [tnb.worksheet(seed=seed, level=2) for seed in range(50)]
    assert any(solve_with_three_rules(sheet) != sheet.solution for sheet in sheets)


@pytest.mark.parametrize("level", [0, 3, "1"])
def test_unknown_level_is_refused(level: int) -> None:
    with pytest.raises(tnb.TritonError, match="level expected 1 or 2"):
        tnb.worksheet(level=level)
