"""The replicas of an engine deployment of Ray Serve, as the dispatcher sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayActorError
from ray.serve.handle import DeploymentHandle

from tritonnb.scale.dispatch import Members, ReplicaDiedError, ReplicaGoneError
from tritonnb.scale.ray.registry import ROUTERS

if TYPE_CHECKING:
    from tritonnb.scale.ray.router import TargetRouter

#: What a replica answers to a request that was meant for another replica.
NOT_MEANT = "tritonnb: not meant for this replica"
#: Seconds to wait for a replica that others know already.
_WAIT_S = 10.0
#: Seconds to wait for any replica, which Ray starts in place of the last replica.
_RUNNING_WAIT_S = 60.0


class RayPool:
    """A `Pool` of the replicas behind a deployment handle.

    Parameters
    ----------
    handle : DeploymentHandle
        Of a deployment of `tritonnb.scale.ray.deployments.EngineDeployment`.
    """

    def __init__(self, handle: DeploymentHandle) -> None:
        self.group = handle.deployment_name
        self._application = handle.app_name
        self._handle = handle
        self._streams = handle.options(stream=True)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._router: TargetRouter | None = None
        self._holding: set[asyncio.Task[None]] = set()

    def members(self) -> Members:
        """Return the known replicas."""
        router = self._find_router()
        return Members() if router is None else router.members

    async def wait_for(self, replica: str = "") -> bool:
        """Wait for a replica, by default any, to be available for some seconds; return whether it is."""
        if self._find_router() is None:
            await self._handle.call.remote("", "query", "metadata")  # any call: Ray makes the router for the first call
        deadline = self._loop.time() + (_WAIT_S if replica else _RUNNING_WAIT_S)
        while not (replica in self.members().all if replica else self.members().running):
            router = self._find_router()
            remaining = deadline - self._loop.time()
            if remaining <= 0 or (replica and router is not None and replica in router.gone):
                return False
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), remaining)
            except TimeoutError:
                return False
        return True

    async def call(self, method: str, *arguments: Any, replica: str = "") -> Any:
        """Call a method on a replica, by default on the less loaded of two.

        Raises
        ------
        ReplicaGoneError
            If the replica is gone, and has not executed the call.
        ReplicaDiedError
            If it was lost while it had the call.
        """
        try:
            result = await self._handle.call.remote(replica, method, *arguments)
        except RayActorError:
            raise self._died(replica) from None
        if isinstance(result, str) and result == NOT_MEANT:
            raise ReplicaGoneError
        return result

    async def stream(self, method: str, *arguments: Any, replica: str = "") -> AsyncIterator[Any]:
        """Call a method that yields results; fails as `call`."""
        results = self._streams.stream.remote(replica, method, *arguments)
        try:
            async for result in results:
                if isinstance(result, str) and result == NOT_MEANT:
                    raise ReplicaGoneError
                yield result
        except RayActorError:
            raise self._died(replica) from None
        except GeneratorExit:
            results.cancel()
            raise

    def _died(self, replica: str) -> ReplicaDiedError:
        router = self._find_router()
        if replica and router is not None:
            router.remove(replica)
        return ReplicaDiedError()

    def _find_router(self) -> TargetRouter | None:
        if self._router is None:
            self._router = ROUTERS.get((self._application, self.group))
            if self._router is not None:
                self._router.on_change = lambda: self._loop.call_soon_threadsafe(self._changed.set)
                self._router.on_leaving = lambda replica: self._loop.call_soon_threadsafe(self._hold, replica)
        return self._router

    def _hold(self, replica: str) -> None:
        """Keep a draining replica until its sequences have ended: Ray waits for requests in progress."""
        task = self._loop.create_task(self._until_drained(replica))
        self._holding.add(task)
        task.add_done_callback(self._holding.discard)

    async def _until_drained(self, replica: str) -> None:
        with suppress(ReplicaGoneError, ReplicaDiedError):
            await self.call("until_drained", replica=replica)
