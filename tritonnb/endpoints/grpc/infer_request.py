"""A gRPC inference request: from a ``ModelInferRequest`` to an `InferRequest`.

Tensors are raw bytes, one entry for each input that is not in shared memory, or typed contents; a request has one or
the other. Triton's server has the same order of checks and the same texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tritonnb.core.datatypes import BY_NAME, INVALID, DataType, encode_bytes
from tritonnb.core.errors import InvalidArgumentError, UnsupportedError
from tritonnb.core.messages import MAX_CORRELATION_ID_BYTES, InferRequest, Tensor, UndecodedTensor
from tritonnb.core.protobuf import service_pb2 as pb
from tritonnb.core.schedulable import SEQUENCE_END, SEQUENCE_START
from tritonnb.endpoints.tensors import DEFAULT, OutputFormat, ResponseFormat, binary_tensor, check_overflow
from tritonnb.engine.shared_memory import SharedMemory
from tritonnb.model_config.schema import ModelSpec

InputTensor: TypeAlias = pb.ModelInferRequest.InferInputTensor
OutputTensor: TypeAlias = pb.ModelInferRequest.InferRequestedOutputTensor
#: Name, datatype and shape of an input.
Description = tuple[str, DataType, tuple[int, ...]]

#: Elements of typed contents that are converted in one call.
_PART = 1 << 15
EMPTY_FINAL = "triton_enable_empty_final_response"

#: The fields of ``InferTensorContents``, and the datatype of their elements.
_CONTENTS = (
    ("bool_contents", "BOOL"),
    ("int_contents", "INT32"),
    ("int64_contents", "INT64"),
    ("uint_contents", "UINT32"),
    ("uint64_contents", "UINT64"),
    ("fp32_contents", "FP32"),
    ("fp64_contents", "FP64"),
    ("bytes_contents", "BYTES"),
)
#: The NumPy dtype of a field with elements that are narrowed to the datatype.
_WIDE = {"int_contents": "<i4", "uint_contents": "<u4"}


def read_request(
    message: pb.ModelInferRequest, spec: ModelSpec, version: int, shared_memory: SharedMemory
) -> tuple[InferRequest, ResponseFormat]:
    """Read one request.

    Parameters
    ----------
    message : inference.ModelInferRequest
    spec : ModelSpec
        Of the requested model.
    version : int
    shared_memory : SharedMemory
        The regions that tensors may be in.

    Raises
    ------
    TritonError
        If the request is invalid; with Triton's text.
    """
    request = InferRequest(spec.name, {}, model_version=version, id=message.id)
    if message.parameters:
        _read_parameters(message.parameters, request)
    # Triton reads all descriptions before any contents: a duplicate name is reported even if the data before it is
    # missing.
    descriptions = _read_descriptions(message.inputs, request)
    _check_output_names(message.outputs, request)
    _read_inputs(message, descriptions, request, shared_memory)
    response_format = ResponseFormat()
    for output in message.outputs:
        output_format = _output_format(output, shared_memory) if output.parameters else DEFAULT
        response_format.outputs[output.name] = output_format
    if response_format.outputs:
        request.requested_outputs = tuple(response_format.outputs)
    return request, response_format


def wants_empty_final(message: pb.ModelInferRequest) -> bool:
    """Return whether a stream must send an empty final response if the model's last response was not final."""
    return EMPTY_FINAL in message.parameters and message.parameters[EMPTY_FINAL].bool_param


def count_elements(message: pb.ModelInferRequest) -> int:
    """Return the number of typed elements."""
    return sum(len(getattr(tensor.contents, field)) for tensor in message.inputs for field, _ in _CONTENTS)


# --- inputs -------------------------------------------------------------------------------------


def _read_descriptions(inputs: Sequence[InputTensor], request: InferRequest) -> list[Description]:
    """Read the name, datatype and shape of each input."""
    descriptions: dict[str, Description] = {}
    for tensor in inputs:
        name, datatype, shape = tensor.name, BY_NAME.get(tensor.datatype, INVALID), tuple(tensor.shape)
        if name in descriptions:
            raise InvalidArgumentError(f"{request.id_prefix}input '{name}' already exists in request")
        check_overflow(name, datatype, shape)
        descriptions[name] = name, datatype, shape
    return list(descriptions.values())


def _read_inputs(
    message: pb.ModelInferRequest,
    descriptions: list[Description],
    request: InferRequest,
    shared_memory: SharedMemory,
) -> None:
    raw = message.raw_input_contents
    inputs = request.unchecked_inputs
    # More raw entries than inputs are ignored, as on Triton: only what an input asks for is taken.
    used = 0
    for tensor, (name, datatype, shape) in zip(message.inputs, descriptions, strict=True):
        region = _region(tensor) if tensor.parameters else None
        if region is not None:
            # Even empty contents are refused, as on Triton: `HasField` is true for a message without elements.
            if tensor.HasField("contents"):
                raise InvalidArgumentError(
                    f"unexpected 'content' provided when using shared memory for input tensor '{name}' for model "
                    f"'{request.model_name}'"
                )
            # A view of the region, not a copy: a client that writes to it during the request changes the input, as on
            # Triton.
            inputs[name] = _from_bytes(name, datatype, shape, shared_memory.part(*region).read())
        elif tensor.HasField("contents"):
            # One raw entry anywhere forbids typed contents everywhere; the protocol has no way to say which input an
            # entry belongs to.
            if raw:
                raise InvalidArgumentError(
                    "contents field must not be specified when using raw_input_contents for "
                    f"'{name}' for model '{request.model_name}'"
                )
            inputs[name] = _from_bytes(name, datatype, shape, _typed_contents(tensor.contents, name, datatype, request))
        elif used < len(raw):
            inputs[name] = _from_bytes(name, datatype, shape, raw[used])
            used += 1
        else:
            raise InvalidArgumentError(
                f"unable to find data for input tensor '{name}' for model '{request.model_name}' in request."
            )


def _from_bytes(
    name: str, datatype: DataType, shape: tuple[int, ...], data: bytes | memoryview
) -> Tensor | UndecodedTensor:
    # Only gRPC can express a negative dimension: a shape over HTTP consists of unsigned numbers.
    if any(dim < 0 for dim in shape):
        return UndecodedTensor(name, datatype, shape, data)
    return binary_tensor(name, datatype, shape, data, 0, len(data))


def _typed_contents(contents: pb.InferTensorContents, name: str, datatype: DataType, request: InferRequest) -> bytes:
    """Convert typed contents to raw bytes."""
    raw = b""
    supplied = False
    for field, shown in _CONTENTS:
        values = getattr(contents, field)
        if not values:
            continue
        if supplied:
            raise InvalidArgumentError(
                f"unexpected explicit tensor data for input tensor '{name}' for model '{request.model_name}', binary "
                "data was already supplied."
            )
        if datatype.contents != field:
            raise InvalidArgumentError(
                f"unexpected explicit tensor data for input tensor '{name}' for model '{request.model_name}' of type "
                f"'{shown}', expected datatype '{datatype.name}'"
            )
        supplied = True
        raw = _encode(values, field, datatype)
    return raw


def _encode(values: Sequence[bool | int | float | bytes], field: str, datatype: DataType) -> bytes:
    # In parts, since a call of NumPy holds Python's lock, and thus the event loop, even on another thread.
    return b"".join([_encode_part(values[at : at + _PART], field, datatype) for at in range(0, len(values), _PART)])


def _encode_part(values: Sequence[bool | int | float | bytes], field: str, datatype: DataType) -> bytes:
    if datatype.variable_size:
        return encode_bytes(np.array(values, dtype=object))
    # INT8 and INT16 come as INT32, and Triton cuts them without a check.
    return datatype.from_values(np.array(values, _WIDE.get(field, datatype.values_dtype))).tobytes()


# --- parameters ---------------------------------------------------------------------------------


def _read_parameters(parameters: Mapping[str, pb.InferParameter], request: InferRequest) -> None:
    for name, value in parameters.items():
        kind = value.WhichOneof("parameter_choice")
        if name == "sequence_id":
            request.correlation_id = _correlation_id(value, kind)
        elif name == "sequence_start":
            request.flags |= SEQUENCE_START * _expect(name, value, kind, "bool_param")
        elif name == "sequence_end":
            request.flags |= SEQUENCE_END * _expect(name, value, kind, "bool_param")
        elif name == "priority":
            request.priority = _expect(name, value, kind, "int64_param", "uint64_param")
            if request.priority < 0:
                raise InvalidArgumentError("invalid value for 'priority', expected value >= 0.")
        elif name == "timeout":
            # A negative timeout becomes a huge one, because Triton casts it to an unsigned number.
            request.timeout_us = _expect(name, value, kind, "int64_param") % 2**64
        elif name == EMPTY_FINAL:
            _expect(name, value, kind, "bool_param")
        elif name.startswith("triton_"):
            raise InvalidArgumentError(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                f"starting with 'triton_' are allowed: {EMPTY_FINAL}"
            )
        # `double_param` works although Triton's text below does not name it; `uint64_param` does not, except for the
        # priority.
        elif kind in ("string_param", "int64_param", "bool_param", "double_param"):
            request.parameters[name] = getattr(value, kind)
        else:
            raise InvalidArgumentError(
                f"invalid value type for '{name}' parameter, expected int64_param, bool_param, or string_param."
            )


def _expect(name: str, value: pb.InferParameter, kind: str | None, *kinds: str) -> Any:
    if kind not in kinds:
        raise InvalidArgumentError(f"invalid value type for '{name}' parameter, expected {' or '.join(kinds)}.")
    return getattr(value, kind)


def _correlation_id(value: pb.InferParameter, kind: str | None) -> int | str:
    correlation_id = _expect("sequence_id", value, kind, "int64_param", "string_param")
    # A sequence may have a negative ID over gRPC, which is the same sequence as the large one over HTTP.
    if isinstance(correlation_id, int):
        return correlation_id % 2**64
    if len(correlation_id.encode()) > MAX_CORRELATION_ID_BYTES:
        raise UnsupportedError(f"string correlation ID cannot be longer than {MAX_CORRELATION_ID_BYTES} characters")
    return str(correlation_id)


# --- outputs and regions ------------------------------------------------------------------------


def _check_output_names(outputs: Sequence[OutputTensor], request: InferRequest) -> None:
    names = set()
    for output in outputs:
        if output.name in names:
            raise InvalidArgumentError(f"{request.id_prefix}output '{output.name}' already exists in request")
        names.add(output.name)


def _output_format(output: OutputTensor, shared_memory: SharedMemory) -> OutputFormat:
    output_format = OutputFormat()
    region = _region(output)
    classification = output.parameters.get("classification")
    if classification is not None:
        if classification.WhichOneof("parameter_choice") != "int64_param":
            raise InvalidArgumentError("invalid value type for 'classification' parameter, expected int64_param")
        # Triton refuses 0 with a text that allows it; over HTTP, 0 turns the classification off.
        if classification.int64_param <= 0:
            raise InvalidArgumentError("invalid value for 'classification' parameter, expected >= 0")
        if region is not None:
            raise InvalidArgumentError("output can't set both 'shared_memory_region' and 'classification'")
        output_format.classification = classification.int64_param
    if region is not None:
        output_format.region = shared_memory.part(*region)
    return output_format


def _region(tensor: InputTensor | OutputTensor) -> tuple[str, int, int] | None:
    """Read the region, offset and size of an input or output; None if it is not in shared memory."""
    name = _region_parameter(tensor, "shared_memory_region", "string_param")
    offset = _region_parameter(tensor, "shared_memory_offset", "int64_param")
    size = _region_parameter(tensor, "shared_memory_byte_size", "int64_param")
    if name is None:
        return None
    if size is None:
        raise InvalidArgumentError(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{tensor.name}'"
        )
    # Cast as in C++, so that negative numbers fail the later check against the size of the region, with Triton's text.
    return name, (offset or 0) % 2**64, size % 2**64


def _region_parameter(tensor: InputTensor | OutputTensor, name: str, kind: str) -> Any:
    parameters = tensor.parameters
    if name not in parameters:
        return None
    if "shared_memory_region" not in parameters:
        raise InvalidArgumentError(
            f"'{name}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor.name}'"
        )
    if parameters[name].WhichOneof("parameter_choice") != kind:
        raise InvalidArgumentError(
            f"invalid value type for '{name}' parameter for tensor '{tensor.name}', expected {kind}."
        )
    return getattr(parameters[name], kind)
