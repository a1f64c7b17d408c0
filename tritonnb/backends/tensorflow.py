"""The TensorFlow backend: ``backend: "tensorflow"``, SavedModel and GraphDef.

Parameters, auto-completion and checks follow Triton's TensorFlow backend. Each instance has its own session, unless
``MAX_SESSION_SHARE_COUNT`` lets several instances share a session.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tritonnb.backends import tensorflow_model
from tritonnb.backends.configured_tensors import ConfiguredTensors
from tritonnb.backends.contract import Backend, BackendModel, BackendModelInstance, InstanceSpec, ModelContext
from tritonnb.backends.devices import CPU, memory_growth
from tritonnb.backends.execution import Execution
from tritonnb.backends.model_checks import check_tensor, complete_config, integer_parameter
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnsupportedError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.schema import TensorSpec


class TensorFlowBackend(Backend):
    """The backend for *model.savedmodel* directories and *model.graphdef* files."""

    name = "tensorflow"
    supports_batch_tensors = True

    def initialize(self, settings: Mapping[str, str]) -> None:
        """Check the settings."""
        # TensorFlow 1 has no wheel for the versions of Python that are supported here.
        if settings.get("version", "2") != "2":
            raise UnsupportedError(
                f"--backend-config=tensorflow,version expected 2, got {settings['version']}: remove the setting"
            )

    def auto_complete(self, context: ModelContext) -> pb.ModelConfig | None:
        """Add the tensors of a SavedModel, and batching if the first dimension of every tensor is variable.

        None for a GraphDef, which does not list its inputs and outputs.
        """
        config = context.config
        if tensorflow_model.check_platform(context) != tensorflow_model.SAVED_MODEL:
            return None
        tensors = tensorflow_model.read_signature(context)
        everything = (*tensors.inputs.values(), *tensors.outputs.values())
        batching = all(tensor.shape is None or tensor.shape[:1] == (-1,) for tensor in everything)
        if config.max_batch_size > 0 and not batching:
            raise InternalError(
                f"unable to autofill for '{context.name}', configuration specified max-batch {config.max_batch_size} "
                "but model signature does not support batching"
            )
        # After the check of the batch size, which a complete configuration must pass as well.
        if config.input and config.output:
            return config
        complete_config(
            config,
            (_rank_known(context, tensor).as_model_tensor() for tensor in tensors.inputs.values()),
            (_rank_known(context, tensor).as_model_tensor() for tensor in tensors.outputs.values()),
            batching=batching,
            default_max_batch_size=context.default_max_batch_size,
        )
        return config

    def create_model(self, context: ModelContext) -> BackendModel:
        """Create a model."""
        return TensorFlowModel(context)


class TensorFlowModel(BackendModel):
    """One SavedModel or GraphDef."""

    def initialize(self) -> None:
        """Check the parameters, and load the operations that the model brings along."""
        context = self.context
        tensorflow_model.check_platform(context)
        self.tensors = ConfiguredTensors(context.config)
        if context.config.optimization.execution_accelerators.cpu_execution_accelerator:
            raise InvalidArgumentError("CPU Execution Accelerator is not supported in TensorFlow backend")
        if states := context.config.sequence_batching.state:
            raise UnsupportedError(
                f"model '{context.name}': expected sequence_batching without state, got '{states[0].input_name}': as "
                "on Triton, the tensorflow backend does not have implicit state"
            )
        self._share_count = integer_parameter(context, "MAX_SESSION_SHARE_COUNT", 1)
        if self._share_count <= 0:
            raise InvalidArgumentError(
                f"parameter 'MAX_SESSION_SHARE_COUNT' must be positive number for TensorFlow model '{context.name}'"
            )
        for name in context.config.model_operations.op_library_filename:
            try:
                # For the whole process: TensorFlow cannot unload operations.
                tf.load_op_library(str(context.directory / name))
            except (tf.errors.OpError, OSError) as error:
                raise InternalError(
                    f"unable to load the operations '{name}' of model '{context.name}': {error}"
                ) from error
        self._session: tuple[Any, tensorflow_model.Tensors] | None = None
        self._users = 0

    def session(self, spec: InstanceSpec) -> tuple[Any, tensorflow_model.Tensors]:
        """Return a session for an instance, and the tensors of the model.

        `memory` is then the growth of the process's memory: 0 for a shared session.
        """
        self.memory = {CPU: 0}
        if self._session is None or self._users == self._share_count:
            with memory_growth(CPU) as self.memory:
                self._session = tensorflow_model.open_session(self.context, spec)
            self._users = 0
        self._users += 1
        return self._session

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """Create an instance."""
        return TensorFlowInstance(self, spec)

    def finalize(self) -> None:
        """Release the session."""
        self._session = None


class TensorFlowInstance(BackendModelInstance):
    """An instance that calls the graph of a session."""

    def __init__(self, model: TensorFlowModel, spec: InstanceSpec) -> None:
        self._model = model
        self._spec = spec

    def initialize(self) -> None:
        """Load the model, and check the configuration against it."""
        model = self._model
        session, tensors = model.session(self._spec)
        self.memory = model.memory
        # A GraphDef does not say which of its operations are outputs, so the number of tensors cannot be checked.
        may_have_others = model.context.config.platform != tensorflow_model.SAVED_MODEL
        check = functools.partial(_check_tensor, model)
        model.tensors.check(tensors.inputs, tensors.outputs, check, has_other_inputs=may_have_others)
        graph = session.graph
        # A callable is prepared once; `session.run` would look the tensors up for each batch.
        self._call = session.make_callable(
            [graph.get_tensor_by_name(tensors.outputs[name].graph_name) for name in model.tensors.outputs],
            [graph.get_tensor_by_name(tensors.inputs[name].graph_name) for name in model.tensors.inputs],
        )

    def execute(self, execution: Execution) -> None:
        """Gather, run, scatter."""
        tensors = self._model.tensors
        arrays = tensors.gather(execution, tensors.inputs)
        execution.compute_started()
        try:
            results = self._call(*(arrays[name] for name in tensors.inputs))
        except (tf.errors.OpError, ValueError, TypeError) as error:
            # `str` of TensorFlow's errors appends the stack of the graph's construction, which is not the client's
            # business.
            text = error.message if isinstance(error, tf.errors.OpError) else str(error)
            name = self._model.context.name
            raise InternalError(f"model '{name}': TensorFlow failed: {' '.join(text.split())}") from error
        execution.compute_ended()
        tensors.respond(execution, dict(zip(tensors.outputs, results, strict=True)))

    def finalize(self) -> None:
        """Release the session."""
        del self._call


def _rank_known(context: ModelContext, tensor: tensorflow_model.GraphTensor) -> tensorflow_model.GraphTensor:
    if not tensor.shape:
        raise InternalError(
            f"Unable to autofill for '{context.name}': the rank of model tensor '{tensor.name}' is 0 and dimensions "
            "are not defined"
        )
    return tensor


def _check_tensor(model: TensorFlowModel, spec: TensorSpec, tensor: tensorflow_model.GraphTensor, kind: str) -> None:
    """Check the datatype and dims of a configured tensor, unless it is ragged."""
    config, batching = model.context.config, model.tensors.batching
    if spec.name in model.tensors.ragged:
        return
    if tensor.shape is None:  # Every shape fits.
        dims = (-1, *spec.backend_dims) if batching else spec.backend_dims
        tensor = tensorflow_model.GraphTensor(tensor.name, tensor.graph_name, tensor.data_type, tuple(dims))
    check_tensor(config, spec, tensor.as_model_tensor(), kind)
