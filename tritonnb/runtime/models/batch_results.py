"""What came of a batch: which of its requests failed, and the event that tells of it."""

from __future__ import annotations

from tritonnb.backends.contract import Execution
from tritonnb.core.errors import InternalError, TritonError
from tritonnb.core.events import BatchExecuted
from tritonnb.core.messages import InferResponse


def complete_responses(
    model: str, instance: str, execution: Execution, raised: TritonError | None, decoupled: bool, errors_fail: bool
) -> list[str]:
    """Complete the responses of an executed batch: every request gets one or runs again.

    Parameters
    ----------
    model, instance : str
        Their names, for an error.
    execution : Execution
        It gets the responses that it lacks.
    raised : TritonError or None
        What ``execute`` of the backend raised.
    decoupled : bool
        ``model_transaction_policy { decoupled: true }``.
    errors_fail : bool
        Whether the statistics count a response with an error as a failure.

    Returns
    -------
    list of str
        The failure reason of each request in the statistics, empty for none.
    """
    failures: list[str] = []
    if raised is not None:
        execution.rescheduled.clear()
    for index, response in enumerate(execution.responses):
        sender = execution.senders.get(index)
        if index in execution.rescheduled or (raised is None and response is None and (decoupled or sender)):
            failures.append("")  # it runs again, or its responses go their own way
            continue
        failed = response is None or (response.error is not None and errors_fail)
        if response is None and not (sender is not None and sender.closed):
            error = raised or InternalError(f"model '{model}', instance '{instance}': no response to the request")
            if decoupled:
                execution.sender(index).send(InferResponse(error=error))
            else:
                execution.responses[index] = InferResponse(error=error)
        failures.append("BACKEND" if failed else "")
    return failures


def executed_event(
    model: str, version: int, instance: str, execution: Execution, failures: list[str], now: int
) -> BatchExecuted:
    """Return the event of an executed batch; without compute times, the whole execution counts as compute."""
    return BatchExecuted(
        now,
        model,
        version,
        execution.number,
        instance,
        execution.size,
        execution.exec_start_ns,
        execution.compute_start_ns or execution.exec_start_ns,
        execution.compute_end_ns or execution.exec_end_ns,
        execution.exec_end_ns,
        tuple(
            [
                (each.serial, each.batch_size, each.received_ns, each.queued_ns, failed)
                for each, failed in zip(execution.requests, failures, strict=True)
                if not each.is_null
            ]
        ),
    )
