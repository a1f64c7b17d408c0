"""The driver of the ensemble scheduler in real time: it executes requests as requests to the models of the steps.

An ensemble has no instances. Each step is an ordinary request to the scheduler of the step's model, where it may share
a batch with other requests. Everything runs on the server's event loop, except `_StepRequest.throttle`.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final, cast

from tritonnb.backends.batching import undo_reshape
from tritonnb.core.errors import TritonError, UnavailableError
from tritonnb.core.messages import EnsembleStepRequest, InferRequest, InferResponse, Tensor
from tritonnb.engine.execution.instance import Instance
from tritonnb.engine.models.ensemble_tensors import EnsembleTensor, SequenceFlags
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.engine.submission import Submission
from tritonnb.model_config.schema import TensorSpec
from tritonnb.scheduling.decisions import STOPPING
from tritonnb.scheduling.ensemble import (
    EndRequest,
    EnsembleDecision,
    EnsemblePlan,
    EnsembleRun,
    EnsembleScheduler,
    EnsembleStep,
    RunStep,
    SendResponse,
)
from tritonnb.scheduling.from_config import ensemble_graph

logger = logging.getLogger(__name__)

#: The longest time that a decoupled step waits for the steps that follow it.
LONGEST_WAIT_S: Final = 300.0

ModelLookup = Callable[[str, int], ServedModel]


class EnsembleDriver:
    """The driver of an ensemble's scheduler.

    Parameters
    ----------
    served : ServedModel
        The ensemble.
    lookup : callable
        ``lookup(name, version)`` returns a model, or raises `TritonError`.
    """

    instances: Collection[Instance] = ()
    sequences = None

    def __init__(self, served: ServedModel, lookup: ModelLookup) -> None:
        self._served = served
        self._lookup = lookup
        self._take_over_labels()
        # All rules are in the pure scheduler; this driver adds models and time.
        self._scheduler = EnsembleScheduler(
            ensemble_graph(served.config, lambda name, version: lookup(name, version).decoupled)
        )
        self._executions: dict[InferRequest, _EnsembleExecution] = {}
        self._stopping = False
        limit = self._scheduler.graph.max_inflight_requests
        if limit:
            logger.info("Ensemble model '%s' configured with max_inflight_requests: %d", served.name, limit)

    def accept(self, request: InferRequest, now: int) -> None:
        """Start the steps that can run."""
        request.queued_ns = now
        served = self._served
        if self._stopping and request.step is None:
            # Triton rejects the request of a step.
            raise UnavailableError(f"in ensemble '{served.name}', {request.id_prefix}{STOPPING}")
        if served.uses_cache and served.respond_from_cache(request):
            return
        # The models are looked up once and kept until the end, as on Triton: a step cannot vanish in the middle of a
        # request.
        execution = _EnsembleExecution(
            request, self._scheduler.graph.plan(request.requested_outputs), self.needed_models()
        )
        served.accept(request)
        self._executions[request] = execution
        sequence = SequenceFlags.from_request(request)
        rows = request.batch_size if served.spec.max_batch_size > 0 else 0
        inputs = {name: EnsembleTensor(tensor, rows, sequence) for name, tensor in request.inputs.items()}
        self._apply(self._scheduler.start_run(execution, inputs))

    def needed_models(self) -> list[ServedModel]:
        """Return the models of the steps."""
        return [self._lookup(step.model_name, step.model_version) for step in self._scheduler.graph.steps]

    def cancel(self, request: InferRequest) -> None:
        """Cancel the steps that are queued or running, and start no others; called by `InferRequest.cancel` only."""
        request.cancelled = True
        execution = self._executions.get(request)
        if execution is None:
            return
        execution.lift_limits()
        self._apply(self._scheduler.cancel(execution))
        for step_request in list(execution.open):
            step_request.cancel()

    def stop(self) -> None:
        """Reject new requests, except requests of ensembles that contain this ensemble."""
        self._stopping = True

    def queue_depth(self) -> int:
        """Return the number of requests that are queued: none, since the steps are queued by their models."""
        return 0

    async def wait_until_sequences_end(self) -> None:
        """Do nothing: sequences belong to the models."""

    async def close(self) -> None:
        """Do nothing: an ensemble has no resources."""

    def abandon(self) -> None:
        """Do nothing: an ensemble has no resources."""

    def _take_over_labels(self) -> None:
        """Give outputs without ``label_filename`` the labels of the step output that they come from."""
        for step in self._served.config.ensemble_scheduling.step:
            model = self._lookup(step.model_name, step.model_version)
            for output, tensor in step.output_map.items():
                labels = model.output_labels.get(output)
                if tensor in self._served.spec.outputs and labels is not None:
                    self._served.output_labels.setdefault(tensor, labels)

    # --- decisions ----------------------------------------------------------------------------

    def _apply(self, decisions: Iterable[EnsembleDecision]) -> None:
        for decision in decisions:
            execution = cast("_EnsembleExecution", decision.run)  # created in `accept`
            if type(decision) is RunStep:
                self._run_step(execution, decision)
            elif type(decision) is SendResponse:
                self._send_response(execution, decision)
            elif type(decision) is EndRequest:
                self._finish(execution, decision.error)

    def _run_step(self, execution: _EnsembleExecution, decision: RunStep) -> None:
        step = decision.step
        model = execution.models[step.index]
        parent: InferRequest = execution.request
        request = execution.request_for(decision, model)
        execution.add_step_request(request, self._scheduler.graph.max_inflight_requests if step.decoupled else 0)
        submission = Submission(functools.partial(self._step_responded, execution, decision, request))
        submission.submit(model, request, parent.child_trace(request))
        if submission.refusal is not None:
            return
        served = self._served
        # fmt: off
        served.stream.emit_record((
            "StepSent", time.monotonic_ns(), served.name, served.version, parent.serial, step.index,
            model.name, model.version, request.serial, decision.iteration, decision.reason.rule,
        ))
        # fmt: on
        execution.release_credit()

    def _step_responded(
        self, execution: _EnsembleExecution, decision: RunStep, request: InferRequest, response: InferResponse
    ) -> None:
        step = decision.step
        if response.final:
            execution.open.pop(request, None)
        if response.error is not None:
            self._step_failed(execution, decision, request, response.error, response.final)
            return
        try:
            outputs = None if response.empty else execution.tensors_of(step, request, response)
        except TritonError as error:
            self._step_failed(execution, decision, request, error, response.final)
            return
        execution.return_credit(request)
        self._apply(self._scheduler.responded(decision.run, step, decision.iteration, outputs, response.final))
        execution.release_credit()

    def _step_failed(
        self, execution: _EnsembleExecution, decision: RunStep, request: InferRequest, error: TritonError, final: bool
    ) -> None:
        if final:
            execution.open.pop(request, None)
        # A step that failed may never have been executed, and then reports no times.
        execution.unmeasured.discard(request.step)
        execution.lift_limits()
        self._apply(self._scheduler.failed(decision.run, decision.step, error, final))

    def _send_response(self, execution: _EnsembleExecution, decision: SendResponse) -> None:
        request: InferRequest = execution.request
        spec = self._served.spec
        specs, batching = spec.outputs, spec.max_batch_size > 0
        outputs, parameters = [], None
        # The order of Triton's hash map of the configured outputs, apart from collisions: the last output first.
        for name in reversed(specs):
            value: EnsembleTensor | None = decision.outputs.get(name)
            if value is None:
                if name in decision.outputs:
                    logger.debug("Composing models did not output tensor %s", name)
            else:
                outputs.append(_output(value, specs[name], batching))
                parameters = parameters or value.sequence.as_parameters()
        response = InferResponse(outputs, final=decision.final, parameters=parameters)
        execution.first_response_ns = execution.first_response_ns or time.monotonic_ns()
        if decision.final:
            self._complete(execution, "")
        self._served.respond(request, response)

    def _finish(self, execution: _EnsembleExecution, error: TritonError | None) -> None:
        self._complete(execution, "OTHER" if error is not None else "")
        self._served.respond(execution.request, InferResponse(error=error, empty=error is None))

    def _complete(self, execution: _EnsembleExecution, failed: str) -> None:
        """Complete a request whose steps are complete; it is counted when the times of all its steps are known."""
        del self._executions[execution.request]
        execution.unpin_models()
        # A failure is counted at once: the times of the steps that still run are not part of it.
        execution.call_when_measured(lambda: self._emit_executed(execution, failed), immediately=bool(failed))

    def _emit_executed(self, execution: _EnsembleExecution, failed: str) -> None:
        request: InferRequest = execution.request
        served, now = self._served, time.monotonic_ns()
        received_ns, queued_ns, started_ns = request.received_ns, request.queued_ns, execution.started_ns
        gather, infer, scatter = execution.compute_ns
        served.statistics.ensemble_executed(
            now, request.batch_size, received_ns, queued_ns, started_ns, execution.compute_ns, failed
        )
        # fmt: off
        served.stream.emit_record((
            "EnsembleExecuted", now, served.name, served.version, request.serial, request.batch_size, received_ns,
            queued_ns, started_ns, gather, infer, scatter, failed,
            execution.first_response_ns or (now if failed else 0),
        ))
        # fmt: on
        if request.step is not None:  # this ensemble is a step of another ensemble
            request.step.executed(0, gather, gather + infer, gather + infer + scatter)


class _EnsembleExecution(EnsembleRun):
    """One request to an ensemble, and the requests to the models of its steps."""

    def __init__(self, request: InferRequest, plan: EnsemblePlan, models: list[ServedModel]) -> None:
        super().__init__(request, plan)
        self.models = models
        self.open: dict[InferRequest, _StepRequest] = {}  # without a final response
        self.unmeasured: set[EnsembleStepRequest | None] = set()
        self.compute_ns = (0, 0, 0)
        self.started_ns = time.monotonic_ns()
        self.first_response_ns = 0
        self._when_measured: Callable[[], None] | None = None
        self._owed: list[_StepRequest] = []
        for model in models:
            model.pin()

    def request_for(self, decision: RunStep, model: ServedModel) -> InferRequest:
        """Create the request of a step."""
        request: InferRequest = self.request
        spec = model.spec
        specs, batching = spec.inputs, spec.max_batch_size > 0
        sequence, inputs = None, {}
        values: dict[str, EnsembleTensor | None] = decision.inputs
        for name, value in values.items():
            if value is not None:
                inputs[name] = value.renamed(name, specs[name].dims, batching)
                sequence = value.sequence
        if sequence is None:
            sequence = SequenceFlags.from_request(request)
        step_request = InferRequest(
            model.name,
            inputs,
            model_version=model.version,
            id=request.id,
            # Only what the step maps, so that a model may leave out the rest; all else is inherited, as on Triton.
            requested_outputs=tuple(decision.step.outputs),
            parameters=request.parameters,
            priority=request.priority,
            timeout_us=request.timeout_us,
            correlation_id=sequence.correlation_id,
            flags=sequence.flags,
        )
        # Triton notices a cancelled request only here, with the next step; running steps are cancelled by `cancel`.
        step_request.cancelled = request.cancelled
        return step_request

    def tensors_of(
        self, step: EnsembleStep, request: InferRequest, response: InferResponse
    ) -> dict[str, EnsembleTensor]:
        """Return the outputs of a step by the names that its model uses."""
        model = self.models[step.index]
        sequence = SequenceFlags.from_request(request).overridden(response.parameters)
        rows = request.batch_size if model.spec.max_batch_size > 0 else 0
        return {output.name: EnsembleTensor(output, rows, sequence) for output in response.outputs}

    def measured(self, step: _StepRequest, gather: int, infer: int, scatter: int) -> None:
        """Add the times of an executed step request, in ns."""
        total = self.compute_ns
        self.compute_ns = (total[0] + gather, total[1] + infer, total[2] + scatter)
        self.unmeasured.discard(step)
        if self._when_measured is not None and not self.unmeasured:
            callback, self._when_measured = self._when_measured, None
            callback()

    def call_when_measured(self, callback: Callable[[], None], immediately: bool) -> None:
        """Call a function when every step request has been executed, or immediately."""
        if immediately or not self.unmeasured:
            callback()
        else:
            self._when_measured = callback

    def add_step_request(self, request: InferRequest, limit: int) -> None:
        """Register a step request; a decoupled step may be ``limit`` responses ahead of the steps that follow it."""
        request.step = step = _StepRequest(self, request, limit)
        self.open[request] = step
        self.unmeasured.add(step)

    def unpin_models(self) -> None:
        """Allow the models to be closed: the execution sends no more requests."""
        for model in self.models:
            model.unpin()

    def return_credit(self, request: InferRequest) -> None:
        """Count a response of a limited step, which may send another when the following steps have started."""
        step = cast("_StepRequest", request.step)  # created in `add_step_request`
        if step.limited:
            self._owed.append(step)

    def release_credit(self) -> None:
        """Permit limited steps as many responses as following steps have started."""
        while len(self._owed) > self.waiting:
            self._owed.pop(0).permits.release()

    def lift_limits(self) -> None:
        """Stop limiting steps, because no further step will start."""
        for step in self.open.values():
            if step.limited:
                step.limited = False
                step.permits.release()


#: Shared by the steps that are not limited, since creating a semaphore is slow.
_NO_PERMITS = threading.Semaphore(0)


class _StepRequest:
    """The receiver of the reports on one step request (`EnsembleStepRequest`)."""

    def __init__(self, execution: _EnsembleExecution, request: InferRequest, limit: int) -> None:
        self.limited = limit > 0
        self.permits = threading.Semaphore(limit) if limit else _NO_PERMITS
        self._execution = execution
        # Only if it is needed, since it makes a reference cycle, which only the garbage collector frees.
        self._request = request if limit else None

    def executed(self, start_ns: int, compute_start_ns: int, compute_end_ns: int, end_ns: int) -> None:
        """Add the times; called on the event loop."""
        self._execution.measured(
            self, compute_start_ns - start_ns, compute_end_ns - compute_start_ns, end_ns - compute_end_ns
        )

    def throttle(self) -> None:
        """Wait until the following steps have started for enough responses; called on the model's thread."""
        if self.limited and self._request is not None and not self._request.cancelled:
            # It goes on after that time, as Triton does: too many responses are better than a deadlock.
            self.permits.acquire(timeout=LONGEST_WAIT_S)


def _output(value: EnsembleTensor, spec: TensorSpec, batching: bool) -> Tensor:
    """Return an output of the ensemble as clients receive it: with ``dims``, where the steps have ``reshape``."""
    if spec.reshape is None:
        return value.renamed(spec.name, spec.dims, batching)
    tensor = value.renamed(spec.name, spec.reshape, batching)
    tensor.array = undo_reshape(spec, tensor.array, batching)
    return tensor
