"""Python functions as models: the machinery behind ``@server.model``.

A function is called with whole batches: an array ``[rows, dims...]`` for each input, and gives an array
of as many rows for each output. Without batching (``max_batch_size=0``) there is no row dimension.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tritonnb.backends.annotations import TensorType
from tritonnb.backends.batching import gather, scatter
from tritonnb.backends.contract import (
    Backend,
    BackendModel,
    BackendModelInstance,
    Execution,
    InstanceSpec,
    ModelContext,
)
from tritonnb.core.datatypes import BYTES, as_bytes_array
from tritonnb.core.errors import InternalError, InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.json_config import set_fields
from tritonnb.model_config.schema import ModelSpec, TensorSpec

#: The name of a function's only output.
OUTPUT = "OUTPUT"

Function = Callable[..., Any]


def config_of(function: Function, fields: Mapping[str, Any]) -> pb.ModelConfig:
    """The configuration of a function as a model.

    Parameters
    ----------
    function : callable
        Every parameter annotated with a tensor type is an input of its name. The return annotation
        is a tensor type (the output ``OUTPUT``) or a dict of output names to tensor types.
    fields : mapping
        Other fields of ``inference.ModelConfig``, as JSON would have them.

    Raises
    ------
    InvalidArgumentError
        If it is no function, an annotation is missing, or a field unknown.
    """
    if not callable(function):
        raise InvalidArgumentError(f"a function is served as a model, not {function!r}")
    name = fields.get("name", getattr(function, "__name__", "function"))
    signature = inspect.signature(function, eval_str=True)
    config = pb.ModelConfig(name=name, backend=FunctionBackend.name)
    for parameter in signature.parameters.values():
        if parameter.annotation is inspect.Parameter.empty and parameter.default is not inspect.Parameter.empty:
            continue  # not an input, and the function gets along without it
        tensor = _tensor_type(parameter.annotation, f"parameter '{parameter.name}'", name)
        optional = parameter.default is not inspect.Parameter.empty
        config.input.add(name=parameter.name, data_type=tensor.datatype.number, dims=tensor.dims, optional=optional)
    outputs = signature.return_annotation
    for output, annotation in (outputs if isinstance(outputs, dict) else {OUTPUT: outputs}).items():
        tensor = _tensor_type(annotation, "return value", name)
        config.output.add(name=output, data_type=tensor.datatype.number, dims=tensor.dims)
    try:
        set_fields(config, fields)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"model '{name}': {error}") from None
    return config


def _tensor_type(annotation: Any, what: str, name: str) -> TensorType:
    if not isinstance(annotation, TensorType) or not annotation.dims:
        raise InvalidArgumentError(
            f"model '{name}': the {what} needs a tensor type with dims, such as FP32[1], not {_shown(annotation)}"
        )
    return annotation


def _shown(annotation: Any) -> str:
    return "nothing" if annotation is inspect.Signature.empty else repr(annotation)


class FunctionBackend(Backend):
    """Runs one function.

    Parameters
    ----------
    function : callable
        May be called by several threads at once if the model has several instances.
    """

    name = "function"

    def __init__(self, function: Function) -> None:
        self._function = function

    def create_model(self, context: ModelContext) -> BackendModel:
        """The function's model."""
        return FunctionModel(context, self._function)


class FunctionModel(BackendModel):
    """A function and its tensors."""

    def __init__(self, context: ModelContext, function: Function) -> None:
        super().__init__(context)
        self._function = function

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """A thread that calls the function."""
        return FunctionInstance(ModelSpec.from_config(self.context.config), self._function)


class FunctionInstance(BackendModelInstance):
    """Calls the function."""

    def __init__(self, spec: ModelSpec, function: Function) -> None:
        self._spec = spec
        self._function = function

    def execute(self, execution: Execution) -> None:
        """Gather the batch, call the function, scatter what it gives."""
        arrays = {
            name: gather(execution, name, each.ragged, writeable=True) for name, each in self._spec.inputs.items()
        }
        execution.compute_started()
        result = self._function(**{name: array for name, array in arrays.items() if array is not None})
        execution.compute_ended()
        found = result if isinstance(result, dict) else {next(iter(self._spec.outputs)): result}
        batching = self._spec.max_batch_size > 0
        outputs = {name: (spec, self._checked(spec, found, batching)) for name, spec in self._spec.outputs.items()}
        scatter(execution, outputs, batching)

    def _checked(self, spec: TensorSpec, found: Mapping[str, Any], batching: bool) -> Any:
        if spec.name not in found:
            raise InternalError(f"model '{self._spec.name}' gave no output '{spec.name}', only {sorted(found)}")
        value = found[spec.name]
        if value is None:
            raise InternalError(f"model '{self._spec.name}' gave None for the output '{spec.name}'")
        array = as_bytes_array(value) if spec.datatype is BYTES else np.asarray(value, spec.datatype.numpy)
        if array.ndim != len(spec.dims) + batching:
            raise InternalError(
                f"model '{self._spec.name}': output '{spec.name}' has the shape {list(array.shape)}, expected "
                f"{['rows'] * batching + list(spec.dims)}"
            )
        return array
