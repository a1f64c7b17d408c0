"""The instances that a scheduler may use, which of them are idle, and the rate limiter between all instances."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, final

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.scheduling.resources import Pool, Resource


@final
class TakenInstance:
    """An instance that gets a batch.

    Attributes
    ----------
    instance : int
    idle_since_ns : int
    has_run : bool
        Whether it has executed a batch before.
    """

    __slots__ = ("has_run", "idle_since_ns", "instance")

    def __init__(self, instance: int, idle_since_ns: int, has_run: bool) -> None:
        self.instance = instance
        self.idle_since_ns = idle_since_ns
        self.has_run = has_run

    def facts(self, now: int) -> dict[str, int]:
        """Return the facts about the instance for the `Reason` of a batch that starts ``now``."""
        return {"instance": self.instance, "idle_ns": now - self.idle_since_ns, "has_run": self.has_run}


class Instances:
    """The instances of one model; the instance that has been idle longest is used first.

    Parameters
    ----------
    count : int
        Instances 0 to count - 1. None is idle until it is reported.

    Attributes
    ----------
    active_ids : set of int
    dispatch_key : callable or None
        With a rate limiter, the idle instance with the lowest key is used first.
    """

    __slots__ = ("_idle", "_started", "active_ids", "dispatch_key")

    def __init__(self, count: int) -> None:
        self.active_ids = set(range(count))
        self.dispatch_key: Callable[[int], int] | None = None
        # The order of a dict is the order of becoming idle. On Triton the first thread that wakes up takes the payload,
        # and two runs differ; longest idle first is one of its orders, and the same in every run.
        self._idle: dict[int, int] = {}
        self._started: set[int] = set()  # instances that have executed a batch

    @property
    def idle(self) -> Collection[int]:
        """Idle instances, longest idle first."""
        return self._idle.keys()

    def release(self, instance: int, now: int) -> None:
        """Mark an instance as idle, unless it was removed or is idle already."""
        if instance in self.active_ids:
            # An instance that is reported twice must not move to the end.
            self._idle.setdefault(instance, now)

    def take_instance(self) -> TakenInstance:
        """Mark the next idle instance as busy and return it."""
        instance = next(iter(self._idle)) if self.dispatch_key is None else min(self._idle, key=self.dispatch_key)
        taken = TakenInstance(instance, self._idle.pop(instance), instance in self._started)
        self._started.add(instance)
        return taken

    def replace(self, instances: Collection[int]) -> None:
        """Replace the set of instances; removed instances get no more work.

        The number of a removed instance must not be used again while that instance is running.
        """
        self.active_ids = set(instances)
        self._idle = {instance: since for instance, since in self._idle.items() if instance in self.active_ids}
        # The number may be used again, by an instance that has not run yet.
        self._started &= self.active_ids


#: An instance counts its own initialisation and warm-up as executions.
_FIRST_COUNT: Final = 2

#: The number of the loaded model, and of its instance.
InstanceKey = tuple[int, int]


class _Instance:
    __slots__ = ("executions", "name", "needs", "priority")

    def __init__(self, needs: Counter[Pool], priority: int, name: str) -> None:
        self.needs = needs
        self.name = name
        # 0 is "not set", which Triton counts as 1.
        self.priority = max(1, priority)
        self.executions = _FIRST_COUNT


class RateLimiter:
    """The rate limiter: which of the ready batches of all models of a server may be executed now.

    A batch with an instance is *staged*. Staged batches are ordered by the number of executions of their instance,
    times the priority of the instance group: a group with priority 2 is executed half as often as a group with
    priority 1. Only the first batch is considered: it is executed if all resources that its instance needs are
    available; otherwise nothing is executed until an execution ends and releases its resources. One exception: while
    an execution waits for another model, later batches are considered, since the execution may end only after a later
    batch.

    Implements ``rate_limiter`` of ``ModelInstanceGroup`` with ``--rate-limit=execution_count``. Pure like every
    scheduler: batches and instances are opaque values here.

    Parameters
    ----------
    limits : sequence of Resource
        Available resources (``--rate-limit-resource``). A resource without a device is available on the server and on
        every device. Without any, each resource suffices for the most demanding instance.

    Attributes
    ----------
    waiting : int
        The number of calls to other models that executions wait for.
    """

    def __init__(self, limits: Sequence[Resource] = ()) -> None:
        self._limits: Mapping[Pool, int] = {resource.pool: resource.count for resource in limits}
        self._instances: dict[InstanceKey, _Instance] = {}
        self._staged: list[tuple[int, int, InstanceKey, Any]] = []
        self._numbers = itertools.count()
        self._in_use: Counter[Pool] = Counter()
        self._running: set[InstanceKey] = set()
        self._waits: dict[InstanceKey, str] = {}  # what the staged batch of an instance had to wait for
        self.waiting = 0

    def add(self, instance: InstanceKey, needs: Sequence[Resource], priority: int, name: str = "") -> None:
        """Register an instance; its name is for explanations.

        Raises
        ------
        InvalidArgumentError
            If it could never be executed, or a resource is both global and device-specific.
        """
        needed: Counter[Pool] = Counter()
        for resource in needs:
            needed[resource.pool] += resource.count
        self._check_scope([*needed, *(pool for known in self._instances.values() for pool in known.needs)])
        for pool, count in needed.items():
            # If any limit is given, a resource that is not among them has the limit 0, as on Triton.
            if self._limits and count > self._limit(pool):
                raise InvalidArgumentError(
                    f'Resource count for "{pool[0]}" is limited to {self._limit(pool)} which will prevent scheduling '
                    f"of one or more model instances, the minimum required count is {count}"
                )
        self._instances[instance] = _Instance(needed, priority, name)

    def forget(self, instances: Iterable[InstanceKey]) -> None:
        """Unregister instances without staged or running batches; unknown instances are ignored."""
        for instance in instances:
            self._instances.pop(instance, None)

    def dispatch_key(self, instance: InstanceKey) -> int:
        """Return the number of executions of an instance, times its priority; the lowest is next."""
        known = self._instances[instance]
        return known.executions * known.priority

    def stage(self, instance: InstanceKey, batch: Any) -> None:
        """Request the resources of a batch that is ready for an idle instance."""
        self._waits.pop(instance, None)
        # The key cannot change while the batch is staged, since its instance runs nothing else meanwhile.
        heapq.heappush(self._staged, (self.dispatch_key(instance), next(self._numbers), instance, batch))

    def released(self, instance: InstanceKey) -> None:
        """Release the resources of an execution that has ended."""
        known = self._instances[instance]
        # At the end of the execution and not at its grant, as on Triton.
        known.executions += 1
        self._in_use.subtract(known.needs)
        self._running.discard(instance)

    def take_wait(self, instance: InstanceKey) -> str:
        """Return what the last batch of an instance had to wait for; empty if it was executed at once."""
        return self._waits.pop(instance, "")

    def grant(self) -> list[Any]:
        """Return the batches to execute now; called after all that was staged or released at one time."""
        granted, blocked, cause = [], [], ""
        while self._staged:
            staged = heapq.heappop(self._staged)
            needs = self._instances[staged[2]].needs
            if all(self._in_use[pool] + count <= self._limit(pool) for pool, count in needs.items()):
                self._in_use.update(needs)
                self._running.add(staged[2])
                granted.append(staged[3])
                continue
            blocked.append(staged)
            cause = self._explain_wait(needs)
            self._waits[staged[2]] = cause
            # Triton tries the first batch only, even if a later one could run: a batch that needs much is not starved
            # by modest ones. The price is that one model can hold up all others.
            if not self.waiting:
                break
        if blocked:
            turn = f"its turn after {self._instances[blocked[-1][2]].name}, which waits for {cause}"
            for later in self._staged:
                self._waits.setdefault(later[2], turn)
        for staged in blocked:
            heapq.heappush(self._staged, staged)
        return granted

    def _explain_wait(self, needs: Counter[Pool]) -> str:
        lacking = [pool for pool, count in needs.items() if self._in_use[pool] + count > self._limit(pool)]
        running = [self._instances[key] for key in self._running if key in self._instances]
        holders = sorted({known.name for known in running if any(known.needs[pool] for pool in lacking)})
        held = f", held by {', '.join(holders)}" if holders else ""
        return f"resource {', '.join(sorted({name for name, _ in lacking}))}{held}"

    def lacking(self, needs: Sequence[Resource], held: Iterable[Resource]) -> set[str]:
        """Return the names of the needed resources that do not suffice while others are held."""
        taken: Counter[Pool] = Counter()
        for resource in [*needs, *held]:
            taken[resource.pool] += resource.count
        return {resource.name for resource in needs if taken[resource.pool] > self._limit(resource.pool)}

    def resource_map(self) -> str:
        """Return the limit of each resource that an instance needs, by device, as Triton's verbose log has it."""
        needed: set[Pool] = set().union(*[instance.needs for instance in self._instances.values()])
        lines = ["", "Max Resource Map===>"]
        for device in sorted({-1 if device is None else device for _, device in needed}):
            lines.append(f"\tDevice: {'GLOBAL' if device < 0 else device}")
            pools = sorted(pool for pool in needed if pool[1] == (None if device < 0 else device))
            lines += [f"\t\tResource: {pool[0]}\t Count: {self._limit(pool)}" for pool in pools]
        return "\n".join([*lines, ""])

    def _limit(self, pool: Pool) -> int:
        if self._limits:
            return self._limits.get(pool, self._limits.get((pool[0], None), 0))
        # Not stored: when the most demanding model is unloaded, the limit must fall with it.
        return max((instance.needs[pool] for instance in self._instances.values()), default=0)

    def _check_scope(self, pools: Sequence[Pool]) -> None:
        of_server = {name for name, device in pools if device is None}
        for name, device in pools:
            if device is not None and name in of_server:
                raise InvalidArgumentError(
                    f'Resource "{name}" is present as both global and device-specific resource in the model '
                    "configuration."
                )
