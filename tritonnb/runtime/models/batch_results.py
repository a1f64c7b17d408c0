"""The results of a batch: its responses, the requests that failed, and the event."""

from __future__ import annotations

import itertools

from tritonnb.backends.execution import Execution
from tritonnb.core.errors import InternalError, TritonError
from tritonnb.core.events import BatchExecuted
from tritonnb.core.messages import InferResponse

#: The numbers of the executions of all models.
batch_numbers = itertools.count(1)


def complete_responses(
    model: str, instance: str, execution: Execution, raised: TritonError | None, decoupled: bool, errors_fail: bool
) -> list[str]:
    """Complete the responses of an executed batch: every request gets a response or is executed again.

    Parameters
    ----------
    model, instance : str
        Names for the error message.
    execution : Execution
        Requests without a response get an error.
    raised : TritonError or None
        The error that ``execute`` of the backend raised.
    decoupled : bool
        ``model_transaction_policy { decoupled: true }``.
    errors_fail : bool
        Whether the statistics count a response with an error as a failure.

    Returns
    -------
    list of str
        The failure reason of each request in the statistics; empty for a success.
    """
    failures: list[str] = []
    if raised is not None:
        execution.rescheduled.clear()
    for index, response in enumerate(execution.responses):
        sender = execution.senders.get(index)
        if index in execution.rescheduled or (raised is None and response is None and (decoupled or sender)):
            # It is executed again, or its sender passes on the responses.
            failures.append("" if execution.reported.get(index, True) else "BACKEND")
            continue
        failed = response is None or (response.error is not None and errors_fail)
        if raised is None and response is not None:
            failed = not execution.reported.get(index, not failed)
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
    """The event of an executed batch; without compute times, the whole execution counts as compute time."""
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
                (request.serial, request.batch_size, request.received_ns, request.queued_ns, failed)
                for request, failed in zip(execution.requests, failures, strict=True)
                if not request.is_null
            ]
        ),
    )
