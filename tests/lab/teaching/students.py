"""Students who know exactly the rules of a level, and solve exercises with pencil and paper.

They are written from the documents (*docs/explanation/batching.md*, *docs/explanation/sequences.md*) and share no code
with the generator of the exercises. ``python -m tests.lab.teaching.students 1000`` lets them solve a thousand exercises
of each kind and level.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate

import tritonnb as tnb
from tritonnb.model_config.read import read_config

KINDS = [(batcher, level) for batcher in ("dynamic", "direct", "oldest") for level in (1, 2)]


def solve_dynamic(sheet: tnb.Worksheet, level: int) -> list[list[str]]:
    """The three conditions of "When a batch is sent", and the two consequences with level 2."""
    config = read_config(sheet.config)
    limit = config.max_batch_size
    preferred = list(config.dynamic_batching.preferred_batch_size) or [limit]
    delay = config.dynamic_batching.max_queue_delay_microseconds / 1000
    queue = [
        (arrival.time_us / 1000, arrival.rows, name) for arrival, name in zip(sheet.arrivals, sheet.names, strict=True)
    ]
    batches = []
    free = now = 0.0
    while queue:
        waiting = [entry for entry in queue if entry[0] <= now]
        if not waiting:
            now = queue[0][0]
            continue
        due = waiting[0][0] + delay
        if level == 2 and delay and due < free:
            waiting = [entry for entry in waiting if entry[0] <= due]
        rows = list(accumulate(entry[1] for entry in waiting))
        fitting = [count for count, total in enumerate(rows, 1) if total <= limit]
        sizes = [count for count in fitting if rows[count - 1] in preferred]
        beyond = level == 2 and now > free and rows[-1] > max(preferred)
        if sizes:
            count = sizes[-1]
        elif beyond:
            count = sum(total <= max(preferred) for total in rows)
        elif len(fitting) < len(waiting) or now >= due:
            count = len(fitting)
        else:
            now = min([due, *(entry[0] for entry in queue[len(waiting) :])])
            continue
        batches.append([name for _, _, name in queue[:count]])
        del queue[:count]
        free = now = now + sheet.execution_ms  # type: ignore[operator]
    return batches


def solve_sequences(sheet: tnb.Worksheet, level: int) -> list[list[str]]:
    """Slots and turns, and the delay with level 2."""
    config = read_config(sheet.config)
    direct, oldest = config.sequence_batching.direct, config.sequence_batching.oldest
    is_oldest = config.sequence_batching.HasField("oldest")
    limit = config.max_batch_size
    slots = oldest.max_candidate_sequences if is_oldest else limit
    enough = limit if is_oldest else direct.minimum_slot_utilization * slots
    delay = max(direct.max_queue_delay_microseconds, oldest.max_queue_delay_microseconds) / 1000 if level == 2 else 0
    todo = [(arrival.time_us / 1000, name) for arrival, name in zip(sheet.arrivals, sheet.names, strict=True)]
    starts = {
        name[0]: arrival.time_us / 1000
        for arrival, name in zip(sheet.arrivals, sheet.names, strict=True)
        if arrival.sequence_start
    }
    batches = []
    free = now = 0.0
    while todo:
        unfinished = {name[0] for _, name in todo}
        seated = [sequence for sequence, at in starts.items() if sequence in unfinished and at <= now][:slots]
        turns = [next(entry for entry in todo if entry[1][0] == sequence) for sequence in seated]
        ready = sorted(entry for entry in turns if entry[0] <= now)
        due = ready[0][0] + delay if ready else 0
        if is_oldest and delay and ready and due < free:
            ready = [entry for entry in ready if entry[0] <= due]
        if not ready or (len(ready) < enough and now < due):
            now = min(at for at in [due, *(at for at, _ in todo)] if at > now)
            continue
        batch = ready[:limit]
        batches.append([name for _, name in batch])
        todo = [entry for entry in todo if entry not in batch]
        free = now = now + sheet.execution_ms  # type: ignore[operator]
    return batches


def unsolved(batcher: str, level: int, requests: int, seeds: range) -> list[int]:
    """The seeds of the exercises that a student does not solve."""
    solve = solve_dynamic if batcher == "dynamic" else solve_sequences
    sheets = ((seed, tnb.worksheet(batcher, seed=seed, requests=requests, level=level)) for seed in seeds)
    return [seed for seed, sheet in sheets if not sheet.check(solve(sheet, level))]


def main(count: int) -> int:
    """Let the students solve ``count`` exercises of each kind and level, and print which they do not solve."""
    with ProcessPoolExecutor(2) as processes:
        failed = {kind: processes.submit(unsolved, *kind, 6, range(count)) for kind in KINDS}
        for (batcher, level), result in failed.items():
            wrong = result.result()
            print(f"{batcher}, level {level}: {count - len(wrong)} of {count} solved", *wrong[:5], flush=True)
    return sum(len(result.result()) for result in failed.values())


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])) > 0)
