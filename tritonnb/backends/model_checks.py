"""Checks that backends share: the model file, and the tensors of the configuration against the tensors of the model.

A backend whose models declare their own inputs and outputs converts the declarations to `ModelTensor` objects. It can
then complete a configuration from them (`complete_config`) and check that a configuration fits them (`check_tensor`).
The error texts are the texts of Triton's backends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tritonnb.backends.contract import ModelContext
from tritonnb.core.datatypes import DataType
from tritonnb.core.errors import InvalidArgumentError, NotFoundError, TritonError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.shapes import fits, shape_text
from tritonnb.model_config.schema import TensorSpec

D = TypeVar("D")

_BOOLEANS = {"true": True, "false": False}


def integer_parameter(context: ModelContext, name: str, default: D) -> int | D:
    """Read a parameter as an integer.

    Parameters
    ----------
    context : ModelContext
    name : str
    default : object
        Returned if the configuration does not have the parameter.

    Raises
    ------
    InvalidArgumentError
        If the parameter is not an integer.

    Examples
    --------
    >>> context = ModelContext("m", 1, pb.ModelConfig(), Path("m"))
    >>> context.config.parameters["NUM_STREAMS"].string_value = "2"
    >>> integer_parameter(context, "NUM_STREAMS", 1)
    2
    """
    return read_parameter(context, name, default, int, "an integer")


def boolean_parameter(context: ModelContext, name: str, default: bool) -> bool:
    """Read a parameter as a boolean: ``true`` or ``false``, in upper or lower case.

    Parameters
    ----------
    context : ModelContext
    name : str
    default : bool
        Returned if the configuration does not have the parameter.

    Raises
    ------
    InvalidArgumentError
        If the parameter is neither ``true`` nor ``false``.

    Examples
    --------
    >>> boolean_parameter(ModelContext("m", 1, pb.ModelConfig(), Path("m")), "ENABLE_BATCH_PADDING", False)
    False
    """
    return read_parameter(context, name, default, lambda text: _BOOLEANS[text.lower()], "'true' or 'false'")


def read_parameter(context: ModelContext, name: str, default: D, convert: Callable[[str], T], expected: str) -> T | D:
    """Read a parameter in any form.

    Parameters
    ----------
    context : ModelContext
    name : str
    default : object
        Returned if the configuration does not have the parameter.
    convert : callable
        Converts the text; raises a ValueError or KeyError if it has another form.
    expected : str
        The form, for the error message.

    Raises
    ------
    InvalidArgumentError
        If the text has another form.
    """
    value = context.parameters.get(name)
    if value is None:
        return default
    try:
        return convert(value)
    except (ValueError, KeyError):
        raise InvalidArgumentError(
            f"model '{context.name}': parameter '{name}' expected {expected}, got '{value}'"
        ) from None


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """An input or output as the model itself declares it.

    Attributes
    ----------
    name : str
    datatype : DataType
    shape : tuple of int
        Including the batch dimension, if there is one; -1 is a variable dimension.

    Examples
    --------
    >>> from tritonnb.core.datatypes import FP32
    >>> ModelTensor("x", FP32, (-1, 3)).shape
    (-1, 3)
    """

    name: str
    datatype: DataType
    shape: tuple[int, ...]


def find_model_file(
    context: ModelContext,
    default: str,
    *,
    in_directory: bool = False,
    may_be_directory: bool = False,
    error: type[TritonError] = NotFoundError,
) -> Path:
    """Return the file of a version: ``default_model_filename`` of the configuration, or the backend's default name.

    Parameters
    ----------
    context : ModelContext
    default : str
        Such as ``"model.onnx"``.
    in_directory : bool, optional
        Whether the path may also be a directory that contains a file with the default name.
    may_be_directory : bool, optional
        Whether the path may also be a directory.
    error : type of TritonError, optional
        Raised if the file does not exist.

    Raises
    ------
    TritonError
        If the file does not exist.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as directory:
    ...     (Path(directory) / "1").mkdir()
    ...     (Path(directory) / "1" / "model.bin").touch()
    ...     find_model_file(ModelContext("m", 1, pb.ModelConfig(), Path(directory)), "model.bin").name
    'model.bin'
    """
    # The name comes from the configuration, perhaps from a client; that it stays within the model is checked when the
    # configuration is read.
    path = context.version_directory / (context.config.default_model_filename or default)
    # ONNX models with external data are a directory: *model.onnx/model.onnx*, and its weights beside it.
    if in_directory and path.is_dir():
        path = path / default
    if not (path.exists() if may_be_directory else path.is_file()):
        raise error(f"unable to find '{path}' for model '{context.name}'")
    return path


def complete_config(
    config: pb.ModelConfig,
    inputs: Iterable[ModelTensor],
    outputs: Iterable[ModelTensor],
    *,
    batching: bool,
    default_max_batch_size: int,
) -> None:
    """Complete a configuration in place, as Triton's ONNX Runtime backend does.

    Parameters
    ----------
    config : inference.ModelConfig
        Keeps the inputs and the outputs that it has; the batch size is set only if it has none.
    inputs, outputs : iterable of ModelTensor
        Read where the configuration has no inputs, or no outputs.
    batching : bool
        Whether the model supports batching: each of its tensors has a variable first dimension.
    default_max_batch_size : int
        Used if the model supports batching. If it is greater than 1, and no scheduler is configured, the dynamic
        batcher is added.

    Raises
    ------
    InvalidArgumentError
        If the configuration has a ``max_batch_size``, and the model does not support batching.

    Examples
    --------
    >>> from tritonnb.core.datatypes import FP32
    >>> config = pb.ModelConfig()
    >>> tensors = [ModelTensor("x", FP32, (-1, 3))]
    >>> complete_config(config, tensors, tensors, batching=True, default_max_batch_size=4)
    >>> config.max_batch_size, list(config.input[0].dims)
    (4, [3])
    """
    # Only tensors that are missing are read: the others may have types that Triton does not have.
    described = ((config.input, inputs), (config.output, outputs))
    missing = [(target, list(tensors)) for target, tensors in described if not target]
    if config.max_batch_size > 0 and not batching:
        raise InvalidArgumentError(
            f"autofill failed for model '{config.name}': model does not support batching while non-zero "
            "max_batch_size is specified"
        )
    if batching and not config.max_batch_size:
        config.max_batch_size = max(default_max_batch_size, 0)
        # A limit of 1 needs no batcher, and a configured scheduler is a decision that completion must not change.
        if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
            config.dynamic_batching.SetInParent()
    has_batch = config.max_batch_size > 0
    for target, tensors in missing:
        for tensor in tensors:
            dims = tensor.shape[1:] if has_batch else tensor.shape
            # A configuration cannot have a tensor without dims, so a scalar is [1] with an empty reshape.
            added = target.add(name=tensor.name, data_type=tensor.datatype.number, dims=dims or [1])
            if not dims and has_batch:
                added.reshape.SetInParent()


def check_input_count(model_name: str, configured: int, provided: int, required: int | None = None) -> None:
    """Check that a configuration has as many inputs as the model.

    Parameters
    ----------
    model_name : str
    configured, provided : int
        Number of inputs in the configuration and in the model.
    required : int, optional
        Number of the model's inputs without a default; all of them if omitted.

    Raises
    ------
    InvalidArgumentError
        If there are more inputs than the model has, or fewer than it requires.

    Examples
    --------
    >>> check_input_count("m", configured=1, provided=2, required=1)
    """
    # A range, because an argument of a TorchScript module that has a default may be configured or not.
    if not (provided if required is None else required) <= configured <= provided:
        raise InvalidArgumentError(
            f"unable to load model '{model_name}', configuration expects {configured} inputs, model provides {provided}"
        )


def find_tensor(name: str, tensors: Mapping[str, T], kind: str) -> T:
    """Return the tensor of the model with the name of a configured tensor.

    Parameters
    ----------
    name : str
    tensors : mapping of str to object
        The model's tensors by name, in any form.
    kind : str
        ``"input"`` or ``"output"``, for the error message.

    Raises
    ------
    InvalidArgumentError
        If the model has no tensor with this name.

    Examples
    --------
    >>> find_tensor("x", {"x": 1, "y": 2}, "input")
    1
    """
    if name not in tensors:
        allowed = ", ".join(sorted(tensors))
        raise InvalidArgumentError(f"unexpected inference {kind} '{name}', allowed {kind}s are: {allowed}")
    return tensors[name]


def check_tensor(config: pb.ModelConfig, spec: TensorSpec, tensor: ModelTensor, kind: str) -> None:
    """Check that the datatype and dims of a configured tensor fit the tensor of the model.

    An input may have more specific dims than in the model. The dims of an output must be equal: the model may return
    other shapes than more specific dims promise.

    Parameters
    ----------
    config : inference.ModelConfig
    spec : TensorSpec
        The tensor in the configuration.
    tensor : ModelTensor
        The tensor in the model.
    kind : str
        ``"input"`` or ``"output"``.

    Raises
    ------
    InvalidArgumentError
        If they do not fit.

    Notes
    -----
    Rules and messages follow ``CompareDimsSupported`` in Triton's ONNX Runtime and TensorFlow backends.

    Examples
    --------
    >>> from tritonnb.core.datatypes import FP32
    >>> config = pb.ModelConfig(name="m", max_batch_size=8)
    >>> check_tensor(config, TensorSpec("x", FP32, (3,)), ModelTensor("x", FP32, (-1, -1)), "input")
    """
    check_datatype(config.name, spec, tensor.datatype, kind)
    batching = config.max_batch_size > 0
    shape = tensor.shape
    dims = tuple(spec.backend_dims)
    # A first dimension of 1 is not a batch: the model would fail with the first batch of two rows.
    if batching and shape[:1] != (-1,):
        raise InvalidArgumentError(
            f"model '{config.name}', tensor '{spec.name}': for the model to support batching the shape should have at "
            "least 1 dimension and the first dimension must be -1; but shape expected by the model is "
            f"{shape_text(shape)}"
        )
    if not shape:
        if any(dim != 1 for dim in dims):
            raise InvalidArgumentError(
                f"unable to load model '{config.name}', scalar tensor '{spec.name}', should only provide 1 in the "
                "model configuration when the model doesn't support batching. Model configuration provided: "
                f"{shape_text(dims)}."
            )
        return
    expected = (-1, *dims) if batching else dims
    if not (shape == expected if kind == "output" else fits(expected, shape)):
        raise shape_error(config.name, spec.name, shape, expected, batching)


def check_datatype(model_name: str, spec: TensorSpec, provided: DataType, kind: str) -> None:
    """Check that the model provides the datatype of a configured tensor.

    Raises
    ------
    InvalidArgumentError
        If it is not.
    """
    if provided is not spec.datatype:
        raise InvalidArgumentError(
            f"unable to load model '{model_name}', configuration expects datatype {spec.datatype.config_name} for "
            f"{kind} '{spec.name}', model provides {provided.config_name}"
        )


def shape_error(
    model_name: str, tensor_name: str, shape: Sequence[int], expected: Sequence[int], batching: bool
) -> InvalidArgumentError:
    """Return the error of a configured tensor with dims that do not fit the dims of the model.

    Parameters
    ----------
    model_name, tensor_name : str
    shape, expected : sequence of int
        The shape in the model, and the shape that the configuration describes.
    batching : bool
        Whether ``expected`` begins with a batch dimension.
    """
    batch = "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
    return InvalidArgumentError(
        f"model '{model_name}', tensor '{tensor_name}': the model expects {len(shape)} dimensions (shape "
        f"{shape_text(shape)}) but the model configuration specifies {len(expected)} dimensions "
        f"({f'{batch}complete ' if batching else ''}shape {shape_text(expected)})"
    )
