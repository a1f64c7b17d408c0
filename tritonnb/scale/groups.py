"""The groups of replicas of a deployment: models that are placed on their own, and all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritonnb.core.json_types import JsonDict
from tritonnb.scale.coordinator import DeploymentChange
from tritonnb.scale.dispatch import Dispatcher, first_refusal

NO_SHARED_MEMORY = (
    "shared memory regions cannot be registered with a deployment of replicas, which may be on other machines: send "
    "the tensors in the request, or connect to a replica directly"
)


class Groups:
    """The dispatcher of each model.

    Parameters
    ----------
    default : Dispatcher
        Serves the models that are not placed.
    placed : mapping of str to Dispatcher
        By name of the model.
    """

    def __init__(self, default: Dispatcher, placed: Mapping[str, Dispatcher]) -> None:
        self.default = default
        self._placed = dict(placed)

    def dispatcher(self, model: str) -> Dispatcher:
        """Return the replicas that serve a model."""
        return self._placed.get(model, self.default)

    def of(self, model: str = "") -> list[Dispatcher]:
        """Return the group that serves a model; all groups if its name is empty."""
        return [self.dispatcher(model)] if model else [self.default, *self._placed.values()]

    async def call_each(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of any replica of each group; return the responses."""
        return [await group.call(None, method, *arguments) for group in self.of()]

    async def call_all(self, model: str, method: str, *arguments: Any) -> dict[str, Any]:
        """Call a method of every replica that serves a model; return the responses by replica."""
        replies: dict[str, Any] = {}
        for group in self.of(model):
            replies |= await group.call_all(method, *arguments)
        return replies

    async def change(self, model: str, change: DeploymentChange) -> Any:
        """Apply a change on the replicas that serve a model; return the first refusal, else the first response."""
        replies = [await group.change(change) for group in self.of(model)]
        return first_refusal(replies) or replies[0]

    async def replicas(self) -> list[JsonDict]:
        """Return the state of every replica."""
        states: dict[str, str] = {}
        for group in self.of():
            members = group.pool.members()
            states |= dict.fromkeys(members.running, "RUNNING") | dict.fromkeys(members.draining, "DRAINING")
        replicas: list[JsonDict] = await self.default.ask("replicas", sorted(states))
        return [{**replica, "state": states.get(str(replica["replica"]), "")} for replica in replicas]
