"""A model version that a backend runs: its scheduler, driven in real time.

The live driver adds no rule to the pure scheduler: it passes stimuli with the time to the scheduler, carries out the
decisions, and emits the events. Everything here runs on the server's event loop unless stated otherwise.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import time
from collections.abc import Sequence

from tritonnb.backends.contract import BackendModel, InstanceLostError, ModelContext
from tritonnb.backends.execution import Execution
from tritonnb.core.errors import InternalError, TritonError
from tritonnb.core.events import InstanceStateChanged, RequestCancelled, ResponseSent
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.runtime.execution.instance import Instance
from tritonnb.runtime.execution.loop import run_in_thread
from tritonnb.runtime.execution.timer import EarliestTimer
from tritonnb.runtime.models.batch_results import complete_responses, executed_event
from tritonnb.runtime.models.sequence_inputs import SequenceInputs
from tritonnb.runtime.models.served_instances import ServedWithInstances
from tritonnb.runtime.models.warmup import Sample, WarmUp
from tritonnb.scheduling import decision_events
from tritonnb.scheduling.batching_strategy import BatchingStrategy
from tritonnb.scheduling.decisions import Decision, Execute, Refuse, Scheduler, Stage
from tritonnb.scheduling.response_order import ResponseOrder
from tritonnb.scheduling.sequence_batcher import SequenceBatcher
from tritonnb.telemetry.stream import EventStream

logger = logging.getLogger(__name__)

_batch_numbers = itertools.count(1)


class ServedModel(ServedWithInstances):
    """A model version that drives its scheduler in real time."""

    def __init__(
        self,
        context: ModelContext,
        backend_model: BackendModel,
        stream: EventStream,
        loop: asyncio.AbstractEventLoop,
        strategy: BatchingStrategy | None = None,
    ) -> None:
        super().__init__(context, backend_model, stream, loop, strategy)
        self._sequences = (
            SequenceInputs(context.config, context.directory) if context.config.HasField("sequence_batching") else None
        )
        self._timer = EarliestTimer(loop, self._wake)
        self._last_ns = 0  # time of the scheduler's last stimulus
        self._orders: dict[InferRequest, ResponseOrder] = {}
        self._responses_sent: dict[int, tuple[int, int]] = {}
        self._sequences_ended: asyncio.Future[None] | None = None  # during `wait_until_sequences_end`

    # --- stimuli ------------------------------------------------------------------------------

    def _accept(self, request: InferRequest) -> None:
        """Validate a request and pass it to the scheduler."""
        now = self._register(request)
        if self._cache is not None and self._respond_from_cache(request):
            return
        self._wake_if_due(now)
        self._stream.emit_packed(decision_events.request_arrived(request, self.name, self.version, now))
        try:
            decisions = self.scheduler.enqueue(request, now)
        except TritonError as error:
            self._emit(decision_events.request_refused(request, self.name, self.version, error, "", now))
            raise
        self._in_flight += 1
        self._carry_out(decisions, now)

    def cancel(self, request: InferRequest) -> None:
        """Remove a request from the queue; called by `InferRequest.cancel` only."""
        now = time.monotonic_ns()
        self._wake_if_due(now)
        self._emit(RequestCancelled(now, self.name, self.version, request.serial))
        self._carry_out(self.scheduler.cancel(request, now), now)
        for instance in self.instances:
            instance.backend_instance.cancel(request)

    def queue_depth(self) -> int:
        """The number of requests that are queued."""
        return self.scheduler.queue_depth()

    @property
    def open_sequences(self) -> int:
        """The number of sequences that have a slot and have neither ended nor exceeded the maximum idle time."""
        return self.scheduler.open_sequences if isinstance(self.scheduler, SequenceBatcher) else 0

    def live_sequences(self) -> list[int | str]:
        """The correlation IDs of the sequences that accept requests without START, in slots and in the backlog."""
        return list(self.scheduler.table.known) if isinstance(self.scheduler, SequenceBatcher) else []

    async def wait_until_sequences_end(self) -> None:
        """Wait until all sequences have ended."""
        if self.open_sequences:
            self._sequences_ended = self._loop.create_future()
            await self._sequences_ended

    async def warm_up(self, instance: Instance, samples: Sequence[Sample]) -> None:
        """Run the samples on a new instance; they are counted in the statistics.

        Raises
        ------
        InvalidArgumentError
            If one of them fails.
        """
        for sample in samples:
            for iteration in range(1, sample.count + 1):
                logger.debug(
                    "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                    self.name, instance.spec.name, sample.name, iteration,
                )  # fmt: skip
                warm_up = WarmUp(sample, instance, self.spec.max_batch_size, next(_batch_numbers))
                if self._sequences is not None:
                    for request in warm_up.execution.requests:
                        self._sequences.attach_scratch_states(request)
                raised = await warm_up.run()
                failures = self._complete_responses(instance, warm_up.execution, raised)
                await warm_up.finish(self.decoupled)
                self._emit_executed(instance, warm_up.execution, failures, time.monotonic_ns())

    def stop(self) -> None:
        """Reject new requests; those that are queued are executed."""
        self.scheduler.stop()

    async def close(self) -> None:
        """Stop the instances and free the model; no request may be in flight."""
        self._timer.cancel()
        await self._pool.close()
        self.unregister_from_rate_limiter(instance.spec.index for instance in self._pool)
        if self._strategy is not None:
            self._strategy.close()
        await run_in_thread(self.backend_model.finalize)

    # --- decisions ----------------------------------------------------------------------------

    def _carry_out(self, decisions: Sequence[Decision], now: int) -> None:
        for decision in decisions:
            if type(decision) is Execute:
                instance, execution = self._create_execution(decision, now)
                if self._limiter is None:
                    instance.execute(execution)
                else:
                    run = functools.partial(instance.execute, execution)
                    self._limiter.stage((self._load_number, decision.instance), run)
            elif type(decision) is Stage:
                self._stage(decision.instance)
            else:
                self._refuse(decision, now)
        if self._pool.is_shrinking and (freed := self._pool.free(self.scheduler.uses)):
            self.unregister_from_rate_limiter(freed)
            self._update_instances()
        if self.scheduler.next_wake_ns is not None:
            self._timer.set(self.scheduler.next_wake_ns)
        if self._limiter is not None:
            for run in self._limiter.grant():
                run()
        if self._sequences_ended is not None and not self.open_sequences:
            self._sequences_ended.set_result(None)
            self._sequences_ended = None

    def _refuse(self, decision: Refuse, now: int) -> None:
        request, error = decision.request, decision.error
        self._emit(decision_events.request_refused(request, self.name, self.version, error, decision.counted_as, now))
        self._respond_in_order(request, InferResponse(error=error))

    def _stage(self, number: int) -> None:
        assert self._limiter is not None
        self._pool[number].busy = True  # also while it waits for the rate limiter
        self._limiter.stage(
            (self._load_number, number), functools.partial(self._start_staged_batch, self.scheduler, number)
        )

    def _start_staged_batch(self, scheduler: Scheduler, number: int) -> None:
        """Start a staged batch when the rate limiter permits; ``scheduler`` may have been replaced since."""
        now = time.monotonic_ns()
        self._wake_if_due(now)
        decisions = scheduler.begin(number, now)
        for decision in decisions:
            if type(decision) is Execute:
                instance, execution = self._create_execution(decision, now)
                instance.execute(execution)
        self._carry_out([decision for decision in decisions if type(decision) is not Execute], now)

    def _create_execution(self, decision: Execute, now: int) -> tuple[Instance, Execution]:
        """The execution of a batch, and the instance that will run it."""
        instance = self._pool[decision.instance]
        number = next(_batch_numbers)
        waiting = self.scheduler.queue_depth()
        self._emit(
            decision_events.batch_sent(decision, self.name, self.version, number, instance.spec.name, waiting, now)
        )
        order = self.scheduler.response_order(decision.instance)
        if order is not None:
            self._orders.update((request, order) for request in decision.requests if request is not None)
        requests = list(decision.requests) if self._sequences is None else self._sequences.prepare(decision)
        execution = Execution(requests, decision.size, self._respond_threadsafe, number)
        instance.busy = True
        return instance, execution

    def complete_execution(self, instance: Instance, execution: Execution, raised: TritonError | None) -> None:
        """Called after an instance has run a batch: count it, start the next one, then respond."""
        now = time.monotonic_ns()
        self._wake_if_due(now)
        failures = self._complete_responses(instance, execution, raised)
        self._emit_executed(instance, execution, failures, now)
        scheduler = self.scheduler
        if execution.rescheduled or scheduler.needs_release_events:
            self._release(execution, now)
        if self._limiter is not None:
            self._limiter.released((self._load_number, instance.spec.index))
        if isinstance(raised, InstanceLostError):
            instance.awaits_recovery = True
            self._emit_instance_state(instance, "LOST", raised.hint or raised.message, now)
            self._end_sequences(instance, raised.message, now)
        else:
            if instance.pending_loss is not None:
                self._end_sequences(instance, instance.pending_loss.message, now)
            self._carry_out(self._idle(instance, now), now)
        responses = execution.responses
        for index, request in enumerate(execution.requests):
            response = responses[index]
            if response is not None and not request.is_null:
                self._respond_in_order(request, response)

    def _idle(self, instance: Instance, now: int) -> Sequence[Decision]:
        instance.busy = False
        return self.scheduler.instance_idle(instance.spec.index, now)

    def instance_lost(self, instance: Instance, error: InstanceLostError) -> None:
        """End the sequences of an instance that has lost its state between executions.

        A batch that was sent to it meanwhile fails, and they end after it.
        """
        now = time.monotonic_ns()
        self._emit_instance_state(instance, "LOST", error.hint or error.message, now)
        if instance.busy and self._sequences is not None:
            instance.pending_loss = InternalError(error.message, hint=error.hint)
        elif self._is_started:
            self._end_sequences(instance, error.message, now)

    def _end_sequences(self, instance: Instance, message: str, now: int) -> None:
        instance.pending_loss = None
        self._carry_out(self.scheduler.end_sequences(instance.spec.index, message, now), now)

    def instance_recovered(self, instance: Instance, is_running: bool) -> None:
        """Use an instance again that was lost.

        One that does not run yet would reject its batches at once, and so get more of them than the others. It stays
        busy and tries again while another instance runs; sequences in its slots would wait, so they are rejected.
        """
        now = time.monotonic_ns()
        self._emit_instance_state(instance, "READY" if is_running else "UNAVAILABLE", "", now)
        if instance.awaits_recovery:
            if not is_running and self._sequences is None and self._others_run(instance):
                instance.recover_later()
                return
            instance.awaits_recovery = False
            self._wake_if_due(now)
            self._carry_out(self._idle(instance, now), now)

    def _others_run(self, instance: Instance) -> bool:
        return any(not other.awaits_recovery for other in self._pool if other is not instance)

    def _emit_instance_state(self, instance: Instance, state: str, reason: str, now: int) -> None:
        self._emit(InstanceStateChanged(now, self.name, self.version, instance.spec.name, state, reason))

    def _release(self, execution: Execution, now: int) -> None:
        for index, request in enumerate(execution.requests):
            if index in execution.rescheduled:
                self._carry_out(self._reschedule(execution, index, now), now)
            else:
                self._carry_out(self.scheduler.released(request, now), now)

    def _reschedule(self, execution: Execution, index: int, now: int) -> Sequence[Decision]:
        request = execution.requests[index]
        try:
            return self.scheduler.reschedule(request, now)
        except TritonError as error:
            execution.responses[index] = InferResponse(error=error)
            return self.scheduler.released(request, now)

    def _complete_responses(self, instance: Instance, execution: Execution, raised: TritonError | None) -> list[str]:
        errors_fail = instance.backend_instance.error_responses_fail
        return complete_responses(self.name, instance.spec.name, execution, raised, self.decoupled, errors_fail)

    def _emit_executed(self, instance: Instance, execution: Execution, failures: list[str], now: int) -> None:
        event = executed_event(self.name, self.version, instance.spec.name, execution, failures, now)
        self._emit(event)
        for request in execution.requests:
            if request.step is not None:
                request.step.executed(
                    event.exec_start_ns, event.compute_start_ns, event.compute_end_ns, event.exec_end_ns
                )

    # --- responses ----------------------------------------------------------------------------

    def _respond_in_order(self, request: InferRequest, response: InferResponse) -> None:
        order = self._orders.get(request)
        if order is None:
            self._respond(request, response)
            return
        if response.final:
            del self._orders[request]
        for ordered_request, ordered_response in order.add_response(request, response):
            self._respond(ordered_request, ordered_response)

    def _respond_threadsafe(self, request: InferRequest, response: InferResponse) -> None:
        self._loop.call_soon_threadsafe(self._respond_sent, request, response)

    def _respond_sent(self, request: InferRequest, response: InferResponse) -> None:
        if not self.decoupled:
            self._respond_in_order(request, response)
            return
        index, since_ns = self._responses_sent.pop(request.serial, (0, request.queued_ns))
        now = time.monotonic_ns()
        if not response.final:
            self._responses_sent[request.serial] = (index + 1, now)
        outcome = "empty" if response.empty else "fail" if response.error else "success"
        self._emit(ResponseSent(now, self.name, self.version, request.serial, index, outcome, now - since_ns))
        self._respond_in_order(request, response)

    # --- time ---------------------------------------------------------------------------------

    def _wake_if_due(self, now: int) -> None:
        """Pass due timeouts to the scheduler with the times at which they were due, since timers fire late."""
        while (due := self.scheduler.next_wake_ns) is not None and due <= now:
            self._carry_out(self.scheduler.wake(max(due, self._last_ns)), now)
        self._last_ns = now

    def _wake(self) -> None:
        now = time.monotonic_ns()
        self._wake_if_due(now)
        self._carry_out((), now)
