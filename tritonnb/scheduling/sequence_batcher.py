"""The sequence batcher: requests with the same correlation ID go to one batch slot of one instance, in order.

This module accepts requests and handles timeouts (idle sequences, timeouts in the backlog). `slots` assigns sequences
to slots, and a strategy for each instance decides when the requests in its slots are executed: `direct` or `oldest`.

A sequence ends in one of four ways: its END request is dispatched; it has been idle for too long; one of its requests
was cancelled and becomes the next request; or it times out in the backlog. The next request with its ID needs the START
flag.

A change of the strategy, or of its number of slots, applies to an instance when the sequences in its slots have ended.
Until then they continue as before, and new sequences use other instances or wait in the backlog.

Implements ``ModelSequenceBatching`` of *model_config.proto* as Triton 2.51 behaves, with an intended
difference: when an instance is added, sequences of the backlog move into its slots at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tritonnb.core.errors import InternalError, InvalidArgumentError, UnavailableError
from tritonnb.core.schedulable import SEQUENCE_START, Schedulable
from tritonnb.scheduling.decisions import (
    CANNOT_RESCHEDULE,
    STOPPING,
    Decision,
    Execute,
    Reason,
    Refuse,
    ResponseOrder,
)
from tritonnb.scheduling.reasons import BACKLOG_TIMED_OUT, INSTANCE_LOST, WAIT
from tritonnb.scheduling.sequence_strategies import (
    DirectSettings,
    DirectStrategy,
    OldestSettings,
    OldestStrategy,
    SequenceBatcherSettings,
)
from tritonnb.scheduling.slots import SlotSequence, SlotTable


class SequenceBatcher:
    """A `Scheduler` for stateful models.

    Parameters
    ----------
    settings : SequenceBatcherSettings
    instance_count : int
        Instances 0 to instance_count - 1 are used, each after it is reported as idle.

    Attributes
    ----------
    next_wake_ns : int or None
    table : SlotTable
        The sequences in slots and in the backlog.
    """

    def __init__(self, settings: SequenceBatcherSettings, instance_count: int) -> None:
        self.next_wake_ns: int | None = None
        self.settings = settings
        self.table = SlotTable(settings.max_sequence_idle_ns, settings.iterative)
        self._strategies: dict[int, DirectStrategy | OldestStrategy] = {}
        self._active_ids: set[int] = set()
        #: The sequence of every waiting request; with `needs_release_events`, of every request that is not released.
        self._sequence_of: dict[Schedulable, SlotSequence] = {}
        self.needs_release_events = False
        self._depth = 0
        self._paused = settings.min_requests_to_start > 0 or settings.min_backlog_to_start > 0
        self._last_id = 0
        self._stopping = False
        self._update_needs_release_events(settings)
        self.set_instances(range(instance_count), 0)

    # Stimuli

    def enqueue(self, request: Schedulable, now: int) -> Sequence[Decision]:
        """Handle the arrival of a request.

        Raises
        ------
        InvalidArgumentError
            If it has more than one row, or no correlation ID, or neither the START flag nor the ID of an open sequence.
        UnavailableError
            If it starts a sequence and the server is stopping.
        """
        name = self.settings.model_name
        # The order of these checks is Triton's: of two mistakes, a client must be told the same one.
        if request.batch_size > 1:
            raise InvalidArgumentError(
                f"inference request to model '{name}' must specify batch-size 1 due to requirements of sequence batcher"
            )
        if not request.correlation_id:
            if not self.settings.iterative:
                raise InvalidArgumentError(
                    f"inference request to model '{name}' must specify a non-zero or non-empty correlation ID"
                )
            request.correlation_id = self._new_id()
            # Whatever the client sent: Triton replaces its flags.
            request.flags = SEQUENCE_START
        if self._stopping and request.flags & SEQUENCE_START:
            raise UnavailableError(STOPPING)  # without the prefix of the ID, unlike the batchers: Triton's text
        if not request.flags & SEQUENCE_START and request.correlation_id not in self.table.known:
            raise self._not_started(request)
        decisions: list[Decision] = []
        self._accept(request, now, decisions)
        return self._finalize(now, decisions)

    def instance_idle(self, instance: int, now: int) -> Sequence[Decision]:
        """Handle an instance that has become idle."""
        decisions: list[Decision] = []
        strategy = self._strategies.get(instance)
        if strategy is not None:
            strategy.instance_idle(now, decisions)
        return self._finalize(now, decisions)

    def execute_staged(self, instance: int, now: int) -> Sequence[Decision]:
        """Execute a staged batch; only the oldest strategy stages batches."""
        decisions: list[Decision] = []
        strategy = self._strategies[instance]
        if isinstance(strategy, OldestStrategy):
            strategy.execute_staged(now, decisions)
        return self._finalize(now, decisions)

    def released(self, request: Schedulable, now: int) -> Sequence[Decision]:
        """Handle the final response to a request."""
        decisions: list[Decision] = []
        sequence = self._sequence_of.pop(request, None)
        if sequence is not None and sequence.slot is not None:
            strategy = self._strategies[sequence.slot.instance]
            has_more = bool(sequence.waiting)  # requests with the same correlation ID, which may be executed again
            strategy.completed(sequence.slot, now, decisions)
            if self.settings.iterative and not has_more:
                self._close(sequence, now, decisions)
        return self._finalize(now, decisions)

    def reschedule(self, request: Schedulable, now: int) -> Sequence[Decision]:
        """Handle a request that the backend released to be executed again, without START and END.

        Raises
        ------
        InvalidArgumentError
            If the model is not iterative, or the sequence has been idle for too long. The driver then responds to the
            request with this error and reports it as `released`.
        """
        if not self.settings.iterative:
            raise InvalidArgumentError(CANNOT_RESCHEDULE)
        request.flags = 0
        sequence = self._sequence_of[request]
        if self.table.known.get(request.correlation_id) is not sequence or sequence.slot is None:
            raise self._not_started(request)
        decisions: list[Decision] = []
        self._wait_in(sequence, request, now)
        strategy = self._strategies[sequence.slot.instance]
        strategy.completed(sequence.slot, now, decisions)
        # The direct strategy ignores `completed`, and the oldest strategy has sent the request by now and ignores this.
        strategy.arrived(sequence.slot, now, decisions)
        return self._finalize(now, decisions)

    def cancel(self, request: Schedulable, now: int) -> Sequence[Decision]:
        """Cancel a request; when it is its turn, all waiting requests of its sequence are refused.

        A sequence in the backlog whose requests are all cancelled is removed at once.
        """
        decisions: list[Decision] = []
        sequence = self._sequence_of.get(request)
        if sequence is not None and sequence.slot is not None:
            self._strategies[sequence.slot.instance].cancelled(request, now, decisions)
        elif sequence is not None:
            # On Triton, a sequence stays in the backlog until it would get a slot, and is refused then. If nobody waits
            # for any of its requests, a client that sends and cancels would fill the memory until then.
            sequence.cancelled += 1
            # The count saves the search for each of many requests; a request may be cancelled twice.
            if sequence.cancelled >= len(sequence.waiting) and all(each.cancelled for each in sequence.waiting):
                self.table.abandon(sequence, now, decisions)
        return self._finalize(now, decisions)

    def end_sequences(self, instance: int, reason: str, now: int) -> Sequence[Decision]:
        """End the sequences of an instance that has lost their states, and refuse their waiting requests."""
        decisions: list[Decision] = []
        strategy = self._strategies.get(instance)
        if strategy is not None:
            dropped = strategy.drop_requests(now)
            decisions += [_refuse_lost(self._sequence_of[request], request, reason, now) for request in dropped]
            for slot in strategy.slots:
                sequence = slot.sequence
                if sequence is not None:
                    decisions += [_refuse_lost(sequence, request, reason, now) for request in sequence.waiting]
                    sequence.waiting.clear()
                    self.table.release(slot, now, decisions)
            for slot in strategy.slots:
                strategy.arrived(slot, now, decisions)  # a sequence of the backlog may have got the slot
        return self._finalize(now, decisions)

    def wake(self, now: int) -> Sequence[Decision]:
        """Called when a sequence was idle for too long or timed out, or a strategy must be called."""
        decisions: list[Decision] = []
        for sequence in self.table.expiring.pop_due(now):
            self._refuse_expired(sequence, now, decisions)
        self._close_idle(now, decisions)
        for strategy in self._strategies.values():
            if strategy.next_wake_ns is not None and strategy.next_wake_ns <= now:
                strategy.wake(now, decisions)
        return self._finalize(now, decisions)

    def stop(self) -> None:
        """Reject new sequences; open sequences may continue."""
        self._stopping = True

    def reconfigure(self, settings: SequenceBatcherSettings, now: int) -> Sequence[Decision]:
        """Apply a changed strategy, delay, utilization or idle time; ``iterative`` must be unchanged."""
        decisions: list[Decision] = []
        self.settings = settings
        self._update_needs_release_events(settings)
        self.table.max_sequence_idle_ns = settings.max_sequence_idle_ns
        for sequence in list(self.table.idle):
            self.table.idle.set(sequence, sequence.seen_ns + settings.max_sequence_idle_ns)
        current = {instance for instance, strategy in self._strategies.items() if self._is_current(strategy)}
        for instance in current:
            self._strategies[instance].reconfigure(settings.strategy, now, decisions)
        self._open(current & self._active_ids & self.table.retired, now, decisions)
        # Not changed under live sequences: a stateful model may keep its state by slot.
        for instance in self._strategies.keys() - current - self.table.retired:
            self.table.retire(instance)
        return self._finalize(now, decisions)

    def set_instances(self, instances: Collection[int], now: int) -> Sequence[Decision]:
        """Replace the set of instances. A removed instance gets no new sequences; see `uses`."""
        decisions: list[Decision] = []
        for instance in self._active_ids - set(instances) - self.table.retired:
            self.table.retire(instance)
        added = set(instances) - self._active_ids
        self._active_ids = set(instances)
        # One that was removed, and still serves its sequences, may come back with its strategy.
        for instance in sorted(added - self._strategies.keys()):
            self._strategies[instance] = self._create_strategy(instance)
        self._open({instance for instance in added if self._is_current(self._strategies[instance])}, now, decisions)
        return self._finalize(now, decisions)

    # Questions

    def verdict(self, now: int) -> Reason | None:
        """Return the reason of the next batch of an idle instance with requests, or `WAIT`; None if none waits."""
        verdicts = [(strategy.idle, strategy.verdict(now)) for strategy in self._strategies.values()]
        known = [(not idle, verdict.rule == WAIT, verdict) for idle, verdict in verdicts if verdict is not None]
        if known:
            return min(known, key=lambda entry: entry[:2])[2]
        return Reason(WAIT, {"requests": self._depth}) if self._depth else None

    def queue_depth(self) -> int:
        """Return the number of accepted requests in slots or in the backlog that are not running."""
        return self._depth

    def response_order(self, instance: int) -> ResponseOrder | None:
        """Return the `ResponseOrder` of an instance; None if responses are sent directly."""
        return self._strategies[instance].response_order()

    def uses(self, instance: int) -> bool:
        """Return whether an instance may still get work; a removed instance until its sequences have ended."""
        return instance in self._strategies

    # Sequences and strategies

    def _not_started(self, request: Schedulable) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"inference request for sequence {request.correlation_id} to model "
            f"'{self.settings.model_name}' must specify the START flag on the first request of the sequence"
        )

    def _new_id(self) -> int:
        self._last_id += 1
        # Triton does not look, and lets two sequences share a slot if a client has chosen the same number.
        while self._last_id in self.table.known:
            self._last_id += 1
        return self._last_id

    def _wait_in(self, sequence: SlotSequence, request: Schedulable, now: int) -> None:
        request.queued_ns = now
        self._sequence_of[request] = sequence
        self._depth += 1
        self.table.append(sequence, request, now)

    def _accept(self, request: Schedulable, now: int, decisions: list[Decision]) -> None:
        # As in Triton, START with the ID of an open sequence joins that sequence and does not end it.
        sequence = self.table.known.get(request.correlation_id)
        if sequence is None:
            sequence = self.table.begin_sequence(request.correlation_id, now)
        self._wait_in(sequence, request, now)
        if sequence.slot is not None:
            self._strategies[sequence.slot.instance].arrived(sequence.slot, now, decisions)
        if self._paused:
            self._update_paused(now, decisions)

    def _update_paused(self, now: int, decisions: list[Decision]) -> None:
        in_backlog = sum(len(sequence.waiting) for sequence in self.table.backlog)
        enough = (
            self._depth - in_backlog >= self.settings.min_requests_to_start
            and in_backlog >= self.settings.min_backlog_to_start
        )
        # Once enough requests wait, the thresholds have done their work: this is not called again.
        self._paused = not enough
        for strategy in self._strategies.values():
            strategy.paused = self._paused
            if enough:
                strategy.wake(now, decisions)

    def _close_idle(self, now: int, decisions: list[Decision]) -> None:
        for sequence in self.table.idle.pop_due(now):
            self._close(sequence, now, decisions)

    def _close(self, sequence: SlotSequence, now: int, decisions: list[Decision]) -> None:
        """Accept no more requests for a sequence in a slot; the slot is released after its waiting requests."""
        slot = sequence.slot
        if self.table.known.get(sequence.id) is sequence and slot is not None:
            self.table.forget(sequence)
            sequence.closed = True
            self._strategies[slot.instance].arrived(slot, now, decisions)

    def _refuse_expired(self, sequence: SlotSequence, now: int, decisions: list[Decision]) -> None:
        for request in sequence.waiting:
            error = UnavailableError("timeout of the corresponding sequence has been expired")
            facts = {"sequence": sequence.id, "waited_ns": now - request.queued_ns}
            decisions.append(Refuse(request, error, "REJECTED", Reason(BACKLOG_TIMED_OUT, facts)))
        sequence.waiting.clear()  # `abandon` would cancel them
        self.table.abandon(sequence, now, decisions)

    def _finalize(self, now: int, decisions: list[Decision]) -> list[Decision]:
        """Update counters and `next_wake_ns` for the decisions of a stimulus, and return them."""
        if self.table.retired:
            self._replace_ended_strategies(now, decisions)
        for decision in decisions:
            if isinstance(decision, Execute):
                # Rows are requests here: every request of a sequence has one row.
                self._depth -= decision.size - decision.requests.count(None)
                if not self.needs_release_events:
                    for request in decision.requests:
                        self._sequence_of.pop(request, None)  # null requests belong to no sequence
            elif isinstance(decision, Refuse):
                self._depth -= 1
                self._sequence_of.pop(decision.request)
        wakes = [strategy.next_wake_ns for strategy in self._strategies.values()]
        wakes += (self.table.idle.next(), self.table.expiring.next())
        self.next_wake_ns = min([wake for wake in wakes if wake is not None], default=None)
        return decisions

    def _update_needs_release_events(self, settings: SequenceBatcherSettings) -> None:
        # It stays true: requests of the previous strategy may still be running.
        self.needs_release_events |= settings.iterative or isinstance(settings.strategy, OldestSettings)

    def _open(self, instances: Collection[int], now: int, decisions: list[Decision]) -> None:
        """Let new sequences use these instances."""
        slots = [slot for instance in sorted(instances) for slot in self._strategies[instance].slots]
        for slot in self.table.add(slots):
            self._strategies[slot.instance].arrived(slot, now, decisions)

    def _replace_ended_strategies(self, now: int, decisions: list[Decision]) -> None:
        """Remove strategies whose last sequence has ended; the instance is unused, or gets the new strategy."""
        for instance in sorted(self.table.retired):
            old = self._strategies[instance]
            if not old.settled or any(slot.sequence for slot in old.slots):
                continue
            self.table.retired.discard(instance)
            del self._strategies[instance]
            if instance in self._active_ids:
                strategy = self._strategies[instance] = self._create_strategy(instance)
                if old.idle:
                    strategy.instance_idle(now, decisions)
                self._open({instance}, now, decisions)
                self._close_idle(now, decisions)  # a sequence that was idle for too long in the backlog

    def _is_current(self, strategy: DirectStrategy | OldestStrategy) -> bool:
        settings = self.settings.strategy
        # Delays and utilization can change under live sequences, strategies and numbers of slots cannot.
        same = isinstance(strategy, DirectStrategy) == isinstance(settings, DirectSettings)
        return same and len(strategy.slots) == settings.slot_count

    def _create_strategy(self, instance: int) -> DirectStrategy | OldestStrategy:
        settings = self.settings.strategy
        strategy: DirectStrategy | OldestStrategy
        if isinstance(settings, DirectSettings):
            strategy = DirectStrategy(instance, settings, self.table)
        else:
            strategy = OldestStrategy(instance, settings, self.table)
        strategy.paused = self._paused
        return strategy


def _refuse_lost(sequence: SlotSequence, request: Schedulable, reason: str, now: int) -> Refuse:
    facts = {"sequence": sequence.id, "waited_ns": now - request.queued_ns}
    return Refuse(request, InternalError(reason), "OTHER", Reason(INSTANCE_LOST, facts))
