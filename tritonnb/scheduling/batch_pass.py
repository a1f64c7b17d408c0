"""One pass of the dynamic batcher: `scan_queue` extends the pending batch, `decide` applies the rules to it.

This is Triton's ``DynamicBatchScheduler::GetDynamicBatch`` (core r24.10, *dynamic_batch_scheduler.cc*). A pass modifies
only the pending batch of the queue; `tritonnb.scheduling.dynamic_batcher` acts on the decision. The first rule that
applies decides:

=  ==================================================================  ===========================================
1  a preferred size is reached, or the next request would exceed all,  send the requests up to there
   and the queue delay is not exceeded
2  no request can join the current payload                             start the next payload; if the inputs
                                                                       differ, wait until an instance takes this payload
3  the batch has the largest preferred size                            send it
4  the next request cannot join the batch                              send it
5  the queue delay is exceeded, or is 0                                send it; the payload can still grow
6  the current payload does not have a preferred size                  add the batch to it
7  otherwise                                                           wait until the queue delay is exceeded
=  ==================================================================  ===========================================
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling import reasons
from tritonnb.scheduling.decisions import Reason
from tritonnb.scheduling.payload import Payload, batch_facts
from tritonnb.scheduling.policy import DynamicBatcherSettings
from tritonnb.scheduling.queue import PriorityQueue


class BatchingStrategy(Protocol):
    """Custom batching: code of a model decides which requests share a batch.

    The dynamic batcher asks it before it adds a request to the batch that is being formed; sizes, delays and priorities
    come from the configuration. The functions follow Triton's batching libraries (*tritonbackend.h*).
    """

    def begin_batch(self) -> object:
        """Return the state of a new batch (``TRITONBACKEND_ModelBatchInitialize``)."""

    def include(self, request: Schedulable, batch: object) -> bool:
        """Return whether a request may join a batch (``TRITONBACKEND_ModelBatchIncludeRequest``)."""

    def end_batch(self, batch: object) -> None:
        """End a batch: no request will join it (``TRITONBACKEND_ModelBatchFinalize``)."""

    def close(self) -> None:
        """Called when the model is unloaded (``TRITONBACKEND_ModelBatcherFinalize``)."""


class StrategyBatch:
    """The batch that is being formed, as a strategy knows it.

    Attributes
    ----------
    size : int
        Number of requests that were included.
    """

    def __init__(self, strategy: BatchingStrategy) -> None:
        self.size = 0
        self._strategy = strategy
        self._state: object = None
        self._is_open = False

    def restart(self, members: Iterable[Schedulable]) -> None:
        """Begin again with requests that are in the batch already."""
        self.end_batch()
        for member in members:
            self.admits(member)
            self.size += 1

    def admits(self, request: Schedulable) -> bool:
        """Return whether a request may join the batch; the first request may, since it could never run otherwise.

        A request that joins is counted by the caller.
        """
        if not self._is_open:
            self._state, self._is_open = self._strategy.begin_batch(), True
        # The library is asked about the first request as well, although its answer is ignored, so that it can count it.
        # Triton obeys a refusal even here, and the model stalls (docs/deviations.md).
        return self._strategy.include(request, self._state) or self.size == 0

    def end_batch(self) -> None:
        """End the batch, if it has begun."""
        if self._is_open:
            self._strategy.end_batch(self._state)
            self._state, self._is_open = None, False
        self.size = 0


#: The actions of a pass: move requests to the current payload; start the next payload; wait for the queue delay; wait
#: for an instance to take the current payload, because the next request has other inputs.
SEND: Final = "send"
NEXT_PAYLOAD: Final = "next_payload"
WAIT: Final = "wait"
BLOCKED: Final = "blocked"


class Pass:
    """The result of a pass: what the scan of the queue has found, and the decision.

    Attributes
    ----------
    action : str
        `SEND`, `NEXT_PAYLOAD`, `WAIT` or `BLOCKED`.
    count : int
        Number of pending requests to send. After the scan alone: the requests up to the last preferred size, or up
        to where all would be exceeded; else 0.
    rule : str
        Why they are sent: a rule of `tritonnb.scheduling.reasons`.
    full : bool
        The payload is complete; later requests start the next one.
    waited_ns : int
        How long the oldest pending request has been queued, in ns.
    rows_to_wake : int
        An arrival triggers the next pass if at least this many rows are queued; -1 to keep the current number.
    blocked_by : str
        Why the next request cannot join the batch; empty if the scan reached the end of the queue.
    next_rows : int
        Rows of the first request that would exceed every preferred size; 0 if there is none.
    overshoots : bool
        There is such a request, and no preferred size was reached before it.
    """

    __slots__ = (
        *("action", "blocked_by", "count", "full", "next_rows"),
        *("overshoots", "rows_to_wake", "rule", "waited_ns"),
    )

    def __init__(self) -> None:
        self.action = SEND
        self.count = 0
        self.rule = ""
        self.full = True
        self.waited_ns = 0
        self.rows_to_wake = -1
        self.blocked_by = ""
        self.next_rows = 0
        self.overshoots = False


def scan_queue(
    queue: PriorityQueue,
    payload: Payload | None,
    settings: DynamicBatcherSettings,
    now: int,
    custom: StrategyBatch | None = None,
) -> Pass:
    """Add queued requests to the pending batch, in order, until a request cannot join.

    Parameters
    ----------
    queue : PriorityQueue
        Its pending batch grows; the scan continues where the previous scan ended.
    payload : Payload or None
        The current payload, which the pending batch would join; None if it is empty.
    settings : DynamicBatcherSettings
    now : int
        Time in ns.
    custom : StrategyBatch, optional
        Custom batching, which may exclude requests.
    """
    result = Pass()
    if custom is not None and custom.size != len(queue.pending) + (len(payload.requests) if payload else 0):
        # Triton begins the library's batch again without the requests that are in the payload already, so the library
        # admits more than it wants; here it is told about them.
        custom.restart([*(payload.requests if payload else ()), *queue.pending])
    preferred = settings.preferred_batch_sizes
    largest = settings.largest_preferred_size
    delay = settings.max_queue_delay_ns
    rows = queue.pending_rows + (payload.rows if payload else 0)
    while (candidate := queue.candidate()) is not None:
        total = rows + candidate.batch_size
        # The first request is compared with nothing: one that exceeds every preferred size is a batch by itself (on
        # Triton, 5 rows with preferred size 4 are sent at once).
        if rows:
            too_large = total > settings.max_batch_size
            if total > largest:
                result.next_rows = result.next_rows or candidate.batch_size
                if not result.count:
                    result.overshoots = True
                    # 0 if nothing but the payload precedes it, and Triton takes 0 for "no size found". Surprisingly, a
                    # payload that waits therefore outgrows every preferred size: 3 and 2 rows with preferred size 4 run
                    # as 5. Only max_batch_size is a hard limit.
                    result.count = len(queue.pending)
                    result.rule = reasons.DOES_NOT_FIT if too_large else reasons.OVERSHOOTS_PREFERRED
                # No larger preferred size can be reached. Continue only if the age or the inputs of later requests
                # matter.
                young = queue.prefetches and now - queue.pending_oldest_ns < delay
                if result.count and (not delay or (young and candidate.batch_key is None)):
                    break
            if too_large:
                result.blocked_by = reasons.DOES_NOT_FIT
                break
            if candidate.batch_key != (payload or queue).batch_key:
                result.blocked_by = reasons.DIFFERENT_INPUTS
                break
        if custom is not None:
            # The library comes last, as on Triton: it sees only requests that the other rules have let through.
            if not custom.admits(candidate):
                result.blocked_by = reasons.EXCLUDED
                break
            custom.size += 1
        queue.take_candidate()
        rows = total
        if rows in preferred:
            # A later hit replaces an earlier one, so the largest preferred size that is queued wins; but only prefixes
            # of the queue are tried, no request is skipped in order to hit a size.
            result.count, result.rule = len(queue.pending), reasons.PREFERRED_SIZE
    return result


def decide(
    queue: PriorityQueue,
    payload: Payload | None,
    settings: DynamicBatcherSettings,
    now: int,
    custom: StrategyBatch | None = None,
) -> Pass:
    """Scan the queue and decide; parameters as for `scan_queue`."""
    result = scan_queue(queue, payload, settings, now, custom)
    payload_rows = payload.rows if payload else 0
    rows = payload_rows + queue.pending_rows
    # The oldest request need not be the first: with priorities, an older one may stand behind it. If nothing is
    # pending, the number means nothing, and the branch for that case does not use it.
    waited, delay = now - queue.pending_oldest_ns, settings.max_queue_delay_ns
    exceeded = 0 < delay <= waited
    result.waited_ns = waited
    # Once the delay is exceeded, Triton no longer honours the preferred sizes and sends all that is pending.
    if result.count and not exceeded:
        result.full = result.overshoots or not delay
        return result
    result.count, result.rule = len(queue.pending), ""
    if payload is not None and not result.count:
        # Triton marks a payload as saturated only here, if sizes overshoot. After other inputs its batcher keeps
        # looking at the same payload until an instance takes it.
        result.action = NEXT_PAYLOAD if result.overshoots else BLOCKED
    elif rows >= settings.largest_preferred_size:
        result.rule = reasons.FULL
    elif result.blocked_by:
        result.rule = reasons.DELAY_EXCEEDED if exceeded else result.blocked_by
    elif exceeded or not delay:
        # It stays open, but that helps less than it seems: nothing wakes Triton's batcher for later arrivals until they
        # reach a preferred size, so a delay that is shorter than an execution makes batches smaller.
        result.rule, result.full = reasons.DELAY_EXCEEDED if exceeded else reasons.NO_DELAY, False
    else:
        # Not empty: the largest preferred size exceeds `rows` here.
        result.rows_to_wake = min(size for size in settings.preferred_batch_sizes if size > rows) - payload_rows
        if payload_rows and payload_rows not in settings.preferred_batch_sizes:
            # A payload of a preferred size waits for the next one; any other has nothing to lose by growing now.
            result.rule, result.full = reasons.GROWN, False
        else:
            result.action = WAIT
    return result


def preview(
    queue: PriorityQueue, payload: Payload | None, settings: DynamicBatcherSettings, now: int, asleep_until: int | None
) -> Reason:
    """Return why a pass would send a batch now, or `reasons.WAIT`; the queue does not change.

    Parameters
    ----------
    queue, payload, settings, now
        As for `scan_queue`.
    asleep_until : int or None
        When the next pass is due, if a pass has found that there is nothing to send.
    """
    pending = len(queue.pending)
    # Without the library: it has state of its own, which a question must not change.
    result = decide(queue, payload, settings, now)
    sends = result.action == SEND and asleep_until is None
    requests = queue.pending[: result.count if sends else None]
    # A pass moves requests within the queue and changes nothing else, so this undoes it.
    queue.restore(keep=pending)
    rows = sum([request.batch_size for request in requests])
    facts = batch_facts(len(requests), rows, result.waited_ns, result.next_rows, settings)
    if sends:
        return Reason(result.rule, facts)
    due = asleep_until if asleep_until is not None else now - result.waited_ns + settings.max_queue_delay_ns
    return Reason(reasons.WAIT, {**facts, "wait_ns": due - now})
