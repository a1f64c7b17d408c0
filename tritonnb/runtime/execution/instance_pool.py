"""The instances of a served model by the numbers under which its scheduler knows them, and changes of their count.

A removed instance is kept until it has ended what it runs and the scheduler will give it nothing more, such as
the next request of a sequence that it owns; until then its number is not given to another.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from tritonnb.backends.contract import InstanceSpec
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.runtime.execution.instance import Instance
from tritonnb.scheduling.resources import Resource


class InstancePool:
    """All instances of one model version; lives on the server's loop."""

    def __init__(self, instances: Iterable[Instance]) -> None:
        self._by_number = {each.spec.index: each for each in instances}
        self._removed: set[int] = set()
        self._stopping: set[asyncio.Task[None]] = set()
        self._gone: dict[int, asyncio.Future[None]] = {}

    def __getitem__(self, number: int) -> Instance:
        return self._by_number[number]

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._by_number.values())

    @property
    def members(self) -> set[int]:
        """The numbers of those that were not removed."""
        return self._by_number.keys() - self._removed

    @property
    def active(self) -> set[int]:
        """The members that a scheduler may use."""
        return {each for each in self.members if not self._by_number[each].spec.passive}

    def missing(self, config: pb.ModelConfig) -> list[InstanceSpec]:
        """The instances that a normalised ``instance_group`` asks for and that are not there, with free numbers."""
        numbers = (each for each in itertools.count() if each not in self._by_number)
        return [dataclasses.replace(spec, index=next(numbers)) for spec in self._match(config)[1]]

    def change(self, config: pb.ModelConfig, added: Sequence[Instance]) -> None:
        """Take new instances in, and remove those that ``instance_group`` does not ask for any more."""
        removed = self._match(config)[0]
        self._removed |= removed
        self._gone.update((each, asyncio.get_running_loop().create_future()) for each in removed)
        self._by_number.update((each.spec.index, each) for each in added)

    def _match(self, config: pb.ModelConfig) -> tuple[set[int], list[InstanceSpec]]:
        """The instances that ``instance_group`` does not ask for, and what it asks for beyond those that there are.

        One of another name is as good, if it can be had.
        """
        left, specs = self.members, list(instance_specs(config))
        for same in (_named, _signature):
            there = {number: same(self._by_number[number].spec) for number in sorted(left)}
            missing = []
            for spec in specs:
                matching = next((number for number, what in there.items() if what == same(spec)), None)
                if matching is None:
                    missing.append(spec)
                else:
                    del there[matching]
            left, specs = set(there), missing
        return left, specs

    def free(self, in_use: Callable[[int], bool]) -> list[int]:
        """Stop removed instances that run nothing and are not ``in_use``; their numbers."""
        over = [each for each in self._removed if not self._by_number[each].busy and not in_use(each)]
        for number in over:
            self._removed.discard(number)
            task = asyncio.get_running_loop().create_task(self._by_number.pop(number).stop())
            self._stopping.add(task)
            task.add_done_callback(functools.partial(self._stopped, self._gone.pop(number)))
        return over

    def _stopped(self, stopped: asyncio.Future[None], task: asyncio.Task[None]) -> None:
        self._stopping.discard(task)
        stopped.set_result(None)

    async def removed(self, in_use: Callable[[int], bool]) -> None:
        """Wait until removed instances have stopped, except those that are ``in_use``."""
        leaving = [stopped for number, stopped in self._gone.items() if not in_use(number)]
        await asyncio.gather(*leaving, *self._stopping)

    @property
    def is_shrinking(self) -> bool:
        """Whether there are removed instances that are still used."""
        return bool(self._removed)

    async def close(self) -> None:
        """Stop all of them; nothing may be in flight."""
        for instance in self:
            await instance.stop()
        await asyncio.gather(*self._stopping)


def instance_specs(config: pb.ModelConfig) -> Iterator[InstanceSpec]:
    """The instances that a normalised ``instance_group`` asks for, passive ones last."""
    index = 0
    for group in sorted(config.instance_group, key=lambda each: bool(each.passive)):
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
    # "global" is a word of Python's.
    return tuple(
        Resource(each.name, each.count, None if getattr(each, "global") else device) for each in rate_limiter.resources
    )


def _signature(spec: InstanceSpec) -> tuple[object, ...]:
    return spec.kind, spec.device_id, spec.resources, spec.priority, spec.passive


def _named(spec: InstanceSpec) -> tuple[object, ...]:
    return spec.name, *_signature(spec)
