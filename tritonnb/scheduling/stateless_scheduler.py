"""What schedulers of models without sequences have in common."""

from __future__ import annotations

from collections.abc import Sequence

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.scheduling.decisions import CANNOT_RESCHEDULE, Decision, Schedulable
from tritonnb.scheduling.instances import Instances


class StatelessScheduler:
    """A part of a `Scheduler` whose requests are executed once, on any instance.

    Attributes
    ----------
    instances : Instances
    stopping : bool
        New requests are rejected.
    """

    needs_release_events = False

    def __init__(self, instance_count: int) -> None:
        self.instances = Instances(instance_count)
        self.stopping = False

    def released(self, request: Schedulable, now: int) -> Sequence[Decision]:
        """Do nothing: no decision depends on it."""
        return ()

    def reschedule(self, request: Schedulable, now: int) -> Sequence[Decision]:
        """Reject it: requests are executed once.

        Raises
        ------
        InvalidArgumentError
            Always.
        """
        raise InvalidArgumentError(CANNOT_RESCHEDULE)

    def stop(self) -> None:
        """Reject new requests; queued ones are executed."""
        self.stopping = True

    def end_sequences(self, instance: int, reason: str, now: int) -> Sequence[Decision]:
        """Do nothing: there are no sequences."""
        return []

    def uses(self, instance: int) -> bool:
        """Whether an instance may still get work."""
        return instance in self.instances.active_ids
