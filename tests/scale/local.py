"""A pool of replicas in this process, with the failures that processes have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tritonnb.scale.coordinator import Coordinator
from tritonnb.scale.dispatch import Ask, Members, ReplicaDiedError, ReplicaGoneError


class LocalPool:
    """Replicas by name: any objects whose methods are called."""

    def __init__(self, group: str = "engine") -> None:
        self.group = group
        self.running: dict[str, Any] = {}
        self.draining: dict[str, Any] = {}
        self.dying: set[str] = set()  # lost with the next request
        self._turn = 0

    def members(self) -> Members:
        return Members(frozenset(self.running), frozenset(self.draining))

    async def wait_for(self, replica: str = "") -> bool:
        return bool(self.running) if not replica else replica in self.members().all

    async def call(self, method: str, *arguments: Any, replica: str = "") -> Any:
        name, target = self._target(replica)
        result = await getattr(target, method)(*arguments)
        self._check(name)
        return result

    async def stream(self, method: str, *arguments: Any, replica: str = "") -> AsyncIterator[Any]:
        name, target = self._target(replica)
        async for part in getattr(target, method)(*arguments):
            self._check(name)
            yield part

    def drain(self, name: str) -> None:
        self.draining[name] = self.running.pop(name)

    def remove(self, name: str) -> None:
        self.running.pop(name, None)
        self.draining.pop(name, None)

    def _target(self, name: str) -> tuple[str, Any]:
        if not name:
            self._turn += 1
            names = sorted(self.running)
            if not names:
                raise ReplicaGoneError
            name = names[self._turn % len(names)]
        replicas = {**self.running, **self.draining}
        if name not in replicas:
            raise ReplicaGoneError
        return name, replicas[name]

    def _check(self, name: str) -> None:
        if name in self.dying:
            self.remove(name)
            raise ReplicaDiedError


def ask_of(coordinator: Coordinator) -> Ask:
    """Calls of a coordinator in this process."""

    async def ask(method: str, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return getattr(coordinator, method)(*arguments)

    return ask
