"""The states in which the batcher of a traced server may be.

A timer, an arrival or the end of an execution wakes Triton's batcher, which then makes a pass. A trace does not contain
the passes, and on a busy machine they come later, with the requests that arrived in the meantime. A pass without some
of these also lets another number of rows wake the batcher next, which shows only a few batches later. Therefore all
states are kept that passes within `WAKE_NS` lead to, as long as their payloads are parts of the recorded batches.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from tritonnb.core.errors import TritonError
from tritonnb.lab.simulation.engine import SimulatedRequest
from tritonnb.scheduling.decisions import Decision, Execute, Reason, Scheduler
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher

#: A pass may be made this much later than it is due on a busy machine.
WAKE_NS = 2_000_000
#: Most states that are kept.
_MOST = 32


@dataclass(slots=True)
class PossibleState:
    """A state of the scheduler.

    Attributes
    ----------
    scheduler : Scheduler
    assumptions : int
        How many passes were assumed to be late, or to come before an instance takes a batch.
    pass_since_ns : int or None
        Since when the pass is due that the end of an execution causes.
    """

    scheduler: Scheduler
    assumptions: int = 0
    pass_since_ns: int | None = None

    def later(self, time_ns: int) -> Iterator[PossibleState]:
        """Yield the states at a time, after the passes that are due by then, or before one that is late."""
        while (due_ns := self._due_ns()) is not None and due_ns <= time_ns:
            if time_ns - due_ns <= WAKE_NS and isinstance(self.scheduler, DynamicBatcher):
                yield PossibleState(self.scheduler.copy(), self.assumptions + 1, self.pass_since_ns)
            self._make_pass(due_ns)
        yield self

    def at_end(self, time_ns: int) -> Iterator[PossibleState]:
        """Yield the states at the end of an execution, before an instance takes a batch: the batcher may be first."""
        for state in self.later(time_ns):
            yield state
            scheduler = state.scheduler
            if isinstance(scheduler, DynamicBatcher) and scheduler.payloads and scheduler.queue.size:
                first = scheduler.copy()
                first.make_pass(time_ns)
                yield PossibleState(first, state.assumptions + 1, state.pass_since_ns)

    def take(self, instance: int, now: int, latest_ns: int) -> Execute | None:
        """Let an instance take a batch, or wait for one until a time."""
        scheduler = self.scheduler
        if isinstance(scheduler, DynamicBatcher) and scheduler.payloads:
            self.pass_since_ns = now if self.pass_since_ns is None else self.pass_since_ns
            return scheduler.take_payload(instance, now)
        self.pass_since_ns = None
        decisions = _executions(scheduler.instance_idle(instance, now))
        due_ns = scheduler.next_wake_ns
        if not decisions and due_ns is not None and due_ns <= latest_ns:
            decisions = _executions(scheduler.wake(due_ns))
        return next(iter(decisions), None)

    def _due_ns(self) -> int | None:
        return self.scheduler.next_wake_ns if self.pass_since_ns is None else self.pass_since_ns

    def _make_pass(self, now: int) -> None:
        if self.pass_since_ns is None:
            self.scheduler.wake(now)
        else:
            assert isinstance(self.scheduler, DynamicBatcher)
            self.scheduler.make_pass(now)
            self.pass_since_ns = None


class PossibleStates:
    """All states in which the scheduler of a traced server may be.

    Parameters
    ----------
    scheduler : Scheduler
        Its only state at the beginning.
    batches : mapping of int to int
        The recorded batch of each request, by serial number.
    """

    def __init__(self, scheduler: Scheduler, batches: Mapping[int, int]) -> None:
        self._batches = batches
        self._states = [PossibleState(scheduler)]

    def arrive(self, request: SimulatedRequest, now: int) -> None:
        """Enqueue a request."""
        states = self._possible(later for state in self._states for later in state.later(now))
        for state in states:
            with suppress(TritonError):  # the queue is full: the request is in no batch
                state.scheduler.enqueue(request, now)
        self._states = states

    def cancel(self, request: SimulatedRequest, now: int) -> None:
        """Cancel a request."""
        self._states = self._possible(later for state in self._states for later in state.later(now))
        for state in self._states:
            state.scheduler.cancel(request, now)

    def take(self, instance: int, now: int, latest_ns: int) -> list[tuple[PossibleState, Execute | None]]:
        """Let an instance take a batch, or wait for one until a time.

        Returns
        -------
        list of tuple
            The states, beginning with the one that has the fewest assumptions, and the batches.
        """
        self._states = self._possible(first for state in self._states for first in state.at_end(now))
        return [(state, state.take(instance, now, latest_ns)) for state in self._states]

    def keep(self, states: list[PossibleState]) -> None:
        """Keep only some states."""
        self._states = states

    def verdict(self, now: int) -> Reason | None:
        """Return the `Scheduler.verdict` of the state with the fewest assumptions."""
        return self._states[0].scheduler.verdict(now)

    def _possible(self, states: Iterable[PossibleState]) -> list[PossibleState]:
        """Return the states whose payloads are parts of recorded batches, or else all, and equal ones once."""
        distinct: dict[Hashable, PossibleState] = {}
        for state in sorted(states, key=lambda state: state.assumptions):
            distinct.setdefault(_key(state), state)
        every = list(distinct.values())
        return ([state for state in every if self._is_recorded(state)] or every)[:_MOST]

    def _is_recorded(self, state: PossibleState) -> bool:
        if not isinstance(state.scheduler, DynamicBatcher):
            return True
        payloads = [payload.requests for payload in state.scheduler.payloads]
        batches = self._batches
        return all(batches[requests[0].serial] == batches[requests[-1].serial] for requests in payloads)


def _key(state: PossibleState) -> Hashable:
    """Return what distinguishes the states of one scheduler at one time."""
    scheduler = state.scheduler
    if not isinstance(scheduler, DynamicBatcher):
        return None
    payloads = tuple([(len(payload.requests), payload.full) for payload in scheduler.payloads])
    rest = len(scheduler.queue.pending), scheduler.rows_to_wake, scheduler.next_wake_ns, state.pass_since_ns
    return payloads, rest


def _executions(decisions: Iterable[Decision]) -> list[Execute]:
    return [decision for decision in decisions if isinstance(decision, Execute)]
