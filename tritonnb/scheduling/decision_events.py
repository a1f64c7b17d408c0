"""The events that drivers of schedulers, in real or virtual time, emit for requests and decisions."""

from __future__ import annotations

from tritonnb.core.errors import TritonError
from tritonnb.core.events import BatchSent, RequestRefused
from tritonnb.core.packed_events import Packed, pack_request_arrived
from tritonnb.scheduling.decisions import Execute, Schedulable


def request_arrived(request: Schedulable, model: str, version: int, now: int) -> Packed:
    """A packed `RequestArrived` for a request that is offered to the scheduler at ``now`` (ns)."""
    key = request.batch_key
    return pack_request_arrived(
        time_ns=now,
        model=model,
        version=version,
        serial=request.serial,
        size=request.batch_size,
        priority=request.priority,
        timeout_us=request.timeout_us,
        id=request.id,
        correlation_id=request.correlation_id,
        flags=request.flags,
        shape_key=0 if key is None else hash(key),
    )


def request_refused(
    request: Schedulable, model: str, version: int, error: TritonError, counted_as: str, now: int
) -> RequestRefused:
    """The event of a refused request; ``counted_as`` is its failure reason in the statistics, empty for none."""
    return RequestRefused(
        now, model, version, request.serial, request.batch_size, request.received_ns, error.message, counted_as
    )


def batch_sent(
    decision: Execute, model: str, version: int, number: int, instance: str, queue_depth: int, now: int
) -> BatchSent:
    """The event of a batch that is sent to an instance while ``queue_depth`` requests stay queued."""
    return BatchSent(
        now,
        model,
        version,
        number,
        instance,
        decision.size,
        decision.reason.rule,
        queue_depth,
        tuple([None if request is None else request.serial for request in decision.requests]),
        decision.slots,
        decision.reason.facts,
    )
