"""The events of what a scheduler is told and decides: a request arrived, was refused, a batch was sent.

Whoever drives a scheduler, in real or in virtual time, tells of it in these words.
"""

from __future__ import annotations

from typing import Any

from tritonnb.core.errors import TritonError
from tritonnb.core.events import BatchSent, Packed, RequestArrived, RequestRefused
from tritonnb.scheduling.decisions import Execute


def request_arrived(request: Any, model: str, version: int, now: int) -> Packed:
    """A request is offered to the scheduler: a packed `RequestArrived`.

    There is one for each request and no statistic counts it, so it is packed at once.
    """
    key = request.batch_key
    return (
        RequestArrived.__name__,
        now,
        model,
        version,
        request.serial,
        request.batch_size,
        request.priority,
        request.timeout_us,
        request.id,
        request.correlation_id,
        request.flags,
        0 if key is None else hash(key),
    )


def request_refused(
    request: Any, model: str, version: int, error: TritonError, counted_as: str, now: int
) -> RequestRefused:
    """A request will not run; ``counted_as`` is its failure reason in the statistics, empty for none."""
    return RequestRefused(
        now, model, version, request.serial, request.batch_size, request.received_ns, error.message, counted_as
    )


def batch_sent(
    decision: Execute, model: str, version: int, number: int, instance: str, queue_depth: int, now: int
) -> BatchSent:
    """A batch goes to an instance, as the decision has it; ``queue_depth`` requests still wait."""
    return BatchSent(
        now,
        model,
        version,
        number,
        instance,
        decision.size,
        decision.reason.rule,
        queue_depth,
        tuple([None if each is None else each.serial for each in decision.requests]),
        decision.slots,
        decision.reason.facts,
    )
