"""The rate limiter: which of the batches that are ready may run now, over all models of a server.

A batch whose instance was chosen is *staged*. Staged batches are ordered by how often their instances ran so far,
times the priority of their instance group: a group of priority 2 gets half the chances of one of priority 1. Only
the first is looked at: it runs if all resources that its instance needs are free, and if not, nothing else runs
until an execution has ended and given its resources back.

Implements ``rate_limiter`` of ``ModelInstanceGroup`` with ``--rate-limit=execution_count``. Pure like every
scheduler: batches and instances are opaque values here.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritonnb.core.errors import InvalidArgumentError

#: An instance counts its own initialisation and warm-up as executions.
_FIRST_COUNT = 2

#: The number of a model as it was loaded, and that of its instance.
InstanceKey = tuple[int, int]
#: A resource's name, and the device that has it; None for the server.
Pool = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class Resource:
    """So much of a resource; ``device`` is None for one that the whole server shares."""

    name: str
    count: int
    device: int | None = None

    @property
    def pool(self) -> Pool:
        """Where it is taken from."""
        return self.name, self.device


class _Instance:
    __slots__ = ("executions", "needs", "priority")

    def __init__(self, needs: Counter[Pool], priority: int) -> None:
        self.needs = needs
        self.priority = max(1, priority)
        self.executions = _FIRST_COUNT


class RateLimiter:
    """Grants resources to batches.

    Parameters
    ----------
    limits : sequence of Resource
        What there is (``--rate-limit-resource``); a resource without a device is what the server and each
        device have. With none at all there is always enough for the most demanding instance.
    """

    def __init__(self, limits: Sequence[Resource] = ()) -> None:
        self._limits: Mapping[Pool, int] = {resource.pool: resource.count for resource in limits}
        self._instances: dict[InstanceKey, _Instance] = {}
        self._staged: list[tuple[int, int, InstanceKey, Any]] = []
        self._numbers = itertools.count()
        self._taken: Counter[Pool] = Counter()

    def add(self, instance: InstanceKey, needs: Sequence[Resource], priority: int) -> None:
        """A new instance.

        Raises
        ------
        InvalidArgumentError
            If it could never run, or means by a name something else than others do.
        """
        wanted: Counter[Pool] = Counter()
        for resource in needs:
            wanted[resource.pool] += resource.count
        self._check_scope([*wanted, *(pool for known in self._instances.values() for pool in known.needs)])
        for pool, count in wanted.items():
            if self._limits and count > self._limit(pool):
                raise InvalidArgumentError(
                    f'Resource count for "{pool[0]}" is limited to {self._limit(pool)} which will prevent scheduling '
                    f"of one or more model instances, the minimum required count is {count}"
                )
        self._instances[instance] = _Instance(wanted, priority)

    def forget(self, instances: Iterable[InstanceKey]) -> None:
        """Instances are gone; nothing of them is staged or runs. They need not be known."""
        for instance in instances:
            self._instances.pop(instance, None)

    def dispatch_key(self, instance: InstanceKey) -> int:
        """How often an instance ran, times its priority: the lowest is next."""
        known = self._instances[instance]
        return known.executions * known.priority

    def stage(self, instance: InstanceKey, batch: Any) -> None:
        """A batch is ready for an instance that does nothing."""
        heapq.heappush(self._staged, (self.dispatch_key(instance), next(self._numbers), instance, batch))

    def released(self, instance: InstanceKey) -> None:
        """An execution is over."""
        known = self._instances[instance]
        known.executions += 1
        self._taken.subtract(known.needs)

    def grant(self) -> list[Any]:
        """The batches that run now; to be asked after all that was staged or released at one time."""
        granted = []
        while self._staged:
            _, _, instance, batch = self._staged[0]
            needs = self._instances[instance].needs
            if any(self._taken[pool] + count > self._limit(pool) for pool, count in needs.items()):
                break
            heapq.heappop(self._staged)
            self._taken.update(needs)
            granted.append(batch)
        return granted

    def _limit(self, pool: Pool) -> int:
        if self._limits:
            return self._limits.get(pool, self._limits.get((pool[0], None), 0))
        return max((instance.needs[pool] for instance in self._instances.values()), default=0)

    def _check_scope(self, pools: Sequence[Pool]) -> None:
        of_server = {name for name, device in pools if device is None}
        for name, device in pools:
            if device is not None and name in of_server:
                raise InvalidArgumentError(
                    f'Resource "{name}" is present as both global and device-specific resource in the model '
                    "configuration."
                )
