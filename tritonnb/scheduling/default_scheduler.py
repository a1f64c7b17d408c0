"""The scheduler of a model without a batcher: each request is executed alone, in order of arrival.

It knows no limit, timeout or priority. As in Triton, an accepted request is on its way to an instance
already: cancelling it is for the backend to notice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.scheduling.decisions import CANNOT_RESCHEDULE, STOPPING, Decision, Execute, Reason
from tritonnb.scheduling.instances import Instances
from tritonnb.scheduling.reasons import ONE_REQUEST
from tritonnb.scheduling.response_order import ResponseOrder


class DefaultScheduler:
    """A `Scheduler` that never combines requests.

    Parameters
    ----------
    instance_count : int
        Instances 0 to instance_count - 1 are used, each once it says that it is idle.

    Attributes
    ----------
    instances : Instances
    stopping : bool
        No more requests are admitted.
    """

    next_wake_ns: int | None = None
    needs_release_events = False

    def __init__(self, instance_count: int) -> None:
        self.instances = Instances(instance_count)
        self.stopping = False
        self._waiting: deque[Any] = deque()

    def enqueue(self, request: Any, now: int) -> Sequence[Decision]:
        """A request arrived.

        Raises
        ------
        UnavailableError
            If the server is stopping.
        """
        if self.stopping:
            raise UnavailableError(f"{request.id_prefix}{STOPPING}")
        request.queued_ns = now
        self._waiting.append(request)
        return self._advance(now)

    def instance_idle(self, instance: int, now: int) -> Sequence[Decision]:
        """An instance has nothing to do."""
        self.instances.release(instance, now)
        return self._advance(now)

    def begin(self, instance: int, now: int) -> Sequence[Decision]:
        """Nothing is staged here: a batch of one does not grow."""
        return ()

    def released(self, request: Any, now: int) -> Sequence[Decision]:
        """A request has had its final response: nothing depends on it here."""
        return ()

    def reschedule(self, request: Any, now: int) -> Sequence[Decision]:
        """Requests are executed once.

        Raises
        ------
        InvalidArgumentError
            Always.
        """
        raise InvalidArgumentError(CANNOT_RESCHEDULE)

    def cancel(self, request: Any, now: int) -> Sequence[Decision]:
        """Nothing changes: the request is executed."""
        return ()

    def wake(self, now: int) -> Sequence[Decision]:
        """Nothing here depends on time."""
        return ()

    def stop(self) -> None:
        """Admit no more requests; those that wait are served."""
        self.stopping = True

    def export_waiting(self, now: int) -> tuple[list[Decision], list[Any]]:
        """Give up what waits, in order, to a scheduler that takes this one's place."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return [], waiting

    def import_waiting(self, waiting: Sequence[Any], instances: Instances, now: int) -> list[Decision]:
        """Go on with the instances and the waiting requests of the scheduler before this one."""
        self.instances = instances
        self._waiting.extend(waiting)
        return self._advance(now)

    def set_instances(self, members: Collection[int], now: int) -> Sequence[Decision]:
        """Go on with other instances: see `Instances.replace`."""
        self.instances.replace(members)
        return self._advance(now)

    def queue_depth(self) -> int:
        """Requests accepted and not yet running."""
        return len(self._waiting)

    def uses(self, instance: int) -> bool:
        """Whether an instance may still be given work."""
        return instance in self.instances.active_ids

    def response_order(self, instance: int) -> ResponseOrder | None:
        """None: responses leave as they come."""
        return None

    def validate(self) -> None:
        """Check the invariants."""
        assert not (self._waiting and self.instances.idle)

    def _advance(self, now: int) -> list[Decision]:
        decisions: list[Decision] = []
        while self._waiting and self.instances.idle:
            taken = self.instances.take()
            request = self._waiting.popleft()
            facts = {
                "requests": 1,
                "rows": request.batch_size,
                "waited_ns": now - request.queued_ns,
                **taken.facts(now),
            }
            decisions.append(Execute(taken.instance, [request], request.batch_size, Reason(ONE_REQUEST, facts)))
        return decisions
