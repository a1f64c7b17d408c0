"""Requests for tests of schedulers, and one way to write a scenario down.

Times in scenarios are milliseconds.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import pytest

from tests.scheduling.invariants import check_invariants
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.decisions import Decision, Execute, Scheduler
from tritonnb.scheduling.reasons import explain
from tritonnb.scheduling.sequence_batcher import SequenceBatcher
from tritonnb.scheduling.slots import SlotSequence
from tritonnb.scheduling.virtual_time import VirtualTime

MS = 1_000_000
START, END = 1, 2


@dataclass
class Arrival:
    """One line of a scenario: who arrives, when, and how long an execution that starts with it takes."""

    id: str
    at: float
    size: int = 1
    run: float = 1
    key: Hashable = None
    priority: int = 0
    timeout: float = 0
    cancel_at: float | None = None
    sequence: int | str = 0
    start: bool = False
    end: bool = False


class Play:
    """A run of arrivals through a scheduler in virtual time, with its invariants checked at every step."""

    def __init__(self, scheduler: Scheduler, arrivals: list[Arrival], instances: int = 1) -> None:
        self.by_id = {arrival.id: arrival for arrival in arrivals}
        self.time = VirtualTime(scheduler, self._service, [0] * instances, check=check_invariants)
        self.requests: dict[str, Schedulable] = {}
        for arrival in arrivals:
            request = Schedulable(
                arrival.id,
                batch_size=arrival.size,
                batch_key=arrival.key,
                priority=arrival.priority,
                timeout_us=int(arrival.timeout * 1000),
                correlation_id=arrival.sequence,
                flags=START * arrival.start | END * arrival.end,
            )
            self.requests[arrival.id] = request
            self.time.arrive(int(arrival.at * MS), request)
            if arrival.cancel_at is not None:
                self.time.cancel(int(arrival.cancel_at * MS), request)
        self.time.run()

    def check(
        self, batches: list[tuple[str, float]], rules: list[str] | None, refused: list[tuple[str, float, str]]
    ) -> None:
        """Compare with the expected batches and their times, their rules if given, and the refusals."""
        assert [who for who, _ in self.batches] == [who for who, _ in batches]
        assert [when for _, when in self.batches] == pytest.approx([when for _, when in batches], abs=1e-3)
        if rules is not None:
            assert self.rules == rules
        assert [answer for answer in self.answers if answer[2] != "ok"] == refused
        for batch in self.time.batches:
            assert explain(batch.decision.reason)

    def _service(self, decision: Execute) -> int:
        runs = [self.by_id[request.id].run for request in decision.requests if request is not None]
        return int(max(runs) * MS)

    @property
    def batches(self) -> list[tuple[str, float]]:
        """Each batch: its members in order (``-`` for a null request), and when it began."""
        return [(members(batch.decision), batch.start_ns / MS) for batch in self.time.batches]

    @property
    def rules(self) -> list[str]:
        return [batch.decision.reason.rule for batch in self.time.batches]

    @property
    def answers(self) -> list[tuple[str, float, str]]:
        """Each answer: id, rounded time, and error text (``ok`` for none)."""
        return [
            (
                response.request.id,
                round(response.time_ns / MS, 3),
                "ok" if response.error is None else str(response.error),
            )
            for response in self.time.responses
        ]

    @property
    def failures(self) -> Mapping[str, str]:
        return {id: error for id, _, error in self.answers if error != "ok"}


class Begun(dict[int | str, SlotSequence]):
    """The ``known`` sequences of a batcher's slot table; all that ever began are remembered."""

    def __init__(self, batcher: SequenceBatcher) -> None:
        super().__init__()
        self.sequences: list[SlotSequence] = []
        batcher.table.known = self

    def __setitem__(self, id: int | str, sequence: SlotSequence) -> None:
        self.sequences.append(sequence)
        super().__setitem__(id, sequence)


def members(decision: Decision) -> str:
    """The ids of the requests that a decision executes; ``-`` is a null request."""
    assert isinstance(decision, Execute)
    return " ".join("-" if request is None else request.id for request in decision.requests)
