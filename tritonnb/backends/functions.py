"""Python functions as models: the implementation of ``@server.model``.

A function is called with a whole batch: an array of shape ``[rows, dims...]`` for each input. It returns an array
with the same number of rows for each output. Without batching (``max_batch_size=0``) arrays have no row dimension.
BF16, which NumPy does not have, is ``float32`` in inputs and outputs. An ``async def`` function is awaited on the
instance's thread, one batch at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_origin

import numpy.typing as npt

from tritonnb.backends.batching import Array, gather, scatter
from tritonnb.backends.contract import Backend, BackendModel, BackendModelInstance, InstanceSpec, ModelContext
from tritonnb.backends.execution import Execution
from tritonnb.backends.python.coroutines import CoroutineRunner
from tritonnb.core.conversion import convert
from tritonnb.core.datatypes import DataType, TensorType
from tritonnb.core.errors import InternalError, InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.shapes import fits
from tritonnb.model_config.editable_config import with_overrides
from tritonnb.model_config.json_config import set_fields
from tritonnb.model_config.schema import ModelSpec, TensorSpec

#: Name of the output of a function with a single one.
OUTPUT = "OUTPUT"

Function = Callable[..., Any]


def function_config(function: Function, fields: Mapping[str, object]) -> pb.ModelConfig:
    """Return the model configuration of a function.

    Parameters
    ----------
    function : callable
        Every parameter with a tensor type as its annotation is an input. The return annotation is a tensor type (the
        output ``OUTPUT``) or a dict of output names to tensor types. The function may be ``async def``.
    fields : mapping
        Other fields of the configuration, in their JSON form, or a field below it by its name alone: ``count=2``.

    Raises
    ------
    InvalidArgumentError
        If a parameter is positional-only or variadic, the function is a generator, an annotation is missing, or a
        field is unknown.
    """
    if not callable(function):
        raise InvalidArgumentError(f"expected a function to serve as a model, got {function!r}")
    # `functools.partial` objects and callable instances have no name.
    name = str(fields.get("name", getattr(function, "__name__", "function")))
    signature = _signature(function, name)
    config = pb.ModelConfig(name=name, backend=FunctionBackend.name)
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidArgumentError(
                f"model '{name}': expected parameters that can be passed by name, as inputs are, got '{parameter.name}'"
            )
        # A parameter such as `scale=2.0` is an ordinary default of Python, which no client should have to send.
        if parameter.annotation is inspect.Parameter.empty and parameter.default is not inspect.Parameter.empty:
            continue  # not an input: its default is used
        tensor = _tensor_type(parameter.annotation, f"parameter '{parameter.name}'", name)
        optional = parameter.default is not inspect.Parameter.empty
        config.input.add(name=parameter.name, data_type=tensor.datatype.number, dims=tensor.dims, optional=optional)
    outputs = signature.return_annotation
    for output, annotation in (outputs if isinstance(outputs, dict) else {OUTPUT: outputs}).items():
        tensor = _tensor_type(annotation, "return value", name)
        config.output.add(name=output, data_type=tensor.datatype.number, dims=tensor.dims)
    nested = fields.keys() - config.DESCRIPTOR.fields_by_name.keys()
    try:
        set_fields(config, {field: value for field, value in fields.items() if field not in nested})
        return with_overrides(config, {field: fields[field] for field in sorted(nested)})
    except InvalidArgumentError as error:
        # The nested errors name the model in some cases and not in others; it must be there exactly once.
        prefix = f"model '{name}': "
        raise InvalidArgumentError(prefix + str(error).removeprefix(prefix)) from None


def _signature(function: Function, name: str) -> inspect.Signature:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgumentError(
            f"model '{name}': expected a function that returns its outputs, got a generator; for several responses to "
            "a request write a model.py with a decoupled transaction policy"
        )
    try:
        # `eval_str`, because `from __future__ import annotations` makes strings of all annotations in a module.
        return inspect.signature(function, eval_str=True)
    except InvalidArgumentError as error:  # from a `TensorType`
        raise InvalidArgumentError(f"model '{name}': {error}") from None
    except Exception as error:  # annotations are evaluated here and can raise any exception
        raise InvalidArgumentError(f"model '{name}': the annotations cannot be evaluated: {error}") from None


def _tensor_type(annotation: object, what: str, name: str) -> TensorType:
    if isinstance(annotation, TensorType):
        return annotation
    if annotation is inspect.Signature.empty:
        problem = "has no annotation"
    elif isinstance(annotation, DataType):
        problem = f"is annotated with {annotation}, without dims"
    else:
        problem = f"is annotated with {annotation!r}"
    several = isinstance(annotation, (tuple, list)) or get_origin(annotation) in (tuple, list, dict)
    dictionary = "; for several outputs, a dict such as {'label': INT64[1], 'score': FP32[1]}" if several else ""
    raise InvalidArgumentError(
        f"model '{name}': the {what} {problem}: expected a tensor type with dims, such as FP32[1], or FP32[-1] for a "
        f"variable dim{dictionary}"
    )


class FunctionBackend(Backend):
    """The backend of one function.

    Parameters
    ----------
    function : callable
        Called by several threads concurrently if the model has several instances.
    """

    name = "function"

    def __init__(self, function: Function) -> None:
        self._function = function

    def create_model(self, context: ModelContext) -> BackendModel:
        """Create the model of the function."""
        return FunctionModel(context, self._function)


class FunctionModel(BackendModel):
    """A function as a model."""

    def __init__(self, context: ModelContext, function: Function) -> None:
        super().__init__(context)
        self._function = function

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """Create an instance, which calls the function on its thread."""
        return FunctionInstance(ModelSpec.from_config(self.context.config), self._function)


class FunctionInstance(BackendModelInstance):
    """An instance that calls the function with batches."""

    def __init__(self, spec: ModelSpec, function: Function) -> None:
        self._spec = spec
        self._function = function
        self._coroutines = CoroutineRunner()

    def execute(self, execution: Execution) -> None:
        """Gather the batch, call the function, and scatter its results."""
        arrays = {name: self._gather(execution, tensor) for name, tensor in self._spec.inputs.items()}
        execution.compute_started()
        # An absent optional input is left out, so that the default of the parameter applies and not None.
        returned = self._function(**{name: array for name, array in arrays.items() if array is not None})
        if inspect.iscoroutine(returned):
            returned = self._coroutines.run(returned)
        execution.compute_ended()
        rows = sum(request.batch_size for request in execution.requests)
        results = read_outputs(self._spec, returned, rows)
        outputs = {name: (spec, results[name]) for name, spec in self._spec.outputs.items()}
        scatter(execution, outputs, self._spec.max_batch_size > 0)

    def finalize(self) -> None:
        """Close the event loop of an ``async def`` function."""
        self._coroutines.close()

    def _gather(self, execution: Execution, spec: TensorSpec) -> Array | None:
        # Writable, because users write functions like `x -= x.mean()`, and must not change what a caller still has.
        array = gather(execution, spec.name, spec.ragged, writeable=True)
        return None if array is None else spec.datatype.to_values(array)


def read_outputs(spec: ModelSpec, returned: Mapping[str, npt.ArrayLike] | npt.ArrayLike, rows: int) -> dict[str, Array]:
    """Return the outputs of a batch as arrays of their datatypes.

    Parameters
    ----------
    spec : ModelSpec
    returned : mapping of str to array_like, or array_like
        What the function returned; for a single output also the value alone.
    rows : int
        Number of rows of the batch; ignored if the model does not batch.

    Returns
    -------
    dict of str to numpy.ndarray
        In the order of the configuration.

    Raises
    ------
    InternalError
        If an output is missing or not declared, or its values, dims or number of rows differ from the declaration.
    """
    if not isinstance(returned, Mapping):
        if len(spec.outputs) > 1:
            raise InternalError(
                f"model '{spec.name}': expected a dict of the outputs {_names(spec.outputs)}, got "
                f"{type(returned).__name__}"
            )
        returned = dict.fromkeys(spec.outputs, returned)
    if returned.keys() != spec.outputs.keys():
        raise InternalError(
            f"model '{spec.name}': expected the outputs {_names(spec.outputs)}, got {_names(returned) or 'none'}"
        )
    return {name: _read_output(spec, output, returned[name], rows) for name, output in spec.outputs.items()}


def _names(outputs: Iterable[object]) -> str:
    return ", ".join(map(repr, outputs))


def _read_output(spec: ModelSpec, output: TensorSpec, value: npt.ArrayLike, rows: int) -> Array:
    where = f"model '{spec.name}': output '{output.name}'"
    # The most frequent error of a new function is a missing `return`, so it has its own question.
    if value is None:
        raise InternalError(f"{where} expected {output.datatype.name} values, got None: does the function return them?")
    try:
        array = convert(value, output.datatype)
    except Exception as error:  # arrays of other libraries raise exceptions of any type
        raise InternalError(f"{where} {error}") from None
    batch = (rows,) if spec.max_batch_size > 0 else ()
    expected = (*batch, *(output.dims if output.reshape is None else output.reshape))
    if not fits(array.shape, expected):
        remedy = f", one row for each of the {rows} in the batch" if batch and array.shape[:1] != batch else ""
        raise InternalError(f"{where} expected shape {list(expected)}{remedy}, got {list(array.shape)}")
    return array
