"""One pass of the dynamic batcher: scan the queue, then decide what becomes of the pending batch.

This is Triton's ``DynamicBatchScheduler::GetDynamicBatch`` (core r24.10, *dynamic_batch_scheduler.cc*). It changes
nothing but the pending batch of the queue; `tritonnb.scheduling.dynamic_batcher` acts on the result. The order of the
rules is that of `decide`:

1. A preferred size is reached or about to be exceeded, and the delay has not run out: send that prefix.
2. Nothing can join the current payload: begin the next one, or, if other inputs are in the way, wait until an
   instance has taken it.
3. The batch cannot grow: send it.
4. The delay has run out, or there is none: send it; it may grow in line.
5. The current payload waits in line and does not have a preferred size: add to it what has come.
6. Otherwise wait for the delay.
"""

from __future__ import annotations

from tritonnb.scheduling import reasons
from tritonnb.scheduling.payload import Payload
from tritonnb.scheduling.policy import DynamicBatcherSettings
from tritonnb.scheduling.queue import PriorityQueue

#: What a pass can lead to: requests are sent, the next payload begins, or the batcher waits: for the delay, or,
#: blocked by other inputs, for an instance.
SEND, NEXT_PAYLOAD, WAIT, BLOCKED = "send", "next_payload", "wait", "blocked"


class Scan:
    """What a scan of the queue found.

    Attributes
    ----------
    best_count : int
        How many of the pending requests make the best batch; 0 if no number of them stands out.
    best_rule : str
        Why that batch is the best: a preferred size is reached, or the next request would go beyond it.
    blocked_by : str
        The rule that keeps the next request out of the batch; empty if the queue ended first.
    next_rows : int
        Rows of the first request that would go beyond every preferred size; 0 if there is none.
    overshoots : bool
        Such a request was met before any preferred size was reached.
    """

    __slots__ = ("best_count", "best_rule", "blocked_by", "next_rows", "overshoots")

    def __init__(self) -> None:
        self.best_count = 0
        self.best_rule = ""
        self.blocked_by = ""
        self.next_rows = 0
        self.overshoots = False


def scan_queue(queue: PriorityQueue, payload: Payload | None, settings: DynamicBatcherSettings, now: int) -> Scan:
    """Add waiting requests to the pending batch, in order, until one cannot join.

    Parameters
    ----------
    queue : PriorityQueue
        Its pending batch grows; a scan goes on where the last one ended.
    payload : Payload or None
        What the pending batch would be added to; None for an empty payload.
    settings : DynamicBatcherSettings
    now : int
        ns.
    """
    scan = Scan()
    preferred = settings.preferred_batch_sizes
    largest = max(preferred, default=0)
    delay = settings.max_queue_delay_ns
    rows = queue.pending_rows + (payload.rows if payload else 0)
    while (candidate := queue.candidate()) is not None:
        total = rows + candidate.batch_size
        if rows:
            too_large = total > settings.max_batch_size
            if total > largest:
                scan.next_rows = scan.next_rows or candidate.batch_size
                if not scan.best_count:
                    scan.overshoots = True
                    scan.best_count = len(queue.pending)
                    scan.best_rule = reasons.DOES_NOT_FIT if too_large else reasons.OVERSHOOTS_PREFERRED
                # No larger preferred size can be reached. Go on only where ages or other inputs could still matter.
                young = settings.queue.supports_prefetching and now - queue.pending_oldest_ns < delay
                if scan.best_count and (not delay or (young and candidate.batch_key is None)):
                    break
            if too_large:
                scan.blocked_by = reasons.DOES_NOT_FIT
                break
            if candidate.batch_key != (payload or queue).batch_key:
                scan.blocked_by = reasons.DIFFERENT_INPUTS
                break
        queue.take()
        rows = total
        if rows in preferred:
            scan.best_count, scan.best_rule = len(queue.pending), reasons.PREFERRED_SIZE
    return scan


class Pass:
    """What a pass decides.

    Attributes
    ----------
    action : str
        `SEND`, `NEXT_PAYLOAD`, `WAIT` or `BLOCKED`.
    count : int
        Pending requests that are sent.
    rule : str
        Why they are sent.
    full : bool
        Nothing more is added to the payload.
    waited_ns : int
        How long the oldest pending request has waited.
    rows_to_wake : int
        Rows in the queue from which on an arrival makes the next pass; -1 to leave that number as it is.
    scan : Scan
    """

    __slots__ = ("action", "count", "full", "rows_to_wake", "rule", "scan", "waited_ns")

    def __init__(self, scan: Scan, count: int, waited_ns: int) -> None:
        self.action = SEND
        self.count = count
        self.rule = ""
        self.full = True
        self.waited_ns = waited_ns
        self.rows_to_wake = -1
        self.scan = scan


def decide(queue: PriorityQueue, payload: Payload | None, settings: DynamicBatcherSettings, now: int) -> Pass:
    """Scan the queue and decide what to do; parameters as for `scan_queue`."""
    scan = scan_queue(queue, payload, settings, now)
    in_line = payload.rows if payload else 0
    rows = in_line + queue.pending_rows
    waited, delay = now - queue.pending_oldest_ns, settings.max_queue_delay_ns
    exceeded = 0 < delay <= waited
    result = Pass(scan, len(queue.pending), waited)
    if scan.best_count and not exceeded:
        result.count, result.rule, result.full = scan.best_count, scan.best_rule, scan.overshoots or not delay
    elif payload is not None and not result.count:
        result.action = NEXT_PAYLOAD if scan.overshoots else BLOCKED
    elif rows >= max(settings.preferred_batch_sizes, default=0):
        result.rule = reasons.FULL
    elif scan.blocked_by:
        result.rule = reasons.DELAY_EXCEEDED if exceeded else scan.blocked_by
    elif exceeded or not delay:
        result.rule, result.full = reasons.DELAY_EXCEEDED if exceeded else reasons.NO_DELAY, False
    else:
        result.rows_to_wake = min(size for size in settings.preferred_batch_sizes if size > rows) - in_line
        if in_line and in_line not in settings.preferred_batch_sizes:
            result.rule, result.full = reasons.GROWN, False
        else:
            result.action = WAIT
    return result
