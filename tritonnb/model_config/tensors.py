"""The rules for inputs, outputs, batch inputs and batch outputs.

Checked when a version of the model is created, after the backend has completed the configuration.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from tritonnb.core.errors import InternalError, InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb

_TENSORRT = "tensorrt_plan"
_IMAGE_FORMATS = (pb.ModelInput.FORMAT_NHWC, pb.ModelInput.FORMAT_NCHW)


def check_tensors(config: pb.ModelConfig) -> None:
    """Check names, types, dims and reshapes of all inputs and outputs, and batch inputs and outputs.

    Raises
    ------
    InvalidArgumentError
        For the first rule that is violated.
    """
    for tensor in config.input:
        _check_tensor(tensor, "model input", config)
        if tensor.format in _IMAGE_FORMATS and len(tensor.dims) != 3:
            raise InvalidArgumentError(f"model input NHWC/NCHW require 3 dims for {config.name}")
        _check_tensorrt_only(tensor, config)
    for tensor in config.output:
        _check_tensor(tensor, "model output", config)
        _check_tensorrt_only(tensor, config)
    _check_batch_inputs(config)
    _check_batch_outputs(config)


def _check_tensor(tensor: pb.ModelInput | pb.ModelOutput, what: str, config: pb.ModelConfig) -> None:
    def error(complaint: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{what} {complaint} for {config.name}")

    if not tensor.name:
        raise error("must specify 'name'")
    name = f"'{tensor.name}'"
    if tensor.data_type == pb.TYPE_INVALID:
        raise error(f"{name} must specify 'data_type'")
    if not tensor.dims:
        raise error(f"{name} must specify 'dims'")
    reshaped = tensor.HasField("reshape")
    if reshaped and not tensor.reshape.shape and not config.max_batch_size:
        raise error(f"{name} cannot have empty reshape for non-batching model as scalar tensors are not supported")
    for dims, words in ((tensor.dims, "dimension"), (tensor.reshape.shape, "reshape dimensions")):
        if any(dim < 1 and dim != -1 for dim in dims):
            raise error(f"{name} {words} must be integer >= 1, or -1 to indicate a variable-size dimension")
    if reshaped:
        _check_reshape(list(tensor.dims), list(tensor.reshape.shape), name, error)


def _check_reshape(dims: list[int], shape: list[int], name: str, error: Callable[[str], InvalidArgumentError]) -> None:
    different = error(f"{name} has different size for dims and reshape")
    if -1 not in dims and -1 not in shape:
        if math.prod(dims) != math.prod(shape):
            raise different
        return
    if dims.count(-1) != shape.count(-1):
        # Only a shape without variable dimensions has a definite size.
        if -1 not in dims or -1 not in shape:
            raise different
        raise error(f"{name} has different number of variable-size dimensions for dims and reshape")
    if _products(dims) != _products(shape):
        raise different


def _products(dims: list[int]) -> list[int]:
    """The products of the dimensions between variable ones."""
    products = [1]
    for dim in dims:
        if dim == -1:
            products.append(1)
        else:
            products[-1] *= dim
    return products


def _check_tensorrt_only(tensor: pb.ModelInput | pb.ModelOutput, config: pb.ModelConfig) -> None:
    if tensor.is_shape_tensor and config.platform != _TENSORRT:
        raise InvalidArgumentError(f"shape tensors are only supported for TensorRT platform for {config.name}")
    if tensor.is_non_linear_format_io and config.platform != _TENSORRT:
        raise InvalidArgumentError(
            f"Non-linear IO format is only supported for the TensorRT platform for {config.name}"
        )


def _check_batch_inputs(config: pb.ModelConfig) -> None:
    for batch_input in config.batch_input:
        kind = _batch_kind(batch_input, pb.BatchInput.Kind, "input", config)
        if config.backend == "python" and batch_input.data_type == pb.TYPE_INVALID:
            # Triton's Python backend reads the list before core does, and has its own message.
            raise InvalidArgumentError("unexpected batch input data type 'TYPE_INVALID'")
        _check_one_source(batch_input, f"input kind '{kind}'", config)
        if batch_input.data_type not in (pb.TYPE_INT32, pb.TYPE_FP32):
            raise InvalidArgumentError(f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {config.name}")
        _check_known_source(batch_input, config)


def _check_batch_outputs(config: pb.ModelConfig) -> None:
    outputs = {output.name for output in config.output}
    for batch_output in config.batch_output:
        kind = _batch_kind(batch_output, pb.BatchOutput.Kind, "output", config)
        _check_one_source(batch_output, f"output kind '{kind}'", config)
        _check_known_source(batch_output, config)
        seen: set[str] = set()
        for target in batch_output.target_name:
            if target not in outputs:
                raise InvalidArgumentError(f"unknown target output name '{target}' for {config.name}")
            if target in seen:
                raise InvalidArgumentError(
                    f"target output name '{target}' can only be specified once for {config.name}"
                )
            seen.add(target)
        if not batch_output.target_name:
            # Triton crashes on this one.
            raise InvalidArgumentError(f"batch output must specify 'target_name' for {config.name}")


def _batch_kind(
    batch_io: pb.BatchInput | pb.BatchOutput, kinds: EnumTypeWrapper, what: str, config: pb.ModelConfig
) -> str:
    if batch_io.kind in kinds.values():
        return str(kinds.Name(batch_io.kind))
    if config.backend == "python":
        raise InternalError("attempt to access JSON non-string as string")
    raise InvalidArgumentError(f"unknown batch {what} kind '' for {config.name}")


def _check_one_source(batch_io: pb.BatchInput | pb.BatchOutput, what: str, config: pb.ModelConfig) -> None:
    if len(batch_io.source_input) != 1:
        raise InvalidArgumentError(
            f"batch {what} expects 1 source input, got {len(batch_io.source_input)} for {config.name}"
        )


def _check_known_source(batch_io: pb.BatchInput | pb.BatchOutput, config: pb.ModelConfig) -> None:
    (source,) = batch_io.source_input
    if source not in [tensor.name for tensor in config.input]:
        raise InvalidArgumentError(f"unknown source input name '{source}' for {config.name}")
