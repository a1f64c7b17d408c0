"""A backend whose models run in their own processes; the server's process does not import it."""

from __future__ import annotations

import threading
from typing import Any

from tritonnb.backends.contract import Backend, BackendModel, BackendModelInstance, InstanceSpec, ModelContext
from tritonnb.backends.isolation.instance import IsolatedInstance
from tritonnb.backends.isolation.launch import context_command, open_command
from tritonnb.backends.isolation.process import ChildProcess, ProcessEndedError
from tritonnb.backends.location import BackendLocation
from tritonnb.core.errors import InternalError
from tritonnb.core.protobuf import model_config_pb2 as pb


class IsolatedBackend(Backend):
    """The backend of one model that is being loaded.

    A child process answers questions about the backend. It becomes the process of the model's first instance, so no
    process is started only for loading.

    Parameters
    ----------
    location : BackendLocation
    context : ModelContext
        Its configuration need not be complete.

    Raises
    ------
    TritonError
        If the backend cannot be created.
    """

    name = "isolated"

    def __init__(self, location: BackendLocation, context: ModelContext) -> None:
        self._location = location
        command = open_command(location, context)
        self._child: ChildProcess | None = ChildProcess(context.name, context.server, location.directory)
        self._counts: dict[str, int]
        _, self.supports_batch_tensors, self._counts = self._run(context, command)

    def default_instance_count(self, kind: str) -> int:
        """Return the number of instances of an instance group without ``count``."""
        return self._counts.get(kind, 1)

    def auto_complete(self, context: ModelContext) -> pb.ModelConfig | None:
        """Complete the configuration in the child."""
        completed = self._run(context, context_command("auto_complete", context))[1]
        return None if completed is None else pb.ModelConfig.FromString(completed)

    def create_model(self, context: ModelContext) -> BackendModel:
        """Create the model, which owns the child from now on."""
        child, self._child = self._child, None
        return IsolatedModel(context, self._location, child)

    def finalize(self) -> None:
        """End the child, unless a model owns it."""
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def _run(self, context: ModelContext, header: list[Any]) -> list[Any]:
        assert self._child is not None
        try:
            return self._child.start(header).header
        except ProcessEndedError:
            end = self._child.describe_end()
            self.finalize()
            raise InternalError(f"model '{context.name}': its process ended while it was loaded: {end}") from None
        except BaseException:
            self.finalize()
            raise


class IsolatedModel(BackendModel):
    """A model version whose instances have their own processes; each child also has the backend's model."""

    parallel_instances = True  # they share nothing

    def __init__(self, context: ModelContext, location: BackendLocation, child: ChildProcess | None) -> None:
        super().__init__(context)
        self._location = location
        self._child = child
        self._lock = threading.Lock()

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """Create an instance; its process starts when it is initialised."""
        return IsolatedInstance(self._location, self.context, spec, self._take_child)

    def _take_child(self) -> ChildProcess | None:
        """Return the child that is there already; it belongs to the first instance that is initialised."""
        with self._lock:  # instances start at the same time
            child, self._child = self._child, None
        return child

    def finalize(self) -> None:
        """End the child that no instance has taken."""
        child = self._take_child()
        if child is not None:
            child.close()
