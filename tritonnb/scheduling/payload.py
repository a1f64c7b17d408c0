"""Payloads: batches that are formed, or still grow, and wait for an instance."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any, Final

from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.decisions import Execute, Reason
from tritonnb.scheduling.instances import TakenInstance
from tritonnb.scheduling.policy import DynamicBatcherSettings

#: What triggered a pass: see `tritonnb.scheduling.dynamic_batcher`.
BY_ARRIVAL: Final = "arrival"
BY_DELAY: Final = "delay"
BY_INSTANCE: Final = "instance"
BY_POLL: Final = "poll"


class Payload:
    """A batch that waits for an instance.

    Attributes
    ----------
    requests : list
    rows : int
    oldest_ns : int
        When the oldest request arrived.
    formed_ns : int
        When requests were last added.
    full : bool
        Passes add no more requests.
    closed : bool
        The next request has other inputs, or custom batching excludes it, so that the payload is not merged with a
        later payload either.
    rule : str
        The rule by which requests were last added.
    waited_ns, next_rows : int
        Facts of that rule: how long the oldest request had waited by then, in ns, and the rows of the first request
        that did not fit; 0 if there was none.
    woken_by : str
        What triggered that pass, such as `BY_ARRIVAL`.
    """

    __slots__ = (
        *("requests", "rows", "oldest_ns", "formed_ns"),
        *("full", "closed", "rule", "waited_ns", "next_rows", "woken_by"),
    )

    def __init__(self, oldest_ns: int) -> None:
        self.requests: list[Schedulable] = []
        self.rows = 0
        self.oldest_ns = oldest_ns
        self.formed_ns = 0
        self.full = False
        self.closed = False
        self.rule = ""
        self.waited_ns = 0
        self.next_rows = 0
        self.woken_by = ""

    @property
    def batch_key(self) -> Hashable:
        """The key that requests must have to join this batch."""
        return self.requests[0].batch_key

    def add(self, requests: list[Schedulable], now: int) -> None:
        """Add requests."""
        self.requests += requests
        self.rows += sum([request.batch_size for request in requests])
        self.formed_ns = now

    def remove(self, requests: list[Schedulable]) -> None:
        """Remove requests."""
        if requests:
            self.requests = [request for request in self.requests if request not in requests]
            self.rows -= sum([request.batch_size for request in requests])

    def merge(self, followers: deque[Payload], settings: DynamicBatcherSettings, now: int) -> int:
        """Merge the next payloads, if their delay is exceeded, into this payload; return their number.

        The first payload that does not fit can no longer grow, although it keeps waiting: Triton marks it as executing
        before it compares sizes and inputs.
        """
        delay, merged = settings.max_queue_delay_ns, 0
        while (
            # Triton merges only where there is a delay; measured on 2.51: 3 and 2 + 1 rows with preferred size 4 behind
            # an execution of 1.5 s run as 6.
            delay
            and followers
            and not self.closed
            and not (follower := followers[0]).closed
            # "Longer than" here, "at least" in a pass: Triton's two comparisons differ.
            and now - follower.oldest_ns > delay
        ):
            follower.full = True
            if self.rows + follower.rows > settings.max_batch_size or self.batch_key != follower.batch_key:
                break
            self.requests += follower.requests
            self.rows += follower.rows
            followers.popleft()
            merged += 1
        return merged

    def execute(
        self, taken: TakenInstance, now: int, settings: DynamicBatcherSettings, missed: int, merged: int = 0
    ) -> Execute:
        """Return the decision to execute this payload on an instance.

        ``missed`` requests are in the queue at this time; ``merged`` payloads have joined this payload.
        """
        reason = self.reason(settings)
        facts = reason.facts
        facts.update(taken.facts(now))
        facts["ready_ns"] = now - self.formed_ns
        facts["merged"] = merged
        facts["woken_by"] = self.woken_by
        # Requests that came after a full payload could not have joined it.
        facts["missed"] = 0 if self.full or self.rows >= settings.max_batch_size else missed
        return Execute(taken.instance, self.requests, self.rows, reason)

    def reason(self, settings: DynamicBatcherSettings) -> Reason:
        """Return the reason why the requests of this payload are a batch."""
        facts = batch_facts(len(self.requests), self.rows, self.waited_ns, self.next_rows, settings)
        return Reason(self.rule, facts)


def batch_facts(
    requests: int, rows: int, waited_ns: int, next_rows: int, settings: DynamicBatcherSettings
) -> dict[str, Any]:
    """Return the values that the rules compare, for requests that are a batch or may become a batch."""
    return {
        "requests": requests,
        "rows": rows,
        "waited_ns": waited_ns,
        "delay_ns": settings.max_queue_delay_ns,
        "preferred": settings.preferred_batch_sizes,
        "max_batch_size": settings.max_batch_size,
        "next_rows": next_rows,
    }
