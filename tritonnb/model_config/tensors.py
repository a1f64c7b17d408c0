"""The rules for inputs, outputs, batch inputs and outputs, label files, and initial states.

Checked when a version of the model is created, after the backend has completed the configuration.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.core.datatypes import BY_NUMBER, BYTES
from tritonnb.core.errors import InternalError, InvalidArgumentError

_TENSORRT = "tensorrt_plan"


def check_tensors(config: Any) -> None:
    """Check names, types, dims and reshapes of all inputs and outputs, and batch inputs and outputs.

    Raises
    ------
    InvalidArgumentError
    """
    for tensor in config.input:
        _check_tensor(tensor, "model input", config)
        if tensor.format != pb.ModelInput.FORMAT_NONE and len(tensor.dims) != 3:
            raise InvalidArgumentError(f"model input NHWC/NCHW require 3 dims for {config.name}")
        _check_tensorrt_only(tensor, config)
    for tensor in config.output:
        _check_tensor(tensor, "model output", config)
        _check_tensorrt_only(tensor, config)
    _check_batch_inputs(config)
    _check_batch_outputs(config)


def _check_tensor(tensor: Any, what: str, config: Any) -> None:
    def refuse(complaint: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{what} {complaint} for {config.name}")

    if not tensor.name:
        raise refuse("must specify 'name'")
    name = f"'{tensor.name}'"
    if tensor.data_type == pb.TYPE_INVALID:
        raise refuse(f"{name} must specify 'data_type'")
    if not tensor.dims:
        raise refuse(f"{name} must specify 'dims'")
    reshaped = tensor.HasField("reshape")
    if reshaped and not tensor.reshape.shape and not config.max_batch_size:
        raise refuse(
            f"{name} cannot have empty reshape for non-batching model as scalar tensors are not supported"
        )
    for dims, words in ((tensor.dims, "dimension"), (tensor.reshape.shape, "reshape dimensions")):
        if any(dim < 1 and dim != -1 for dim in dims):
            raise refuse(f"{name} {words} must be integer >= 1, or -1 to indicate a variable-size dimension")
    if reshaped:
        _check_reshape(list(tensor.dims), list(tensor.reshape.shape), name, refuse)


def _check_reshape(dims: list[int], shape: list[int], name: str, refuse: Any) -> None:
    different = refuse(f"{name} has different size for dims and reshape")
    if -1 not in dims and -1 not in shape:
        if math.prod(dims) != math.prod(shape):
            raise different
        return
    if dims.count(-1) != shape.count(-1):
        # A shape without variable dimensions has a size, one with them has none.
        if -1 not in dims or -1 not in shape:
            raise different
        raise refuse(f"{name} has different number of variable-size dimensions for dims and reshape")
    if _products(dims) != _products(shape):
        raise different


def _products(dims: list[int]) -> list[int]:
    """The products of the stretches between variable dimensions."""
    products = [1]
    for dim in dims:
        if dim == -1:
            products.append(1)
        else:
            products[-1] *= dim
    return products


def _check_tensorrt_only(tensor: Any, config: Any) -> None:
    if tensor.is_shape_tensor and config.platform != _TENSORRT:
        raise InvalidArgumentError(
            f"shape tensors are only supported for TensorRT platform for {config.name}"
        )
    if tensor.is_non_linear_format_io and config.platform != _TENSORRT:
        raise InvalidArgumentError(
            f"Non-linear IO format is only supported for the TensorRT platform for {config.name}"
        )


def _check_batch_inputs(config: Any) -> None:
    inputs = {each.name for each in config.input}
    kinds = pb.BatchInput.Kind
    for each in config.batch_input:
        if config.backend == "python":
            # Triton's Python backend reads the list before core does, and words it its own way.
            if each.kind not in kinds.values():
                raise InternalError("attempt to access JSON non-string as string")
            if each.data_type not in (pb.TYPE_INT32, pb.TYPE_FP32):
                name = _type_name(each.data_type)
                raise InvalidArgumentError(f"unexpected batch input data type '{name}'")
        if len(each.source_input) != 1:
            raise InvalidArgumentError(
                f"batch input kind '{kinds.Name(each.kind)}' expects 1 source input, got "
                f"{len(each.source_input)} for {config.name}"
            )
        if each.data_type not in (pb.TYPE_INT32, pb.TYPE_FP32):
            raise InvalidArgumentError(
                f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {config.name}"
            )
        _check_sources(each.source_input, inputs, config)


def _check_batch_outputs(config: Any) -> None:
    inputs = {each.name for each in config.input}
    outputs = {each.name for each in config.output}
    taken: set[str] = set()
    for each in config.batch_output:
        if len(each.source_input) != 1:
            raise InvalidArgumentError(
                f"batch output kind '{pb.BatchOutput.Kind.Name(each.kind)}' expects 1 source input, got "
                f"{len(each.source_input)} for {config.name}"
            )
        _check_sources(each.source_input, inputs, config)
        for target in each.target_name:
            if target not in outputs:
                raise InvalidArgumentError(f"unknown target output name '{target}' for {config.name}")
            if target in taken:
                raise InvalidArgumentError(
                    f"target output name '{target}' can only be specified once for {config.name}"
                )
            taken.add(target)
        if not each.target_name:
            # The real server does not survive this one.
            raise InvalidArgumentError(f"batch output must specify 'target_name' for {config.name}")


def _check_sources(sources: Any, inputs: set[str], config: Any) -> None:
    for source in sources:
        if source not in inputs:
            raise InvalidArgumentError(f"unknown source input name '{source}' for {config.name}")


def _type_name(number: int) -> str:
    return pb.DataType.Name(number) if number in pb.DataType.values() else str(number)


def check_labels(config: Any, directory: Path) -> None:
    """Check that every label file can be read.

    Raises
    ------
    InternalError
    """
    for output in config.output:
        if output.label_filename:
            _check_readable(directory, output.label_filename)


def _check_readable(directory: Path, name: str) -> bytes:
    try:
        return (directory / name).read_bytes()
    except OSError as error:
        raise InternalError(
            f"failed to open text file for read {directory}/{name}: {error.strerror}"
        ) from error


def check_initial_states(config: Any, directory: Path) -> None:
    """Check the ``initial_state`` of every implicit state.

    Raises
    ------
    InvalidArgumentError, InternalError
    """
    seen: set[str] = set()
    for state in config.sequence_batching.state:
        name = state.input_name
        if len(state.initial_state) > 1:
            raise InvalidArgumentError(
                f"initial_state field for state input '{name}' must contain exactly one or zero element. "
                f"Found '{len(state.initial_state)}' elements."
            )
        for initial in state.initial_state:
            _check_initial_state(state, initial, seen, directory)
            seen.add(name)


def _check_initial_state(state: Any, initial: Any, seen: set[str], directory: Path) -> None:
    name = state.input_name
    if initial.data_type != state.data_type:
        raise InvalidArgumentError(
            f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
        )
    if not initial.name:
        raise InvalidArgumentError(
            f"Field 'name' must be set when using initial_state for state input '{name}'."
        )
    if name in seen:
        raise InvalidArgumentError(f"State input name '{name}' specified more than once.")
    if len(initial.dims) != len(state.dims):
        raise InvalidArgumentError(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state "
            f"input '{name}'. {len(initial.dims)} != {len(state.dims)}"
        )
    for mine, theirs in zip(initial.dims, state.dims, strict=True):
        if mine == -1:
            raise InvalidArgumentError(
                f"'initial_state' field for state input name '{name}' contains variable dimensions."
            )
        if theirs not in (-1, mine):
            raise InvalidArgumentError(
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. "
                f"{mine} != {theirs}"
            )
    choice = initial.WhichOneof("state_data")
    if choice is None:
        raise InvalidArgumentError(f"initial_state setting expects state'{name}' to have state_data set")
    if choice == "data_file":
        _check_data_file(initial, directory)


def _check_data_file(initial: Any, directory: Path) -> None:
    content = _check_readable(directory, f"initial_state/{initial.data_file}")
    datatype = BY_NUMBER[initial.data_type]
    wanted = math.prod(initial.dims) * datatype.itemsize
    if datatype is not BYTES and len(content) < wanted:
        # The blank before "only" is missing in the original, too.
        raise InvalidArgumentError(
            f"initial_state setting expects {wanted} bytes, but the data provided from "
            f"{initial.data_file}only has {len(content)} bytes."
        )
