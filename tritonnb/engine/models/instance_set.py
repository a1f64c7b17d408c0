"""The instances of a served model, by the numbers that its scheduler uses: created, changed and freed.

A removed instance is kept until its execution is complete and the scheduler no longer uses it, such as for the next
request of a sequence in one of its slots; until then its number is not used for another instance. Instances end one
after the other, as on Triton: a backend needs no locks between the ``finalize`` of one instance and that of another.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

from tritonnb.backends.contract import EXECUTE_ON_ANY_THREAD, BackendModel, InstanceSpec, MemoryPlace
from tritonnb.backends.model_checks import boolean_parameter
from tritonnb.core.errors import error_message
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.engine.execution.instance import Instance, InstanceDriver
from tritonnb.engine.execution.loop import ThreadLimit, run_in_thread, settle
from tritonnb.engine.load_errors import log_load_error, triton_errors
from tritonnb.engine.models.sequence_inputs import SequenceInputs
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.engine.models.warmup import warm_up, warmup_samples
from tritonnb.scheduling.instances import InstanceKey, RateLimiter
from tritonnb.scheduling.resources import Resource

logger = logging.getLogger(__name__)

#: The attributes in which an instance matches a required instance.
_SIGNATURE = ("kind", "device_id", "resources", "priority", "passive")


class InstanceSet:
    """All instances of one model version; used on the server's event loop.

    Parameters
    ----------
    served : ServedModel
    backend_model : BackendModel
        Creates the instances.
    driver : InstanceDriver
    sequences : SequenceInputs or None
        For a model with ``sequence_batching``.
    limiter : RateLimiter or None
        Starts the executions of the instances, if there is one.
    """

    def __init__(
        self,
        served: ServedModel,
        backend_model: BackendModel,
        driver: InstanceDriver,
        sequences: SequenceInputs | None,
        limiter: RateLimiter | None,
    ) -> None:
        self._served = served
        self._backend_model = backend_model
        self._driver = driver
        self._sequences = sequences
        self._limiter = limiter
        self._executes_inline = not served.decoupled and boolean_parameter(served.context, EXECUTE_ON_ANY_THREAD, False)
        self._by_number: dict[int, Instance] = {}
        #: By number, the removed instances that have not ended; the future is done when one has.
        self.leaving: dict[int, asyncio.Future[None]] = {}
        self._ending: dict[asyncio.Task[None], Instance] = {}
        self._new: list[Instance] = []  # those that start, or have started and are not added yet
        self._end_lock = asyncio.Lock()

    def __getitem__(self, number: int) -> Instance:
        return self._by_number[number]

    def __iter__(self) -> Iterator[Instance]:
        return iter(list(self._by_number.values()))  # a copy, since other threads iterate over them

    def __len__(self) -> int:
        return len(self._by_number)

    def __contains__(self, instance: object) -> bool:
        return instance in self._by_number.values()

    @property
    def active(self) -> set[int]:
        """The numbers of the instances that the scheduler may use: neither removed nor passive."""
        return {number for number in self._members if not self._by_number[number].spec.passive}

    @property
    def _members(self) -> set[int]:
        """The numbers of the instances that are not removed."""
        return self._by_number.keys() - self.leaving.keys()

    def key(self, number: int) -> InstanceKey:
        """Return the key of an instance in the rate limiter, which all models share."""
        return self._served.load_number, number

    # --- creation -----------------------------------------------------------------------------

    async def create(self, specs: Sequence[InstanceSpec], threads: ThreadLimit) -> list[Instance]:
        """Create, initialise and warm up instances, which `change` then adds: a step of loading a model.

        Parameters
        ----------
        specs : sequence of InstanceSpec
        threads : ThreadLimit
            For the slow work that is not done on the threads of the instances.

        Raises
        ------
        TritonError
            If instances fail, the error of the last one; all resources are freed.
        """
        created: list[Instance] = []
        errors: list[BaseException] = []
        # Triton starts the instances of a Python model together, each in its process. Here they are threads of one
        # process, and libraries are often not thread-safe while they initialise.
        together = len(specs) if self._backend_model.parallel_instances else 1
        try:
            for first in range(0, len(specs), max(together, 1)):
                errors += await self._start(specs[first : first + together], threads, created)
            if errors:
                raise errors.pop()  # its traceback refers to this frame, which must not refer to it
            active = [instance for instance in created if not instance.spec.passive]
            # Read once for all instances, and not at all for passive instances, which are never warmed up.
            samples = await threads.run(functools.partial(warmup_samples, self._served.context)) if active else []
            check = functools.partial(threads.check, self._served.name)
            for instance in active:
                await warm_up(self._served, instance, self._sequences, samples, check)
            threads.check()  # what was created while the server began to stop is not added
        except BaseException:
            await self.discard(created)
            self._forget(spec.index for spec in specs)
            raise
        return created

    async def _start(
        self, specs: Sequence[InstanceSpec], threads: ThreadLimit, created: list[Instance]
    ) -> list[BaseException]:
        """Start instances at the same time: append those that start, and return the errors of the others."""
        starting = [self._start_one(spec, threads) for spec in specs]
        outcomes = await asyncio.gather(*starting, return_exceptions=True)
        created += [outcome for outcome in outcomes if isinstance(outcome, Instance)]
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for error in errors:
            log_load_error(logger, "ERROR: Failed to create instance: %s", error_message(error))
        return errors

    async def _start_one(self, spec: InstanceSpec, threads: ThreadLimit) -> Instance:
        if self._limiter is not None and not spec.passive:
            # First: a model that could never get its resources is refused before it allocates anything.
            self._limiter.add(self.key(spec.index), spec.resources, spec.priority, spec.name)
            logger.debug("%s", self._limiter.resource_map())
        backend_instance = await threads.run(functools.partial(self._backend_model.create_instance, spec))
        loop = asyncio.get_running_loop()
        instance = Instance(spec, backend_instance, loop, self._driver, self._executes_inline)
        instance.limiter = self._limiter
        # From now on `end` finds it, even if the event loop ends while it starts.
        self._new.append(instance)
        try:
            with triton_errors():
                await instance.start()
        except Exception:
            self._new.remove(instance)
            raise
        return instance

    async def discard(self, created: Sequence[Instance]) -> None:
        """End instances that were created and have not been added."""
        await self._end(created)
        self._new = [instance for instance in self._new if instance not in created]
        self._forget(instance.spec.index for instance in created)

    def _forget(self, numbers: Iterable[int]) -> None:
        if self._limiter is not None:
            self._limiter.forget(map(self.key, numbers))
            logger.debug("%s", self._limiter.resource_map())

    # --- changes ------------------------------------------------------------------------------

    def missing(self, config: pb.ModelConfig) -> list[InstanceSpec]:
        """Return the missing instances of a normalised ``instance_group``, with free numbers."""
        specs = self._match(config)[1]
        numbers = [number for number in range(len(self._by_number) + len(specs)) if number not in self._by_number]
        return [dataclasses.replace(spec, index=number) for spec, number in zip(specs, numbers, strict=False)]

    def change(self, config: pb.ModelConfig, added: Sequence[Instance]) -> None:
        """Add instances, and remove those that ``instance_group`` no longer requires."""
        self.leaving.update((number, asyncio.get_running_loop().create_future()) for number in self._match(config)[0])
        self._by_number.update((instance.spec.index, instance) for instance in added)
        self._new = [instance for instance in self._new if instance not in added]
        self._count_memory()

    def _match(self, config: pb.ModelConfig) -> tuple[set[int], list[InstanceSpec]]:
        """Return the instances that ``instance_group`` does not require, and required instances that do not exist.

        Instances match by name first; the others match if they differ in the name only.
        """
        unmatched, specs = self._members, list(instance_specs(config))
        for key in (attrgetter("name", *_SIGNATURE), attrgetter(*_SIGNATURE)):
            keys = {number: key(self._by_number[number].spec) for number in sorted(unmatched)}
            missing = []
            for spec in specs:
                matching = next((number for number, existing in keys.items() if existing == key(spec)), None)
                if matching is None:
                    missing.append(spec)
                else:
                    del keys[matching]
            # By name first, so that a second group with equal properties does not take the instances of the first.
            unmatched, specs = set(keys), missing
        return unmatched, specs

    def free(self, in_use: Callable[[int], bool]) -> None:
        """End removed instances that are neither busy nor ``in_use``."""
        unused = [number for number in self.leaving if not self._by_number[number].busy and not in_use(number)]
        for number in unused:
            instance = self._by_number.pop(number)
            task = asyncio.get_running_loop().create_task(self._end([instance]))
            self._ending[task] = instance
            task.add_done_callback(functools.partial(self._ended, self.leaving.pop(number)))
        if unused:
            self._forget(unused)
            self._count_memory()

    def _ended(self, ended: asyncio.Future[None], task: asyncio.Task[None]) -> None:
        del self._ending[task]
        settle(ended, None)

    async def removed(self, in_use: Callable[[int], bool]) -> None:
        """Wait until removed instances have ended, except those that are ``in_use``."""
        ending = [ended for number, ended in self.leaving.items() if not in_use(number)]
        await asyncio.gather(*ending, *self._ending)

    def end(self) -> None:
        """End all instances, even those that are removed or not added yet; called on a thread that may wait.

        No request may be in flight, unless the event loop ends. Those that are ending come first, in their order, so
        that even now one instance ends after the other.
        """
        _end_in_turn([*self._ending.values(), *self, *self._new])

    async def _end(self, instances: Sequence[Instance]) -> None:
        async with self._end_lock:
            await run_in_thread(functools.partial(_end_in_turn, instances))

    def forget(self) -> None:
        """Forget all instances in the rate limiter."""
        self._forget(self._by_number)

    def _count_memory(self) -> None:
        usage: Counter[MemoryPlace] = Counter()
        for instance in self:
            usage.update(instance.backend_instance.memory_usage())
        self._served.statistics.memory_usage = dict(usage)


def _end_in_turn(instances: Sequence[Instance]) -> None:
    for instance in instances:
        instance.end()


def instance_specs(config: pb.ModelConfig) -> Iterator[InstanceSpec]:
    """Yield the instances that a normalised ``instance_group`` requires, passive instances last."""
    index = 0
    # Passive instances come last, so that the instances of the scheduler are numbered from 0.
    for group in sorted(config.instance_group, key=lambda group: bool(group.passive)):
        kind = type(group).Kind.Name(group.kind)
        number = 0
        for device in list(group.gpus) or [0]:
            needs = _resources(group.rate_limiter, device)
            for _ in range(group.count):
                name = f"{group.name}_{number}"
                yield InstanceSpec(name, index, kind, device, needs, group.rate_limiter.priority, group.passive)
                number += 1
                index += 1


def _resources(rate_limiter: pb.ModelRateLimiter, device: int) -> tuple[Resource, ...]:
    # getattr, since "global" is a keyword of Python.
    return tuple(
        Resource(resource.name, resource.count, None if getattr(resource, "global") else device)
        for resource in rate_limiter.resources
    )
