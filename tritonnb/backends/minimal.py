"""A backend in as few lines as possible: the tutorial for writing one.

It does what NVIDIA's *minimal* backend does: the input ``IN0`` comes back as the output ``OUT0``.
To write your own,

1. subclass `BackendModelInstance` and answer every request of the batch in ``execute``;
2. subclass `BackendModel` and create such instances: what they share (weights, say) belongs here;
3. subclass `Backend`, give it a name, and create such models;
4. register it in your package's *pyproject.toml*::

       [project.entry-points."tritonnb.backends"]
       minimal = "your_package.your_module:MinimalBackend"

A model uses it by ``backend: "minimal"`` in its *config.pbtxt*. Nothing here needs locks: each
instance has its own thread, and ``execute`` is never called twice at once for one instance.
"""

from __future__ import annotations

from tritonnb.backends.batching import gather, scatter
from tritonnb.backends.contract import (
    Backend,
    BackendModel,
    BackendModelInstance,
    Execution,
    InstanceSpec,
    ModelContext,
)
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.model_config.schema import ModelSpec


class MinimalInstance(BackendModelInstance):
    """Copies ``IN0`` to ``OUT0``."""

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
    """One loaded version; an error raised in ``initialize`` fails the load."""

    def initialize(self) -> None:
        """Check that the model has the two tensors."""
        self._spec = ModelSpec.from_config(self.context.config)
        if set(self._spec.inputs) != {"IN0"} or set(self._spec.outputs) != {"OUT0"}:
            raise InvalidArgumentError(f"model '{self.context.name}' must have the input IN0 and the output OUT0")

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """One of ``instance_group.count``."""
        return MinimalInstance(self._spec)


class MinimalBackend(Backend):
    """The backend itself: one object for the whole server."""

    name = "minimal"

    def create_model(self, context: ModelContext) -> BackendModel:
        """A model version is being loaded."""
        return MinimalModel(context)
