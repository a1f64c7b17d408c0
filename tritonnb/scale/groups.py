"""The groups of replicas of a deployment: models that are placed on their own, and all others."""

from __future__ import annotations

from collections.abc import Mapping

from tritonnb.core.json_types import JsonDict
from tritonnb.scale.dispatch import Ask, Dispatcher

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
    ask : callable
        Calls the coordinator.
    """

    def __init__(self, default: Dispatcher, placed: Mapping[str, Dispatcher], ask: Ask) -> None:
        self.default = default
        self._placed = dict(placed)
        self._ask = ask

    def dispatcher(self, model: str) -> Dispatcher:
        """Return the replicas that serve a model."""
        return self._placed.get(model, self.default)

    @property
    def all(self) -> list[Dispatcher]:
        """All groups."""
        return [self.default, *self._placed.values()]

    async def replicas(self) -> list[JsonDict]:
        """Return the state of every replica."""
        states: dict[str, str] = {}
        for group in self.all:
            members = group.pool.members()
            states |= dict.fromkeys(members.running, "RUNNING") | dict.fromkeys(members.draining, "DRAINING")
        replicas: list[JsonDict] = await self._ask("replicas", sorted(states))
        return [{**replica, "state": states.get(str(replica["replica"]), "")} for replica in replicas]
