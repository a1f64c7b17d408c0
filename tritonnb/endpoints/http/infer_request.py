"""An HTTP inference request: from the body to an `InferRequest`.

Implements the inference protocol, the binary tensor data extension with its raw binary requests,
the parameters, sequence, priority and classification extensions. The order of the checks and their texts are those
of Triton's server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from msgspec import UNSET
from msgspec.structs import astuple

from tritonnb.core.datatypes import BY_NAME, INVALID
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnsupportedError
from tritonnb.core.messages import MAX_CORRELATION_ID_BYTES, InferRequest, ParameterValue
from tritonnb.core.schedulable import SEQUENCE_END, SEQUENCE_START
from tritonnb.core.shapes import element_count
from tritonnb.endpoints.http import json_fields, json_reader, plain_header
from tritonnb.endpoints.http.tensor_data import tensor_from_json
from tritonnb.endpoints.long_work import LONG
from tritonnb.endpoints.tensors import (
    BINARY,
    DEFAULT,
    OutputFormat,
    ResponseFormat,
    binary_tensor,
    check_overflow,
    float_tensor,
)
from tritonnb.engine.shared_memory import Part, SharedMemory
from tritonnb.model_config.schema import ModelSpec

T = TypeVar("T")
# Names of other modules are looked up in two dictionaries each time, these are not.
_UNSET: Final = UNSET
_BY_NAME: Final = BY_NAME
_INVALID: Final = INVALID
_decode: Final = plain_header.decode
# A look at an attribute of a structure takes as long as all of them in a tuple.
_fields: Final = astuple
_MAX_INT64: Final = 2**63 - 1
#: Name, datatype, shape, parameters and data of an input; the last two may be missing.
_Input = tuple[str, str, list[int], Any, Any]
#: Name and parameters of a requested output; the latter may be missing.
_Output = tuple[str, Any]
#: Where the contents of an input may be.
_SOURCES = ("'data'", "'binary_data_size'", "'shared_memory_region'")


def read_request(
    spec: ModelSpec,
    version: int,
    body: bytes | bytearray | memoryview,
    length: int,
    max_input_size: int,
    shared_memory: SharedMemory,
    raw: bytes | None = None,
) -> tuple[InferRequest, ResponseFormat]:
    """Read one request.

    Parameters
    ----------
    spec : ModelSpec
        Of the requested model.
    version : int
    body : bytes, bytearray or memoryview
        Decompressed.
    length : int
        Bytes of the JSON part.
    max_input_size : int
        ``--http-max-input-size``, in bytes: the limit for the JSON part, a JSON tensor, and a raw binary request.
    shared_memory : SharedMemory
        The regions that tensors may be in.
    raw : bytes, optional
        The JSON part, if the caller has it.

    Raises
    ------
    TritonError
        If the request is invalid; with Triton's text.
    """
    # A length of 0 means a raw binary request and not an empty one, in the words of Triton's extension.
    if not length:
        return _read_raw(spec, version, body, max_input_size), ResponseFormat(binary=True)
    if raw is None:
        raw = body if type(body) is bytes and length == len(body) else bytes(body[: min(length, LONG)])
    request = InferRequest(spec.name, {}, model_version=version)
    response_format = ResponseFormat()
    # A body beyond the limit goes to the strict reader, which has the error.
    # The strict reader also reads long documents, in pieces.
    header = _decode_plain(raw) if length <= min(max_input_size, LONG) else None
    if header is not None:
        plain_inputs, request_id, parameters, plain_outputs = header
        if request_id is not _UNSET:
            request.id = request_id
        if parameters is not _UNSET:
            _read_parameters(parameters, request, response_format)
        _read_inputs(plain_inputs, request, body, length, max_input_size, shared_memory)
        _read_outputs(plain_outputs, request, response_format, shared_memory)
        return request, response_format
    document = json_reader.parse_request(memoryview(body)[:length], max_input_size, tensors=True)
    if isinstance(document, dict):
        if "id" in document:
            request.id = json_fields.read_field("id", json_fields.string, document["id"])
        if "parameters" in document:
            _read_parameters(document["parameters"], request, response_format)
    inputs = document.get("inputs") if isinstance(document, dict) else None
    if type(inputs) is not list:
        inputs = json_fields.read_field("inputs", _array_member, document, "inputs")
    # Each entry is checked when its turn comes.
    _read_inputs(map(_checked_input, inputs), request, body, length, max_input_size, shared_memory)
    if isinstance(document, dict) and "outputs" in document:
        outputs = json_fields.read_field("outputs", json_fields.array, document["outputs"])
        _read_outputs(map(_checked_output, outputs), request, response_format, shared_memory)
    return request, response_format


def _decode_plain(raw: bytes) -> tuple[list[Any], Any, Any, list[Any]] | None:
    """Decode a plain request: each `_Input`, the ID, the parameters, each `_Output`; ID and parameters may be missing.

    Return None for any other request, and for one with fields that exclude each other.

    Without escapes, a document has two quotes for each of its strings. If it has more, an object names a member twice.
    """
    # Escapes could spell a quote, which would defeat the count below.
    if not raw.isascii() or ord("\\") in raw:
        return None
    try:
        header: tuple[Any, ...] = _fields(_decode(raw))
    except plain_header.NOT_PLAIN:
        return None
    # Of `Any`, since mypyc would copy each tuple of another type into the list.
    inputs: list[Any] = [_fields(entry) for entry in header[0]]
    outputs: list[Any] = []
    request_id, request_parameters = header[1], header[2]
    strings: int = 1 + 5 * len(inputs)
    has_numbers = has_floats = False
    if request_id is not _UNSET:
        strings += 2
    if request_parameters is not _UNSET:
        strings += _strings_in(request_parameters)
        has_numbers = float in map(type, request_parameters.values())
    fields: tuple[Any, ...]
    for fields in inputs:
        parameters, data = fields[3], fields[4]
        sources = 0
        if parameters is not _UNSET:
            strings += _strings_in(parameters)
            sources += "binary_data_size" in parameters
            sources += "shared_memory_region" in parameters
        if data is not _UNSET:
            sources += 1
            strings += 1
            # msgspec refuses what exceeds a double as RapidJSON does, except a zero with any exponent.
            if _are_floats_other_than_zero(data):
                has_floats = True
            # Too few strings are harmless, since the strict reader counts none; too many are not.
            elif data and type(data[0]) is str and set(map(type, data)) == {str}:
                strings += len(data)
            else:
                has_numbers = True
        if sources != 1:
            return None
    if header[3] is not _UNSET:
        outputs = [_fields(entry) for entry in header[3]]
        strings += 1 + 2 * len(outputs)
        for fields in outputs:
            parameters = fields[1]
            if parameters is not _UNSET:
                strings += _strings_in(parameters)
                if (
                    len(parameters) > 1
                    and "shared_memory_region" in parameters
                    and not parameters.keys().isdisjoint(("classification", "binary_data"))
                ):
                    return None
    # msgspec keeps the last of two members of one name and RapidJSON the first, so this count is what makes the typed
    # decoder safe.
    if 2 * strings != raw.count(b'"'):
        return None
    # RapidJSON also refuses a float with digits that exceed a double, although a negative exponent makes it small.
    has_numbers = has_numbers or (has_floats and raw.find(b"-") >= 0 and (raw.find(b"e-") >= 0 or raw.find(b"E-") >= 0))
    if has_numbers and not json_reader.is_ordinary(raw):
        return None
    return inputs, request_id, request_parameters, outputs


def _are_floats_other_than_zero(data: list[Any]) -> bool:
    for element in data:  # noqa: SIM110  (mypyc would make a list of a generator)
        if not isinstance(element, float) or element == 0.0:
            return False
    return True


def _strings_in(parameters: dict[str, object]) -> int:
    """Return the number of strings of the member `parameters`."""
    strings = 1
    for value in parameters.values():
        strings += 2 if type(value) is str else 1
    return strings


# --- inputs -------------------------------------------------------------------------------


def _read_inputs(
    entries: Iterable[_Input],
    request: InferRequest,
    body: bytes | bytearray | memoryview,
    length: int,
    max_input_size: int,
    shared_memory: SharedMemory,
) -> None:
    offset = length
    inputs = request.unchecked_inputs
    for name, datatype_name, dims, given_parameters, data in entries:
        parameters: dict[str, Any] = {} if given_parameters is _UNSET else given_parameters
        datatype = _BY_NAME.get(datatype_name, _INVALID)
        shape = tuple(dims)
        if name in inputs:
            raise InvalidArgumentError(f"{request.id_prefix}input '{name}' already exists in request")
        check_overflow(name, datatype, shape)
        if "binary_data_size" in parameters:
            size = parameters["binary_data_size"]
            # The plain decoder has checked the type; this is for the strict reader, without a second function.
            if type(size) is not int or not 0 <= size <= _MAX_INT64:
                size = json_fields.read_field("binary_data_size", json_fields.unsigned, size)
            if offset + size > len(body):
                missing = offset + size - len(body)
                raise InvalidArgumentError(
                    f"unexpected size for input '{name}', expecting {missing} additional bytes for model "
                    f"'{request.model_name}'"
                )
            # Binary contents follow each other in the order of the inputs: the protocol has no offsets.
            inputs[name] = binary_tensor(name, datatype, shape, body, offset, size)
            offset += size
        elif data is not _UNSET:
            tensor = float_tensor(name, datatype, shape, data, max_input_size) if type(data) is list else None
            inputs[name] = tensor or tensor_from_json(name, datatype, shape, data, max_input_size)
        else:
            part = _region(parameters, shared_memory).read()
            inputs[name] = binary_tensor(name, datatype, shape, part, 0, len(part))
    # After all inputs, because Triton takes the inputs one by one and then looks at what is left.
    if offset != len(body):
        raise InvalidArgumentError(f"unexpected additional input data for model '{request.model_name}'")


def _read_raw(spec: ModelSpec, version: int, body: bytes | bytearray | memoryview, max_input_size: int) -> InferRequest:
    """Read a raw binary request: its body is the contents of the model's only input; the shape is deduced."""
    request = InferRequest(spec.name, {}, model_version=version)
    if len(body) > max_input_size:
        raise InvalidArgumentError(
            f"Raw input has a byte_size ({len(body)} bytes) that exceeds the maximum allowed value of "
            f"{max_input_size} bytes. Use --http-max-input-size to increase the limit."
        )
    if len(spec.inputs) != 1:
        raise InvalidArgumentError(
            f"{request.id_prefix}Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(spec.inputs)} inputs in '{spec.name}' model configuration"
        )
    (tensor,) = spec.inputs.values()
    batch = (1,) if spec.max_batch_size > 0 else ()
    if tensor.datatype.variable_size:
        if tensor.dims != (1,):
            raise InvalidArgumentError(
                f"{request.id_prefix}For BYTE datatype raw input '{tensor.name}', the model must have input shape [1]"
            )
        # A raw string has no length in front of it, unlike each string of a tensor.
        body = b"".join((len(body).to_bytes(4, "little"), body))
    elif tensor.dims.count(-1) > 1:
        raise InvalidArgumentError(
            f"{request.id_prefix}The shape of the raw input '{tensor.name}' can not be deduced because there "
            "are more than one variable-sized dimension"
        )
    row = tensor.datatype.itemsize * element_count([dim for dim in tensor.dims if dim > 0])
    dims = tuple(len(body) // row if dim == -1 else dim for dim in tensor.dims)
    expected = element_count(dims) * tensor.datatype.itemsize
    if not tensor.datatype.variable_size and expected != len(body):
        # Triton's text always calls the input 'raw_input'.
        raise InvalidArgumentError(
            f"{request.id_prefix}input byte size mismatch for input 'raw_input' for model '{spec.name}'. "
            f"Expected {expected}, got {len(body)}"
        )
    request.unchecked_inputs[tensor.name] = binary_tensor(
        tensor.name, tensor.datatype, batch + dims, body, 0, len(body)
    )
    return request


def _checked_input(entry: object) -> _Input:
    """Read an input; its members may be missing or of another type."""
    members = entry if isinstance(entry, dict) else {}
    parameters = members.get("parameters")
    if not isinstance(parameters, dict):
        parameters = {}
    sources = "data" in members, "binary_data_size" in parameters, "shared_memory_region" in parameters
    if sum(sources) != 1:
        _refuse_sources(sources)
    name = json_fields.read_field("name", _string_member, entry, "name")
    datatype = json_fields.read_field("datatype", _string_member, entry, "datatype")
    shape = json_fields.read_field("shape", _shape, entry)
    return name, datatype, shape, parameters, members.get("data", UNSET)


def _string_member(entry: object, name: str) -> str:
    return json_fields.string(json_fields.member(entry, name))


def _array_member(entry: object, name: str) -> list[object]:
    return json_fields.array(json_fields.member(entry, name))


def _shape(entry: object) -> list[int]:
    return [json_fields.unsigned(dim) for dim in json_fields.array(json_fields.member(entry, "shape"))]


def _refuse_sources(sources: tuple[bool, ...]) -> None:
    fields = " ".join(field for field, is_set in zip(_SOURCES, sources, strict=True) if is_set)
    raise InvalidArgumentError(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        "'shared_memory_region' in 'parameters'. But " + (f"set {fields}" if fields else "no field is set")
    )


# --- parameters ---------------------------------------------------------------------------------


def _read_parameters(parameters: object, request: InferRequest, response_format: ResponseFormat) -> None:
    try:
        names = json_fields.names(parameters)
    except InternalError as error:
        raise InternalError(f"failed to get request params.: {error}") from None
    assert isinstance(parameters, dict)  # it has names
    for name in names:
        value = parameters[name]
        if name == "sequence_id":
            request.correlation_id = json_fields.read_field(name, _correlation_id, value)
        elif name == "sequence_start":
            request.flags |= SEQUENCE_START * json_fields.read_field(name, json_fields.boolean, value)
        elif name == "sequence_end":
            request.flags |= SEQUENCE_END * json_fields.read_field(name, json_fields.boolean, value)
        elif name == "priority":
            request.priority = json_fields.read_field(name, json_fields.unsigned, value)
        elif name == "timeout":
            request.timeout_us = json_fields.read_field(name, json_fields.unsigned, value)
        elif name == "binary_data_output":
            response_format.binary = json_fields.read_field(name, json_fields.boolean, value)
        else:
            # The prefix belongs to Triton's own parameters, of which none is valid over HTTP.
            if name.startswith("triton_"):
                raise InvalidArgumentError(
                    "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
                )
            request.parameters[name] = custom_parameter(name, value)


def _correlation_id(value: object) -> int | str:
    if type(value) is int and 0 <= value < 2**64:
        return value
    text = json_fields.string(value)
    if len(text.encode("utf-8", "surrogateescape")) > MAX_CORRELATION_ID_BYTES:
        raise UnsupportedError(f"string correlation ID cannot be longer than {MAX_CORRELATION_ID_BYTES} characters")
    return text


def custom_parameter(name: str, value: object) -> ParameterValue:
    """Check the value of a request parameter that only the model uses.

    Raises
    ------
    InvalidArgumentError
        If the value is not a string, an integer, a boolean, or a number.
    """
    if type(value) is int:
        # RapidJSON reads an integer beyond 64 bits as a double.
        return value if -(2**63) <= value < 2**63 else float(value)
    if isinstance(value, (str, bool, float)):
        return value
    raise InvalidArgumentError(f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.")


# --- outputs ------------------------------------------------------------------------------------


def _read_outputs(
    entries: Iterable[_Output], request: InferRequest, response_format: ResponseFormat, shared_memory: SharedMemory
) -> None:
    for name, given_parameters in entries:
        parameters: dict[str, Any] = {} if given_parameters is _UNSET else given_parameters
        if name in response_format.outputs:
            raise InvalidArgumentError(f"{request.id_prefix}output '{name}' already exists in request")
        response_format.outputs[name] = _output_format(parameters, shared_memory) if parameters else DEFAULT
    if response_format.outputs:
        request.requested_outputs = tuple(response_format.outputs)
        # `binary_data_output` only covers outputs that are not listed, so a list of outputs turns it off.
        response_format.binary = False


def _checked_output(entry: object) -> _Output:
    """Read a requested output; its members may be missing or of another type."""
    parameters = entry.get("parameters") if isinstance(entry, dict) else None
    if not isinstance(parameters, dict):
        parameters = {}
    if "shared_memory_region" in parameters:
        _check_region_alone(parameters)
    return json_fields.read_field("name", _string_member, entry, "name"), parameters


def _output_format(parameters: dict[str, object], shared_memory: SharedMemory) -> OutputFormat:
    binary = parameters.get("binary_data")
    if len(parameters) == 1 and type(binary) is bool:
        return BINARY if binary else DEFAULT
    output = OutputFormat()
    if "classification" in parameters:
        output.classification = _set("classification", json_fields.unsigned, parameters)
    if "shared_memory_region" in parameters:
        output.region = _region(parameters, shared_memory)
    if "binary_data" in parameters:
        output.binary = json_fields.read_field("binary_data", json_fields.boolean, parameters["binary_data"])
    return output


def _check_region_alone(parameters: dict[str, object]) -> None:
    """Refuse an output in shared memory that is also requested as classes or in the response."""
    if "classification" in parameters:
        raise InvalidArgumentError("Output can't set both 'shared_memory_region' and 'classification'")
    if "binary_data" in parameters and _set("binary_data", json_fields.boolean, parameters):
        raise InvalidArgumentError("Output can't set both 'shared_memory_region' and 'binary_data'")


def _set(name: str, read: Callable[[object], T], parameters: dict[str, object]) -> T:
    try:
        return read(parameters[name])
    except InternalError as error:
        raise InternalError(f"Unable to set '{name}': {error}") from None


def _region(parameters: dict[str, object], shared_memory: SharedMemory) -> Part:
    """Read the region of an input or output, and the part of it."""
    region = json_fields.read_field("shared_memory_region", json_fields.string, parameters["shared_memory_region"])
    offset, byte_size = (
        json_fields.read_field(name, json_fields.unsigned, parameters.get(name, 0))
        for name in ("shared_memory_offset", "shared_memory_byte_size")
    )
    return shared_memory.part(region, offset, byte_size)
