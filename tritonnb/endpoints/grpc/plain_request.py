"""Plain ``ModelInferRequest`` messages, read without protobuf.

A message is plain if it has what most clients send, in protobuf's order of writing: the model, a version, an
ID, inputs and requested outputs without parameters, and the raw contents of each input. Its tensors are views of the
message. All others, and all that have to be refused, are left to `tritonnb.endpoints.grpc.infer_request`.
"""

from __future__ import annotations

import math
from typing import Final

from tritonnb.core.datatypes import BY_NAME, DataType
from tritonnb.core.messages import InferRequest
from tritonnb.core.protobuf import service_pb2 as pb
from tritonnb.endpoints.grpc.infer_response import LENGTH_DELIMITED
from tritonnb.endpoints.tensors import DEFAULT, ResponseFormat, binary_tensor
from tritonnb.model_config.schema import ModelSpec

#: The largest part of a message before its raw contents, in bytes.
_LONGEST_HEAD: Final = 4096
#: Bytes of a tag and a length.
_PREFIX: Final = 11
#: Elements of a tensor of any datatype.
_MAX_ELEMENTS: Final = 2**60 - 1
#: The largest numbers that are read, in bits: protobuf refuses lengths of more than five bytes.
_LENGTH_BITS: Final = 35
_DIM_BITS: Final = 63


def _tag(message: type, field: str) -> int:
    number: int = message.DESCRIPTOR.fields_by_name[field].number  # type: ignore[attr-defined]
    return number << 3 | LENGTH_DELIMITED


# One by one, since mypyc would look up the names of a tuple each time.
_MODEL_NAME: Final = _tag(pb.ModelInferRequest, "model_name")
_MODEL_VERSION: Final = _tag(pb.ModelInferRequest, "model_version")
_ID: Final = _tag(pb.ModelInferRequest, "id")
_INPUTS: Final = _tag(pb.ModelInferRequest, "inputs")
_OUTPUTS: Final = _tag(pb.ModelInferRequest, "outputs")
_RAW: Final = _tag(pb.ModelInferRequest, "raw_input_contents")
_INPUT_NAME: Final = _tag(pb.ModelInferRequest.InferInputTensor, "name")
_INPUT_DATATYPE: Final = _tag(pb.ModelInferRequest.InferInputTensor, "datatype")
_INPUT_SHAPE: Final = _tag(pb.ModelInferRequest.InferInputTensor, "shape")
_OUTPUT_NAME: Final = _tag(pb.ModelInferRequest.InferRequestedOutputTensor, "name")


class NotPlainError(Exception):
    """The message has to be read by protobuf."""


class PlainRequest:
    """A plain message.

    Attributes
    ----------
    model_name, model_version, id : str
    inputs : list of (str, DataType, tuple of int)
        Name, datatype and shape.
    outputs : list of str
    contents : list of (int, int)
        The offset and the size of the raw contents of each input.
    """

    __slots__ = ("_message", "contents", "id", "inputs", "model_name", "model_version", "outputs")

    def __init__(self, message: bytes | bytearray | memoryview) -> None:
        self._message = message
        self.model_name = self.model_version = self.id = ""
        self.inputs: list[tuple[str, DataType, tuple[int, ...]]] = []
        self.outputs: list[str] = []
        self.contents: list[tuple[int, int]] = []

    @property
    def size(self) -> int:
        """Bytes of the message."""
        return len(self._message)

    def to_infer_request(self, spec: ModelSpec, version: int) -> tuple[InferRequest, ResponseFormat]:
        """Make the request; as `tritonnb.endpoints.grpc.infer_request.read_request`."""
        request = InferRequest(spec.name, {}, model_version=version, id=self.id)
        inputs = request.unchecked_inputs
        for (name, datatype, shape), (offset, size) in zip(self.inputs, self.contents, strict=True):
            inputs[name] = binary_tensor(name, datatype, shape, self._message, offset, size)
        response_format = ResponseFormat()
        if self.outputs:
            response_format.outputs = dict.fromkeys(self.outputs, DEFAULT)
            request.requested_outputs = tuple(self.outputs)
        return request, response_format


def read_plain(message: bytes | bytearray | memoryview) -> PlainRequest | None:
    """Read a message; None if it is not plain."""
    try:
        plain = _read(message)
    # A truncated message runs into IndexError, and is then refused by protobuf with its own text. A check at each byte
    # would cost every valid message.
    except (NotPlainError, IndexError, UnicodeDecodeError):
        return None
    # Two inputs of one name have their own error, which only the strict reader knows.
    names = [name for name, _, _ in plain.inputs]
    if len(plain.contents) != len(names) or _is_repeated(names) or _is_repeated(plain.outputs):
        return None
    return plain


def _is_repeated(names: list[str]) -> bool:
    return len(names) > 1 and len(set(names)) < len(names)


def _read(message: bytes | bytearray | memoryview) -> PlainRequest:
    plain = PlainRequest(message)
    size = len(message)
    # Indexing `bytes` is several operations less in compiled code than indexing a memoryview, and the head is small.
    head = bytes(message[:_LONGEST_HEAD])
    at = last_tag = 0
    while at < size:
        tag = head[at]
        # Protobuf writes fields by number and `raw_input_contents` has the largest, so everything after the first entry
        # is contents.
        if tag == _RAW:
            _read_contents(message, at, plain)
            return plain
        length, start = _varint(head, at + 1, _LENGTH_BITS)
        at = start + length
        if at > len(head):
            raise NotPlainError
        if tag == _INPUTS:
            plain.inputs.append(_input(head[start:at]))
        elif tag == _OUTPUTS:
            plain.outputs.append(_output(head[start:at]))
        # Repeated fields are handled above. Of another field that occurs twice, protobuf takes the last value, which is
        # not imitated here.
        elif tag <= last_tag:
            raise NotPlainError  # a field that occurs twice, or an unusual order
        elif tag == _MODEL_NAME:
            plain.model_name = head[start:at].decode()
        elif tag == _MODEL_VERSION:
            plain.model_version = head[start:at].decode()
        elif tag == _ID:
            plain.id = head[start:at].decode()
        else:
            raise NotPlainError
        last_tag = tag
    return plain


def _read_contents(message: bytes | bytearray | memoryview, at: int, plain: PlainRequest) -> None:
    """Find the raw contents, which are the rest of the message."""
    size = len(message)
    while at < size:
        prefix = bytes(message[at : at + _PREFIX])
        if prefix[0] != _RAW:
            raise NotPlainError
        length, offset = _varint(prefix, 1, _LENGTH_BITS)
        # Only offsets: a tensor of 100 MB is never copied out of its message.
        plain.contents.append((at + offset, length))
        at += offset + length
    if at != size:
        raise NotPlainError  # it is incomplete


def _input(field: bytes) -> tuple[str, DataType, tuple[int, ...]]:
    name, at = _string(field, _INPUT_NAME, 0)
    datatype_name, at = _string(field, _INPUT_DATATYPE, at)
    datatype = BY_NAME.get(datatype_name)
    # A scalar has no shape field at all, an unpacked shape another tag; both are rare and left to protobuf.
    if datatype is None or field[at] != _INPUT_SHAPE:
        raise NotPlainError
    length, at = _varint(field, at + 1, _LENGTH_BITS)
    if at + length != len(field):
        raise NotPlainError
    dims: list[int] = []
    while at < len(field):
        dim, at = _varint(field, at, _DIM_BITS)
        dims.append(dim)
    shape = tuple(dims)
    # A limit that holds for every datatype; what is near it is refused anyway, with a text that depends on the
    # datatype.
    if math.prod([max(1, dim) for dim in shape]) > _MAX_ELEMENTS:
        raise NotPlainError
    return name, datatype, shape


def _output(field: bytes) -> str:
    name, at = _string(field, _OUTPUT_NAME, 0)
    if at != len(field):
        raise NotPlainError
    return name


def _string(data: bytes, tag: int, at: int) -> tuple[str, int]:
    """Read a string field; return it and its end."""
    if data[at] != tag:
        raise NotPlainError
    length, start = _varint(data, at + 1, _LENGTH_BITS)
    if start + length > len(data):
        raise NotPlainError
    return data[start : start + length].decode(), start + length


def _varint(data: bytes, at: int, bits: int) -> tuple[int, int]:
    """Read a number; return it and its end."""
    # Nearly every length and dimension fits into seven bits.
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while shift < bits:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise NotPlainError
