"""The driver of a scheduler in real time: it executes the requests of a served model on the instances of the model.

It adds no rule to the pure scheduler: it passes stimuli with the time to the scheduler, applies the decisions, and
emits the events. Everything here runs on the server's event loop unless stated otherwise.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from collections.abc import Sequence
from typing import Final

from tritonnb.backends.contract import BackendModel, InstanceLostError
from tritonnb.backends.execution import Execution, batch_numbers, complete_responses
from tritonnb.core.errors import InternalError, TritonError
from tritonnb.core.events import InstanceStateChanged, RequestCancelled, ResponseSent
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.engine.execution.instance import Instance
from tritonnb.engine.execution.loop import EarliestTimer, run_in_thread, run_on_thread
from tritonnb.engine.execution.sent_responses import SentResponses
from tritonnb.engine.models.instance_set import InstanceSet
from tritonnb.engine.models.sequence_inputs import SequenceInputs
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.scheduling.batch_pass import BatchingStrategy
from tritonnb.scheduling.decisions import (
    Decision,
    Execute,
    Refuse,
    ResponseOrder,
    Stage,
    batch_sent,
    request_arrived,
    request_refused,
)
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.from_config import ModelScheduler, make_scheduler, reconfigure_scheduler
from tritonnb.scheduling.instances import RateLimiter
from tritonnb.scheduling.sequence_batcher import SequenceBatcher

logger = logging.getLogger(__name__)

#: By how much a timer must be late for the reason of a batch to say so, in ns.
_LATE_NS: Final = 1_000_000


class SchedulerDriver:
    """The driver of a served model's scheduler.

    Parameters
    ----------
    served : ServedModel
    backend_model : BackendModel
    loop : asyncio.AbstractEventLoop
    limiter : RateLimiter, optional
        Starts the batches of all models.
    strategy : BatchingStrategy, optional
        The custom batching of the model.
    sequences : SequenceInputs, optional
        For a model with ``sequence_batching``.

    Attributes
    ----------
    instances : InstanceSet
    scheduler : ModelScheduler
        Created by `start`.
    """

    def __init__(
        self,
        served: ServedModel,
        backend_model: BackendModel,
        loop: asyncio.AbstractEventLoop,
        limiter: RateLimiter | None = None,
        strategy: BatchingStrategy | None = None,
        sequences: SequenceInputs | None = None,
    ) -> None:
        self.scheduler: ModelScheduler
        self._served = served
        self._name = served.name
        self._version = served.version
        self._backend_model = backend_model
        self._limiter = limiter
        self._strategy = strategy
        self._sequences = sequences
        self.instances = InstanceSet(served, backend_model, self, self._sequences, limiter)
        self._leaving = self.instances.leaving
        self._loop = loop
        self._timer = EarliestTimer(loop, self._wake)
        self._is_started = False
        self._last_ns = 0  # time of the scheduler's last stimulus
        self._orders: dict[InferRequest, ResponseOrder] = {}
        self._sent = SentResponses(loop, self._respond_sent)
        self._responses_sent: dict[int, tuple[int, int]] = {}
        self._sequences_ended: asyncio.Future[None] | None = None  # during `wait_until_sequences_end`
        self._is_freed = False  # or is being freed

    # --- life cycle ---------------------------------------------------------------------------

    def start(self, instances: Sequence[Instance]) -> None:
        """Create the scheduler for instances that have been created."""
        self.instances.change(self._served.config, instances)
        active = sorted(self.instances.active)
        dispatch_key = None if self._limiter is None else self._dispatch_key
        self._use_scheduler(make_scheduler(self._served.config, len(active), os.environ, dispatch_key))
        self._is_started = True
        now = time.monotonic_ns()
        for number in active:
            self._apply(self.scheduler.instance_idle(number, now), now)

    def reconfigure(self, config: pb.ModelConfig, added: Sequence[Instance] = ()) -> None:
        """Change scheduling settings and instances; queued requests stay queued.

        Parameters
        ----------
        config : inference.ModelConfig
        added : sequence of Instance
            Created instances for all that are missing.
        """
        now = time.monotonic_ns()
        self._wake_if_due(now)
        # What was due before has been decided by the old settings.
        scheduler, moved = reconfigure_scheduler(self.scheduler, config, now, self._limiter is not None)
        if scheduler is not self.scheduler:
            self._use_scheduler(scheduler)
        decisions = list(moved)
        self._served.config = config
        self.instances.change(config, added)
        active = self.instances.active
        decisions += scheduler.set_instances(active, now)
        for number in [instance.spec.index for instance in added if instance.spec.index in active]:
            decisions += scheduler.instance_idle(number, now)
        self._apply(decisions, now)

    def _use_scheduler(self, scheduler: ModelScheduler) -> None:
        """Use a scheduler; the dynamic batcher uses the custom batching of the model."""
        if self._strategy is not None and isinstance(scheduler, DynamicBatcher):
            scheduler.use_strategy(self._strategy)
        self.scheduler = scheduler

    def _dispatch_key(self, number: int) -> int:
        assert self._limiter is not None
        return self._limiter.dispatch_key(self.instances.key(number))

    # --- stimuli ------------------------------------------------------------------------------

    def accept(self, request: InferRequest, now: int) -> None:
        """Pass a request to the scheduler."""
        served = self._served
        # Before the scheduler, as on Triton: a hit is never queued.
        if served.uses_cache and served.respond_from_cache(request):
            return
        self._wake_if_due(now)
        # Before it is enqueued: the batch that this request completes may be sent at once, and its event must come
        # later.
        served.stream.emit_record(request_arrived(request, self._name, self._version, now))
        try:
            decisions = self.scheduler.enqueue(request, now)
        except TritonError as error:
            served.emit(request_refused(request, self._name, self._version, error, "", now))
            raise
        # Only now: a request that the scheduler refuses is not in flight, and its submission answers it.
        served.accept(request)
        self._apply(decisions, now)

    def cancel(self, request: InferRequest) -> None:
        """Remove a request from the queue; called by `InferRequest.cancel` only."""
        now = time.monotonic_ns()
        self._wake_if_due(now)
        request.cancelled = True  # not earlier: what was due before is decided as if the timer had fired in time
        self._served.emit(RequestCancelled(now, self._name, self._version, request.serial))
        self._apply(self.scheduler.cancel(request, now), now)
        # Nobody keeps the instance that runs a request; the others do not know it and do nothing.
        for instance in self.instances:
            instance.backend_instance.cancel(request)

    def queue_depth(self) -> int:
        """Return the number of requests that are queued."""
        return self.scheduler.queue_depth()

    @property
    def sequences(self) -> SequenceBatcher | None:
        """The scheduler of a model with ``sequence_batching``; None for other models."""
        return self.scheduler if isinstance(self.scheduler, SequenceBatcher) else None

    async def wait_until_sequences_end(self) -> None:
        """Wait until all sequences have ended."""
        if self._served.open_sequences:
            self._sequences_ended = self._loop.create_future()
            await self._sequences_ended

    def stop(self) -> None:
        """Reject new requests; those that are queued are executed."""
        self.scheduler.stop()

    async def close(self) -> None:
        """End the instances and free the model; no request may be in flight."""
        self._timer.cancel()
        if not self._is_freed:
            self._is_freed = True
            # On a thread: `finalize` of a model may take as long as it likes.
            await run_in_thread(self._free)
            self.instances.forget()

    def abandon(self) -> None:
        """Free the model once its instances have completed what they execute, without waiting: the event loop ends."""
        self._timer.cancel()
        if not self._is_freed:
            self._is_freed = True
            run_on_thread(self._free)

    def _free(self) -> None:
        """End the instances, then free the model; on a thread, which goes on if the event loop ends meanwhile."""
        self.instances.end()
        free_model(self._backend_model, self._strategy)

    # --- decisions ----------------------------------------------------------------------------

    def _apply(self, decisions: Sequence[Decision], now: int, is_granted: bool = False) -> None:
        for decision in decisions:
            if type(decision) is Execute:
                instance, execution = self._create_execution(decision, now)
                # A batch of a scheduler that does not stage cannot grow any more, but needs its resources all the same.
                if self._limiter is None or is_granted:
                    instance.execute(execution)
                else:
                    run = functools.partial(instance.execute, execution)
                    self._limiter.stage(self.instances.key(decision.instance), run)
            elif type(decision) is Stage:
                self._stage(decision.instance, now)
            else:
                self._refuse(decision, now)
        if self._leaving:
            self.instances.free(self.scheduler.uses)
        if (due := self.scheduler.next_wake_ns) is not None:
            self._timer.set(due)
        if self._limiter is not None:
            # After all decisions of a stimulus, so that what is staged together competes together.
            for run in self._limiter.grant():
                run()
        if self._sequences_ended is not None and not self._served.open_sequences:
            self._sequences_ended.set_result(None)
            self._sequences_ended = None

    def _refuse(self, decision: Refuse, now: int) -> None:
        request, error = decision.request, decision.error
        self._served.emit(request_refused(request, self._name, self._version, error, decision.counted_as, now))
        self._respond_in_order(request, InferResponse(error=error))

    def _stage(self, number: int, now: int) -> None:
        assert self._limiter is not None
        self.instances[number].busy = True  # even while it waits for the rate limiter
        run = functools.partial(self._start_staged_batch, self.scheduler, number, now)
        self._limiter.stage(self.instances.key(number), run)

    def _start_staged_batch(self, scheduler: ModelScheduler, number: int, staged_ns: int) -> None:
        """Start a staged batch when the rate limiter permits; ``scheduler`` may have been replaced since."""
        now = time.monotonic_ns()
        self._wake_if_due(now)
        decisions = scheduler.execute_staged(number, now)
        assert self._limiter is not None
        key = self.instances.key(number)
        waited_for = self._limiter.take_wait(key)
        executed = [decision for decision in decisions if type(decision) is Execute]
        for decision in executed:
            if waited_for:
                decision.reason.facts.update(limited_ns=now - staged_ns, limited_by=waited_for)
        if not executed:
            # All its requests were cancelled. Before other decisions, which may stage the next batch of the instance.
            self.instances[number].busy = False
            self._limiter.released(key)
        self._apply(decisions, now, is_granted=True)

    def _create_execution(self, decision: Execute, now: int) -> tuple[Instance, Execution]:
        """Return the execution of a batch, and the instance that will run it."""
        instance = self.instances[decision.instance]
        number = next(batch_numbers)
        waiting = self.scheduler.queue_depth()
        served, name = self._served, instance.spec.name
        served.statistics.batch_sent(decision.reason.rule)
        served.stream.emit_record(batch_sent(decision, self._name, self._version, number, name, waiting, now))
        order = self.scheduler.response_order(decision.instance)
        if order is not None:
            self._orders.update((request, order) for request in decision.requests if request is not None)
        requests = list(decision.requests) if self._sequences is None else self._sequences.prepare(decision)
        execution = Execution(requests, decision.size, self._sent.send, number)
        instance.busy = True
        return instance, execution

    def complete_execution(self, instance: Instance, execution: Execution, raised: TritonError | None) -> None:
        """Called after an instance has run a batch: count it, start the next batch, then respond."""
        now = time.monotonic_ns()
        self._wake_if_due(now)
        self._count(instance, execution, raised, now)
        scheduler = self.scheduler
        # Before the instance is idle, so that the next requests of its sequences can be in its next batch.
        if execution.rescheduled or scheduler.needs_release_events:
            self._release(execution, now)
        if self._limiter is not None:
            # Before the instance asks for its next batch, which may need the same resources.
            self._limiter.released(self.instances.key(instance.spec.index))
        if isinstance(raised, InstanceLostError):
            instance.awaits_recovery = True
            self._emit_instance_state(instance, "LOST", raised.hint or raised.message, now)
            self._end_sequences(instance, raised.message, now)
        else:
            if instance.pending_loss is not None:
                self._end_sequences(instance, instance.pending_loss.message, now)
            self._apply(self._idle(instance, now), now)
        # Last, since the instance should not wait for the next batch while responses are written.
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
        if self._is_started:
            self._wake_if_due(now)  # may send it a batch
        if instance.busy and self._sequences is not None:
            instance.pending_loss = InternalError(error.message, hint=error.hint)
        elif self._is_started:
            self._end_sequences(instance, error.message, now)

    def _end_sequences(self, instance: Instance, message: str, now: int) -> None:
        instance.pending_loss = None
        self._apply(self.scheduler.end_sequences(instance.spec.index, message, now), now)

    def instance_recovered(self, instance: Instance, is_running: bool) -> None:
        """Use an instance again that was lost.

        An instance that does not run yet would reject its batches at once, and therefore receive more of them than
        others. It stays busy and tries again while another instance runs; sequences in its slots would wait, so they
        are rejected.
        """
        now = time.monotonic_ns()
        self._emit_instance_state(instance, "READY" if is_running else "UNAVAILABLE", "", now)
        if instance.awaits_recovery:
            if not is_running and self._sequences is None and self._others_run(instance):
                instance.recover_later()
                return
            instance.awaits_recovery = False
            self._wake_if_due(now)
            self._apply(self._idle(instance, now), now)

    def _others_run(self, instance: Instance) -> bool:
        return any(not other.awaits_recovery for other in self.instances if other is not instance)

    def _emit_instance_state(self, instance: Instance, state: str, reason: str, now: int) -> None:
        self._served.emit(InstanceStateChanged(now, self._name, self._version, instance.spec.name, state, reason))

    def _release(self, execution: Execution, now: int) -> None:
        for index, request in enumerate(execution.requests):
            if index in execution.rescheduled:
                self._apply(self._reschedule(execution, index, now), now)
            else:
                self._apply(self.scheduler.released(request, now), now)

    def _reschedule(self, execution: Execution, index: int, now: int) -> Sequence[Decision]:
        request = execution.requests[index]
        try:
            return self.scheduler.reschedule(request, now)
        except TritonError as error:
            # The model is not iterative, or its sequence was idle for too long while it ran: this request alone ends.
            execution.responses[index] = InferResponse(error=error)
            return self.scheduler.released(request, now)

    def _count(self, instance: Instance, execution: Execution, raised: TritonError | None, now: int) -> None:
        """Complete the responses of a batch and count it."""
        decoupled, errors_fail = self._served.decoupled, instance.backend_instance.error_responses_fail
        failures = complete_responses(self._name, instance.spec.name, execution, raised, decoupled, errors_fail)
        self._served.emit_executed(execution, instance.spec.name, failures, now)
        for request in execution.requests:
            if request.step is not None:
                request.step.executed(
                    execution.exec_start_ns, execution.compute_start_ns, execution.compute_end_ns, execution.exec_end_ns
                )

    # --- responses ----------------------------------------------------------------------------

    def _respond_in_order(self, request: InferRequest, response: InferResponse) -> None:
        # By request: preserve_ordering may have been changed since its batch began.
        order = self._orders.get(request)
        if order is None:
            self._served.respond(request, response)
            return
        if response.final:
            del self._orders[request]
        for ordered_request, ordered_response in order.add_response(request, response):
            self._served.respond(ordered_request, ordered_response)

    def _respond_sent(self, request: InferRequest, response: InferResponse) -> None:
        if not self._served.decoupled:
            self._respond_in_order(request, response)
            return
        index, since_ns = self._responses_sent.pop(request.serial, (0, request.queued_ns))
        now = time.monotonic_ns()
        # A decoupled model has a row of statistics for each number of a response, with the time since the previous
        # response.
        if not response.final:
            self._responses_sent[request.serial] = (index + 1, now)
        outcome = "empty" if response.empty else "fail" if response.error else "success"
        self._served.emit(
            ResponseSent(now, self._name, self._version, request.serial, index, outcome, now - since_ns, response.final)
        )
        self._respond_in_order(request, response)

    # --- time ---------------------------------------------------------------------------------

    def _wake_if_due(self, now: int) -> None:
        """Pass due timeouts to the scheduler with the times at which they were due, since timers fire late."""
        while (due := self.scheduler.next_wake_ns) is not None and due <= now:
            # The time of a scheduler does not run backwards, not even by a wake that is late.
            due = max(due, self._last_ns)
            decisions = self.scheduler.wake(due)
            if now - due >= _LATE_NS:
                for decision in decisions:
                    if type(decision) is Execute:
                        decision.reason.facts["late_ns"] = now - due
            self._apply(decisions, now)
        self._last_ns = now

    def _wake(self) -> None:
        now = time.monotonic_ns()
        self._wake_if_due(now)
        self._apply((), now)


def free_model(backend_model: BackendModel, strategy: BatchingStrategy | None) -> None:
    """Free a model whose instances have ended; slow. Its errors are logged, since it has ended all the same."""
    try:
        if strategy is not None:
            strategy.close()
    except BaseException:
        logger.exception("closing the batching strategy of model '%s' failed", backend_model.context.name)
    try:
        backend_model.finalize()
    except BaseException:  # even SystemExit, which must not end the thread before its caller has an answer
        logger.exception("finalizing model '%s' failed", backend_model.context.name)
