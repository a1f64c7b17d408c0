"""An HTTP inference request: from the body to an `InferRequest`.

Implements the inference protocol, the binary tensor data extension with its raw binary requests,
the parameters, sequence, priority and classification extensions; in the order of checks and with
the texts of Triton's server.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from tritonnb.core.datatypes import BY_NAME, BYTES, DataType
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnsupportedError
from tritonnb.core.messages import (
    MAX_CORRELATION_ID_BYTES,
    SEQUENCE_END,
    SEQUENCE_START,
    InferRequest,
    ParameterValue,
    Respond,
)
from tritonnb.core.strtol import leading_number
from tritonnb.endpoints.http import json_fields, rapidjson
from tritonnb.endpoints.http.input_tensors import tensor_from_json
from tritonnb.endpoints.tensors import OutputFormat, ResponseFormat, binary_tensor, check_overflow
from tritonnb.model_config.schema import INVALID, ModelSpec
from tritonnb.runtime.shared_memory import Part, SharedMemory

T = TypeVar("T")
_MAX_INT64 = 2**63 - 1
_CHOICES = ("'data'", "'binary_data_size'", "'shared_memory_region'")


def header_length(value: str | None, body: bytes | bytearray) -> int:
    """How many bytes of a body are JSON; 0 for a raw binary request.

    Parameters
    ----------
    value : str or None
        ``Inference-Header-Content-Length``; leading digits count, and no digits are a 0.
    body : bytes or bytearray
        All of it.

    Raises
    ------
    InvalidArgumentError
        If the length is negative or more than there is.
    """
    if value is None:
        return len(body)
    length = int(value) if len(value) < 20 and value.isdecimal() else leading_number(value) or 0
    if not 0 <= length <= len(body):
        raise InvalidArgumentError(f"inference header size should be in range (0, {len(body)}), got: {value}")
    return length


class RequestReader:
    """Reads the requests of one endpoint.

    Parameters
    ----------
    max_input_size : int
        ``--http-max-input-size``, in bytes: for the JSON part, a JSON tensor, and a raw request.
    shared_memory : SharedMemory
        Where tensors may be instead.
    """

    def __init__(self, max_input_size: int, shared_memory: SharedMemory) -> None:
        self._max = max_input_size
        self._shared_memory = shared_memory

    def read(
        self, spec: ModelSpec, version: int, body: bytes | bytearray, length: int, respond: Respond
    ) -> tuple[InferRequest, ResponseFormat]:
        """Read one request.

        Parameters
        ----------
        spec : ModelSpec
            Of the model that is asked.
        version : int
        body : bytes
            Decompressed.
        length : int
            Bytes of the JSON part, from `header_length`.
        respond : callable
            Where the responses go.

        Raises
        ------
        TritonError
            As Triton complains of what is wrong with it.
        """
        if not length:
            return self._raw(spec, version, body, respond), ResponseFormat(binary=True)
        if length > self._max:
            raise InvalidArgumentError(
                f"request JSON size of {length} bytes exceeds the maximum allowed input size of {self._max} "
                "bytes. Use --http-max-input-size to increase the limit."
            )
        document = rapidjson.parse(body if length == len(body) else body[:length])
        request = InferRequest(spec.name, {}, respond, model_version=version)
        answer = ResponseFormat()
        if isinstance(document, dict):
            if "id" in document:
                request.id = json_fields.parsed("id", json_fields.string, document["id"])
            if "parameters" in document:
                _read_parameters(document["parameters"], request, answer)
        inputs = document.get("inputs") if isinstance(document, dict) else None
        if type(inputs) is not list:
            inputs = json_fields.parsed("inputs", _array_member, document, "inputs")
        self._inputs(inputs, request, body, length)
        if "outputs" in document:
            _read_outputs(document["outputs"], request, answer, self._shared_memory)
        return request, answer

    # --- inputs -------------------------------------------------------------------------------

    def _inputs(self, listed: list[Any], request: InferRequest, body: bytes | bytearray, length: int) -> None:
        at = length
        inputs: dict[str, Any] = request.inputs
        for entry in listed:
            parameters = entry.get("parameters") if isinstance(entry, dict) else None
            if not isinstance(parameters, dict):
                parameters = {}
            given = (
                isinstance(entry, dict) and "data" in entry,
                "binary_data_size" in parameters,
                "shared_memory_region" in parameters,
            )
            if sum(given) != 1:
                _refuse_choice(given)
            name, datatype, shape = _described(entry)
            if name in inputs:
                raise InvalidArgumentError(f"{request.id_prefix}input '{name}' already exists in request")
            check_overflow(name, datatype, shape)
            if given[1]:
                size = parameters["binary_data_size"]
                if type(size) is not int or not 0 <= size <= _MAX_INT64:
                    size = json_fields.parsed("binary_data_size", json_fields.unsigned, size)
                if at + size > len(body):
                    missing = at + size - len(body)
                    raise InvalidArgumentError(
                        f"unexpected size for input '{name}', expecting {missing} additional bytes for model "
                        f"'{request.model_name}'"
                    )
                inputs[name] = binary_tensor(name, datatype, shape, body, at, size)
                at += size
            elif given[0]:
                inputs[name] = tensor_from_json(name, datatype, shape, entry["data"], self._max)
            else:
                part = _region(parameters, self._shared_memory).read()
                inputs[name] = binary_tensor(name, datatype, shape, part, 0, len(part))
        if at != len(body):
            raise InvalidArgumentError(f"unexpected additional input data for model '{request.model_name}'")

    def _raw(self, spec: ModelSpec, version: int, body: bytes | bytearray, respond: Respond) -> InferRequest:
        """The body is the data of the model's only input, whose shape is deduced."""
        request = InferRequest(spec.name, {}, respond, model_version=version)
        if len(body) > self._max:
            raise InvalidArgumentError(
                f"Raw input has a byte_size ({len(body)} bytes) that exceeds the maximum allowed value of "
                f"{self._max} bytes. Use --http-max-input-size to increase the limit."
            )
        if len(spec.inputs) != 1:
            raise InvalidArgumentError(
                f"{request.id_prefix}Raw request must only have 1 input (found 1) to be deduced but got "
                f"{len(spec.inputs)} inputs in '{spec.name}' model configuration"
            )
        (tensor,) = spec.inputs.values()
        batch = (1,) if spec.max_batch_size > 0 else ()
        if tensor.datatype is BYTES:
            if tensor.dims != (1,):
                raise InvalidArgumentError(
                    f"{request.id_prefix}For BYTE datatype raw input '{tensor.name}', the model must have input "
                    "shape [1]"
                )
            body = len(body).to_bytes(4, "little") + body
        elif tensor.dims.count(-1) > 1:
            raise InvalidArgumentError(
                f"{request.id_prefix}The shape of the raw input '{tensor.name}' can not be deduced because there "
                "are more than one variable-sized dimension"
            )
        row = tensor.datatype.itemsize * math.prod(each for each in tensor.dims if each > 0)
        dims = tuple(len(body) // row if each == -1 else each for each in tensor.dims)
        expected = math.prod(dims) * tensor.datatype.itemsize
        if tensor.datatype is not BYTES and expected != len(body):
            # The name in the text is Triton's own.
            raise InvalidArgumentError(
                f"{request.id_prefix}input byte size mismatch for input 'raw_input' for model '{spec.name}'. "
                f"Expected {expected}, got {len(body)}"
            )
        inputs: dict[str, Any] = request.inputs
        inputs[tensor.name] = binary_tensor(tensor.name, tensor.datatype, batch + dims, body, 0, len(body))
        return request


def _described(entry: dict[str, Any]) -> tuple[str, DataType, tuple[int, ...]]:
    """Name, datatype and shape of an input."""
    name, datatype_name, shape = entry.get("name"), entry.get("datatype"), entry.get("shape")
    if type(name) is not str:
        name = json_fields.parsed("name", _string_member, entry, "name")
    if type(datatype_name) is not str:
        datatype_name = json_fields.parsed("datatype", _string_member, entry, "datatype")
    if type(shape) is not list or any(type(dim) is not int or dim < 0 or dim > _MAX_INT64 for dim in shape):
        return name, BY_NAME.get(datatype_name, INVALID), json_fields.parsed("shape", _shape, entry)
    return name, BY_NAME.get(datatype_name, INVALID), tuple(shape)


def _string_member(entry: Any, name: str) -> str:
    return json_fields.string(json_fields.of_object(entry, name))


def _array_member(entry: Any, name: str) -> list[Any]:
    return json_fields.array(json_fields.of_object(entry, name))


def _shape(entry: Any) -> tuple[int, ...]:
    return tuple([json_fields.unsigned(each) for each in json_fields.array(json_fields.of_object(entry, "shape"))])


def _refuse_choice(given: tuple[bool, ...]) -> None:
    found = " ".join(name for name, is_set in zip(_CHOICES, given, strict=True) if is_set)
    raise InvalidArgumentError(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        "'shared_memory_region' in 'parameters'. But " + (f"set {found}" if found else "no field is set")
    )


# --- parameters ---------------------------------------------------------------------------------


def _read_parameters(given: Any, request: InferRequest, answer: ResponseFormat) -> None:
    try:
        names = json_fields.names(given)
    except InternalError as error:
        raise InternalError(f"failed to get request params.: {error}") from None
    for name in names:
        value = given[name]
        if name == "sequence_id":
            request.correlation_id = json_fields.parsed(name, _correlation_id, value)
        elif name == "sequence_start":
            request.flags |= SEQUENCE_START * json_fields.parsed(name, json_fields.boolean, value)
        elif name == "sequence_end":
            request.flags |= SEQUENCE_END * json_fields.parsed(name, json_fields.boolean, value)
        elif name == "priority":
            request.priority = json_fields.parsed(name, json_fields.unsigned, value)
        elif name == "timeout":
            request.timeout_us = json_fields.parsed(name, json_fields.unsigned, value)
        elif name == "binary_data_output":
            answer.binary = json_fields.parsed(name, json_fields.boolean, value)
        else:
            if name.startswith("triton_"):
                raise InvalidArgumentError(
                    "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
                )
            request.parameters[name] = custom_parameter(name, value)


def _correlation_id(value: Any) -> int | str:
    if type(value) is int and 0 <= value < 2**64:
        return value
    text = json_fields.string(value)
    if len(text.encode("utf-8", "surrogateescape")) > MAX_CORRELATION_ID_BYTES:
        raise UnsupportedError(f"string correlation ID cannot be longer than {MAX_CORRELATION_ID_BYTES} characters")
    return text


def custom_parameter(name: str, value: Any) -> ParameterValue:
    """A request parameter that means nothing to the server.

    Raises
    ------
    InvalidArgumentError
        If it is neither a string, an integer, a boolean, nor a number.
    """
    if type(value) is int:
        return value if -(2**63) <= value < 2**63 else float(value)
    if isinstance(value, (str, bool, float)):
        return value
    raise InvalidArgumentError(f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.")


# --- outputs ------------------------------------------------------------------------------------


def _read_outputs(listed: Any, request: InferRequest, answer: ResponseFormat, shared_memory: SharedMemory) -> None:
    for entry in json_fields.parsed("outputs", json_fields.array, listed):
        parameters = entry.get("parameters") if isinstance(entry, dict) else None
        if not isinstance(parameters, dict):
            parameters = {}
        if "shared_memory_region" in parameters:
            _check_region_alone(parameters)
        name = entry.get("name") if isinstance(entry, dict) else None
        if type(name) is not str:
            name = json_fields.parsed("name", _string_member, entry, "name")
        output = _output_format(parameters, shared_memory) if parameters else OutputFormat()
        answer.outputs.setdefault(name, output)
    if answer.outputs:
        request.requested_outputs = tuple(answer.outputs)
        answer.binary = False


def _output_format(parameters: dict[str, Any], shared_memory: SharedMemory) -> OutputFormat:
    output = OutputFormat()
    if "classification" in parameters:
        output.classification = _set("classification", json_fields.unsigned, parameters)
    if "shared_memory_region" in parameters:
        output.region = _region(parameters, shared_memory)
    if "binary_data" in parameters:
        output.binary = json_fields.parsed("binary_data", json_fields.boolean, parameters["binary_data"])
    return output


def _check_region_alone(parameters: dict[str, Any]) -> None:
    """An output in shared memory is neither classes nor in the answer."""
    if "classification" in parameters:
        raise InvalidArgumentError("Output can't set both 'shared_memory_region' and 'classification'")
    if "binary_data" in parameters and _set("binary_data", json_fields.boolean, parameters):
        raise InvalidArgumentError("Output can't set both 'shared_memory_region' and 'binary_data'")


def _set(name: str, read: Callable[[Any], T], parameters: dict[str, Any]) -> T:
    try:
        return read(parameters[name])
    except InternalError as error:
        raise InternalError(f"Unable to set '{name}': {error}") from None


def _region(parameters: dict[str, Any], shared_memory: SharedMemory) -> Part:
    """The part of a region that an input or output is in."""
    region = json_fields.parsed("shared_memory_region", json_fields.string, parameters["shared_memory_region"])
    offset, byte_size = (
        json_fields.parsed(name, json_fields.unsigned, parameters.get(name, 0))
        for name in ("shared_memory_offset", "shared_memory_byte_size")
    )
    return shared_memory.part(region, offset, byte_size)
