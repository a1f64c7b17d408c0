"""Python functions as models: the machinery behind ``@server.model``.

A function is called with whole batches: an array ``[rows, dims...]`` for each input, and returns an array
of as many rows for each output. Without batching (``max_batch_size=0``) there is no row dimension. BF16, which NumPy
does not have, is ``float32`` in both directions. An ``async def`` function is awaited on the instance's thread, one
batch at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

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
from tritonnb.backends.function_outputs import read_outputs
from tritonnb.backends.python.coroutines import CoroutineRunner
from tritonnb.core.datatypes import BF16, bf16_to_float32
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.json_config import set_fields
from tritonnb.model_config.schema import ModelSpec, TensorSpec

#: The name of a function's only output.
OUTPUT = "OUTPUT"

Function = Callable[..., Any]


def function_config(function: Function, fields: Mapping[str, Any]) -> pb.ModelConfig:
    """The configuration of a function as a model.

    Parameters
    ----------
    function : callable
        Every parameter annotated with a tensor type is an input of its name. The return annotation
        is a tensor type (the output ``OUTPUT``) or a dict of output names to tensor types. It may be ``async def``.
    fields : mapping
        Other fields of ``inference.ModelConfig``, as JSON would have them.

    Raises
    ------
    InvalidArgumentError
        If it cannot be called by parameter names or yields, an annotation is missing, or a field unknown.
    """
    if not callable(function):
        raise InvalidArgumentError(f"a function is served as a model, not {function!r}")
    name = fields.get("name", getattr(function, "__name__", "function"))
    signature = _signature(function, name)
    config = pb.ModelConfig(name=name, backend=FunctionBackend.name)
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidArgumentError(
                f"model '{name}': the parameter '{parameter.name}' cannot be passed by name, as inputs are"
            )
        if parameter.annotation is inspect.Parameter.empty and parameter.default is not inspect.Parameter.empty:
            continue  # not an input: its default is used
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


def _signature(function: Function, name: str) -> inspect.Signature:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgumentError(
            f"model '{name}': a function that yields cannot be served: return the outputs (several responses for a "
            "request need a model.py with a decoupled transaction policy)"
        )
    try:
        return inspect.signature(function, eval_str=True)
    except InvalidArgumentError as error:  # from a `TensorType`
        raise InvalidArgumentError(f"model '{name}': {error}") from None
    except Exception as error:  # whatever an annotation raises that is evaluated only now
        raise InvalidArgumentError(f"model '{name}': the annotations cannot be read: {error}") from None


def _tensor_type(annotation: Any, what: str, name: str) -> TensorType:
    if isinstance(annotation, TensorType) and annotation.dims:
        return annotation
    if annotation is inspect.Signature.empty:
        problem = "has no annotation"
    elif isinstance(annotation, TensorType):
        problem = f"is annotated with {annotation}, without dims"
    else:
        problem = f"is annotated with {annotation!r}"
    raise InvalidArgumentError(
        f"model '{name}': the {what} {problem}: expected a tensor type with dims, such as FP32[1], or FP32[-1] for a "
        "variable dim"
    )


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
        self._coroutines = CoroutineRunner()

    def execute(self, execution: Execution) -> None:
        """Gather the batch, call the function, scatter what it returns."""
        arrays = {name: self._gathered(execution, each) for name, each in self._spec.inputs.items()}
        execution.compute_started()
        returned = self._function(**{name: array for name, array in arrays.items() if array is not None})
        if inspect.iscoroutine(returned):
            returned = self._coroutines.run(returned)
        execution.compute_ended()
        rows = sum(each.batch_size for each in execution.requests)
        arrays = read_outputs(self._spec, returned, rows)
        outputs = {name: (spec, arrays[name]) for name, spec in self._spec.outputs.items()}
        scatter(execution, outputs, self._spec.max_batch_size > 0)

    def finalize(self) -> None:
        """End the event loop of an ``async def`` function."""
        self._coroutines.close()

    def _gathered(self, execution: Execution, spec: TensorSpec) -> Any:
        array = gather(execution, spec.name, spec.ragged, writeable=True)
        return bf16_to_float32(array) if spec.datatype is BF16 and array is not None else array
