"""The instances and the scheduler of a served model version: how they are created and changed.

Everything here runs on the server's event loop.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from tritonnb.backends.contract import EXECUTE_ON_ANY_THREAD, BackendModel, InstanceSpec, MemoryPlace, ModelContext
from tritonnb.backends.parameters import boolean_parameter
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.runtime.execution.instance import Instance
from tritonnb.runtime.execution.instance_pool import InstancePool
from tritonnb.runtime.models.served_base import Served
from tritonnb.scheduling.batching_strategy import BatchingStrategy
from tritonnb.scheduling.decisions import Decision, Scheduler
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.from_config import make_scheduler, reconfigure_scheduler
from tritonnb.scheduling.rate_limiter import RateLimiter
from tritonnb.telemetry.stream import EventStream


class ServedWithInstances(Served):
    """A model version with instances and a scheduler; what the scheduler decides is carried out by the subclass.

    Attributes
    ----------
    scheduler : Scheduler
        Created by `start`.
    backend_model : BackendModel
    inline : bool
        Whether the event loop may execute quick batches of thread-agnostic instances.
    """

    def __init__(
        self,
        context: ModelContext,
        backend_model: BackendModel,
        stream: EventStream,
        loop: asyncio.AbstractEventLoop,
        strategy: BatchingStrategy | None = None,
    ) -> None:
        super().__init__(context, stream, loop)
        self.scheduler: Scheduler
        self.backend_model = backend_model
        self._strategy = strategy
        self.inline = not self.decoupled and boolean_parameter(context, EXECUTE_ON_ANY_THREAD, False)
        self._pool: InstancePool  # set by `start`, like the scheduler
        self._is_started = False
        self._limiter: RateLimiter | None = None

    def register_with_rate_limiter(self, spec: InstanceSpec, limiter: RateLimiter | None) -> None:
        """Register an instance with the rate limiter, if there is one.

        Raises
        ------
        InvalidArgumentError
            If the instance needs more of a resource than there is.
        """
        if limiter is not None and not spec.passive:
            limiter.add((self._load_number, spec.index), spec.resources, spec.priority)
            self._limiter = limiter

    def unregister_from_rate_limiter(self, numbers: Iterable[int]) -> None:
        """Remove instances from the rate limiter."""
        if self._limiter is not None:
            self._limiter.forget((self._load_number, number) for number in numbers)

    def _dispatch_key(self, number: int) -> int:
        assert self._limiter is not None
        return self._limiter.dispatch_key((self._load_number, number))

    def start(self, instances: list[Instance]) -> None:
        """Create the scheduler for instances that have been initialised."""
        self._pool = InstancePool(instances)
        self._update_instances()
        turn = None if self._limiter is None else self._dispatch_key
        active = sorted(self._pool.active)
        self.scheduler = make_scheduler(self.config, len(active), os.environ, turn)
        self._use_strategy()
        self._is_started = True
        now = time.monotonic_ns()
        for number in active:
            self._carry_out(self.scheduler.instance_idle(number, now), now)

    def missing_instances(self, config: pb.ModelConfig) -> list[InstanceSpec]:
        """The instances that a configuration requires and that do not exist yet."""
        return self._pool.missing(config)

    def reconfigure(self, config: pb.ModelConfig, added: Sequence[Instance] = ()) -> None:
        """Change scheduling settings and instances; queued requests stay queued.

        Parameters
        ----------
        config : inference.ModelConfig
        added : sequence of Instance
            Initialised instances for all `missing_instances`.
        """
        now = time.monotonic_ns()
        before = self.scheduler
        self.scheduler, moved = reconfigure_scheduler(before, config, now, self._limiter is not None)
        if self.scheduler is not before:
            self._use_strategy()
        decisions = list(moved)
        self.config = config
        self._pool.change(config, added)
        self._update_instances()
        active = self._pool.active
        decisions += self.scheduler.set_instances(active, now)
        for number in [instance.spec.index for instance in added if instance.spec.index in active]:
            decisions += self.scheduler.instance_idle(number, now)
        self._carry_out(decisions, now)

    def _use_strategy(self) -> None:
        """Have the dynamic batcher use the model's custom batching."""
        if self._strategy is not None and isinstance(self.scheduler, DynamicBatcher):
            self.scheduler.use_strategy(self._strategy)

    async def wait_until_instances_removed(self) -> None:
        """Wait until removed instances have stopped, except those with slots that belong to sequences."""
        await self._pool.removed(self.scheduler.uses)

    def _update_instances(self) -> None:
        self.instances = list(self._pool)
        usage: Counter[MemoryPlace] = Counter()
        for instance in self.instances:
            usage.update(instance.backend_instance.memory_usage())
        self.statistics.memory_usage = dict(usage)

    def _carry_out(self, decisions: Sequence[Decision], now: int) -> None:
        """Carry out decisions of the scheduler."""
        raise NotImplementedError
