"""The request router of the engine deployments: the replica that the ingress names, or the less loaded of two.

Ray Serve creates one router in each process that has a handle of the deployment. It also knows which replicas there
are, so the ingress reads that from it (`tritonnb.scale.ray.registry`). Which replica a sequence is on is not decided
here: that decision may need a call to the coordinator.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from tritonnb.scale.dispatch import Members
from tritonnb.scale.ray import registry


class TargetRouter(RequestRouter):  # type: ignore[misc]  # mypy runs without Ray
    """A router that sends a request to the replica named by its first argument.

    Ray stops a replica only when it has no requests in progress. A draining replica is kept here until its process
    ends, so that the requests of its sequences still reach it.

    Attributes
    ----------
    members : Members
        The replicas; may be read on any thread.
    gone : set of str
        The replicas that were here until their processes ended.
    """

    def initialize_state(self, **options: Any) -> None:
        """Register the router (Ray's interface)."""
        self.members = Members()
        self.gone: set[str] = set()
        #: Called with the ID of a replica that is to go, on the router's thread.
        self.on_leaving: Callable[[str], object] = lambda replica: None
        self.on_change: Callable[[], object] = lambda: None
        registry.ROUTERS[self._deployment_id.app_name, self._deployment_id.name] = self

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Update the running replicas (Ray's interface); those that no longer run are kept."""
        running = {_id(replica): replica for replica in replicas}
        leaving = {_id(old): old for old in self._replicas.values() if _id(old) not in running}
        new = leaving.keys() - self.members.draining
        super().update_replicas([*replicas, *leaving.values()])
        self._set_members(Members(frozenset(running), frozenset(leaving)))
        for name in new:
            self.on_leaving(name)

    def on_replica_actor_died(self, replica_id: Any) -> None:
        """Called when the process of a replica has ended (Ray's interface)."""
        super().on_replica_actor_died(replica_id)
        self.remove(replica_id.unique_id)

    def remove(self, name: str) -> None:
        """Remove a replica after the end of its process."""
        self.gone.add(name)
        members = self.members
        self._set_members(Members(members.running - {name}, members.draining - {name}))

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        """Return the replica for a request (Ray's interface to its router; `choose_replicas` is behind it).

        Ray's own method queues requests for a few tasks, which find them again by the ID of the client's request. Calls
        that the ingress makes for one request, to all replicas, share that ID, and Ray 2.60 routes one of them forever.
        Nothing has to wait here: the replica is known, and replicas accept any number of requests.
        """
        while not self._replicas:
            self._replicas_updated_event.clear()
            await self._replicas_updated_event.wait()
        ((*candidates,),) = await self.choose_replicas(list(self._replicas.values()), pending_request)
        loads = [self._replica_queue_len_cache.get(replica.replica_id) or 0 for replica in candidates]
        return candidates[loads.index(min(loads))]

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replicas that may get a request (Ray's interface)."""
        target = pending_request.args[0] if pending_request is not None and pending_request.args else ""
        if target:
            named = [replica for replica in candidate_replicas if _id(replica) == target]
            if named:
                return [named]
            # Any other replica answers that it is not meant; raising an exception here would stop the router's task.
        running = [replica for replica in candidate_replicas if _id(replica) in self.members.running]
        candidates = running or candidate_replicas
        return [random.sample(candidates, min(2, len(candidates)))]

    def _set_members(self, members: Members) -> None:
        if members != self.members:
            self.members = members
            self.on_change()


def _id(replica: RunningReplica) -> str:
    return str(replica.replica_id.unique_id)
