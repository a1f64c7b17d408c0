"""The tutorial backend: a complete backend in as few lines as possible.

Like NVIDIA's *minimal* backend it returns the input ``IN0`` as the output ``OUT0``. To write your own backend,

1. subclass `BackendModelInstance`, and respond to every request of the batch in ``execute``;
2. subclass `BackendModel`, and create such instances; what they share, such as weights, belongs to the model;
3. subclass `Backend`, give it a name, and create such models;
4. register it in your package's *pyproject.toml*::

       [project.entry-points."tritonnb.backends"]
       minimal = "your_package.your_module:MinimalBackend"

A model selects it with ``backend: "minimal"`` in its *config.pbtxt*. No locks are needed: each instance has its own
thread, and ``execute`` of an instance is never called concurrently.
"""

from __future__ import annotations

from tritonnb.backend import (
    Backend,
    BackendModel,
    BackendModelInstance,
    Execution,
    InstanceSpec,
    ModelContext,
    ModelSpec,
    gather,
    scatter,
)
from tritonnb.errors import InvalidArgumentError


class MinimalInstance(BackendModelInstance):
    """An instance that copies ``IN0`` to ``OUT0``."""

    thread_agnostic = True  # it keeps nothing that belongs to a thread

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    def execute(self, execution: Execution) -> None:
        """Gather the batch, "run the model", scatter the results."""
        batch = gather(execution, "IN0")
        execution.compute_started()
        assert batch is not None
        result = batch
        execution.compute_ended()
        outputs = {"OUT0": (self._spec.outputs["OUT0"], result)}
        scatter(execution, outputs, batching=self._spec.max_batch_size > 0)


class MinimalModel(BackendModel):
    """One loaded model version; an exception in ``initialize`` fails the load."""

    def initialize(self) -> None:
        """Check that the model has the two tensors."""
        self._spec = ModelSpec.from_config(self.context.config)
        if set(self._spec.inputs) != {"IN0"} or set(self._spec.outputs) != {"OUT0"}:
            raise InvalidArgumentError(
                f"model '{self.context.name}': expected the input IN0 and the output OUT0, "
                f"got {[*self._spec.inputs]} and {[*self._spec.outputs]}"
            )

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """Create one of ``instance_group.count`` instances."""
        return MinimalInstance(self._spec)


class MinimalBackend(Backend):
    """The backend itself: one object for the whole server."""

    name = "minimal"

    def create_model(self, context: ModelContext) -> BackendModel:
        """Create the model of a version that is being loaded."""
        return MinimalModel(context)
