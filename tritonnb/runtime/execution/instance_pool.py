"""The instances of a served model by the numbers that its scheduler uses, and changes of the instances.

A removed instance is kept until its execution is complete and the scheduler no longer uses it, such as for the next
request of a sequence in one of its slots; until then its number is not used for another instance. Instances end one
after the other, as on Triton: a backend needs no locks between the ``finalize`` of one instance and that of another.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

from tritonnb.backends.contract import InstanceSpec
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.runtime.execution.instance import Instance
from tritonnb.scheduling.resources import Resource


class InstancePool:
    """All instances of one model version; used on the server's event loop."""

    def __init__(self, instances: Iterable[Instance]) -> None:
        self._by_number = {instance.spec.index: instance for instance in instances}
        self._removed: set[int] = set()
        self._stopping: set[asyncio.Task[None]] = set()
        self._stop_lock = asyncio.Lock()
        self._stopped_futures: dict[int, asyncio.Future[None]] = {}

    def __getitem__(self, number: int) -> Instance:
        return self._by_number[number]

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._by_number.values())

    @property
    def members(self) -> set[int]:
        """The numbers of the instances that are not removed."""
        return self._by_number.keys() - self._removed

    @property
    def active(self) -> set[int]:
        """The numbers of the instances that the scheduler may use: neither removed nor passive."""
        return {number for number in self.members if not self._by_number[number].spec.passive}

    def missing(self, config: pb.ModelConfig) -> list[InstanceSpec]:
        """The instances that a normalised ``instance_group`` requires and that do not exist, with free numbers."""
        specs = self._match(config)[1]
        numbers = [number for number in range(len(self._by_number) + len(specs)) if number not in self._by_number]
        return [dataclasses.replace(spec, index=number) for spec, number in zip(specs, numbers, strict=False)]

    def change(self, config: pb.ModelConfig, added: Sequence[Instance]) -> None:
        """Add instances, and remove those that ``instance_group`` does not require any more."""
        removed = self._match(config)[0]
        self._removed |= removed
        self._stopped_futures.update((number, asyncio.get_running_loop().create_future()) for number in removed)
        self._by_number.update((instance.spec.index, instance) for instance in added)

    def _match(self, config: pb.ModelConfig) -> tuple[set[int], list[InstanceSpec]]:
        """The instances that ``instance_group`` does not require, and the required ones that do not exist.

        Instances match by name first; the others match if they differ in the name only.
        """
        unmatched, specs = self.members, list(instance_specs(config))
        for key in (_named, _signature):
            keys = {number: key(self._by_number[number].spec) for number in sorted(unmatched)}
            missing = []
            for spec in specs:
                matching = next((number for number, existing in keys.items() if existing == key(spec)), None)
                if matching is None:
                    missing.append(spec)
                else:
                    del keys[matching]
            unmatched, specs = set(keys), missing
        return unmatched, specs

    def free(self, in_use: Callable[[int], bool]) -> list[int]:
        """Stop removed instances that are neither busy nor ``in_use``, and return their numbers."""
        unused = [number for number in self._removed if not self._by_number[number].busy and not in_use(number)]
        for number in unused:
            self._removed.discard(number)
            task = asyncio.get_running_loop().create_task(self._stop(self._by_number.pop(number)))
            self._stopping.add(task)
            task.add_done_callback(functools.partial(self._stopped, self._stopped_futures.pop(number)))
        return unused

    async def _stop(self, instance: Instance) -> None:
        async with self._stop_lock:
            await instance.stop()

    def _stopped(self, stopped: asyncio.Future[None], task: asyncio.Task[None]) -> None:
        self._stopping.discard(task)
        stopped.set_result(None)

    async def removed(self, in_use: Callable[[int], bool]) -> None:
        """Wait until removed instances have stopped, except those that are ``in_use``."""
        stopping = [stopped for number, stopped in self._stopped_futures.items() if not in_use(number)]
        await asyncio.gather(*stopping, *self._stopping)

    @property
    def is_shrinking(self) -> bool:
        """Whether there are removed instances that have not stopped."""
        return bool(self._removed)

    async def close(self) -> None:
        """Stop all instances; no request may be in flight."""
        for instance in self:
            await self._stop(instance)
        await asyncio.gather(*self._stopping)


def instance_specs(config: pb.ModelConfig) -> Iterator[InstanceSpec]:
    """The instances that a normalised ``instance_group`` requires, passive ones last."""
    index = 0
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


def _signature(spec: InstanceSpec) -> tuple[object, ...]:
    return spec.kind, spec.device_id, spec.resources, spec.priority, spec.passive


def _named(spec: InstanceSpec) -> tuple[object, ...]:
    return spec.name, *_signature(spec)
