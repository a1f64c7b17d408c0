"""The execution times of a recording, with their variation, for simulations of the same server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tritonnb.scheduling.reasons import DELAY_EXCEEDED
from tritonnb.simulation.service import Service, Varying

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording


def recorded_times(rec: Recording) -> Service:
    """The median times by batch size, varied by what each recorded batch took, in the order of the recording.

    A server in its own process shares its machine, and takes a while to start a batch that is due: both are part of
    the time that an instance is occupied, and so of the simulated execution.

    Parameters
    ----------
    rec : Recording
        With at least one executed batch.
    """
    service = rec.service()
    medians_ns = {size: max(1.0, service(size)) for size in rec.batch_sizes()}
    return Varying(service, tuple([time_ns / medians_ns[size] for size, time_ns in _occupied(rec)]))


def _occupied(rec: Recording) -> Iterator[tuple[int, int]]:
    """Batch size and time in ns of each execution, from when the batch could have started."""
    queued: dict[int, list[int]] = {}
    for request in rec.requests:
        queued.setdefault(request.batch, []).append(request.queued_ns)
    free: dict[str, int] = {}
    for batch in sorted(rec.batches, key=lambda batch: batch.exec_start_ns):
        times = queued.get(batch.number, [batch.exec_start_ns])
        due_ns = max(times)
        if batch.reason.rule == DELAY_EXCEEDED:
            due_ns = max(due_ns, min(times) + batch.reason.facts["delay_ns"])
        begin_ns = min(batch.exec_start_ns, max(due_ns, free.get(batch.instance, 0)))
        free[batch.instance] = batch.exec_end_ns
        yield batch.size, batch.exec_end_ns - begin_ns
