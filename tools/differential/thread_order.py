"""The race of Triton's threads at the end of an execution, and its outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tritonnb.scheduling.decisions import Decision, Scheduler
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher


class ThreadOrder:
    """A dynamic batcher with a given order of Triton's threads.

    The end of an execution wakes Triton's batcher, which adds what has come to the batch that is waiting; at the same
    time the instance takes that batch. Either thread may be first.

    Parameters
    ----------
    scheduler : DynamicBatcher
    order : sequence of bool
        For each race, whether the batcher is first; after the last one, and in tritonnb, the instance always is.

    Attributes
    ----------
    races : int
        How often the order mattered.
    """

    def __init__(self, scheduler: Scheduler, order: Sequence[bool]) -> None:
        assert isinstance(scheduler, DynamicBatcher)
        self._scheduler = scheduler
        self._order = order
        self.races = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def instance_idle(self, instance: int, now: int) -> Sequence[Decision]:
        """Handle the end of an execution."""
        decisions: list[Decision] = []
        if self._scheduler.payloads and self._scheduler.queue.size:
            if self.races < len(self._order) and self._order[self.races]:
                decisions += self._scheduler.make_pass(now)
            self.races += 1
        return [*decisions, *self._scheduler.instance_idle(instance, now)]
